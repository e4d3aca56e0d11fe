//! `warpweft quantize`, through the library and through the program.

mod checkpoint;
mod contents;
mod engines;
mod golden;
mod kinds;
mod leftovers;
mod program;
mod refusals;
mod saved;
mod stacks;
mod torn;
