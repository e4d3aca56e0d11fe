//! Learning rate over the run, and the loss people are told.

/// Steps over which the learning rate rises.
const WARM_UP: u32 = 20;
/// Share of the peak that is left at the end.
const FLOOR: f32 = 0.1;
/// Steps over which the loss is averaged.
const WINDOW: usize = 20;

/// Factor on the peak learning rate: a linear rise, then a linear fall to a tenth.
pub(crate) fn factor(step: u32, steps: u32) -> f32 {
    let rise = (step + 1) as f32 / WARM_UP as f32;
    let progress = step as f32 / steps.max(1) as f32;
    rise.min(1.0) * (1.0 - (1.0 - FLOOR) * progress)
}

/// Mean of the last losses.
pub(crate) fn recent(losses: &[f32]) -> f32 {
    let window = &losses[losses.len().saturating_sub(WINDOW)..];
    window.iter().sum::<f32>() / window.len().max(1) as f32
}
