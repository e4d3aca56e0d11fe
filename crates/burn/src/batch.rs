//! Batches: what goes in, and the form that those of a program have.
//!
//! Law: a batch has the form of the sample's, and as many samples or fewer, never more. How it is cut is
//! [`warpweft_blocks::Cut`]'s.

use burn::tensor::TensorData;
use warpweft_blocks::Cut;

use crate::Error;
use crate::error::form;
use crate::tensors::{Inputs, Value};
use crate::values::Form;

/// A batch: the input of the first block, with what every block gets beside its own input, and the targets. It is made
/// of `(x, y)`, or of `((x, mask), y)`.
#[derive(Clone, Debug)]
pub struct Batch {
    pub(crate) inputs: Vec<TensorData>,
    pub(crate) targets: Option<TensorData>,
    failed: Option<String>,
}

impl<X: Inputs, Y: Value> From<(X, Y)> for Batch {
    fn from((x, y): (X, Y)) -> Self {
        let targets = y.try_data();
        let mut batch = Self::inputs(x);
        match targets {
            Ok(targets) => batch.targets = Some(targets),
            Err(reason) => batch.failed = Some(reason),
        }
        batch
    }
}

impl Batch {
    /// Without targets.
    pub(crate) fn inputs(x: impl Inputs) -> Self {
        match x.all() {
            Ok(inputs) => Self { inputs, targets: None, failed: None },
            Err(reason) => Self { inputs: Vec::new(), targets: None, failed: Some(reason) },
        }
    }
}

/// The whole batches of one program.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) program: &'static str,
    /// The input of the first block, and what all blocks get.
    pub(crate) inputs: Vec<Form>,
    pub(crate) targets: Option<Form>,
    pub(crate) cut: Cut,
}

const ADVICE: &str = "dimension 0 is that of the samples, and of targets and masks as many for each of them";

impl Shape {
    /// The batches of a program whose sample is this.
    pub(crate) fn of(
        program: &'static str,
        batch: &Batch,
        (ranks, micro_batches): (usize, usize),
    ) -> Result<Self, Error> {
        if let Some(reason) = &batch.failed {
            return Err(Error::burn("the sample")(reason.clone()));
        }
        let inputs: Vec<Form> = batch.inputs.iter().map(Form::of).collect();
        let first = inputs.first().and_then(|form| form.dims.first());
        let samples = first.copied().unwrap_or(0);
        let cut = Cut { samples, ranks, micro_batches };
        let shape = Self { program, inputs, targets: batch.targets.as_ref().map(Form::of), cut };
        if samples == 0 {
            let given = shape.inputs.first().map_or_else(String::new, |given| form(&given.dims, given.dtype));
            let (what, expected) = ("input".to_owned(), "at least one sample".to_owned());
            return Err(Error::Batch { program, what, given, expected, advice: ADVICE });
        }
        for (what, given) in shape.every() {
            if given.part(samples, samples).is_none() {
                let expected = format!("the same number for each of {samples} samples");
                let given = form(&given.dims, given.dtype);
                return Err(Error::Batch { program, what, given, expected, advice: ADVICE });
            }
        }
        Ok(shape)
    }

    /// All forms, by what they are of.
    fn every(&self) -> impl Iterator<Item = (String, &Form)> {
        let name =
            |number| if number == 0 { "input".to_owned() } else { format!("input beside it, {number}") };
        let inputs = self.inputs.iter().enumerate().map(move |(number, form)| (name(number), form));
        inputs.chain(self.targets.iter().map(|form| ("targets".to_owned(), form)))
    }

    /// The form of the fullest part of a whole one.
    pub(crate) fn of_part(&self, whole: &Form) -> Form {
        whole.part(self.cut.most(), self.cut.samples).unwrap_or_else(|| whole.clone())
    }

    /// How many samples a batch has that has the form of the sample's.
    pub(crate) fn check(&self, batch: &Batch) -> Result<usize, Error> {
        if let Some(reason) = &batch.failed {
            return Err(Error::burn("the batch")(reason.clone()));
        }
        let given = || batch.inputs.iter().chain(&batch.targets).map(Form::of);
        let samples = given().next().and_then(|form| form.dims.first().copied()).unwrap_or(0);
        let (program, advice) = (self.program, "only dimension 0 may differ, and be less");
        if given().count() != self.every().count() {
            let (what, given) = ("batch".to_owned(), format!("of {} tensors", given().count()));
            let expected = format!("of {}", self.every().count());
            return Err(Error::Batch { program, what, given, expected, advice });
        }
        for ((what, whole), given) in self.every().zip(given()) {
            let is_less = samples > 0 && samples <= self.cut.samples;
            if !is_less || whole.part(samples, self.cut.samples).as_ref() != Some(&given) {
                let expected = format!("{} for {} samples", form(&whole.dims, whole.dtype), self.cut.samples);
                let given = form(&given.dims, given.dtype);
                return Err(Error::Batch { program, what, given, expected, advice });
            }
        }
        Ok(samples)
    }
}
