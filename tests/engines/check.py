"""Checks that folders quantized by the program are what the engines' packages expect.

    python3 tests/engines/check.py target/release/warpweft [--only llama-tied] [--keep FOLDER]

Tiny models with seeded bf16 weights are quantized by `warpweft quantize --format F --to DIALECT IN OUT`, some with
`--rule`. One row per model, dialect and format says whether the tensors are those of an independent quantizer, byte
for byte; whether the configuration selects exactly the quantized linears; whether the package's own code reads the
values that `dialects.py` states, bit for bit; and how far the logits of the loaded model are from those of a model of
these values, and from the unquantized ones. The exit status is 1 if any row fails.
"""

import argparse
import contextlib
import fnmatch
import io
import json
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from loguru import logger
from safetensors import safe_open
from transformers.utils import logging

import loading
import reference
import tiny
from dialects import linears_of, read, same_bits, tensors_of

DIALECTS = {
    "compressed-tensors": (*reference.FORMATS, "nvfp4_2d, one kept", "nvfp4_2d and fp8"),
    "modelopt": ("nvfp4_2d", "nvfp4_2d, one kept"),
    "deepseek-fp8": ("fp8_block", "fp8_block128_f32scale", "fp8_block, one kept"),
}
# What no engine reads; the program must say so and write nothing.
REFUSED = [("modelopt", "fp8_block"), ("deepseek-fp8", "mxfp8"), ("compressed-tensors", "fp8_tensor_e5m2")]
COLUMNS = ["model", "dialect", "format", "tensors", "config", "values", "loaded", "logits", "to bf16"]


def models():
    """Every model to quantize, with the greatest size of its files."""

    def planted(model):
        # A tensor of zeros, and a tile so small that its scale is zero though its elements are not.
        with torch.no_grad():
            model.model.layers[1].self_attn.o_proj.weight.zero_()
            model.model.layers[0].mlp.gate_proj.weight[:16, :16] *= 2.0**-40
        return model

    return {
        "llama": (planted(tiny.llama(256, 384, 2, layers=2, vocabulary=128, seed=11)), "1MB"),
        "llama-tied": (tiny.llama(128, 256, 1, layers=2, tied=True, vocabulary=128, seed=12), "5GB"),
        "mixtral": (tiny.mixtral(128, 256, 1, experts=4, vocabulary=128, seed=13), "5GB"),
    }


def run(program, *arguments):
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)


def quantize(program, source, dialect, form, folder):
    most, rules = reference.RULED.get(form, (form, {}))
    names = tensors_of(source)
    # A rule that matches no tensor is refused, and some are for one of the models.
    rules = {pattern: own for pattern, own in rules.items() if fnmatch.filter(names, pattern)}
    options = [word for pattern, own in rules.items() for word in ("--rule", f"{pattern}={own}")]
    return run(program, "quantize", "--format", most, "--to", dialect, *options, source, folder)


def first(names):
    """A few names, for a message."""
    names = sorted(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def tensor_faults(tensors, expected):
    """How the tensors of a folder differ from those of the independent quantizer."""
    faults = []
    if missing := expected.keys() - tensors.keys():
        faults.append(f"missing {first(missing)}")
    if surplus := tensors.keys() - expected.keys():
        faults.append(f"not expected {first(surplus)}")
    for name in sorted(expected.keys() & tensors.keys()):
        one, other = tensors[name], expected[name]
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            shapes = f"{one.dtype} {list(one.shape)}, not {other.dtype} {list(other.shape)}"
            faults.append(f"{name} is {shapes}")
        else:
            mine, theirs = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
            if different := (mine != theirs).sum().item():
                faults.append(f"{name} differs in {different} of {mine.numel()} bytes")
    return faults


def file_faults(source, folder):
    """What is wrong with the files around the tensors."""
    faults = []
    before, after = (json.loads((path / "config.json").read_text()) for path in (source, folder))
    after.pop("quantization_config", None)
    if before != after:
        changed = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
        faults.append(f"config.json has other values for {first(changed)}")
    for path in source.iterdir():
        if path.suffix == ".safetensors" or path.name in ("config.json", "model.safetensors.index.json"):
            continue
        if not (folder / path.name).exists() or (folder / path.name).read_bytes() != path.read_bytes():
            faults.append(f"{path.name} did not travel along")
    held = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            held |= dict.fromkeys(file.keys(), path.name)
            if (file.metadata() or {}).get("format") != "pt":
                faults.append(f"the metadata of {path.name} lacks format: pt")
    index = folder / "model.safetensors.index.json"
    if index.exists() and json.loads(index.read_text())["weight_map"] != held:
        faults.append("the index names other files than hold the tensors")
    return faults


def config_faults(folder, dialect, tensors):
    """How what the configuration selects differs from what is quantized."""
    linears = set(linears_of(tensors))
    modules = {name.removesuffix(".weight") for name, tensor in tensors.items() if tensor.dim() == 2}
    modules = {name for name in modules if not name.endswith(("_scale", "_packed", "_inv"))} | linears | {"lm_head"}
    chosen = loading.selected(folder, dialect, sorted(modules))
    faults = loading.complaints(folder, dialect)
    if chosen - linears:
        faults.append(f"selects {first(chosen - linears)}, not quantized")
    if linears - chosen:
        faults.append(f"does not select {first(linears - chosen)}")
    return faults


class Row:
    """One row of the table: short words by column, and what failed."""

    def __init__(self, *words):
        self.cells = dict(zip(COLUMNS, words))
        self.faults = []

    def judge(self, column, faults, word="equal"):
        self.cells[column] = "FAILS" if faults else word
        self.faults += [f"{column}: {fault}" for fault in faults]

    def attempt(self, column, action, word="equal"):
        """Judges by what an action returns; what it throws is a fault as well."""
        try:
            self.judge(column, action(), word)
        except Exception as error:  # The packages throw anything.
            self.judge(column, [f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"])

    def __str__(self):
        widths = [10, 18, 21, 7, 8, 7, 18, 8, 8]
        return "  ".join(f"{self.cells.get(name, ''):{width}}" for name, width in zip(COLUMNS, widths)).rstrip()


def compared(one, other):
    """The greatest difference of logits, relative to the greatest logit."""
    return ((one - other).abs().max() / other.abs().max()).item()


def load_faults(row, folder, dialect, expected, source):
    """Loads a model in every way that there is, and compares weights and logits."""
    right = loading.model_of(source, expected)
    right_logits = loading.logits(right)
    row.cells["to bf16"] = f"{compared(right_logits, loading.logits(loading.model_of(source, {}))):.1e}"
    faults = []
    for way, arguments in loading.ways(folder, dialect, source).items():
        rounds = way == "plain" and dialect == "compressed-tensors"
        model, logits = loading.loaded(folder, arguments)
        wanted = loading.model_of(source, loading.by_bf16_scales(folder)) if rounds else right
        if wrong := loading.unequal(model, wanted):
            faults.append(f"{way}: other values in {first(wrong)}")
        # Loaded plainly, compressed-tensors also rounds activations as its groups say.
        if rounds:
            continue
        row.cells["logits"] = f"{compared(logits, right_logits):.1e}"
        if compared(logits, right_logits) > 2.0**-7:
            faults.append(f"{way}: logits are {row.cells['logits']} off")
    return faults


def check(program, name, source, dialect, form, folder):
    row = Row(name, dialect, form)
    done = quantize(program, source, dialect, form, folder)
    if done.returncode != 0:
        row.judge("tensors", [f"exit status {done.returncode}: {done.stderr.strip()[-500:]}"])
        return row
    tensors, wanted = tensors_of(folder), reference.tensors(tensors_of(source), form, dialect)
    row.attempt("tensors", lambda: tensor_faults(tensors, wanted) + file_faults(source, folder))
    row.attempt("config", lambda: config_faults(folder, dialect, tensors), "complete")
    expected = {linear: read(own) for linear, own in linears_of(wanted).items()}

    def value_faults():
        values = loading.values(folder, dialect)
        wrong = [linear for linear, value in expected.items() if not same_bits(values[linear], value)]
        return [f"other values in {first(wrong)}"] if wrong else []

    row.attempt("values", value_faults)
    if ways := loading.ways(folder, dialect, source):
        row.attempt("loaded", lambda: load_faults(row, folder, dialect, expected, source), ", ".join(ways))
    else:
        row.cells["loaded"] = "per linear"
    return row


def refused(program, source, dialect, form, folder):
    row = Row("llama-tied", dialect, form)
    done = quantize(program, source, dialect, form, folder)
    faults = []
    if done.returncode == 0:
        faults.append("was not refused")
    if folder.exists() and any(folder.iterdir()):
        faults.append("was refused, and left files")
    row.judge("tensors", faults, "refused")
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="path of the program `warpweft`")
    parser.add_argument("--only", help="the one model to check")
    parser.add_argument("--keep", type=Path, help="an empty or new folder that keeps every folder written")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    logger.remove()
    program = str(Path(arguments.program).resolve())
    root = arguments.keep or Path(tempfile.mkdtemp(prefix="engines-"))
    rows = []
    print(Row(*COLUMNS))

    def show(row):
        rows.append(row)
        print(row, *(f"    {fault}" for fault in row.faults), sep="\n", flush=True)

    for name, (model, size) in models().items():
        if arguments.only not in (None, name):
            continue
        source = root / name
        with contextlib.redirect_stderr(io.StringIO()):
            model.save_pretrained(source, max_shard_size=size)
        (source / "tokenizer_config.json").write_text('{"model_max_length": 64}\n')
        for dialect, forms in DIALECTS.items():
            for form in forms:
                folder = root / f"{name}-{dialect}-{form}".replace(", ", "-").replace(" ", "-")
                with contextlib.redirect_stderr(io.StringIO()):  # Bars of progress.
                    row = check(program, name, source, dialect, form, folder)
                show(row)
        if name == "llama-tied":
            for dialect, form in REFUSED:
                show(refused(program, source, dialect, form, root / f"refused-{dialect}-{form}"))
    if arguments.keep is None:
        shutil.rmtree(root)
    failed = sum(bool(row.faults) for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} rows hold")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
