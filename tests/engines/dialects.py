"""What each dialect's tensors mean: an independent reader, operation by operation as README.md states them.

    python3 tests/engines/dialects.py

compares it bit for bit with the values that the packages read out of the golden folders.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)


def f32(tensor):
    """The exact values of a tensor of floats of at most 32 bits, as numpy's float32."""
    return tensor.to(torch.float32).numpy()


def bf16(numbers):
    """Numbers rounded once to bf16, ties to even."""
    return torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float32)).to(torch.bfloat16)


def nibbles(packed):
    """Codes 0..15 of packed bytes; the low half of a byte is the even column."""
    packed = packed.numpy()
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)


def e2m1(codes, zero_has_sign):
    """Values of codes; ModelOpt's table has a positive zero for code 8, compressed-tensors a negative one."""
    sign = np.where(codes >= 8, np.float32(-1), np.float32(1))
    value = E2M1[codes & 7] * sign
    return value if zero_has_sign else value + np.float32(0)


def spread(scale, shape, block):
    """A scale for every element: rows and columns of blocks repeated, and cropped to the weight."""
    return scale.repeat(block[0], axis=0).repeat(block[1], axis=1)[: shape[0], : shape[1]]


def nvfp4_compressed_tensors(own):
    codes = e2m1(nibbles(own["weight_packed"]), zero_has_sign=True)
    scale = f32(own["weight_scale"]) / f32(own["weight_global_scale"])[0]
    return bf16(codes * spread(scale, codes.shape, (1, 16)))


def nvfp4_modelopt(own):
    codes = e2m1(nibbles(own["weight"]), zero_has_sign=False)
    scale = f32(own["weight_scale"]) * f32(own["weight_scale_2"])
    return bf16(codes * spread(scale, codes.shape, (1, 16)))


def fp8_block(own, scale):
    codes = f32(own["weight"])
    return bf16(codes * spread(f32(own[scale]), codes.shape, (128, 128)))


def fp8_tensor(own):
    return bf16(f32(own["weight"]) * f32(own["weight_scale"])[0])


def mxfp8(own):
    codes = f32(own["weight"])
    with np.errstate(over="ignore", invalid="ignore"):
        scale = np.ldexp(np.float64(1), own["weight_scale"].numpy().astype(np.int64) - 127).astype(np.float32)
        return bf16(codes * spread(scale, codes.shape, (1, 32)))


def read(own):
    """The bf16 weight of a linear out of its own tensors, whatever the dialect; None where it is not quantized."""
    if "weight_packed" in own:
        return nvfp4_compressed_tensors(own)
    if "weight_scale_2" in own:
        return nvfp4_modelopt(own)
    if "weight_scale_inv" in own:
        return fp8_block(own, "weight_scale_inv")
    if "weight_scale" not in own:
        return None
    if own["weight_scale"].dtype == torch.uint8:
        return mxfp8(own)
    return fp8_block(own, "weight_scale") if own["weight_scale"].dim() == 2 else fp8_tensor(own)


def tensors_of(folder):
    """Every tensor of a folder, whether it has one file or several with an index."""
    index = Path(folder) / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if index.exists():
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    tensors = {}
    for file in files:
        tensors |= load_file(Path(folder) / file)
    return tensors


def linears_of(tensors):
    """The tensors of every quantized linear, by its name and their own names."""
    linears = {}
    for name, tensor in tensors.items():
        module, _, parameter = name.rpartition(".")
        linears.setdefault(module, {})[parameter] = tensor
    return {module: own for module, own in linears.items() if any("scale" in parameter for parameter in own)}


def same_bits(one, other):
    """Whether two bf16 tensors are equal bit for bit, and so the signs of their zeros."""
    return one.shape == other.shape and torch.equal(one.view(torch.int16), other.view(torch.int16))


def main():
    root = Path(__file__).parent.parent / "data" / "engines"
    failed = False
    for folder in sorted(root.iterdir()):
        values = load_file(folder / "values.safetensors")
        linears = linears_of(tensors_of(folder))
        equal = [same_bits(read(own), values[f"{name}.weight"].to(torch.bfloat16)) for name, own in linears.items()]
        complete = len(linears) == len(values)
        failed |= not (all(equal) and complete)
        print(f"{folder.name:32} {sum(equal)} of {len(values)} linears equal")
    sys.exit(failed)


if __name__ == "__main__":
    main()
