//! The features of a machine on which the bits of losses depend: libraries choose their kernels by them.
//!
//! Law: two machines that are called the same have the same bits. The products of matrices and the C
//! library's logarithm choose their kernels by these features of the processor; a sum that is fused with its
//! product is rounded once, and one that is not is rounded twice.

/// The entry that names the machine.
pub(crate) const NAME: &str = "machine";

/// This machine.
pub(crate) fn here() -> String {
    let mut text = format!("{} {}:", std::env::consts::ARCH, std::env::consts::OS);
    for feature in features() {
        text += " ";
        text += feature;
    }
    text
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    let known = [
        ("avx", is_x86_feature_detected!("avx")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512dq", is_x86_feature_detected!("avx512dq")),
        ("avx512vl", is_x86_feature_detected!("avx512vl")),
    ];
    known.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<&'static str> {
    Vec::new()
}
