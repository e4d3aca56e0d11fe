//! Quantization schemes: by the shapes of codes and scales, and by their names.

use safetensors::Dtype;

use super::Listed;

/// What names of tables of values have in them.
pub(super) const TABLE: &str = "quant_map";

/// Whose manner it is, by a part of the name of one of the scales or of the codes. The name comes into a message and
/// decides nothing.
const MANNERS: [(&str, &str); 11] = [
    ("rowwise_", "warpweft"),
    ("columnwise_", "warpweft"),
    ("weight_scale_inv", "DeepSeek"),
    ("weight_scale_2", "ModelOpt"),
    ("weight_packed", "compressed-tensors"),
    ("weight_global_scale", "compressed-tensors"),
    ("weights_scaling_factor", "TensorRT-LLM"),
    ("absmax", "bitsandbytes"),
    ("SCB", "bitsandbytes"),
    ("_blocks", "GPT-OSS"),
    ("W_q", "HQQ"),
];

/// What `codes` are by their `scale`, with all scales of their module: a phrase before "in".
pub(super) fn scheme(codes: &Listed<'_>, scale: &Listed<'_>, scales: &[Listed<'_>]) -> String {
    let has = |part: &str| codes.last.contains(part) || scales.iter().any(|scale| scale.last.contains(part));
    let (what, each) = shapes(codes, scale, scales);
    let manner = MANNERS.iter().find(|(part, _)| has(part)).map(|(_, manner)| *manner);
    match manner.or_else(|| packed_manner(codes, scale)) {
        Some(manner) => format!("{what} codes, as {manner} has them, with {each}"),
        None => format!("{what} codes with {each}"),
    }
}

/// Is it a weight in 32-bit words, whose scales say along which dimension it is packed: outputs for AWQ, inputs for
/// GPTQ?
fn packed_manner(codes: &Listed<'_>, scale: &Listed<'_>) -> Option<&'static str> {
    let (([rows, cols], [groups, outputs]), Dtype::I32) = ((two(codes)?, two(scale)?), codes.dtype) else {
        return None;
    };
    if outputs == cols.saturating_mul(8) && groups <= rows {
        Some("AWQ")
    } else if outputs == cols && groups <= rows.saturating_mul(16) {
        Some("GPTQ")
    } else {
        None
    }
}

fn two(tensor: &Listed<'_>) -> Option<[usize; 2]> {
    tensor.shape.try_into().ok()
}

/// What the codes are, and what there is a scale for.
fn shapes(codes: &Listed<'_>, scale: &Listed<'_>, scales: &[Listed<'_>]) -> (&'static str, String) {
    let ((rows, cols), (scale_rows, scale_cols)) = (codes.matrix(), scale.matrix());
    let blocks_of = |columns: usize| {
        (scale_rows, scale_cols) == (rows, cols.div_ceil(columns))
            || scale.elements == rows.saturating_mul(cols.div_ceil(columns))
    };
    let exponents = matches!(scale.dtype, Dtype::U8 | Dtype::F8_E8M0);
    let each = |columns: usize| format!("a scale for each {columns} columns");
    match codes.dtype {
        Dtype::F4 if blocks_of(16) => return ("NVFP4", each(16)),
        Dtype::F4 if blocks_of(32) => return ("MXFP4", each(32)),
        Dtype::U8 if scale.dtype == Dtype::F8_E4M3 && blocks_of(8) => return ("NVFP4", each(16)),
        Dtype::U8 if exponents && blocks_of(16) => return ("MXFP4", each(32)),
        Dtype::F8_E4M3 | Dtype::F8_E5M2 if exponents && blocks_of(32) => return ("MXFP8", each(32)),
        _ => {}
    }
    let what = match codes.dtype {
        Dtype::F8_E4M3 | Dtype::F8_E5M2 | Dtype::F8_E4M3FNUZ | Dtype::F8_E5M2FNUZ => "FP8",
        Dtype::F4 => "FP4",
        Dtype::F6_E2M3 | Dtype::F6_E3M2 => "FP6",
        // Two codes of 4 bits in a byte, for each of which a scale has a column.
        Dtype::I8 if scale_cols == cols.saturating_mul(2) => "packed integer",
        Dtype::I8 => "INT8",
        Dtype::U8 if table(scales) == Some(16) => "4-bit",
        Dtype::U8 if table(scales) == Some(256) => "8-bit",
        _ => "packed integer",
    };
    let each = if scale.elements <= 1 {
        "one scale".to_owned()
    } else if scale.elements == rows {
        "a scale for each row".to_owned()
    } else {
        match block(codes, scale).filter(|_| codes.dtype.bitsize() == 8) {
            Some([rows, cols]) => format!("a scale for each {rows}×{cols} block"),
            None => "scales of groups".to_owned(),
        }
    };
    (what, each)
}

/// Entries of the table of values that codes point into.
fn table(scales: &[Listed<'_>]) -> Option<usize> {
    scales.iter().find(|scale| scale.last.contains(TABLE)).map(|table| table.elements)
}

/// The block that each scale is for, if the last two dimensions of both fit.
fn block(codes: &Listed<'_>, scale: &Listed<'_>) -> Option<[usize; 2]> {
    let last = |tensor: &Listed<'_>| tensor.shape.last_chunk::<2>().copied();
    let ([rows, cols], [scale_rows, scale_cols]) = (last(codes)?, last(scale)?);
    let side = |extent: usize, scales: usize| {
        // Blocks are powers of two; the last one may be cut.
        let side = extent.checked_div(scales)?.max(1).next_power_of_two();
        (extent.div_ceil(side) == scales).then_some(side)
    };
    Some([side(rows, scale_rows)?, side(cols, scale_cols)?])
}
