"""How the packages find and read the quantized linears of a folder."""

import fnmatch
import json
import shutil
import tempfile
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.utils.match import is_match
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.quantizers.quantizers_utils import should_convert_module

from dialects import linears_of, read, same_bits, tensors_of

TOKENS = torch.arange(24).reshape(3, 8) % 32


def configuration(folder):
    return json.loads((Path(folder) / "config.json").read_text())["quantization_config"]


def schemes(folder, names):
    """The compressed-tensors scheme of each module of these names that its configuration selects."""
    config = QuantizationConfig.model_validate(configuration(folder))
    found = {}
    for name in names:
        module = torch.nn.Embedding(1, 1) if name.endswith("embed_tokens") else torch.nn.Linear(1, 1)
        for scheme in config.config_groups.values():
            if is_match(name, module, scheme.targets, config.ignore or ()):
                found.setdefault(name, (scheme, scheme.format or config.format))
    return found


def selected(folder, dialect, names):
    """Which of these modules an engine takes for quantized, by the folder's configuration."""
    if dialect == "compressed-tensors":
        return set(schemes(folder, names))
    config = configuration(folder)
    if dialect == "deepseek-fp8":
        left_out = config.get("modules_to_not_convert")
        return {name for name in names if "embed" not in name and should_convert_module(name, left_out)}
    ignored = config["ignore"]
    return {
        name
        for name in names
        if "embed" not in name and not any(fnmatch.fnmatchcase(name, pattern) for pattern in ignored)
    }


def complaints(folder, dialect):
    """What is wrong with the configuration, beyond what it selects."""
    config = configuration(folder)
    found = []

    def expect(what, value, wanted):
        if value != wanted:
            found.append(f"{what} is {value!r}, not {wanted!r}")

    if dialect == "compressed-tensors":
        expect("quant_method", config.get("quant_method"), "compressed-tensors")
        expect("quantization_status", config.get("quantization_status"), "compressed")
        formats = {group.get("format") for group in config["config_groups"].values()}
        expect("format", config.get("format"), formats.pop() if len(formats) == 1 else "mixed-precision")
        if "lm_head" not in config.get("ignore", []):
            found.append("ignore does not name lm_head")
    elif dialect == "modelopt":
        expect("quant_method", config.get("quant_method"), "modelopt")
        expect("quant_algo", config.get("quant_algo"), "W4A16_NVFP4")
        own = json.loads((Path(folder) / "hf_quant_config.json").read_text())["quantization"]
        expect("quant_algo of hf_quant_config.json", own.get("quant_algo"), "W4A16_NVFP4")
        expect("group_size", own.get("group_size"), 16)
        expect("exclude_modules", own.get("exclude_modules"), config.get("ignore"))
    else:
        expect("quant_method", config.get("quant_method"), "fp8")
        expect("weight_block_size", config.get("weight_block_size"), [128, 128])
        expect("activation_scheme", config.get("activation_scheme"), "dynamic")
        expect("scale_fmt", config.get("scale_fmt", "float"), "float")
    return found


def values(folder, dialect):
    """The weight of every quantized linear as the package's own code dequantizes it, in bf16."""
    linears = linears_of(tensors_of(folder))
    found = schemes(folder, linears) if dialect == "compressed-tensors" else {}
    read = {}
    for name, own in linears.items():
        if dialect == "compressed-tensors":
            scheme, form = found[name]
            value = BaseCompressor.get_value_from_registry(form).decompress(own, scheme)["weight"]
        elif dialect == "modelopt":
            value = modelopt_value(own)
        else:
            value = Fp8Dequantize(None).convert(own)["weight"]
        read[name] = value.to(torch.bfloat16)
    return read


def modelopt_value(own):
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    packed = own["weight"]
    shape = torch.Size((packed.shape[0], packed.shape[1] * 2))
    return NVFP4QTensor(shape, torch.bfloat16, packed).dequantize(
        scale=own["weight_scale"], double_scale=own["weight_scale_2"], block_sizes={-1: 16}
    )


def ways(folder, dialect, source):
    """The ways to load a whole model by transformers, by name: the arguments that each of them takes.

    It has no loader for ModelOpt, reads the experts of compressed-tensors wrongly or not at all, and dequantizes all
    linears by one of the groups.
    """
    if dialect == "deepseek-fp8":
        return {"plain": {}}
    experts = json.loads((Path(source) / "config.json").read_text())["model_type"] == "mixtral"
    if dialect == "modelopt" or experts:
        return {}
    if len(configuration(folder)["config_groups"]) > 1:
        return {"plain": {}}
    return {"dequantize": {"quantization_config": CompressedTensorsConfig(dequantize=True)}, "plain": {}}


def by_bf16_scales(folder):
    """The values with F32 scales of FP8 rounded to bf16: loaded plainly, scales take the dtype of the model."""
    linears = linears_of(tensors_of(folder))
    for own in linears.values():
        scale = own["weight_scale"]
        own["weight_scale"] = scale.to(torch.bfloat16) if scale.dtype == torch.float32 else scale
    return {name: read(own) for name, own in linears.items()}


def loaded(folder, arguments):
    """A model that has run, since compressed-tensors decompresses before the first forward pass; its logits."""
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, output_loading_info=True, **arguments
    )
    absent = {key: sorted(names) for key, names in report.items() if names}
    if absent:
        raise ValueError(f"loading reports {absent}")
    return model, logits(model)


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits.float()


def model_of(source, weights):
    """The model of an unquantized folder, with these weights of linears in place of its own."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(Path(source) / "config.json", folder)
        tensors = tensors_of(source) | {f"{name}.weight": weight for name, weight in weights.items()}
        save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)


def unequal(model, right):
    """The parameters of a model that are not those of the right one, bit for bit."""
    state = model.state_dict()
    return [name for name, tensor in right.state_dict().items() if not same_bits(state[name], tensor)]
