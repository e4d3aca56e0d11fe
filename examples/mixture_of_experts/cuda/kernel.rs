//! The example's kernels: their source, and their names.

/// One source for the compiler.
pub(crate) const SOURCE: &str =
    concat!(include_str!("../../train/cuda/common.cu"), include_str!("kernels.cu"));

super::launch::kernels! {
    Embed = "embed",
    EmbedBackward = "embed_backward",
    Gelu = "gelu",
    GeluBackward = "gelu_backward",
    CrossEntropy = "cross_entropy",
    MeanOf = "mean_of",
    Choose = "choose",
    Place = "place",
    Send = "send",
    SoftmaxBackward = "softmax_backward",
    ExpertProduct = "expert_product",
    ExpertGradient = "expert_gradient",
    AddUp = "add_up",
    BalanceLoss = "balance_loss",
    PicksBackward = "picks_backward",
    AddBack = "add_back",
}
