//! Errors of a call.
//!
//! Law: an error of any kind ends the call and skips the step on all ranks; the rank itself goes on. An error of an
//! update comes too late for that and ends the session.

use warpweft_base::errors::{listed, shown, with_causes};
use warpweft_base::id::WeightId;
use warpweft_format::ElementType;

/// Why a call could not be carried out.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ComputeError {
    /// The call did not declare what its closure requested.
    #[error("call `{call}` requested {what}, which it did not declare; add it to the call's declaration")]
    NotDeclared {
        /// The call's name.
        call: String,
        /// What was requested.
        what: String,
    },
    /// The closure returned without requesting what its call declares to overwrite.
    #[error(
        "call `{call}` declares to write {what}, and its closure returned without requesting it, so it holds whatever \
         lay there; write it (zeros, if there is nothing to say), or take it out of the call's declaration"
    )]
    NotWritten {
        /// The call's name.
        call: String,
        /// The gradient or buffer.
        what: String,
    },
    /// The closure returned and left elements as the checking layer had filled them, or added to those.
    #[error(
        "{task} writes {what}, and its closure left {missing} of its {elements} elements as they were, the first at {first} (counted from 0), or computed them from memory that nothing wrote; write every element, and add nothing to what is there (check = true fills it with a NaN, and found that NaN again)"
    )]
    PartlyWritten {
        /// The call, or the part of a custom optimizer.
        task: String,
        /// The gradient, output, or rows.
        what: String,
        /// Elements that were left.
        missing: usize,
        /// Elements there are.
        elements: usize,
        /// The first that was left.
        first: usize,
    },
    /// The plan has an update of a custom optimizer, and there is none.
    #[error(
        "the plan was made for a custom optimizer, and this rank has none; give it to SessionBuilder::optimizer"
    )]
    NoOptimizer,
    /// The optimizer names other states than there is memory for.
    #[error(
        "the optimizer `{optimizer}` names {named} states, and SessionBuilder::try_optimizer was given {states}; say as many as Optimizer::states has names"
    )]
    OtherStates {
        /// The optimizer's name.
        optimizer: &'static str,
        /// States that it names.
        named: usize,
        /// States that are kept.
        states: usize,
    },
    /// The ranks of a process made different optimizers.
    #[error(
        "this rank made {optimizer}, and another made {first}; return the same optimizer on every rank, for they update slices of the same weights"
    )]
    OtherOptimizer {
        /// Name and states of this rank's.
        optimizer: String,
        /// Those of the rank that was first.
        first: String,
    },
    /// The optimizer requested a weight that this update, or this round, is not about.
    #[error(
        "the optimizer requested {weight}, which is not of this task; take the weights of its context (`weights`), of which every task has others"
    )]
    NotOfUpdate {
        /// The weight.
        weight: WeightId,
    },
    /// The optimizer requested a state that it does not name.
    #[error(
        "the optimizer requested the state `{}` of `{weight}`, and {}; name every state in Optimizer::states",
        shown(state),
        kept_states(kept)
    )]
    NoState {
        /// The weight's name.
        weight: String,
        /// The state that was requested.
        state: String,
        /// Those that are kept.
        kept: Vec<String>,
    },
    /// The optimizer returned without requesting the master of a weight that it was to update, of which the rank has
    /// rows.
    #[error(
        "the optimizer returned without requesting the master of `{weight}`; update every weight of UpdateContext::weights, and freeze those that are to stay as they are"
    )]
    NotUpdated {
        /// The weight's name.
        weight: String,
    },
    /// A weight is to be updated as a whole matrix, and the optimizer does not take such.
    #[error(
        "`{weight}` is to be updated as a whole matrix (whole_matrix), and the optimizer `{optimizer}` takes none: give it Optimizer::prepare, Optimizer::transform and Optimizer::takes_whole_matrices, or take whole_matrix from the weight"
    )]
    NoMatrixRule {
        /// The weight's name.
        weight: String,
        /// The optimizer's name.
        optimizer: &'static str,
    },
    /// The optimizer takes whole matrices, and no weight requests that.
    #[error(
        "the optimizer `{optimizer}` takes whole matrices, and no weight is to be updated as a whole matrix: set whole_matrix for those that are, or use an optimizer without"
    )]
    MatrixRuleUnused {
        /// The optimizer's name.
        optimizer: &'static str,
    },
    /// A part was called that the optimizer does not have.
    #[error(
        "the optimizer says that it takes whole matrices (Optimizer::takes_whole_matrices), and does not have {part}; implement both Optimizer::prepare and Optimizer::transform"
    )]
    NoMatrixPart {
        /// The function that is missing.
        part: &'static str,
    },
    /// The optimizer requested the transformed rows of a weight whose matrix is not made whole.
    #[error(
        "the optimizer requested the transformed rows of `{weight}`, whose matrix is not made whole; set whole_matrix for the weight, or request them only where UpdatedWeight::whole_matrix is set"
    )]
    NoMatrix {
        /// The weight's name.
        weight: String,
    },
    /// The optimizer returned without requesting rows that it was to prepare.
    #[error(
        "the optimizer returned without requesting the prepared rows of `{weight}`, so its matrix would hold whatever lay there; prepare every weight of PrepareContext::weights"
    )]
    NotPrepared {
        /// The weight's name.
        weight: String,
    },
    /// The optimizer returned without requesting what becomes of a matrix.
    #[error(
        "the optimizer returned without requesting the transformed matrix of `{weight}`, which would hold whatever lay there; write TransformContext::transformed (the matrix as it is, if there is nothing to do)"
    )]
    NotTransformed {
        /// The weight's name.
        weight: String,
    },
    /// No weight of the model has this name.
    #[error(
        "call `{call}` requested weight `{}`, which the model does not declare; {}",
        shown(weight),
        proposed("weights", near)
    )]
    NoWeight {
        /// The call's name.
        call: String,
        /// What was requested.
        weight: String,
        /// Names near it, the nearest first.
        near: Vec<String>,
    },
    /// The call's program has no buffer of this name.
    #[error(
        "call `{call}` requested buffer `{}`, which program `{program}` does not declare; {}",
        shown(buffer),
        proposed("buffers", near)
    )]
    NoBuffer {
        /// The call's name.
        call: String,
        /// The program's name.
        program: String,
        /// What was requested.
        buffer: String,
        /// Names near it, the nearest first.
        near: Vec<String>,
    },
    /// The closure asked by the id of a weight of another model or of a buffer of another program, whose number one
    /// here has under another name.
    #[error(
        "call `{call}` of `{program}` requested {id} of another {owner}; in this one that is `{named}`. Take the id \
         that this {owner} gives, or look it up by its name (ComputeContext::weight_named, buffer_named)"
    )]
    OtherOwner {
        /// The call's name.
        call: String,
        /// Its program.
        program: String,
        /// The kind and number of the id.
        id: String,
        /// `model` or `program`.
        owner: &'static str,
        /// What has that number here.
        named: String,
    },
    /// A gradient was requested in another element type than the call declares.
    #[error(
        "call `{call}` requested the gradient of {weight} in {requested}, which it declares in {declared}; request it by {}, or declare it by CallBuilder::gradient_in",
        match declared { ElementType::Bf16 => "gradient_bf16", _ => "gradient" }
    )]
    GradientElement {
        /// The call's name.
        call: String,
        /// The weight, by name.
        weight: String,
        /// What the call declares.
        declared: ElementType,
        /// What its closure requested.
        requested: ElementType,
    },
    /// A buffer was requested in another element type than the one it is declared in.
    #[error(
        "call `{call}` requested `{buffer}` in {requested}, which is declared in {declared}; request {declared}, declare it in {requested}, or take its bytes as they are by read_bytes or write_bytes"
    )]
    BufferElement {
        /// The call's name.
        call: String,
        /// The buffer's name.
        buffer: String,
        /// What the program declares.
        declared: ElementType,
        /// What its closure requested.
        requested: ElementType,
    },
    /// A slice of another element type or length was requested.
    #[error(
        "call `{call}`: {what} holds {bytes} bytes, which are no whole number of aligned elements of {element} bytes; request it in the element type that it is declared in"
    )]
    Element {
        /// The call's name.
        call: String,
        /// What was requested.
        what: String,
        /// Bytes there.
        bytes: usize,
        /// Size of the element requested.
        element: usize,
    },
    /// Two live views of one piece of memory, at least one of them for writing.
    #[error("call `{call}` requested {wanted} while it holds {held}: {reason}; drop what it holds first")]
    Race {
        /// The call's name.
        call: String,
        /// What was requested.
        wanted: String,
        /// What the closure still holds.
        held: String,
        /// Which bytes they are, and what is done to them.
        reason: String,
    },
    /// An operand that is not in the rank's arena: a fault of the plan or of the backend.
    #[error("call `{call}` requested {what}: {reason}; please report it with the plan's fingerprint")]
    Outside {
        /// The call's name.
        call: String,
        /// What was requested.
        what: String,
        /// Which bytes it is, and how large the arena is.
        reason: String,
    },
    /// The device refused to spoil what the call overwrites, which the checking layer requests.
    #[error(
        "call `{call}`: what it overwrites cannot be filled for the checking layer: {reason}; start a new session, if it stays so with check = false"
    )]
    Spoil {
        /// The call's name.
        call: String,
        /// What the device said.
        reason: String,
    },
    /// The user's own error.
    #[error("{0}")]
    Closure(String),
}

warpweft_base::debug_in_words!(ComputeError);

impl ComputeError {
    /// A user's error, kept as its message.
    pub fn closure(error: impl std::fmt::Display) -> Self {
        Self::Closure(error.to_string())
    }
}

/// For closures whose own functions return any error: `?` keeps a [`ComputeError`] of the context as it is, and
/// of others the message, followed by those of its causes that it does not say itself.
impl From<Box<dyn std::error::Error>> for ComputeError {
    fn from(error: Box<dyn std::error::Error>) -> Self {
        match error.downcast::<Self>() {
            Ok(own) => *own,
            Err(other) => Self::closure(with_causes(&*other)),
        }
    }
}

/// As above.
impl From<Box<dyn std::error::Error + Send + Sync>> for ComputeError {
    fn from(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        let error: Box<dyn std::error::Error> = error;
        error.into()
    }
}

/// Which states there are.
fn kept_states(kept: &[String]) -> String {
    match kept {
        [] => "none is kept".to_owned(),
        kept => format!("those that are kept are {}", listed("`", kept)),
    }
}

/// What to request instead of a name that does not exist.
fn proposed(kind: &str, near: &[String]) -> String {
    match near {
        [] => format!("none of its {kind} has a name like it"),
        near => format!("names near it: {}", listed("`", near)),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn a_boxed_error_of_the_context_stays_what_it_is_and_of_another_the_message_is_kept() {
        let own = ComputeError::NotDeclared { call: "up".to_owned(), what: "`x`".to_owned() };
        assert_eq!(ComputeError::from(Box::<dyn Error>::from(own.clone())), own);
        assert_eq!(ComputeError::from(Box::<dyn Error + Send + Sync>::from(own.clone())), own);
        assert_eq!(ComputeError::from(Box::<dyn Error>::from("too hot")), ComputeError::closure("too hot"));
    }

    #[derive(Debug, thiserror::Error)]
    enum Kiln {
        #[error("the pots cannot be fired")]
        Fire(#[source] Box<Kiln>),
        #[error("the kiln is off: {0}")]
        Off(#[source] Box<Kiln>),
        #[error("the fuse is blown")]
        Fuse,
    }

    #[test]
    fn of_a_boxed_error_every_cause_is_told_and_none_twice() {
        let off = Kiln::Fire(Box::new(Kiln::Off(Box::new(Kiln::Fuse))));
        let told = ComputeError::from(Box::<dyn Error>::from(off)).to_string();
        assert_eq!(told, "the pots cannot be fired: the kiln is off: the fuse is blown");
    }
}
