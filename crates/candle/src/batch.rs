//! A batch, cut along dimension 0 over ranks and micro-batches.
//!
//! Law: a batch has the form of the sample's, and as many samples or fewer, never more. How it is cut is
//! [`warpweft_blocks::Cut`]'s.

use candle_core::Tensor;
use warpweft_blocks::Cut;

use crate::Error;
use crate::error::form;
use crate::values::Form;

/// The whole batches of one program.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) program: &'static str,
    pub(crate) input: Form,
    pub(crate) targets: Option<Form>,
    pub(crate) cut: Cut,
}

impl Batch {
    /// The batches of a program whose sample is this.
    pub(crate) fn of(
        program: &'static str,
        (input, targets): (&Tensor, Option<&Tensor>),
        (ranks, micro_batches): (usize, usize),
    ) -> Result<Self, Error> {
        let input = Form::of(input);
        let samples = input.dims.first().copied().unwrap_or(0);
        let cut = Cut { samples, ranks, micro_batches };
        let batch = Self { program, input, targets: targets.map(Form::of), cut };
        let advice = "dimension 0 is that of the samples, and of the targets as many for each of them";
        if samples == 0 {
            return Err(batch.refuse("input", &batch.input, "at least one sample", advice));
        }
        match &batch.targets {
            Some(targets) if targets.part(samples, samples).is_none() => Err(batch.refuse(
                "targets",
                targets,
                &format!("the same number for each of {samples} samples"),
                advice,
            )),
            Some(_) | None => Ok(batch),
        }
    }

    /// The forms of the fullest part.
    pub(crate) fn of_part(&self) -> (Form, Option<Form>) {
        let of = |form: &Form| form.part(self.cut.most(), self.cut.samples).unwrap_or_else(|| form.clone());
        (of(&self.input), self.targets.as_ref().map(of))
    }

    /// How many samples a batch has that has the form of the sample's.
    pub(crate) fn check(&self, input: &Tensor, targets: Option<&Tensor>) -> Result<usize, Error> {
        let advice = "only dimension 0 may differ, and be less";
        let given = Form::of(input);
        let samples = given.dims.first().copied().unwrap_or(0);
        let expected = self.input.part(samples, self.cut.samples);
        if samples == 0 || samples > self.cut.samples || expected.as_ref() != Some(&given) {
            let expected = form(&self.input.dims, self.input.dtype);
            return Err(self.refuse("input", &given, &expected, advice));
        }
        if let (Some(whole), Some(targets)) = (&self.targets, targets)
            && whole.part(samples, self.cut.samples).as_ref() != Some(&Form::of(targets))
        {
            let expected = format!("{} for {} samples", form(&whole.dims, whole.dtype), self.cut.samples);
            return Err(self.refuse("targets", &Form::of(targets), &expected, advice));
        }
        Ok(samples)
    }

    fn refuse(&self, what: &'static str, given: &Form, expected: &str, advice: &'static str) -> Error {
        let (program, expected) = (self.program, expected.to_owned());
        Error::Batch { program, what, given: form(&given.dims, given.dtype), expected, advice }
    }
}
