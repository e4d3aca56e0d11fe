//! What `config.json` says of the quantized layers of a model, as each dialect has it.
//!
//! Source: what compressed-tensors 0.20, Model Optimizer 0.47 and DeepSeek-V3's folder write. Law: every layer is in a
//! group by its whole name or is in the only group, and every linear layer that is not quantized is named as left out.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::dialect::Dialect;
use super::encoding::Encoding;

/// The layers of a model, by what became of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    /// The quantized ones.
    pub(crate) quantized: BTreeMap<Encoding, Vec<String>>,
    /// Linear layers that are not.
    pub(crate) left_out: Vec<String>,
    /// Are the inputs of NVFP4 layers quantized too?
    pub(crate) inputs_are_quantized: bool,
}

/// The name of what is left out even where a model has no tensor of it, because it is tied to the embedding.
const HEAD: &str = "lm_head";

impl Layers {
    /// The value of `quantization_config`.
    pub(crate) fn config(&self, dialect: Dialect) -> Value {
        let left_out = self.left_out();
        match dialect {
            Dialect::CompressedTensors => self.compressed_tensors(&left_out),
            Dialect::ModelOpt => json!({
                "quant_method": "modelopt",
                "quant_algo": self.algorithm(),
                "config_groups": { "group_0": self.modelopt_group() },
                "ignore": left_out,
                "producer": { "name": "modelopt", "version": MODELOPT },
            }),
            Dialect::DeepSeekFp8 => json!({
                "quant_method": "fp8",
                "fmt": "e4m3",
                "activation_scheme": "dynamic",
                "weight_block_size": [128, 128],
                "modules_to_not_convert": left_out,
            }),
        }
    }

    /// A file beside `config.json` that says the same, where a dialect has one: its name and its text.
    pub(crate) fn file_beside(&self, dialect: Dialect) -> Option<(&'static str, Value)> {
        match dialect {
            Dialect::ModelOpt => {
                let quantization = json!({
                    "quant_algo": self.algorithm(),
                    "kv_cache_quant_algo": null,
                    "group_size": 16,
                    "exclude_modules": self.left_out(),
                });
                let producer = json!({ "name": "modelopt", "version": MODELOPT });
                Some(("hf_quant_config.json", json!({ "producer": producer, "quantization": quantization })))
            }
            Dialect::CompressedTensors | Dialect::DeepSeekFp8 => None,
        }
    }

    fn left_out(&self) -> Vec<&str> {
        let head = Some(HEAD).filter(|head| !self.left_out.iter().any(|layer| layer == head));
        head.into_iter().chain(self.left_out.iter().map(String::as_str)).collect()
    }

    const fn algorithm(&self) -> &'static str {
        if self.inputs_are_quantized { "NVFP4" } else { "W4A16_NVFP4" }
    }

    fn modelopt_group(&self) -> Value {
        let numbers = json!({ "dynamic": false, "num_bits": 4, "type": "float", "group_size": 16 });
        let mut group = json!({ "targets": ["Linear"], "weights": numbers });
        if self.inputs_are_quantized {
            group["input_activations"] = numbers;
        }
        group
    }

    fn compressed_tensors(&self, left_out: &[&str]) -> Value {
        let mixed = self.quantized.len() > 1;
        let groups = self.quantized.iter().enumerate().map(|(number, (encoding, layers))| {
            let targets = if mixed { json!(layers) } else { json!(["Linear"]) };
            let group = json!({
                "format": format_of(*encoding),
                "targets": targets,
                "weights": weights(*encoding),
                "input_activations": self.inputs(*encoding),
                "output_activations": null,
            });
            (format!("group_{number}"), group)
        });
        let groups: Map<String, Value> = groups.collect();
        let format = match self.quantized.keys().next() {
            Some(encoding) if !mixed => format_of(*encoding),
            _ => "mixed-precision",
        };
        json!({
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
            "format": format,
            "config_groups": groups,
            "ignore": left_out,
            "kv_cache_scheme": null,
            "global_compression_ratio": null,
        })
    }

    /// How inputs are quantized while the model is served.
    fn inputs(&self, encoding: Encoding) -> Value {
        let eight = |strategy: &str, group: Value| {
            json!({ "num_bits": 8, "type": "float", "symmetric": true, "dynamic": true,
                    "strategy": strategy, "group_size": group })
        };
        match encoding {
            Encoding::Nvfp4 if !self.inputs_are_quantized => Value::Null,
            Encoding::Nvfp4 => json!({
                "num_bits": 4, "type": "float", "symmetric": true, "dynamic": "local",
                "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn",
            }),
            Encoding::Fp8Block => eight("group", json!(128)),
            Encoding::Fp8Tensor | Encoding::Fp8Channel => eight("token", Value::Null),
            Encoding::Mxfp8 => {
                let mut inputs = eight("group", json!(32));
                inputs["scale_dtype"] = json!("torch.uint8");
                inputs
            }
        }
    }
}

/// The version whose text this is.
const MODELOPT: &str = "0.47.0";

const fn format_of(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Nvfp4 => "nvfp4-pack-quantized",
        Encoding::Mxfp8 => "mxfp8-quantized",
        Encoding::Fp8Block | Encoding::Fp8Tensor | Encoding::Fp8Channel => "float-quantized",
    }
}

fn weights(encoding: Encoding) -> Value {
    let of = |bits: u32, strategy: &str, group: Value| {
        json!({ "num_bits": bits, "type": "float", "symmetric": true, "dynamic": false,
                "strategy": strategy, "group_size": group })
    };
    let (mut weights, more) = match encoding {
        Encoding::Nvfp4 => (of(4, "tensor_group", json!(16)), ("scale_dtype", json!("torch.float8_e4m3fn"))),
        Encoding::Mxfp8 => (of(8, "group", json!(32)), ("scale_dtype", json!("torch.uint8"))),
        Encoding::Fp8Block => (of(8, "block", Value::Null), ("block_structure", json!([128, 128]))),
        Encoding::Fp8Tensor => return of(8, "tensor", Value::Null),
        Encoding::Fp8Channel => return of(8, "channel", Value::Null),
    };
    weights[more.0] = more.1;
    weights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_encodings_are_groups_of_named_layers_and_the_head_is_always_left_out() {
        let layers = |encoding, names: &[&str]| (encoding, names.iter().map(|&name| name.to_owned()).collect());
        let mut model = Layers {
            quantized: BTreeMap::from([layers(Encoding::Nvfp4, &["a.up"]), layers(Encoding::Fp8Block, &["a.q"])]),
            left_out: vec!["a.gate".to_owned()],
            inputs_are_quantized: false,
        };
        let config = model.config(Dialect::CompressedTensors);
        assert_eq!(config["format"], "mixed-precision");
        assert_eq!(config["config_groups"]["group_0"]["targets"], json!(["a.up"]));
        assert_eq!(config["config_groups"]["group_1"]["weights"]["block_structure"], json!([128, 128]));
        assert_eq!(config["ignore"], json!(["lm_head", "a.gate"]));
        model.quantized.remove(&Encoding::Fp8Block);
        model.left_out.push("lm_head".to_owned());
        let config = model.config(Dialect::ModelOpt);
        assert_eq!(config["quant_algo"], "W4A16_NVFP4");
        assert_eq!(config["ignore"], json!(["a.gate", "lm_head"]));
    }
}
