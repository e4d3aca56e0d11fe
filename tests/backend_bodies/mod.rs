//! Tests that every backend must pass, as bodies without a device. A test program names its device in `crate::device`:
//! `Device`, `DeviceOptions`, `on_every_rank`, `most_captured_ranks`, `HOST_SEES_MEMORY`, `moves_filled_rows_alone` and
//! the `meshes` of replicas it is requested; and in `crate::products` what whole sessions compute on it, and how they
//! are started: `Surface`, `Layers`, `CustomOptimizer`, `form`, `turned`, `settled` and `start`.

/// Lists the bodies of a file, for programs with a runner of their own, and makes each a test for the others.
macro_rules! bodies {
    ($($name:ident),* $(,)?) => {
        #[allow(dead_code, reason = "read by programs with a runner of their own")]
        pub(crate) const ALL: &[(&str, fn())] = &[$((stringify!($name), $name)),*];

        #[cfg(test)]
        mod tests {
            $(#[test]
            fn $name() {
                super::$name();
            })*
        }
    };
}

pub(crate) mod accumulated;
pub(crate) mod background_saves;
pub(crate) mod captured;
pub(crate) mod cast_in_update;
pub(crate) mod collective_calls;
pub(crate) mod collective_sessions;
pub(crate) mod collectives;
pub(crate) mod conformance;
pub(crate) mod custom_optimizer;
pub(crate) mod delayed;
pub(crate) mod dispatch;
pub(crate) mod dispatch_sessions;
pub(crate) mod diverged;
pub(crate) mod expert_parallel;
pub(crate) mod experts;
pub(crate) mod forgotten;
pub(crate) mod harness;
pub(crate) mod levels;
pub(crate) mod ops;
pub(crate) mod optimizer;
pub(crate) mod parts;
pub(crate) mod replay;
pub(crate) mod replicas;
pub(crate) mod scale_groups;
pub(crate) mod scales;
pub(crate) mod slices;
pub(crate) mod squares;
pub(crate) mod tensor;
