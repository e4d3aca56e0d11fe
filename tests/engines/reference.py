"""An independent quantizer of whole weights, in numpy: what the program must write, byte for byte.

It follows the specification of the formats. All arithmetic is float32, every operation rounded by itself. Weights are
`[rows, columns]`. A format whose scales hang on the amax of the whole tensor takes it as an argument, because linears
that engines fuse share one.
"""

import fnmatch
import re

import numpy as np
import torch

F32_MAX = np.float32(3.4028235e38)
FORMATS = ("nvfp4_2d", "fp8_block", "fp8_block128_f32scale", "mxfp8", "fp8_tensor")
KEPT = "keep"
# Formats that differ between linears: the format of most, and rules, of which the last that matches a name counts.
RULED = {
    "nvfp4_2d, one kept": ("nvfp4_2d", {"*.layers.1.self_attn.o_proj.weight": KEPT}),
    "fp8_block, one kept": ("fp8_block", {"*.layers.1.self_attn.o_proj.weight": KEPT}),
    "nvfp4_2d and fp8": ("nvfp4_2d", {"*.self_attn.*": "fp8_block", "*.layers.1.mlp.down_proj.weight": "fp8_tensor"}),
}


def e4m3(numbers):
    """Bytes of numbers, rounded to nearest even and saturated at 448."""
    clamped = torch.from_numpy(np.clip(numbers, np.float32(-448), np.float32(448)))
    return clamped.to(torch.float8_e4m3fn).view(torch.uint8).numpy()


def e4m3_values(codes):
    return torch.from_numpy(codes).view(torch.float8_e4m3fn).to(torch.float32).numpy()


def e2m1(numbers):
    """Codes of numbers, ties to the even code; the sign of a zero is kept."""
    size = np.abs(numbers)
    code = np.zeros(numbers.shape, dtype=np.uint8)
    for below_is_even, bound in zip([True, False] * 4, (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5)):
        code += (size > bound) if below_is_even else (size >= bound)
    return code | (np.signbit(numbers).astype(np.uint8) << 3)


def block_amax(weight, rows, columns):
    """Greatest size in every block; the last ones may be cut off."""
    height, width = weight.shape
    padded = np.pad(np.abs(weight), ((0, -height % rows), (0, -width % columns)))
    return padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns).max(axis=(1, 3))


def over(scales, weight, rows, columns):
    """The scale of every element."""
    return scales.repeat(rows, axis=0).repeat(columns, axis=1)[: weight.shape[0], : weight.shape[1]]


def nvfp4_2d(weight, amax):
    """Codes 0..15 `[rows, columns]` and E4M3 bytes `[rows, columns / 16]`, those of a tile in each of its 16 rows."""
    encode = np.minimum(np.float32(2688) / amax, F32_MAX) if amax else np.float32(1)
    decode = np.float32(1) / encode
    factor = encode * np.float32(1 / 6)
    scales = e4m3(np.minimum(block_amax(weight, 16, 16) * factor, F32_MAX))
    inverse = np.minimum(np.float32(1) / (e4m3_values(scales) * decode), F32_MAX)
    codes = e2m1(weight * over(inverse, weight, 16, 16))
    return codes, scales.repeat(16, axis=0)[: weight.shape[0]]


def scale_of(amax, power_of_two):
    """Scales of E4M3 for amaxes: 448 / amax, at most the greatest float, 1 for zeros."""
    scale = np.where(amax == 0, np.float32(1), np.minimum(np.float32(448) / amax, F32_MAX))
    if power_of_two:
        scale = (scale.view(np.uint32) & np.uint32(0xFF800000)).view(np.float32)
    return scale


def fp8_block(weight, power_of_two):
    """E4M3 bytes and the inverse scales `[rows / 128, columns / 128]`, rounded up."""
    scale = scale_of(block_amax(weight, 128, 128), power_of_two)
    return e4m3(weight * over(scale, weight, 128, 128)), np.float32(1) / scale


def fp8_tensor(weight, amax):
    """E4M3 bytes and the inverse scale `[1]`."""
    scale = scale_of(np.array([amax], dtype=np.float32), power_of_two=False)
    return e4m3(weight * scale[0]), np.float32(1) / scale


def mxfp8(weight):
    """E4M3 bytes and E8M0 bytes `[rows, columns / 32]`."""
    bits = (block_amax(weight, 1, 32) * np.float32(1 / 448)).view(np.uint32)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    up = (mantissa > 0) & (exponent != 254) & ~((exponent == 0) & (mantissa <= 0x400000))
    scales = (exponent + up).astype(np.uint8)
    reciprocal = np.ldexp(np.float64(1), 127 - scales.astype(np.int64)).astype(np.float32)
    return e4m3(weight * over(reciprocal, weight, 1, 32)), scales


def shared_scale(name):
    """The name of the group of weights that engines fuse with this one, or its own."""
    name = re.sub(r"\.self_attn\.[qkv]_proj\.weight$", ".self_attn.qkv", name)
    name = re.sub(r"\.mlp\.(gate|up)_proj\.weight$", ".mlp.gate_up", name)
    return re.sub(r"\.w[13]\.weight$", ".w1_w3", name)


def is_quantized(name):
    """Whether a tensor of a Llama or Mixtral is the weight of a linear that is quantized."""
    return re.search(r"(_proj|\.experts\.\d+\.w[123])\.weight$", name) is not None


def format_of(name, form):
    """The format of a tensor, or `KEPT`."""
    if not is_quantized(name):
        return KEPT
    most, rules = RULED.get(form, (form, {}))
    return next((own for pattern, own in reversed(rules.items()) if fnmatch.fnmatchcase(name, pattern)), most)


def tensors(weights, form, dialect):
    """All tensors that a folder must have, from bf16 `weights`: linears quantized, and named as the dialect does."""
    formats = {name: format_of(name, form) for name in weights}
    numbers = {name: f32(weight) for name, weight in weights.items() if formats[name] != KEPT}
    amaxes = {}
    for name, weight in numbers.items():
        group = shared_scale(name)
        amaxes[group] = max(amaxes.get(group, np.float32(0)), np.abs(weight).max())
    expected = {name: weight for name, weight in weights.items() if name not in numbers}
    for name, weight in numbers.items():
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            own = linear_tensors(weight, amaxes[shared_scale(name)], formats[name], dialect)
        expected |= {f"{name.removesuffix('.weight')}.{parameter}": tensor for parameter, tensor in own.items()}
    return expected


def linear_tensors(weight, amax, form, dialect):
    """The tensors of one linear, by their own names."""
    if form == "nvfp4_2d":
        codes, scales = nvfp4_2d(weight, amax)
        packed, scales = torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4), fp8(scales)
        if dialect == "modelopt":
            # 0-d: no vector of one element.
            return {"weight": packed, "weight_scale": scales, "weight_scale_2": torch.tensor(amax / np.float32(2688) if amax else np.float32(1))}
        global_scale = np.float32(2688) / amax if amax else np.float32(1)
        return {
            "weight_packed": packed,
            "weight_scale": scales,
            "weight_global_scale": torch.tensor([global_scale]),
        }
    if form == "mxfp8":
        codes, scales = mxfp8(weight)
    elif form == "fp8_tensor":
        codes, scales = fp8_tensor(weight, amax)
    else:
        codes, scales = fp8_block(weight, power_of_two=form != "fp8_block128_f32scale")
    scale_name = "weight_scale_inv" if dialect == "deepseek-fp8" else "weight_scale"
    return {"weight": fp8(codes), scale_name: torch.from_numpy(scales)}


def f32(tensor):
    return tensor.to(torch.float32).numpy()


def fp8(codes):
    return torch.from_numpy(np.ascontiguousarray(codes)).view(torch.float8_e4m3fn)
