"""Makes tests/data/engines/written.json: digests of what the program writes, once the engines' packages have read it.

    python3 tests/engines/make_written.py target/release/warpweft

A tiny Llama whose weights follow from their names, so that `cargo test` makes the same ones, is quantized into every
dialect and format. Every folder is checked as `check.py` does; then the SHA-256 of its `model.safetensors` is written
down. `cargo test` compares these with what the library writes.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import check
import reference
import tiny

WRITTEN = Path(__file__).parent.parent / "data" / "engines" / "written.json"
MASK = (1 << 64) - 1


def values(name, count):
    """Values between −1 and 1 that follow from a name: the upper bits of a linear congruential generator, cubed."""
    state = 17
    for byte in name.encode():
        state = (state * 31 + byte) & MASK
    state |= 1
    drawn = np.empty(count, dtype=np.float32)
    for at in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
        unit = np.float32(np.float32(state >> 40) / np.float32(1 << 23) - np.float32(1))
        drawn[at] = unit * unit * unit
    return drawn


def model():
    """A Llama of one layer."""
    llama = tiny.llama(128, 128, 1, layers=1, vocabulary=32, seed=1)
    with torch.no_grad():
        for name, weight in llama.named_parameters():
            drawn = torch.from_numpy(values(name, weight.numel())).to(torch.bfloat16)
            weight.copy_(drawn.reshape(weight.shape))
    return llama


def main():
    program = sys.argv[1]
    written = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "model"
        model().save_pretrained(source)
        for dialect, forms in check.DIALECTS.items():
            for form in set(forms) - set(reference.RULED):
                target = Path(folder) / f"{dialect}-{form}"
                row = check.check(program, "written", source, dialect, form, target)
                if row.faults:
                    sys.exit(f"{dialect} {form}: {row.faults}")
                digest = hashlib.sha256((target / "model.safetensors").read_bytes()).hexdigest()
                written.setdefault(dialect, {})[form] = digest
    WRITTEN.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
