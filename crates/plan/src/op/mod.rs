//! The closed vocabulary of ops.
//!
//! Law: every task of a plan is one `Op`, made by one planner pass and executed by one `match` arm
//! of each backend; a new op breaks every backend at compile time. An op names slots, never
//! addresses and never a rank. [`Op::accesses`] is the only statement of what an op touches:
//! planner, verifier and checker all read it there.

mod accesses;
mod division;
mod naming;
mod operands;
mod records;
mod vocabulary;

#[doc(hidden)]
pub use division::{Division, exchange_given_to_each, given_to_each};
pub use operands::{
    AdamOperand, Chunk, DequantizePart, GatherPart, MasterOperand, Operand, OperandRole, PrepareOperand,
    ReducePart, ShardOperand, SumPart, SumTarget, TransposePart, UpdateOperand,
};
pub use records::{NormRecord, Vote};
pub use vocabulary::{Op, Reduction};
