"""Makes tests/data/engines: folders that the packages themselves quantized, and the values they read out of them.

    python3 tests/engines/make_golden.py [FOLDER]

Each folder is a Hugging Face folder of a tiny Llama. Beside it, `values.safetensors` has for every quantized linear
`X.weight`, as the package's own code dequantizes it, in the dtype that this code returns. Seeded: the same packages
write the same bytes again.
"""

import copy
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from compressed_tensors.compressors import BaseCompressor, ModelCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
    preset_name_to_scheme,
)
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam, maybe_pad_tensor_for_block_quant
from safetensors.torch import load_file, save_file
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

from tiny import llama

ATTENTION = "re:.*self_attn\\.[qkvo]_proj$"
MLP = "re:.*mlp\\.(gate|up|down)_proj$"


def groups(weight, args):
    """Least and greatest element of every part of a weight that has a scale of its own."""
    if args.strategy == "tensor":
        return torch.aminmax(weight)
    if args.strategy == "block":
        rows, columns = args.block_structure
        parts = maybe_pad_tensor_for_block_quant(weight, args.block_structure)
        parts = parts.unflatten(1, (-1, columns)).unflatten(0, (-1, rows)).transpose(1, 2).flatten(2)
    else:
        parts = weight.unflatten(-1, (-1, args.group_size))
    return parts.amin(-1), parts.amax(-1)


def calibrate(model, f32_scales):
    """Gives every quantized linear its scales, with one global scale for q/k/v and one for gate/up."""
    layers = model.model.layers
    fused = [[getattr(layer.self_attn, name) for name in ("q_proj", "k_proj", "v_proj")] for layer in layers]
    fused += [[layer.mlp.gate_proj, layer.mlp.up_proj] for layer in layers]
    fused += [[layer.self_attn.o_proj] for layer in layers] + [[layer.mlp.down_proj] for layer in layers]
    for linears in fused:
        least = torch.stack([linear.weight.min() for linear in linears]).min()
        greatest = torch.stack([linear.weight.max() for linear in linears]).max()
        for linear in linears:
            args = linear.quantization_scheme.weights
            global_scale = None
            if args.strategy == "tensor_group":
                global_scale = generate_gparam(least.float(), greatest.float())
                linear.weight_global_scale.data.copy_(global_scale)
            bounds = (least, greatest) if args.strategy == "tensor" else groups(linear.weight, args)
            scale, _ = calculate_qparams(*bounds, args, global_scale=global_scale)
            dtype = torch.float32 if f32_scales and args.strategy != "tensor_group" else linear.weight_scale.dtype
            linear.weight_scale.data = scale.to(dtype).reshape(linear.weight_scale.shape)


def compressed_tensors(folder, model, schemes, f32_scales=False):
    """Quantizes, writes and reads a model by compressed-tensors; `f32_scales` as float32 models have them."""
    config = QuantizationConfig(
        config_groups={f"group_{index}": scheme for index, scheme in enumerate(schemes)}, ignore=["lm_head"]
    )
    apply_quantization_config(model, config)
    with torch.no_grad():
        calibrate(model, f32_scales)
    quantized = {name: module for name, module in model.named_modules() if hasattr(module, "quantization_scheme")}
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)
    # Written as read: from the file, by the schemes of the file's configuration.
    tensors = load_file(folder / "model.safetensors")
    values = {}
    for name, module in quantized.items():
        scheme = module.quantization_scheme
        own = {key.rpartition(".")[2]: value for key, value in tensors.items() if key.rpartition(".")[0] == name}
        decompressed = BaseCompressor.get_value_from_registry(scheme.format).decompress(own, scheme)
        values[f"{name}.weight"] = decompressed["weight"].contiguous()
    save_file(values, folder / "values.safetensors")


def fp8_tensor():
    """One scale for a tensor, one for each token: no preset has this pair."""
    weights = QuantizationArgs(num_bits=8, type="float", strategy="tensor", symmetric=True, dynamic=False)
    inputs = QuantizationArgs(num_bits=8, type="float", strategy="token", symmetric=True, dynamic=True)
    return QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs)


def modelopt(folder, model, mixed=False):
    """Quantizes and writes by ModelOpt's export, reads by its tensors: NVFP4, and attention in MXFP8 if mixed."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization.qtensor import MXFP8QTensor, NVFP4QTensor

    config = copy.deepcopy(mtq.W4A16_NVFP4_CFG)
    if mixed:
        for rule in copy.deepcopy(mtq.MXFP8_DEFAULT_CFG["quant_cfg"]):
            if rule["quantizer_name"] in ("*weight_quantizer", "*input_quantizer"):
                config["quant_cfg"].append(rule | {"quantizer_name": "*self_attn" + rule["quantizer_name"]})
    linears = [name for name, _ in model.named_modules() if name.endswith("_proj")]
    export_hf_checkpoint(mtq.quantize(model, config, None), export_dir=folder)
    tensors = load_file(folder / "model.safetensors")
    values = {}
    for name in linears:
        codes, scale = tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"]
        if f"{name}.weight_scale_2" in tensors:
            shape = torch.Size((codes.shape[0], codes.shape[1] * 2))
            value = NVFP4QTensor(shape, torch.bfloat16, codes).dequantize(
                scale=scale, double_scale=tensors[f"{name}.weight_scale_2"], block_sizes={-1: 16}
            )
        else:
            value = MXFP8QTensor(codes.shape, torch.bfloat16, codes).dequantize(scale=scale)
        values[f"{name}.weight"] = value.contiguous()
    save_file(values, folder / "values.safetensors")


def deepseek(folder, model):
    """Quantizes by transformers' `Fp8Quantize` and reads by its `Fp8Dequantize`.

    `Fp8Quantize` leaves alone what is no multiple of a block, so weights are padded with zeros before it and cropped
    after it.
    """
    config = FineGrainedFP8Config(modules_to_not_convert=["lm_head"])
    quantizer = SimpleNamespace(quantization_config=config)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    values = {}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        weight = tensors[name]
        padded = maybe_pad_tensor_for_block_quant(weight, (128, 128))
        done = Fp8Quantize(quantizer).convert({name: padded})
        codes = done[name][: weight.shape[0], : weight.shape[1]].contiguous()
        scales = done[f"{name}_scale_inv"]
        tensors |= {name: codes, f"{name}_scale_inv": scales}
        values[name] = Fp8Dequantize(quantizer).convert({"weight": codes, "weight_scale_inv": scales})["weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(values, folder / "values.safetensors")
    written = json.loads((folder / "config.json").read_text())
    # As DeepSeek-V3's own file has it; transformers' `to_dict` adds keys that are its defaults.
    written["quantization_config"] = {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "modules_to_not_convert": ["lm_head"],
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    }
    (folder / "config.json").write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")


def planted(model):
    """A block of zeros in one linear, and numbers that only just are none, so that zero scales and zeros occur."""
    with torch.no_grad():
        weight = model.model.layers[0].mlp.gate_proj.weight
        weight[0, :] = 0
        weight[1, :16] *= 2.0**-40
    return model


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "data" / "engines"
    preset = preset_name_to_scheme
    made = {
        "compressed-tensors-nvfp4": lambda folder: compressed_tensors(
            folder, planted(llama(32, 64, 2, seed=1)), [preset("NVFP4A16", ["Linear"])]
        ),
        "compressed-tensors-fp8-block": lambda folder: compressed_tensors(
            folder, planted(llama(16, 144, 1, seed=2)), [preset("FP8_BLOCK", ["Linear"])]
        ),
        "compressed-tensors-mxfp8": lambda folder: compressed_tensors(
            folder, planted(llama(32, 64, 2, seed=3)), [preset("MXFP8", ["Linear"])]
        ),
        "compressed-tensors-fp8-tensor": lambda folder: compressed_tensors(
            folder, planted(llama(32, 64, 2, seed=4)), [fp8_tensor()]
        ),
        "compressed-tensors-mixed": lambda folder: compressed_tensors(
            folder,
            planted(llama(32, 64, 2, tied=True, seed=5)),
            [preset("NVFP4A16", [MLP]), preset("FP8_BLOCK", [ATTENTION])],
            f32_scales=True,
        ),
        "modelopt-nvfp4": lambda folder: modelopt(folder, planted(llama(32, 64, 2, seed=6))),
        "modelopt-mixed": lambda folder: modelopt(folder, planted(llama(32, 64, 2, seed=8)), mixed=True),
        "deepseek-fp8": lambda folder: deepseek(folder, planted(llama(16, 256, 1, seed=7))),
    }
    for name, make in made.items():
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        print(name, {path.name: path.stat().st_size for path in sorted(folder.iterdir())})


if __name__ == "__main__":
    main()
