//! Access to main grads, such as for logging.
//!
//! Law: what is handed out is what norm, clip and optimizer read: complete sums of one step that ended
//! well, or of several that were added up, on every rank. Nothing else of a session changes. Other processes are not
//! asked: each has its ranks' rows.

use std::ops::Range;

use crate::exec::Command;
use crate::session::{CompiledHere, Session, SessionError};
use warpweft_base::id::RankId;
use warpweft_plan::model::{Block, ShardRows};

/// The main grad of the rows of one weight that a rank owns.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MainGrad {
    /// Whose rows. Ranks at one place of several replicas own the same, and every rank all of a replicated
    /// weight's.
    pub rank: RankId,
    /// The weight's name.
    pub weight: String,
    /// Which of its rows, of the weight as it is declared.
    pub rows: ShardRows,
    /// Which of its columns: all, but of a row-parallel weight where the mesh has tensor parallelism.
    pub columns: Range<usize>,
    /// `[rows, columns]`, row-major: the mean over all ranks and micro-batches of what calls wrote, not clipped,
    /// and still times the loss scale where they multiplied with one; the ranks of a tensor-parallel group count as
    /// one. Where gradients of several steps are accumulated ([`Session::accumulate`]), the sum of their means.
    pub values: Vec<f32>,
}

impl Session {
    /// Copies the main grads out that the last step with gradients left: for every rank of this process in
    /// order, of every weight that trains in declaration order.
    ///
    /// A process may call it alone; others wait for it in their next step, for `deadline_s` at most. Steps of
    /// programs without gradients, exports and imports leave main grads as they are. The values of a step
    /// that was skipped ([`Outcome::Skipped`](crate::session::Outcome::Skipped)) show what was not finite, and those of
    /// one that ended as [`SessionError::Diverged`] what the optimizer was given.
    ///
    /// # Errors
    /// [`SessionError::NoGradients`] before the first such step, and after one whose closure failed;
    /// [`SessionError::DroppedStep`], a poisoned session.
    pub async fn main_grads(&mut self) -> Result<Vec<MainGrad>, SessionError> {
        self.main_grads_here().await
    }

    fn main_grads_here(&mut self) -> CompiledHere<'_, Vec<MainGrad>> {
        Box::pin(async move {
            self.settle().await?;
            self.check_usable()?;
            if !self.has_gradients {
                return Err(SessionError::NoGradients);
            }
            self.command(Command::MainGrads);
            self.finish().await?;
            let Some(program) = self.programs.first() else { return Ok(Vec::new()) };
            let mut all = Vec::new();
            for thread in &self.ranks {
                let (rank, copied) =
                    (thread.rank(), std::mem::take(&mut thread.handover().transfer.main_grads));
                for (weight, mut values) in copied {
                    let layout = program.plan.weights.layout(weight);
                    let of = |rows: ShardRows, values| {
                        let (weight, columns) =
                            (layout.name_at(rank).into_owned(), layout.shard.columns_of(rank));
                        MainGrad { rank, weight, rows, columns, values }
                    };
                    let mut blocks = layout.shard.blocks_of(rank).peekable();
                    if blocks.peek().is_none() {
                        all.push(of(layout.shard.rows_of(rank), values));
                        continue;
                    }
                    for Block { first, shape } in blocks {
                        let others = values.split_off(shape.elements().min(values.len()));
                        let own = std::mem::replace(&mut values, others);
                        all.push(of(ShardRows { begin: first.rows, rows: shape.rows }, own));
                    }
                }
            }
            Ok(all)
        })
    }
}
