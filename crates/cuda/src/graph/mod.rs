//! CUDA graphs: a step captured once and replayed.

pub(crate) mod capture;
pub(crate) mod keep_alive;
