//! Learning rate over the run, and the loss that is printed.

/// Steps over which the learning rate rises.
const WARM_UP: u32 = 20;
/// Share of the peak that is left at the end.
const FLOOR: f32 = 0.1;
/// The most steps over which the loss is averaged.
const WINDOW: usize = 20;

/// Factor on the peak learning rate: a linear rise, then a linear fall to a tenth.
pub(crate) fn factor(step: u32, steps: u32) -> f32 {
    let rise = (step + 1) as f32 / WARM_UP as f32;
    let progress = step as f32 / steps.max(1) as f32;
    rise.min(1.0) * (1.0 - (1.0 - FLOOR) * progress)
}

/// Mean of the last losses, and of how many: of a short run the last quarter, lest its beginning is reported as its
/// end.
pub(crate) fn recent(losses: &[f32]) -> (f32, usize) {
    let steps = (losses.len() / 4).clamp(1, WINDOW).min(losses.len());
    let window = &losses[losses.len() - steps..];
    (window.iter().sum::<f32>() / steps.max(1) as f32, steps)
}

#[cfg(test)]
mod tests {
    use super::recent;

    #[test]
    fn the_mean_of_the_last_losses_leaves_the_first_out() {
        assert_eq!(recent(&[8.0, 4.0]), (4.0, 1));
        assert_eq!(recent(&[8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 4.0, 2.0]), (3.0, 2));
        assert_eq!(recent(&[1.0; 300]), (1.0, 20));
        assert_eq!(recent(&[]), (0.0, 0));
    }
}
