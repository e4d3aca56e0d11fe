//! Embedding, head and losses on the GPU; see [`crate::closure`].

use super::common::cross_entropy;
use super::kernel::Kernel;
use super::span::Matrix;
use super::{Context, Enqueued, Gpu, bytes, embedding, gradient, read, read_indices, weight, write};
use crate::closure::BALANCE;
use crate::model::{CHOSEN, EXPERTS, VOCABULARY, WIDTH};

impl Gpu {
    pub(super) fn embed(&self, context: &Context<'_>) -> Enqueued {
        let (tokens, table) = (bytes(context, "tokens")?, weight(context, "embedding")?);
        let shape = (self.sizes.tokens, WIDTH);
        Ok(embedding::forward(&self.device, shape, tokens, table, write(context, "x")?)?)
    }

    pub(super) fn embed_backward(&self, context: &Context<'_>) -> Enqueued {
        let (tokens, slopes) = (bytes(context, "tokens")?, read(context, "x slope")?);
        let (shape, table) = ((self.sizes.tokens, WIDTH), gradient(context, "embedding")?);
        Ok(embedding::backward(&self.device, shape, tokens, slopes, table)?)
    }

    pub(super) fn head(&mut self, context: &Context<'_>) -> Enqueued {
        let Self { sizes, device, y, logits, losses, .. } = self;
        let (tokens, slots) = (sizes.tokens, sizes.slots());
        let (picks, all, probable) = (tokens * CHOSEN, tokens * WIDTH, tokens * EXPERTS);
        let (x, back) = (read(context, "x")?, read(context, "back")?);
        let (places, chosen) = (read_indices(context, "places")?, read_indices(context, "chosen")?);
        let probabilities = read(context, "probabilities")?;
        let adds = device.elements(Kernel::AddUp, all).reads(x, all).reads(back, slots).reads(places, picks);
        let adds = adds.reads(chosen, picks).reads(probabilities, probable).writes(y.write(), all);
        adds.size(tokens).size(EXPERTS).size(CHOSEN).size(WIDTH).run()?;

        let head = Matrix::dense(weight(context, "head")?, VOCABULARY, WIDTH);
        let y = Matrix::dense(y.read(), tokens, WIDTH);
        let (mut loss, mut slope) = (write(context, "loss")?, write(context, "slope")?);
        device.multiply(logits.write(), false, y, head.transposed())?;
        cross_entropy(device, tokens, bytes(context, "targets")?, logits, losses, loss.again())?;
        let logits = Matrix::dense(logits.read(), tokens, VOCABULARY);
        device.multiply(slope.again(), false, logits, head)?;
        device.multiply(gradient(context, "head")?, false, logits.transposed(), y)?;

        let (mut pulls, balance) = (write(context, "pulls on probabilities")?, write(context, "balance")?);
        let balances = device.rows(Kernel::BalanceLoss, 1).reads(probabilities, probable);
        let balances = balances.reads(read(context, "load")?, EXPERTS);
        let balances = balances.writes(pulls.again(), probable).writes(balance, 1).writes(loss, 1);
        balances.size(probable).size(EXPERTS).float(BALANCE * EXPERTS as f32 / tokens as f32).run()?;

        let sent = write(context, "sent slopes")?;
        let sends = device.elements(Kernel::PicksBackward, picks).reads(slope.as_span(), all);
        let sends = sends.reads(back, slots).reads(places, picks).reads(chosen, picks);
        let sends = sends.reads(probabilities, probable).writes(pulls, probable).writes(sent, slots);
        Ok(sends.size(picks).size(EXPERTS).size(CHOSEN).size(WIDTH).run()?)
    }
}
