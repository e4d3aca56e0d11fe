//! One layer of a decoder: its weights, and what it computes of a token.
//!
//! Law: a block is four parts, each a matrix with or without a norm before it, or matrices of the same shape where
//! experts are weights of their own. Names and shapes of weights follow from the sizes and from how many ranks share
//! the experts, and are the same in replays.

use super::super::{DeclareError, ModelBuilder, TensorParallel};
use super::{Decoder, product};
use warpweft_format::Format;

/// One layer of the stack: its weights with rows and columns, the first of which may be a norm. What tensor parallelism
/// does with the matrices follows from their place: inner widths are cut.
pub(super) struct Part {
    /// The stem of its calls' names.
    pub(super) name: String,
    /// The stem of its weights' names.
    pub(super) weights: String,
    pub(super) norm: bool,
    /// Rows of all matrices together.
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Matrices with the same number of rows each; 1 where experts are rows of one.
    pub(super) matrices: usize,
    /// Groups they travel in.
    pub(super) groups: usize,
    /// The matrices that are stacked by rows in one, such as query, key and value, of a column-parallel layer; none of
    /// a row-parallel one.
    pub(super) segments: Vec<usize>,
    /// Those of the rows that are computed for a token.
    pub(super) computed_rows: usize,
    /// Of experts that ranks share: how often a token goes to them.
    pub(super) sent: Option<usize>,
    /// Values that it gives for a token.
    pub(super) output_width: usize,
    pub(super) extra_flops: u64,
}

impl Part {
    /// The names of its matrices.
    pub(super) fn matrices(&self) -> Vec<String> {
        match self.matrices {
            1 if self.sent.is_none() => vec![format!("{}.weight", self.weights)],
            many => (0..many).map(|expert| format!("{}.experts.{expert}.weight", self.weights)).collect(),
        }
    }

    /// Declares its weights and the groups they travel in.
    pub(super) fn declare(
        &self,
        model: &mut ModelBuilder,
        hidden: usize,
        format: Format,
    ) -> Result<(), DeclareError> {
        if self.norm {
            let norm = model.replicated(&format!("{}.norm", self.weights), 1, hidden)?;
            model.tensor_parallel(norm, TensorParallel::SplitTokens)?;
        }
        let rows = self.rows / self.matrices;
        let mut declared = Vec::with_capacity(self.matrices);
        for name in self.matrices() {
            let matrix = model.sharded(&name, rows, self.cols, format)?;
            match self.segments.iter().copied().fold(0, usize::saturating_add) {
                0 => model.tensor_parallel(matrix, TensorParallel::RowParallel)?,
                all if all == rows => model.column_parallel_of(matrix, &self.segments)?,
                // Experts stacked in one weight, which no mesh cuts.
                _ => model.tensor_parallel(matrix, TensorParallel::ColumnParallel)?,
            }
            if self.sent.is_some() {
                model.expert_parallel(matrix)?;
            }
            declared.push(matrix);
        }
        if self.matrices > 1 {
            for (number, members) in declared.chunks(self.matrices / self.groups).enumerate() {
                model.group(&format!("{}.experts.{number}", self.weights), members)?;
            }
        }
        Ok(())
    }
}

impl Decoder {
    /// The layers in the order in which they run, of one of `ep` ranks that share the experts.
    pub(super) fn parts(&self, ep: usize) -> Vec<Part> {
        let last = self.layers.saturating_sub(1);
        let replays = (1..=self.replays.unwrap_or(0)).map(|replay| (last, Some(replay)));
        let once = (0..self.layers).map(|block| (block, None));
        once.chain(replays).flat_map(|(block, replay)| self.block(block, replay, ep)).collect()
    }

    pub(super) fn block(&self, block: usize, replay: Option<usize>, ep: usize) -> [Part; 4] {
        let kv_heads = self.kv_heads.unwrap_or(self.heads);
        let kv = self.hidden.saturating_mul(kv_heads) / self.heads;
        let attention = product(&[2, self.tokens, self.sequence.unwrap_or(self.tokens), self.hidden]);
        let run = replay.map_or_else(String::new, |replay| format!("replay.{replay}."));
        // What stacks matrices by rows, as outputs of a column-parallel layer, has a norm before it.
        let part = |name: &str,
                    segments: &[usize],
                    rows: usize,
                    cols,
                    experts: (usize, usize),
                    width,
                    extra_flops| Part {
            name: format!("blocks.{block}.{run}{name}"),
            weights: format!("blocks.{block}.{name}"),
            norm: !segments.is_empty(),
            segments: segments.to_vec(),
            rows: rows.saturating_mul(experts.0),
            matrices: if experts.0 > 1 && self.expert_groups.is_some() { experts.0 } else { 1 },
            groups: (self.expert_groups.unwrap_or(1) / ep).max(1),
            sent: (ep > 1 && experts.1 > 0).then_some(experts.1),
            computed_rows: rows.saturating_mul(experts.1.max(1)),
            output_width: width,
            cols,
            extra_flops,
        };
        // One matrix of all, or those of a rank's experts.
        let (all, experts) = ((1, 0), (self.experts.unwrap_or(1) / ep, self.experts_per_token.unwrap_or(1)));
        let (mlp, ffn) = match block < self.dense_layers.unwrap_or(0) {
            true => (all, self.ffn),
            false => (experts, self.expert_ffn.unwrap_or(self.ffn)),
        };
        let (hidden, qkv, up) =
            (self.hidden, self.hidden.saturating_add(kv.saturating_mul(2)), ffn.saturating_mul(2));
        [
            part("qkv", &[hidden, kv, kv], qkv, hidden, all, qkv, 0),
            part("attention", &[], hidden, hidden, all, hidden, attention),
            part("up", &[ffn, ffn], up, hidden, mlp, up.saturating_mul(mlp.1.max(1)), 0),
            // It adds up what a token's experts give.
            part("down", &[], hidden, ffn, mlp, hidden, 0),
        ]
    }
}
