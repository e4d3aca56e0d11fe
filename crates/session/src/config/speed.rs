//! Speeds and rates, as people write them.
//!
//! Law: the bounds are wide, for they are there to refuse numbers whose power of ten was forgotten: such a number
//! would make times that no clock holds.

/// The range of a speed, in units per second.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// What there is so many of in a second.
    pub of: &'static str,
    /// The least.
    pub least: f64,
    /// About what machines reach.
    pub usual: f64,
}

impl Speed {
    /// Floating-point operations.
    pub const FLOPS: Self = Self { of: "operations", least: 1e8, usual: 1e14 };
    /// Bytes of device memory.
    pub const MEMORY: Self = Self { of: "bytes", least: 1e6, usual: 1e12 };
    /// Bytes over a link.
    pub const LINK: Self = Self { of: "bytes", least: 1e4, usual: 1e11 };

    /// The most.
    const MOST: f64 = 1e30;

    /// Is it a speed?
    #[must_use]
    pub fn admits(self, speed: f64) -> bool {
        (self.least..=Self::MOST).contains(&speed)
    }

    /// What is admitted, and for a speed that is too low what was probably meant.
    #[must_use]
    pub fn words(self, speed: Option<f64>) -> String {
        let Self { of, least, usual } = self;
        let low = speed.filter(|speed| *speed >= 1e-3 && *speed < least);
        let meant = low.map_or_else(String::new, |speed| {
            let off = |power: &i32| (speed.log10() + f64::from(*power) - usual.log10()).abs();
            let power = [6, 9, 12, 15].into_iter().min_by(|one, other| off(one).total_cmp(&off(other)));
            format!("; did you mean {speed}e{}?", power.unwrap_or(12))
        });
        format!("a number of {of} per second from {least:e} to {:e}{meant}", Self::MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forgotten_power_of_ten_is_reported() {
        for (speed, given, meant) in [
            (Speed::FLOPS, 1400.0, "did you mean 1400e12?"),
            (Speed::FLOPS, 1.4, "did you mean 1.4e15?"),
            (Speed::FLOPS, 67.5, "did you mean 67.5e12?"),
            (Speed::MEMORY, 4.27, "did you mean 4.27e12?"),
            (Speed::MEMORY, 4270.0, "did you mean 4270e9?"),
            (Speed::LINK, 450.0, "did you mean 450e9?"),
        ] {
            assert!(!speed.admits(given));
            let words = speed.words(Some(given));
            assert!(words.contains("per second") && words.ends_with(meant), "{words}");
        }
        assert!(!Speed::LINK.admits(-1.0) && !Speed::LINK.words(Some(-1.0)).contains("mean"));
        assert!(!Speed::LINK.admits(f64::NAN) && !Speed::LINK.words(None).contains("mean"));
        assert!(Speed::LINK.admits(Speed::LINK.least) && Speed::LINK.admits(1e30));
    }
}
