//! What every backend must do, as bodies without a device. A test program names its device in
//! `crate::device`: `Device`, `DeviceOptions`, `on_every_rank`, `most_recorded_ranks`, `HOST_SEES_MEMORY` and the
//! `meshes` of replicas it is asked for; and in `crate::products` what whole sessions compute on it, and how they are
//! started: `Surface`, `Layers`, `Rule`, `form`, `turned`, `settled` and `start`.

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
pub(crate) mod collectives;
pub(crate) mod conformance;
pub(crate) mod delayed;
pub(crate) mod diverged;
pub(crate) mod exchange_sessions;
pub(crate) mod exchanges;
pub(crate) mod experts;
pub(crate) mod forgotten;
pub(crate) mod harness;
pub(crate) mod ops;
pub(crate) mod optimizer;
pub(crate) mod own_rule;
pub(crate) mod parts;
pub(crate) mod recorded;
pub(crate) mod replay;
pub(crate) mod replicas;
pub(crate) mod scales;
