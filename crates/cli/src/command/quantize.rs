//! Arguments of `warpweft quantize`.
//!
//! Law: whatever can be refused without a file is refused while arguments are read.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use clap::{Args, ValueEnum};
use warpweft_format::{Format, Via};

use super::super::terminal::Terminal;
use super::super::{
    QuantizeOptions, Report, ToolError, dequantize_checkpoint, engine_table, formats, quantize_checkpoint,
    quantize_for_engines,
};
use super::engine::{Engine, parse_format};

/// Quantizes the matrices of a safetensors checkpoint, or turns them back to f32
///
/// Every matrix in F32, BF16 or F16 is quantized in both orientations; all other tensors are copied,
/// and listed with the reason. Tensor X of shape [M, K] becomes:
///
///   X.rowwise_data      codes, blocks along the rows: what forward reads
///   X.rowwise_scale     their decode scales, padded as a GEMM wants them
///   X.columnwise_data   codes, blocks along the columns: what backward reads
///   X.columnwise_scale  their decode scales
///   X.amax              largest magnitude of X
///
/// Codes are of whole blocks: where M ends within one, zeros complete it. The shape of X itself is kept.
///
/// Tensor X of shape [N, M, K], such as the experts of a layer, is N matrices: each is quantized by
/// itself, and all of these have a first dimension N.
///
/// A file that is quantized already, that holds the state of an optimizer, or that is of another kind
/// is refused with what it is, and so is one of which nothing would be quantized. Where values come
/// back as infinite, the output is written, they are listed, and the exit code is 1.
///
/// Of a checkpoint that a session saved only the masters are taken, under the names of their weights:
/// X.master becomes X.rowwise_data and so on. They are read twice, first to compare them with their
/// digests. Those of one row or one column, such as norms, are copied. Frozen weights are in no such
/// checkpoint, and the report names them.
///
/// The metadata gains `warpweft_quantized`, which names the format and the tensors as they were.
/// Tensors are read one by one, so the file may be larger than memory. The output appears whole or
/// not at all.
///
/// With --to DIALECT the output is a folder that inference engines load, and the input a file or a folder
/// of the Hugging Face hub: linear layers are quantized rowwise, under the names and with the config.json
/// of the dialect; embeddings, the head, norms and routers stay. What engines fuse (q, k and v; gate and
/// up) has one scale.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, after_long_help = EXAMPLES)]
pub(super) struct Quantize {
    /// The format to quantize into; `warpweft formats` explains them
    #[arg(long, value_name = "FORMAT", value_parser = parse_format, long_help = format_help())]
    #[arg(required_unless_present = "dequantize")]
    format: Option<Format>,

    /// Go back: turn a file that this command wrote into f32, from the rowwise parts
    #[arg(long, conflicts_with_all = ["format", "only", "strict", "via", "shards", "to"])]
    dequantize: bool,

    #[command(flatten)]
    engine: Engine,

    /// Quantize only tensors whose whole name matches; `*` is any text, `?` any character. May be repeated
    #[arg(long, value_name = "PATTERN")]
    pub(super) only: Vec<String>,

    /// Fail when a selected tensor is not quantized, for its dtype, its dimensions or the shape of its matrices.
    /// Vectors, such as norms and biases, are copied, unless a pattern selects nothing else. Frozen weights, which a
    /// checkpoint of a session lacks, count too
    #[arg(long)]
    strict: bool,

    /// Round the values first, as a model kept in that dtype does. Sessions do so unless set otherwise
    /// (quantize.via = "bf16"): for the bytes that one makes of the same masters add --via bf16
    #[arg(long, value_name = "DTYPE", default_value = "none")]
    via: Rounding,

    /// Quantize as N ranks do that own flat shards (ZeRO), cut at any element; the bytes are the same
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    shards: Option<u16>,

    /// Replace OUT if it exists, once the new file is whole
    #[arg(long)]
    force: bool,

    /// The checkpoint to read, a safetensors file; with --to also a folder of the Hugging Face hub
    #[arg(value_name = "IN")]
    input: PathBuf,

    /// The checkpoint to write; with --to the folder
    #[arg(value_name = "OUT")]
    output: PathBuf,
}

/// What a conversion says, and how many matrices hold values that do not come back.
pub(super) struct Done {
    pub(super) text: String,
    pub(super) lost: usize,
}

impl From<Report> for Done {
    fn from(report: Report) -> Self {
        Self { text: report.to_string(), lost: report.lost.len() }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rounding {
    /// The values as they are
    None,
    /// bfloat16, nearest even
    Bf16,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  All matrices into NVFP4:
    warpweft quantize --format nvfp4_2d model.safetensors model-nvfp4.safetensors

  Only the MLPs, into block FP8, and no matrix left out:
    warpweft quantize --format fp8_block128_pow2 --only 'blocks.*.mlp.*' --strict \\
      in.safetensors out.safetensors

  Back to f32:
    warpweft quantize --dequantize model-nvfp4.safetensors back.safetensors

  A folder that vLLM, SGLang and transformers load, with the attention in FP8:
    warpweft quantize --format nvfp4_2d --to compressed-tensors \
      --rule '*.self_attn.*=fp8_block' Qwen3-8B Qwen3-8B-NVFP4

  The bytes that eight training ranks would make together:
    warpweft quantize --format mxfp8 --via bf16 --shards 8 in.safetensors out.safetensors";

fn format_help() -> String {
    format!(
        "\
The format to quantize into: its name, its block, bytes per element of both orientations,
and what it is for. A matrix whose shape it cannot take is copied, and listed with the
shape that it could take.

{}
`warpweft formats` tells more.",
        formats::list()
    )
}

impl Quantize {
    /// What was done, and whether all values come back.
    pub(super) fn run(self, stop: &AtomicBool) -> Result<Done, ToolError> {
        let mut terminal = Terminal::new(stop);
        let Some(format) = self.format else {
            return dequantize_checkpoint(&self.input, &self.output, self.force, &mut terminal)
                .map(Done::from);
        };
        let via = match self.via {
            Rounding::None => Via::None,
            Rounding::Bf16 => Via::Bf16,
        };
        if let Some(dialect) = self.engine.to {
            let options = self.engine.options(dialect, format, via, &self.only)?;
            let inputs = options.input_amaxes.is_some();
            let has_description = options.model_folder.is_some() || self.input.join("config.json").is_file();
            let report = quantize_for_engines(&self.input, &self.output, options, &mut terminal)?;
            return Ok(Done { text: engine_table::describe(&report, inputs, has_description), lost: 0 });
        }
        let options = QuantizeOptions {
            format,
            via,
            only: self.only,
            strict: self.strict,
            shards: self.shards.and_then(|ranks| NonZeroUsize::new(ranks.into())),
            replace: self.force,
        };
        quantize_checkpoint(&self.input, &self.output, &options, &mut terminal).map(Done::from)
    }
}
