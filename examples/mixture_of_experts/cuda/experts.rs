//! The router and the experts on the GPU; see [`crate::experts`].
//!
//! Law: as there, a slot is read up to its count. In scratch, rows after a count hold anything: what is made of them
//! stays in scratch.

use super::common::{gelu, gelu_backward};
use super::device::Device;
use super::failure::Failure;
use super::kernel::Kernel;
use super::span::{Matrix, Span, SpanMut};
use super::{Context, Enqueued, Gpu, gradient, read, read_indices, weight, write, write_indices};
use crate::model::{CHOSEN, EXPERTS, HIDDEN, Sizes, WIDTH};

impl Gpu {
    pub(super) fn route(&self, context: &Context<'_>) -> Enqueued {
        let Self { sizes, device, .. } = self;
        let tokens = sizes.tokens;
        let (picks, probable) = (tokens * CHOSEN, tokens * EXPERTS);
        let (x, router) = (read(context, "x")?, weight(context, "router")?);
        let mut chosen = write_indices(context, "chosen")?;
        let chooses = device.elements(Kernel::Choose, tokens);
        let chooses = chooses.reads(x, tokens * WIDTH).reads(router, EXPERTS * WIDTH);
        let chooses = chooses.writes(write(context, "probabilities")?, probable);
        let chooses = chooses.writes(chosen.again(), picks);
        chooses.size(tokens).size(EXPERTS).size(CHOSEN).size(WIDTH).run()?;

        let mut places = write_indices(context, "places")?;
        let (given, busy) = (write_indices(context, "given")?, write(context, "picks")?);
        let counts = device.elements(Kernel::Place, EXPERTS).reads(chosen.as_span(), picks);
        let counts = counts.writes(places.again(), picks).writes(given, EXPERTS).writes(busy, EXPERTS);
        counts.size(picks).size(EXPERTS).size(sizes.capacity).run()?;

        let sends = device.elements(Kernel::Send, picks * WIDTH);
        let sends = sends.reads(x, tokens * WIDTH).reads(places.as_span(), picks);
        let sends = sends.writes(write(context, "sent")?, sizes.slots());
        Ok(sends.size(picks).size(CHOSEN).size(WIDTH).run()?)
    }

    pub(super) fn experts(&mut self, context: &Context<'_>) -> Enqueued {
        let Self { sizes, device, inner: [inner, active, _], .. } = self;
        let (inputs, taken) = (read(context, "inputs")?, read_indices(context, "taken")?);
        let mut made = write(context, "made")?;
        let of = |expert| Expert { device, sizes: *sizes, taken, expert };
        for expert in 0..sizes.own_experts() {
            let up = weight(context, &format!("experts.{expert}.up"))?;
            of(expert).product(inputs, up, inner.write(), [WIDTH, HIDDEN], true)?;
        }
        gelu(device, sizes.rows() * HIDDEN, inner.read(), active.write())?;
        for expert in 0..sizes.own_experts() {
            let down = weight(context, &format!("experts.{expert}.down"))?;
            of(expert).product(active.read(), down, made.again(), [HIDDEN, WIDTH], true)?;
        }
        Ok(())
    }

    pub(super) fn experts_backward(&mut self, context: &Context<'_>) -> Enqueued {
        let Self { sizes, device, inner: [inner, active, to_inner], .. } = self;
        let (inputs, taken) = (read(context, "inputs")?, read_indices(context, "taken")?);
        let slopes = read(context, "slopes")?;
        let mut made = write(context, "made slopes")?;
        let of = |expert| Expert { device, sizes: *sizes, taken, expert };
        for expert in 0..sizes.own_experts() {
            let [up, down] = ["up", "down"].map(|name| format!("experts.{expert}.{name}"));
            of(expert).product(inputs, weight(context, &up)?, inner.write(), [WIDTH, HIDDEN], true)?;
            of(expert).product(slopes, weight(context, &down)?, to_inner.write(), [WIDTH, HIDDEN], false)?;
        }
        gelu_backward(device, sizes.rows() * HIDDEN, inner.read(), active.write(), to_inner.write())?;
        for expert in 0..sizes.own_experts() {
            let [up, down] = ["up", "down"].map(|name| format!("experts.{expert}.{name}"));
            of(expert).gradient(slopes, active.read(), gradient(context, &down)?, [WIDTH, HIDDEN])?;
            of(expert).gradient(to_inner.read(), inputs, gradient(context, &up)?, [HIDDEN, WIDTH])?;
            of(expert).product(
                to_inner.read(),
                weight(context, &up)?,
                made.again(),
                [HIDDEN, WIDTH],
                false,
            )?;
        }
        Ok(())
    }

    pub(super) fn route_backward(&mut self, context: &Context<'_>) -> Enqueued {
        let Self { sizes, device, scores, .. } = self;
        let tokens = sizes.tokens;
        let (all, probable) = (tokens * WIDTH, tokens * EXPERTS);
        let mut to_x = write(context, "x slope")?;
        let adds = device.elements(Kernel::AddBack, all).reads(read(context, "slope")?, all);
        let adds = adds.reads(read(context, "slopes back")?, sizes.slots());
        let adds = adds.reads(read_indices(context, "places")?, tokens * CHOSEN).writes(to_x.again(), all);
        adds.size(tokens).size(CHOSEN).size(WIDTH).run()?;

        let scored = device.elements(Kernel::SoftmaxBackward, tokens);
        let scored = scored.reads(read(context, "probabilities")?, probable);
        let scored = scored.reads(read(context, "pulls on probabilities")?, probable);
        scored.writes(scores.write(), probable).size(tokens).size(EXPERTS).run()?;

        let scores = Matrix::dense(scores.read(), tokens, EXPERTS);
        let router = Matrix::dense(weight(context, "router")?, EXPERTS, WIDTH);
        device.multiply(to_x, true, scores, router)?;
        let x = Matrix::dense(read(context, "x")?, tokens, WIDTH);
        Ok(device.multiply(gradient(context, "router")?, false, scores.transposed(), x)?)
    }
}

/// Products over the filled rows of one of the rank's experts.
struct Expert<'a> {
    device: &'a Device,
    sizes: Sizes,
    taken: Span<'a, u32>,
    expert: usize,
}

impl Expert<'_> {
    /// `out = x · w`, with `w` as `[inputs, outputs]` or, `transposed`, as `[outputs, inputs]`.
    fn product(
        &self,
        x: Span<'_, f32>,
        w: Span<'_, f32>,
        out: SpanMut<'_, f32>,
        [inputs, outputs]: [usize; 2],
        transposed: bool,
    ) -> Result<(), Failure> {
        let (rows, own) = (self.sizes.rows(), self.sizes.own_experts());
        let launch = self.device.elements(Kernel::ExpertProduct, rows * outputs);
        let launch = launch.reads(self.taken, EXPERTS).reads(x, rows * inputs).reads(w, inputs * outputs);
        let launch = launch.writes(out, rows * outputs).size(rows).size(self.sizes.capacity).size(own);
        launch.size(self.expert).size(inputs).size(outputs).size(usize::from(transposed)).run()
    }

    /// `gradient = leftᵀ · right`, `[height, width]`.
    fn gradient(
        &self,
        left: Span<'_, f32>,
        right: Span<'_, f32>,
        gradient: SpanMut<'_, f32>,
        [height, width]: [usize; 2],
    ) -> Result<(), Failure> {
        let (rows, own) = (self.sizes.rows(), self.sizes.own_experts());
        let launch = self.device.elements(Kernel::ExpertGradient, height * width);
        let launch = launch.reads(self.taken, EXPERTS).reads(left, rows * height).reads(right, rows * width);
        let launch = launch.writes(gradient, height * width).size(EXPERTS).size(self.sizes.capacity);
        launch.size(own).size(self.expert).size(height).size(width).run()
    }
}
