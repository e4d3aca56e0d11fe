//! Reads the quantization of a model's folder from its `config.json`.
//!
//! Law (EN-3): the dialect and the encodings come from here. What is not understood is refused by its name; no default
//! is assumed for what an engine would need to know.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use warpweft_base::errors::shown;
use warpweft_base::whole_file::regular;

use super::dialect::Dialect;
use super::encoding::Encoding;
use super::folder::{CONFIG, MOST_CONFIG};
use crate::checkpoint::{CheckpointError, FileTask};

/// The file of Model Optimizer, beside or in place of the key in `config.json`.
const OF_MODELOPT: &str = "hf_quant_config.json";

/// How the layers of a model are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quantization {
    pub(crate) dialect: Dialect,
    /// The encodings that some layer may have.
    pub(crate) encodings: BTreeSet<Encoding>,
}

impl Quantization {
    /// What the folder says; `None` for a model in plain numbers.
    ///
    /// # Errors
    /// [`CheckpointError::Engine`] for a method or an encoding that is not read, for two dialects, and for a
    /// `config.json` that is none.
    pub(crate) fn of(folder: &Path) -> Result<Option<Self>, CheckpointError> {
        let config = json(&folder.join(CONFIG))?;
        let stated = config.as_ref().and_then(|config| config.get("quantization_config"));
        let stated = stated.filter(|stated| !stated.is_null());
        let beside = json(&folder.join(OF_MODELOPT))?;
        let beside = beside.as_ref().and_then(|beside| beside.get("quantization"));
        let (path, stated, dialect) = match (stated, beside) {
            (None, None) => return Ok(None),
            (None, Some(beside)) => (folder.join(OF_MODELOPT), beside, Ok(Dialect::ModelOpt)),
            (Some(stated), _) => (folder.join(CONFIG), stated, dialect_of(stated)),
        };
        let wrong = |reason: String| CheckpointError::Engine { path: path.clone(), reason };
        let dialect = dialect.map_err(&wrong)?;
        if beside.is_some() && dialect != Dialect::ModelOpt {
            let reason = format!(
                "it says `{dialect}`, and {OF_MODELOPT} beside it another dialect; keep the one that the tensors are in"
            );
            return Err(wrong(reason));
        }
        let encodings = match dialect {
            Dialect::CompressedTensors => compressed_tensors(stated),
            Dialect::ModelOpt => modelopt(stated),
            Dialect::DeepSeekFp8 => deepseek(stated),
        };
        Ok(Some(Self { dialect, encodings: encodings.map_err(wrong)? }))
    }
}

/// A file of JSON; `None` where there is none.
fn json(path: &Path) -> Result<Option<Value>, CheckpointError> {
    let text = match regular::read(path, MOST_CONFIG) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| CheckpointError::file(path, FileTask::ReadWeights, error))?,
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| CheckpointError::Engine {
        path: path.to_owned(),
        reason: format!("it is no JSON ({}); fetch the model's folder again", shown(error)),
    })
}

fn dialect_of(stated: &Value) -> Result<Dialect, String> {
    match stated.get("quant_method").and_then(Value::as_str) {
        Some("compressed-tensors") => Ok(Dialect::CompressedTensors),
        Some("modelopt") => Ok(Dialect::ModelOpt),
        Some("fp8") => Ok(Dialect::DeepSeekFp8),
        Some(other) => Err(not_read(&format!("quant_method `{}`", shown(other)))),
        None => Err("its quantization_config names no quant_method, so nothing says how tensors are stored"
            .to_owned()),
    }
}

fn not_read(what: &str) -> String {
    format!(
        "{what} is not read; NVFP4, MXFP8 and FP8 by blocks, tensors and rows are: begin with the model as it was before"
    )
}

fn compressed_tensors(stated: &Value) -> Result<BTreeSet<Encoding>, String> {
    for transformed in ["transform_config", "sparsity_config"] {
        let says = stated.get(transformed).filter(|value| !value.is_null());
        let is_empty = says.is_none_or(|value| value.as_object().is_some_and(|object| object.is_empty()));
        let is_dense = says.and_then(|value| value.get("format")).is_some_and(|format| format == "dense");
        if !is_empty && !is_dense {
            return Err(not_read(transformed));
        }
    }
    if let Some(status) = stated.get("quantization_status").filter(|status| *status != "compressed") {
        return Err(not_read(&format!("quantization_status {}", shown(status))));
    }
    let groups = stated.get("config_groups").and_then(Value::as_object);
    let groups = groups.ok_or("its quantization_config has no config_groups")?;
    groups
        .values()
        .map(|group| {
            let weights = group
                .get("weights")
                .filter(|weights| weights.is_object())
                .ok_or("a group without weights")?;
            let say = |key: &str| weights.get(key).unwrap_or(&Value::Null);
            let (bits, kind, strategy) = (say("num_bits"), say("type"), say("strategy"));
            let is_float = kind == "float" && say("symmetric") != &Value::Bool(false);
            let found = match (bits.as_u64(), strategy.as_str(), say("group_size").as_u64()) {
                _ if !is_float => None,
                (Some(4), Some("tensor_group"), Some(16)) => Some(Encoding::Nvfp4),
                (Some(8), Some("group"), Some(32)) => Some(Encoding::Mxfp8),
                (Some(8), Some("block"), _) if is_128(say("block_structure")) => Some(Encoding::Fp8Block),
                (Some(8), Some("tensor"), _) => Some(Encoding::Fp8Tensor),
                (Some(8), Some("channel"), _) => Some(Encoding::Fp8Channel),
                _ => None,
            };
            found
                .ok_or_else(|| not_read(&format!("a group of weights of {bits} bits, {kind}, by {strategy}")))
        })
        .collect()
}

fn modelopt(stated: &Value) -> Result<BTreeSet<Encoding>, String> {
    let algorithm = |value: &Value| match value.get("quant_algo").and_then(Value::as_str) {
        Some("NVFP4" | "W4A16_NVFP4") => Ok(Encoding::Nvfp4),
        Some("MXFP8") => Ok(Encoding::Mxfp8),
        Some(other) => Err(not_read(&format!("quant_algo `{}`", shown(other)))),
        None => Err("it names no quant_algo, so nothing says how tensors are stored".to_owned()),
    };
    match stated.get("quantized_layers").and_then(Value::as_object) {
        Some(layers) if stated.get("quant_algo").is_some_and(|algorithm| algorithm == "MIXED_PRECISION") => {
            layers.values().map(algorithm).collect()
        }
        _ => algorithm(stated).map(|encoding| BTreeSet::from([encoding])),
    }
}

fn deepseek(stated: &Value) -> Result<BTreeSet<Encoding>, String> {
    let element = stated.get("fmt").and_then(Value::as_str).unwrap_or("e4m3");
    match stated.get("weight_block_size") {
        Some(size) if is_128(size) && element == "e4m3" => Ok(BTreeSet::from([Encoding::Fp8Block])),
        Some(size) => Err(not_read(&format!("{} in blocks of {size}", shown(element)))),
        None => Err(not_read("FP8 without weight_block_size")),
    }
}

fn is_128(size: &Value) -> bool {
    size.as_array()
        .is_some_and(|sides| sides.len() == 2 && sides.iter().all(|side| side.as_u64() == Some(128)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_understood_is_refused_by_its_name() {
        let group = |weights: Value| json!({ "config_groups": { "group_0": { "weights": weights } } });
        let weights = json!({ "num_bits": 4, "type": "int", "strategy": "group", "group_size": 128 });
        let said = compressed_tensors(&group(weights)).unwrap_err();
        assert!(said.contains("4 bits, \"int\""), "{said}");
        let mut rotated = group(json!({ "num_bits": 8, "type": "float", "strategy": "tensor" }));
        assert_eq!(compressed_tensors(&rotated), Ok(BTreeSet::from([Encoding::Fp8Tensor])));
        rotated["transform_config"] = json!({ "config_groups": {} });
        assert!(compressed_tensors(&rotated).unwrap_err().contains("transform_config"));
        assert!(dialect_of(&json!({ "quant_method": "gptq" })).unwrap_err().contains("`gptq`"));
        assert!(modelopt(&json!({ "quant_algo": "FP8" })).unwrap_err().contains("`FP8`"));
        assert!(deepseek(&json!({ "fmt": "e4m3" })).is_err());
        assert!(deepseek(&json!({ "weight_block_size": [128, 64] })).is_err());
    }
}
