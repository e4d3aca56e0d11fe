//! The texts about formats, for help pages and `warpweft formats` alike.

use warpweft_format::{Format, Fp8Element, Fp8Tile, Nvfp4Block, Orientation, PlaneSpec, ScaleRule, Shape};

use super::text::{Align, Table};

/// The formats that `quantize` writes, by name.
fn quantizing() -> impl Iterator<Item = Format> {
    Format::CANONICAL.into_iter().filter(|format| !matches!(format, Format::F32 | Format::Bf16))
}

/// Their names, comma separated.
pub(super) fn quantizing_names() -> String {
    quantizing().map(|format| format.to_string()).collect::<Vec<_>>().join(", ")
}

/// A table of all formats: what they are, what they cost, what they are for.
#[must_use]
pub fn describe_formats() -> String {
    let columns = [
        ("format", Align::Left),
        ("element", Align::Left),
        ("block", Align::Left),
        ("scale", Align::Left),
        ("rowwise", Align::Right),
        ("both", Align::Right),
        ("wire", Align::Right),
        ("for", Align::Left),
    ];
    let mut table = Table::new(columns);
    for format in Format::CANONICAL {
        let Words { element, block, scale, purpose } = words(format);
        let cost = Cost::of(format);
        let number = |bytes: Option<f64>| bytes.map_or_else(|| "–".to_owned(), |bytes| format!("{bytes:.4}"));
        table.row([
            format.to_string(),
            element.to_owned(),
            block.to_owned(),
            scale.to_owned(),
            number(Some(cost.rowwise)),
            number(Some(cost.both)),
            number(cost.wire),
            purpose.to_owned(),
        ]);
    }
    format!(
        "{table}
rowwise, both, wire: bytes per element of a {COSTED} weight: in the orientation that forward reads; in
that and in the one that backward reads; gathered over the ranks for one use. A format without a wire
cost cannot be sharded.

Block and per-tensor FP8 have further spellings: `_e4m3` or `_e5m2` for the element, `_pow2` or
`_f32scale` for the scales, `_eps` and a number for the least amax, as in
`fp8_block128_e5m2_f32scale_eps1e-6` and `fp8_tensor_e4m3_pow2`. For short there are
{families}.
",
        families = families()
    )
}

/// The short names, and what they mean.
pub(super) fn families() -> String {
    Format::FAMILIES.map(|(family, format)| format!("`{family}` ({format})")).join(", ")
}

/// The formats that `quantize` writes as a list, for the help text of an option.
pub(super) fn list() -> String {
    let line = |format: Format| {
        let Words { block, purpose, .. } = words(format);
        format!("  {:<22} {:<11} {:>6.3} B  {purpose}\n", format.to_string(), block, Cost::of(format).both)
    };
    quantizing().map(line).collect()
}

struct Words {
    element: &'static str,
    block: &'static str,
    scale: &'static str,
    purpose: &'static str,
}

fn words(format: Format) -> Words {
    let fp8 = |element| match element {
        Fp8Element::E4m3 => "E4M3",
        Fp8Element::E5m2 => "E5M2",
    };
    let number = |rule| match rule {
        ScaleRule::PowerOfTwo => "f32, power of 2",
        ScaleRule::Float32 => "f32",
    };
    match format {
        Format::F32 => {
            Words { element: "f32", block: "–", scale: "–", purpose: "masters, norms, biases" }
        }
        Format::Bf16 => Words { element: "bf16", block: "–", scale: "–", purpose: "weights kept dense" },
        Format::Nvfp4(block) => {
            let (block, purpose) = match block {
                Nvfp4Block::Tile16x16 => ("16×16", "weights, smallest"),
                Nvfp4Block::Row1x16 => ("1×16", "activations, gradients"),
            };
            Words { element: "E2M1", block, scale: "E4M3 + f32 amax", purpose }
        }
        Format::Fp8Block(options) => {
            let (block, purpose) = match (options.tile, options.scale) {
                (Fp8Tile::Tile128x128, ScaleRule::PowerOfTwo) => ("128×128", "weights, Hopper and Blackwell"),
                (Fp8Tile::Tile128x128, ScaleRule::Float32) => ("128×128", "weights, exact scales, Hopper"),
                (Fp8Tile::Row1x128, _) => ("1×128", "activations, gradients"),
            };
            Words { element: fp8(options.element), block, scale: number(options.scale), purpose }
        }
        Format::Mxfp8 => {
            let purpose = "weights, small blocks, Blackwell";
            Words { element: "E4M3", block: "1×32 + 32×1", scale: "E8M0", purpose }
        }
        Format::Fp8Tensor(options) => {
            let purpose = match options.element {
                Fp8Element::E4m3 => "weights without outliers",
                Fp8Element::E5m2 => "gradients",
            };
            Words { element: fp8(options.element), block: "tensor", scale: number(options.scale), purpose }
        }
    }
}

/// Large enough that padding does not show.
const COSTED: Shape = Shape::new(4096, 4096);

/// Bytes per element.
struct Cost {
    rowwise: f64,
    both: f64,
    wire: Option<f64>,
}

impl Cost {
    fn of(format: Format) -> Self {
        let per_element = |planes: Vec<PlaneSpec>| {
            planes.iter().map(PlaneSpec::bytes).sum::<usize>() as f64 / COSTED.elements() as f64
        };
        let rowwise = per_element(format.planes(Orientation::Rowwise, COSTED));
        let both = rowwise + per_element(format.planes(Orientation::Columnwise, COSTED));
        let wire = format.check_weight().is_ok();
        let wire = wire.then(|| per_element(format.compact_planes(Orientation::Rowwise, COSTED)));
        Self { rowwise, both, wire }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_is_explained_with_what_it_costs() {
        let text = describe_formats();
        for format in Format::CANONICAL {
            assert!(text.lines().any(|line| line.starts_with(&format!("{format} "))), "{format}\n{text}");
        }
        let line = text.lines().find(|line| line.starts_with("nvfp4_2d")).unwrap();
        assert!(line.contains("0.5625") && line.contains("1.1250") && line.contains("0.5039"), "{line}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        for (family, format) in Format::FAMILIES {
            assert!(text.contains(&format!("`{family}` ({format})")), "{text}");
        }
    }

    #[test]
    fn only_quantizing_formats_are_listed_for_the_option() {
        assert_eq!(list().lines().count(), 8);
        assert!(!list().contains("bf16"));
    }
}
