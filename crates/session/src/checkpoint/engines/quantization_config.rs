//! `quantization_config` of `config.json`, as each dialect has it.
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
            Dialect::ModelOpt => self.modelopt(),
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
                let mut quantization = json!({ "quant_algo": self.algorithm(), "kv_cache_quant_algo": null });
                match (self.quantized_layers(), self.quantized.keys().next()) {
                    (Some(layers), _) => quantization["quantized_layers"] = layers,
                    (None, only) => {
                        quantization["group_size"] = json!(only.map_or(0, |only| group_of(*only)));
                        quantization["exclude_modules"] = json!(self.left_out());
                    }
                }
                let producer = json!({ "name": "modelopt", "version": MODELOPT });
                Some(("hf_quant_config.json", json!({ "producer": producer, "quantization": quantization })))
            }
            Dialect::CompressedTensors | Dialect::DeepSeekFp8 => None,
        }
    }

    fn left_out(&self) -> Vec<&str> {
        let is_named =
            |head: &&str| self.quantized.values().chain([&self.left_out]).flatten().any(|name| name == head);
        let head = Some(HEAD).filter(|head| !is_named(head));
        head.into_iter().chain(self.left_out.iter().map(String::as_str)).collect()
    }

    /// Model Optimizer's name of what was done to the whole model.
    fn algorithm(&self) -> &'static str {
        match self.quantized.keys().next() {
            Some(only) if self.quantized.len() == 1 => self.algorithm_of(*only),
            _ => "MIXED_PRECISION",
        }
    }

    const fn algorithm_of(&self, encoding: Encoding) -> &'static str {
        match encoding {
            Encoding::Nvfp4 if self.inputs_are_quantized => "NVFP4",
            Encoding::Nvfp4 => "W4A16_NVFP4",
            Encoding::Mxfp8 => "MXFP8",
            // Not written; `Dialect::has` refuses them.
            Encoding::Fp8Block | Encoding::Fp8Tensor | Encoding::Fp8Channel => "FP8",
        }
    }

    /// Every layer with what was done to it, where that differs.
    fn quantized_layers(&self) -> Option<Value> {
        let layers = self.quantized.iter().flat_map(|(encoding, layers)| {
            let about =
                json!({ "quant_algo": self.algorithm_of(*encoding), "group_size": group_of(*encoding) });
            layers.iter().map(move |layer| (layer.clone(), about.clone()))
        });
        (self.quantized.len() > 1).then(|| Value::Object(layers.collect()))
    }

    fn modelopt(&self) -> Value {
        let mixed = self.quantized_layers();
        let groups = self.quantized.iter().enumerate().map(|(number, (encoding, layers))| {
            let bits = if *encoding == Encoding::Nvfp4 { 4 } else { 8 };
            let numbers =
                json!({ "dynamic": false, "num_bits": bits, "type": "float", "group_size": group_of(*encoding) });
            let targets = if mixed.is_some() { json!(layers) } else { json!(["Linear"]) };
            let mut group = json!({ "targets": targets, "weights": numbers });
            if *encoding != Encoding::Nvfp4 || self.inputs_are_quantized {
                group["input_activations"] = numbers;
            }
            (format!("group_{number}"), group)
        });
        let groups: Map<String, Value> = groups.collect();
        let left_out = if mixed.is_some() { Vec::new() } else { self.left_out() };
        let mut config = json!({
            "quant_method": "modelopt",
            "quant_algo": self.algorithm(),
            "config_groups": groups,
            "ignore": left_out,
            "producer": { "name": "modelopt", "version": MODELOPT },
        });
        if let Some(layers) = mixed {
            config["quantized_layers"] = layers;
        }
        config
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

/// Columns of a row that have one scale.
const fn group_of(encoding: Encoding) -> u32 {
    match encoding {
        Encoding::Nvfp4 => 16,
        Encoding::Mxfp8 | Encoding::Fp8Block | Encoding::Fp8Tensor | Encoding::Fp8Channel => 32,
    }
}

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
        let layers =
            |encoding, names: &[&str]| (encoding, names.iter().map(|&name| name.to_owned()).collect());
        let mut model = Layers {
            quantized: BTreeMap::from([
                layers(Encoding::Nvfp4, &["a.up"]),
                layers(Encoding::Fp8Block, &["a.q"]),
            ]),
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
