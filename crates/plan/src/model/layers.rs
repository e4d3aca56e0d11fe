//! A list of layers turned into forward and backward calls.
//!
//! Law: this is sugar over [`ProgramBuilder`], nothing more: every call it adds could have been written by
//! hand. Layer `l` reads its input activation and writes its output. Its backward call reads what forward
//! saved and the gradient of its output, and writes the gradient of its input and of each of its weights.
//! Between forward and backward the user adds the loss call. All outputs and their gradients have one
//! element type; what a layer saves has its own. Gradients of weights are f32.

use super::{CostHint, DeclareError, Form, Model, Phase, Placement, ProgramBuilder};
use warpweft_base::id::{BufferId, CallId, WeightId};
use warpweft_format::{ElementType, Orientation};

/// One layer of a stack.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Layer {
    /// Name; the calls are `<name>.forward` and `<name>.backward`.
    pub name: String,
    /// Weights used by forward (rowwise) and by backward (columnwise, replicated ones rowwise). Each gets a
    /// gradient from backward unless it is frozen.
    pub weights: Vec<WeightId>,
    /// Elements of the output activation.
    pub output_elements: usize,
    /// Further buffers forward saves for backward: name suffix, elements and their type.
    pub saved: Vec<(String, usize, ElementType)>,
    /// Cost of the forward call, in parts that add up. Backward is taken as twice that: once for the gradient
    /// of the input, and once for those of the weights unless most of their elements are frozen.
    pub cost: Vec<CostHint>,
}

impl Layer {
    /// A layer that saves nothing for backward but its input, and of which no cost is given. Set
    /// [`Layer::saved`] and [`Layer::cost`] where it does.
    #[must_use]
    pub fn new(name: &str, weights: Vec<WeightId>, output_elements: usize) -> Self {
        Self { name: name.to_owned(), weights, output_elements, saved: Vec::new(), cost: Vec::new() }
    }
}

/// A stack of layers inside a program under construction.
#[derive(Clone, Debug)]
pub struct LayerStack {
    layers: Vec<Layer>,
    form: Form,
    element: ElementType,
    input: BufferId,
    outputs: Vec<BufferId>,
    saved: Vec<Vec<BufferId>>,
}

impl LayerStack {
    /// Adds the forward calls of `layers`, first to last, starting from `input`. Sharded weights are used in
    /// `form`, replicated ones as they are. Activations are f32.
    ///
    /// # Errors
    /// What [`ProgramBuilder::buffer`] and [`super::CallBuilder::add`] refuse.
    pub fn forward(
        program: &mut ProgramBuilder,
        input: BufferId,
        layers: Vec<Layer>,
        form: Form,
    ) -> Result<Self, DeclareError> {
        Self::forward_in(program, input, layers, form, ElementType::F32)
    }

    /// Like [`LayerStack::forward`], with every output, and the gradients of outputs between layers, in
    /// `element`: bf16 for `warpweft::linear`. The user declares `input`, and the two buffers that
    /// [`LayerStack::backward`] is given, in the same type if the same closure reads them.
    ///
    /// # Errors
    /// As [`LayerStack::forward`].
    pub fn forward_in(
        program: &mut ProgramBuilder,
        input: BufferId,
        layers: Vec<Layer>,
        form: Form,
        element: ElementType,
    ) -> Result<Self, DeclareError> {
        let mut stack =
            Self { layers: Vec::new(), form, element, input, outputs: Vec::new(), saved: Vec::new() };
        let mut activation = input;
        // All of it or, if some layer is refused, nothing.
        let mut draft = program.clone();
        for layer in layers {
            let name = format!("{}.output", layer.name);
            let output = draft.activation_in(&name, layer.output_elements, element)?;
            let mut saved = Vec::new();
            for (suffix, elements, element) in &layer.saved {
                let name = format!("{}.{suffix}", layer.name);
                saved.push(draft.activation_in(&name, *elements, *element)?);
            }
            let forms: Vec<Form> = layer
                .weights
                .iter()
                .map(|weight| if is_replicated(draft.model(), *weight) { Form::Dense } else { form })
                .collect();
            let mut call = draft
                .call(&format!("{}.forward", layer.name), Phase::Forward)
                .reads(activation)
                .writes(output);
            call = layer.cost.iter().fold(call, |call, part| call.cost(*part));
            for (weight, form) in layer.weights.iter().zip(forms) {
                call = call.uses(*weight, Orientation::Rowwise, form);
            }
            for buffer in &saved {
                call = call.writes(*buffer);
            }
            call.add()?;
            activation = output;
            stack.outputs.push(output);
            stack.saved.push(saved);
            stack.layers.push(layer);
        }
        *program = draft;
        Ok(stack)
    }

    /// The activation after the last layer.
    #[must_use]
    pub fn output(&self) -> BufferId {
        self.outputs.last().copied().unwrap_or(self.input)
    }

    /// Adds the backward calls, last layer to first. `output_gradient` is the buffer the loss
    /// call wrote; `input_gradient` receives the gradient of the stack's input.
    ///
    /// # Errors
    /// As [`LayerStack::forward`].
    pub fn backward(
        &self,
        program: &mut ProgramBuilder,
        output_gradient: BufferId,
        input_gradient: BufferId,
    ) -> Result<Vec<CallId>, DeclareError> {
        let mut calls = Vec::new();
        let mut gradient = output_gradient;
        let mut draft = program.clone();
        for (position, layer) in self.layers.iter().enumerate().rev() {
            let (input, target) = match position.checked_sub(1) {
                None => (self.input, input_gradient),
                Some(before) => {
                    let below = &self.layers[before];
                    let name = format!("{}.output_gradient", below.name);
                    let target = draft.activation_in(&name, below.output_elements, self.element)?;
                    (self.outputs[before], target)
                }
            };
            let uses: Vec<(Orientation, Form)> = layer
                .weights
                .iter()
                .map(|weight| match is_replicated(draft.model(), *weight) {
                    true => (Orientation::Rowwise, Form::Dense),
                    false => (Orientation::Columnwise, self.form),
                })
                .collect();
            let times = backward_cost(draft.model(), &layer.weights);
            let mut call = draft
                .call(&format!("{}.backward", layer.name), Phase::Backward)
                .reads(input)
                .reads(gradient)
                .writes(target);
            call = layer.cost.iter().fold(call, |call, part| call.cost(part.times(times)));
            for buffer in &self.saved[position] {
                call = call.reads(*buffer);
            }
            for (weight, (orientation, form)) in layer.weights.iter().zip(uses) {
                call = call.uses(*weight, orientation, form).gradient_if_trained(*weight, ElementType::F32);
            }
            calls.push(call.add()?);
            gradient = target;
        }
        *program = draft;
        Ok(calls)
    }
}

/// What a backward call costs, as a multiple of its forward call: once for the gradient of the input, and
/// once for those of the weights if at least half of their elements train.
pub(super) fn backward_cost(model: &Model, weights: &[WeightId]) -> u32 {
    let specs = || weights.iter().filter_map(|weight| model.weight(*weight).ok());
    let elements = |frozen| {
        let of = specs().filter(move |spec| spec.frozen == frozen).map(|spec| spec.shape.elements());
        of.fold(0, usize::saturating_add)
    };
    if elements(true) > elements(false) { 1 } else { 2 }
}

fn is_replicated(model: &Model, weight: WeightId) -> bool {
    model.weight(weight).is_ok_and(|spec| spec.placement == Placement::Replicated)
}
