//! Arguments of `warpweft quantize --to`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use warpweft_base::errors::shown;
use warpweft_base::whole_file::regular;
use warpweft_format::{Format, FormatError, Via};
use warpweft_session::checkpoint::CheckpointError;
use warpweft_session::checkpoint::engines::{Dialect, EngineOptions, LayerRule, NameMap};

use super::super::{ToolError, formats};

/// A folder for inference engines
#[derive(Debug, Args)]
pub(super) struct Engine {
    /// Write a folder that inference engines load: compressed-tensors (all formats), modelopt (nvfp4_2d, mxfp8) or
    /// deepseek-fp8 (fp8_block)
    #[arg(long, value_name = "DIALECT", requires = "format", conflicts_with_all = ["strict", "shards", "force"])]
    #[arg(help_heading = FOR_ENGINES)]
    pub(super) to: Option<Dialect>,

    /// Layers or tensors whose whole name matches get this format, or are kept as they are. May be repeated; the last
    /// that matches counts. Embeddings, heads and routers are kept unless a rule ends in the same word: `lm_head`
    #[arg(long, value_name = "PATTERN=FORMAT|keep", value_parser = rule, requires = "to")]
    #[arg(help_heading = FOR_ENGINES)]
    rule: Vec<LayerRule>,

    /// Layers that the engine fuses into one, beside those of known models, so that they share a scale: endings of
    /// their names, such as `attn.wq,attn.wk,attn.wv`. May be repeated
    #[arg(long, value_name = "NAME,NAME", requires = "to", help_heading = FOR_ENGINES)]
    scale_group: Vec<String>,

    /// Quantize inputs of NVFP4 layers too (W4A4): a JSON object with the largest magnitude of the inputs of each
    /// layer, measured on calibration data: {"model.layers.0.mlp.up_proj": 12.5}
    #[arg(long, value_name = "FILE.json", requires = "to", help_heading = FOR_ENGINES)]
    input_scales: Option<PathBuf>,

    /// Rename, cut, transpose or leave out tensors, as a file of TOML says; the page "Serve what you trained" shows one
    #[arg(long, value_name = "FILE.toml", requires = "to", help_heading = FOR_ENGINES)]
    name_map: Option<PathBuf>,

    /// Where config.json, tokenizer and so on come from, if not from IN
    #[arg(long, value_name = "FOLDER", requires = "to", help_heading = FOR_ENGINES)]
    model_folder: Option<PathBuf>,
}

const FOR_ENGINES: &str = "For inference engines";

impl Engine {
    /// The options; what `only` does not select is kept.
    pub(super) fn options(
        self,
        dialect: Dialect,
        format: Format,
        via: Via,
        only: &[String],
    ) -> Result<EngineOptions, ToolError> {
        let mut options = EngineOptions::new(dialect, format);
        options.via = via;
        if !only.is_empty() {
            options.rules.push(("*".to_owned(), None));
            options.rules.extend(only.iter().map(|pattern| (pattern.clone(), Some(format))));
        }
        options.rules.extend(self.rule);
        let names = |group: String| group.split(',').map(|name| name.trim().to_owned()).collect();
        options.scale_groups = self.scale_group.into_iter().map(names).collect();
        options.input_amaxes = self.input_scales.as_deref().map(input_scales).transpose()?;
        if let Some(path) = &self.name_map {
            options.names = NameMap::read(&text(path)?)?;
        }
        options.model_folder = self.model_folder;
        Ok(options)
    }
}

/// A format that quantizes, by its name.
pub(super) fn parse_format(name: &str) -> Result<Format, String> {
    match name.parse() {
        Ok(format @ (Format::F32 | Format::Bf16)) => Err(ToolError::NotQuantizing { format }.to_string()),
        Ok(format) => Ok(format),
        Err(FormatError::UnknownName { .. }) => {
            let (names, families) = (formats::quantizing_names(), formats::families());
            Err(format!("there is no such format; choose one of {names}; for short there are {families}"))
        }
        Err(error) => Err(error.to_string()),
    }
}

fn rule(text: &str) -> Result<LayerRule, String> {
    let (pattern, format) = text.rsplit_once('=').ok_or("write PATTERN=FORMAT, or PATTERN=keep")?;
    let format = if format == "keep" { None } else { Some(parse_format(format)?) };
    Ok((pattern.to_owned(), format))
}

fn text(path: &Path) -> Result<String, ToolError> {
    regular::text(path).map_err(ToolError::file("read", path))
}

fn input_scales(path: &Path) -> Result<BTreeMap<String, f32>, ToolError> {
    serde_json::from_str(&text(path)?).map_err(|error| {
        let reason = format!("it is no JSON object of numbers by the names of layers: {}", shown(error));
        CheckpointError::Engine { path: path.to_owned(), reason }.into()
    })
}
