//! The main job's kernels: their source, and their names.

/// One source for the compiler.
pub(crate) const SOURCE: &str = concat!(include_str!("common.cu"), include_str!("kernels.cu"));

super::launch::kernels! {
    Embed = "embed",
    EmbedBackward = "embed_backward",
    Gelu = "gelu",
    GeluBackward = "gelu_backward",
    CrossEntropy = "cross_entropy",
    MeanOf = "mean_of",
    Normalize = "normalize",
    NormalizeBackward = "normalize_backward",
    GainBackward = "gain_backward",
    Rotate = "rotate",
    AttentionForward = "attention_forward",
    AttentionBackwardQueries = "attention_backward_queries",
    AttentionBackwardKeys = "attention_backward_keys",
}
