//! A batch, cut along dimension 0 over ranks and micro-batches.
//!
//! Law: parts are contiguous and in order, rank after rank, and the first ones have a sample more where it does not
//! come out even. A batch may have fewer samples than the sample's, never more.

use candle_core::Tensor;

use crate::Error;
use crate::error::form;
use crate::values::Form;

/// A part of a batch, as a call gets it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Part {
    /// How many samples; the rest of its buffers is padding.
    pub(crate) samples: usize,
    /// What its loss is multiplied by, so that gradients are those of the whole batch.
    pub(crate) scale: f32,
    /// The weight of its loss, where losses are sums.
    pub(crate) weight: f32,
    /// The number of the batch, which the masks of dropouts follow.
    pub(crate) step: u32,
}

impl Part {
    /// Words of a part.
    pub(crate) const WORDS: usize = 4;

    pub(crate) fn of(words: &[u32]) -> Option<Self> {
        let [samples, scale, weight, step] = *<&[u32; Self::WORDS]>::try_from(words).ok()?;
        let (scale, weight) = (f32::from_bits(scale), f32::from_bits(weight));
        Some(Self { samples: samples as usize, scale, weight, step })
    }

    pub(crate) fn words(self) -> [u32; Self::WORDS] {
        let samples = u32::try_from(self.samples).unwrap_or(u32::MAX);
        [samples, self.scale.to_bits(), self.weight.to_bits(), self.step]
    }
}

/// The whole batches of one program.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) program: &'static str,
    pub(crate) input: Form,
    pub(crate) targets: Option<Form>,
    /// Parts that a rank computes one after the other.
    pub(crate) micro_batches: usize,
    pub(crate) ranks: usize,
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
        let batch = Self { program, input, targets: targets.map(Form::of), micro_batches, ranks };
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

    /// Samples of the sample.
    pub(crate) fn samples(&self) -> usize {
        self.input.dims.first().copied().unwrap_or(0)
    }

    pub(crate) const fn parts(&self) -> usize {
        self.ranks * self.micro_batches
    }

    /// The most samples of a part.
    pub(crate) fn most(&self) -> usize {
        self.samples().div_ceil(self.parts())
    }

    /// The forms of the fullest part.
    pub(crate) fn of_part(&self) -> (Form, Option<Form>) {
        let of = |form: &Form| form.part(self.most(), self.samples()).unwrap_or_else(|| form.clone());
        (of(&self.input), self.targets.as_ref().map(of))
    }

    /// Begin and length of each part of a batch of `samples`.
    pub(crate) fn cut(&self, samples: usize) -> Vec<(usize, usize)> {
        let (each, more) = (samples / self.parts(), samples % self.parts());
        let mut begin = 0;
        let part = |number: usize| {
            let count = each + usize::from(number < more);
            begin += count;
            (begin - count, count)
        };
        (0..self.parts()).map(part).collect()
    }

    /// How many samples a batch has that has the form of the sample's.
    pub(crate) fn check(&self, input: &Tensor, targets: Option<&Tensor>) -> Result<usize, Error> {
        let advice = "only dimension 0 may differ, and be less";
        let given = Form::of(input);
        let samples = given.dims.first().copied().unwrap_or(0);
        let expected = self.input.part(samples, self.samples());
        if samples == 0 || samples > self.samples() || expected.as_ref() != Some(&given) {
            let expected = form(&self.input.dims, self.input.dtype);
            return Err(self.refuse("input", &given, &expected, advice));
        }
        if let (Some(whole), Some(targets)) = (&self.targets, targets)
            && whole.part(samples, self.samples()).as_ref() != Some(&Form::of(targets))
        {
            let expected = format!("{} for {} samples", form(&whole.dims, whole.dtype), self.samples());
            return Err(self.refuse("targets", &Form::of(targets), &expected, advice));
        }
        Ok(samples)
    }

    fn refuse(&self, what: &'static str, given: &Form, expected: &str, advice: &'static str) -> Error {
        let (program, expected) = (self.program, expected.to_owned());
        Error::Batch { program, what, given: form(&given.dims, given.dtype), expected, advice }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    #[test]
    fn parts_are_in_order_and_lack_nothing_however_many_samples_there_are() -> candle_core::Result<()> {
        let sample = Tensor::zeros((10, 3), DType::F32, &Device::Cpu)?;
        let batch = Batch::of("train", (&sample, None), (2, 2)).unwrap();
        assert_eq!((batch.most(), batch.of_part().0.dims), (3, vec![3, 3]));
        for samples in 1..=10 {
            let cut = batch.cut(samples);
            let mut next = 0;
            for (begin, count) in cut {
                assert!(begin == next && count <= batch.most());
                next += count;
            }
            assert_eq!(next, samples);
        }
        Ok(())
    }
}
