//! Statements about a file of tensors: its metadata, and a `config.json` beside it.

use std::path::Path;

use serde_json::Value;

use warpweft_base::errors::shown;
use warpweft_base::whole_file::regular;

/// The files that say how a model is quantized, and under which keys.
const BESIDE: [(&str, &[&str]); 2] =
    [("config.json", &["quantization_config", "quantization"]), ("hf_quant_config.json", &["quantization"])];

/// What names the method, under these keys; `null` says that there is none.
const METHODS: [&str; 2] = ["quant_method", "quant_algo"];

/// More than a `config.json` takes. A longer one is not read.
const LONGEST: u64 = 1 << 24;

/// Statements about files of tensors.
#[derive(Clone, Debug, Default)]
pub struct Stated {
    /// Who says that the model is quantized, and as what.
    quantized: Option<String>,
    /// Whether a file is one rank's part of a checkpoint of this library.
    is_part: bool,
}

/// The key in the metadata of such a part.
const PART: &str = "warpweft_part";

impl Stated {
    /// The statements of the metadata of the file `path`, by their keys, and of the files beside it.
    pub fn of<'a>(path: &Path, metadata: impl IntoIterator<Item = &'a String>) -> Self {
        let (mut of_metadata, mut is_part) = (None, false);
        for key in metadata {
            is_part |= key == PART;
            if key.to_ascii_lowercase().contains("quantiz") {
                of_metadata = Some(format!("its metadata have `{}`", shown(key)));
            }
        }
        Self { quantized: beside(path).or(of_metadata), is_part }
    }

    /// The statements of both, as the files of one model.
    pub fn or(self, other: Self) -> Self {
        Self { quantized: self.quantized.or(other.quantized), is_part: self.is_part || other.is_part }
    }

    /// What a file is, if it is one rank's part of a checkpoint.
    pub(super) fn part(&self) -> Option<&'static str> {
        let what = "one rank's part of a checkpoint: rows of masters and the state of an optimizer; write the weights \
                    of all parts by `PartFiles::save_weights`";
        self.is_part.then_some(what)
    }

    /// Who says that the model is quantized, and as what, in words.
    pub(super) fn quantized(&self) -> Option<&str> {
        self.quantized.as_deref()
    }
}

/// What files in the folder of `path` say. One that cannot be read whole says nothing.
fn beside(path: &Path) -> Option<String> {
    let folder = path.parent()?;
    BESIDE.iter().find_map(|(name, keys)| {
        let json: Value = serde_json::from_slice(&regular::read(&folder.join(name), LONGEST).ok()?).ok()?;
        let about = keys.iter().find_map(|key| json.get(key)?.as_object())?;
        let method = match METHODS.iter().find_map(|method| about.get(*method)) {
            Some(Value::Null) => return None,
            Some(method) => method.as_str().map(|method| format!(", by `{}`", shown(method))),
            None => None,
        };
        Some(format!("`{name}` beside it says that it is quantized{}", method.unwrap_or_default()))
    })
}
