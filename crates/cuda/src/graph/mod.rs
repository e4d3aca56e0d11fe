//! CUDA graphs: a step captured once and launched again.

pub(crate) mod capture;
pub(crate) mod keep_alive;
