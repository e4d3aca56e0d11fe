//! The scalar definition of every conversion, written to be compared with the specification by eye.
//!
//! Tests and benchmarks use it as the oracle for the kernels. It shares no arithmetic with them: elements are
//! converted by searching for the nearest value, weights one element at a time with its block looked up by
//! index. It is slow, it allocates, and nothing in the library calls it.

mod elements;
mod weights;

pub use elements::{E2M1_MAGNITUDES, e2m1, e4m3, e4m3_value, e5m2, e5m2_value, e8m0, e8m0_value};
pub use weights::{dequantize, fp8_scale, quantize};
