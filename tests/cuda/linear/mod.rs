//! Linear layers on a GPU against products of the dequantized operands in f64; they skip, and say so, where
//! there is none.

mod dropped;
mod in_a_session;
mod kept;
mod muon;
mod newton_schulz;
mod products;
mod recipes;
mod reference;
mod refusals;
mod rig;
mod surroundings;
