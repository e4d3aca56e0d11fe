//! A checkpoint in memory: the weights of a session and its optimizer state.
//!
//! Law: a checkpoint is whole: every weight in its logical shape, independent of how many ranks wrote it, in
//! how many replicas, so any mesh can read it: it is made of the first replica's shards, and every replica
//! gets them back. Masters, moments, delayed scales and step count determine everything; the quantized planes
//! of weights that train ride along for whoever serves the model, and are not read back. A frozen weight that is
//! sharded is its planes, which are read back as they are, or a digest of them. Carried buffers are the exception:
//! each rank has its own, so they fit the number of ranks that wrote them, and nothing drops them silently.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{CheckpointError, FrozenDigest, OptimizerIdentity};
use warpweft_format::{DelayedState, Format, FormatError, Orientation, PlaneSpec, Planes, Shape, dequantize};

/// The planes of one stored orientation of a weight, in the padded shapes of its format ([`Format::planes`]).
#[derive(Clone, Debug, PartialEq)]
pub struct PlanesState {
    /// Which orientation.
    pub orientation: Orientation,
    /// Shapes and element types.
    pub specs: Vec<PlaneSpec>,
    /// Bytes of every plane.
    pub planes: Vec<Vec<u8>>,
}

/// One weight.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightState {
    /// Its name.
    pub name: String,
    /// Its logical shape.
    pub shape: Shape,
    /// Its format.
    pub format: Format,
    /// FP32 master, row-major; empty if the weight was frozen and is its planes, or a digest alone: see
    /// [`WeightState::values`].
    pub master: Vec<f32>,
    /// Lists of optimizer state, each shaped as the master: Adam's first and second moment, or the states of a custom
    /// optimizer in its order. None if the weight was frozen. A session in which it is frozen ignores them. One in
    /// which it trains needs them, unless it was frozen or no optimizer step was taken: then they begin at zero.
    pub states: Vec<Vec<f32>>,
    /// Quantized planes, one entry per stored orientation; none for a replicated weight. A session in which the weight
    /// is frozen in the same format takes them as they are if there is no master.
    pub planes: Vec<PlanesState>,
    /// What dequantizing needs beside the planes: NVFP4's amax, per-tensor FP8's scale_inv, else 1.
    pub tensor_scale: f32,
    /// Scale in use and amax history, where scaling is delayed. A session with delayed scaling that imports a
    /// weight without begins its history anew; one without delayed scaling ignores it; one whose weight has
    /// another format keeps the history and takes the scale from it.
    pub delayed: Option<DelayedState>,
    /// Of a weight that was frozen, which values it has. A [`FileStore`](super::FileStore) keeps this and not the
    /// values; a session that imports a weight without values must have these.
    pub frozen: Option<FrozenDigest>,
}

impl WeightState {
    /// Its values, row-major: the master, or what the planes of a frozen weight are dequantized to.
    ///
    /// # Errors
    /// [`FormatError::MissingPlanes`] for a frozen weight of a file, which has a digest alone; [`FormatError`] for
    /// planes that are not those of the shape.
    pub fn values(&self) -> Result<Cow<'_, [f32]>, FormatError> {
        if !self.master.is_empty() {
            return Ok(Cow::Borrowed(&self.master));
        }
        let rowwise = self.planes.iter().find(|planes| planes.orientation == Orientation::Rowwise);
        let missing = FormatError::MissingPlanes { orientation: Orientation::Rowwise };
        let planes = &rowwise.ok_or(missing)?.planes;
        let plane = |number: usize| planes.get(number).map_or(&[][..], Vec::as_slice);
        let expected = self.format.planes(Orientation::Rowwise, self.shape);
        if let Some((spec, at)) = expected.iter().zip(0..).find(|(spec, at)| plane(*at).len() != spec.bytes())
        {
            let (what, actual) = ("a plane", plane(at).len());
            return Err(FormatError::Length { what, expected: spec.bytes(), actual });
        }
        let planes = Planes { data: plane(0), scale: plane(1) };
        let mut values = vec![0.0; self.shape.elements()];
        dequantize(self.format, Orientation::Rowwise, self.shape, planes, self.tensor_scale, &mut values)?;
        Ok(Cow::Owned(values))
    }

    /// Without any values, planes or state.
    pub(super) const fn bare(name: String, shape: Shape, format: Format) -> Self {
        Self {
            name,
            shape,
            format,
            master: Vec::new(),
            states: Vec::new(),
            planes: Vec::new(),
            tensor_scale: 1.0,
            delayed: None,
            frozen: None,
        }
    }

    /// Are its values here? If not, there is a digest of them alone.
    pub(super) fn has_values(&self) -> bool {
        !self.master.is_empty() || !self.planes.is_empty()
    }

    /// Has it as many values as its shape says, of the master and of every list of state? A frozen weight need not
    /// have a master, and has no state.
    pub(super) fn is_whole(&self) -> bool {
        let elements = self.shape.elements();
        let is_whole = self.master.len() == elements;
        match self.frozen {
            Some(_) => (is_whole || self.master.is_empty()) && self.states.is_empty(),
            None => is_whole && self.states.iter().all(|list| list.len() == elements),
        }
    }
}

/// One carried buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarriedBuffer {
    /// Its name, the same in every program that carries it.
    pub name: String,
    /// Its bytes on every rank, in rank order, as closures left them.
    pub ranks: Vec<Vec<u8>>,
}

/// The carried buffers of a checkpoint.
///
/// An import takes them as they are: every carried buffer of the session must be there, for as many
/// ranks. What a checkpoint of other ranks, or of a program without a buffer, should mean for it only
/// the user knows; who wants all of them to begin anew says [`Carried::Zeros`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carried {
    /// Every carried buffer of the session becomes zeros, as at its start.
    Zeros,
    /// These; none for programs without carried buffers.
    Buffers(Vec<CarriedBuffer>),
}

/// All weights, the optimizer's step count and the carried buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Optimizer steps taken.
    pub optimizer_step: u32,
    /// What updated the weights in these steps. A session that updates by another optimizer refuses its state. `None`
    /// where that is not known, as of a file that does not say; then all that is asked is as many lists of state.
    pub optimizer_identity: Option<OptimizerIdentity>,
    /// The weights, in declaration order. An import finds them by their names, in any order.
    pub weights: Vec<WeightState>,
    /// The carried buffers, in the order of [`warpweft_plan::plan::carried`].
    pub carried: Carried,
    /// What the user keeps beside the weights, under names of its own: the number of its step, its loss scale,
    /// the place in its data. An export has none, an import reads none, and stores keep them with the rest, so that
    /// a file is either of one moment or not there.
    pub notes: BTreeMap<String, String>,
}

impl Checkpoint {
    /// The weight with this name.
    #[must_use]
    pub fn weight(&self, name: &str) -> Option<&WeightState> {
        self.weights.iter().find(|state| state.name == name)
    }

    /// The weights that a state of the optimizer is, such as an exponential moving average: its values in the place of
    /// masters, for an optimizer that begins anew, without planes. To evaluate them, import them into this session or
    /// another, and import `self` to go on training bit for bit; to publish them, [`Checkpoint::save_weights`]. Weights
    /// that were frozen are what they were.
    ///
    /// `name` is one of [`Optimizer::states`](warpweft_plan::compute::Optimizer::states). From a sharded checkpoint,
    /// [`PartFiles::weights_of_state`](super::PartFiles::weights_of_state).
    ///
    /// # Errors
    /// [`CheckpointError::Unfit`] for another name, and for a weight without that state.
    pub fn weights_of_state(&self, name: &str) -> Result<Self, CheckpointError> {
        let list = OptimizerIdentity::state(self.optimizer_identity.as_ref(), name)?;
        let of = |weight: &WeightState| {
            if weight.frozen.is_some() {
                return Ok(weight.clone());
            }
            let none = || OptimizerIdentity::lacks(&weight.name, name);
            let master = weight.states.get(list.index()).ok_or_else(none)?.clone();
            let bare = WeightState::bare(weight.name.clone(), weight.shape, weight.format);
            Ok(WeightState { master, delayed: weight.delayed.clone(), ..bare })
        };
        let weights = self.weights.iter().map(of).collect::<Result<_, CheckpointError>>()?;
        let (carried, notes) = (self.carried.clone(), self.notes.clone());
        Ok(Self { optimizer_step: 0, optimizer_identity: None, weights, carried, notes })
    }

    /// The same weights and carried buffers, with an optimizer that begins anew: no steps taken, and no moments.
    ///
    /// For another optimizer than the one that made the state, or so that weights that were frozen and train now do not
    /// begin with a step count that is not theirs ([`Session::thawed`](crate::session::Session::thawed)).
    #[must_use]
    pub fn restart_optimizer(mut self) -> Self {
        (self.optimizer_step, self.optimizer_identity) = (0, None);
        for weight in &mut self.weights {
            weight.states = Vec::new();
        }
        self
    }
}
