//! The kernel sources, as they are compiled: one translation unit per op family.

pub use warpweft_kernels::Family;
pub(super) use warpweft_kernels::HEADERS;

/// The number that a family's source, or a header of it, gives a constant.
#[cfg(test)]
pub(super) fn constant(family: Family, name: &str) -> Option<u64> {
    let begin = format!("constexpr u32 {name} = ");
    let mut lines = HEADERS.into_iter().chain([family.source()]).flat_map(|file| file.text.lines());
    lines.find_map(|line| line.strip_prefix(begin.as_str())?.strip_suffix(';')?.parse().ok())
}
