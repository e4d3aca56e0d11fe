//! Local ops as kernel launches.
//!
//! Law: regions become addresses and parts become operands; the kernels define the numbers. Both orientations
//! of a master that is quantized in two directions go into one operand, so it is read once.

use std::collections::BTreeMap;

use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use crate::kernels::{
    AccumulateOperand, AdamOperand, AmaxOperand, Bounds, CastOperand, CopyOperand, DelayedScaleOperand,
    DequantizeOperand, ExpandOperand, FiniteCheckOperand, KernelLaunch, Kernels, MasterAmax, MasterCast,
    MasterFragment, MasterState, NormFrom, NormOperand, RecordAmaxOperand, ScaleOperand, ScaleRows,
    SlicesOperand, TransposeOperand, VoteOperand, ZeroOperand,
};
use warpweft_backend::local::{
    Accumulate, Adam, Assemble, CastVote, CustomOptimizer, DelayedScale, Dequantize, FusedScale, GradNorm,
    Largest, Master, Move, NormPart, NormSource, PartialAmax, PartialCast, RecordAmax, Round, RowSum, Spread,
    State, SumGradient, Transpose,
};
use warpweft_format::{ElementType, Format, Orientation, Shape, Via};
use warpweft_plan::layout::Region;
use warpweft_plan::model::Gradient;
use warpweft_plan::op::{SumTarget, WireType};

/// What preparing needs: the kernels, and where the arena begins.
pub(super) struct Preparation<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) arena: DeviceAddress,
    /// A word that is set when training cannot go on from a master or a moment, or a scale cannot be made.
    pub(super) diverged: DeviceAddress,
}

impl Preparation<'_> {
    /// Where a region is; an empty one has an address too.
    fn at(&self, region: Region) -> DeviceAddress {
        self.arena.plus(region.offset)
    }

    /// Where a scale plane is; nowhere for a format without.
    fn scale_at(&self, format: Format, region: Region) -> DeviceAddress {
        let planes = format.planes(Orientation::Rowwise, Shape::new(0, 0)).len();
        if planes > 1 { self.at(region) } else { DeviceAddress::NULL }
    }

    /// Where value `index` of a region of f32 is.
    fn value(&self, region: Region, index: usize) -> DeviceAddress {
        self.arena.plus(region.offset + index * size_of::<f32>())
    }

    fn vote_of(&self, vote: Option<Region>) -> DeviceAddress {
        vote.map_or(DeviceAddress::NULL, |vote| self.at(vote))
    }

    pub(super) fn partial_amax(&self, op: &PartialAmax) -> Result<KernelLaunch, CudaFailure> {
        let mut operands: BTreeMap<usize, AmaxOperand> = BTreeMap::new();
        for part in &op.parts {
            let blocks = self.value(op.block_amax, part.blocks.stored.start);
            let operand = operands.entry(part.position).or_insert_with(|| AmaxOperand {
                fragment: MasterFragment::whole(self.arena.plus(part.master.offset), part.shape),
                stored_rows: part.stored_rows,
                rowwise: DeviceAddress::NULL,
                columnwise: DeviceAddress::NULL,
                tensor_amax: self.value(op.tensor_amax, part.position),
            });
            match part.blocks.orientation {
                Orientation::Rowwise => operand.rowwise = blocks,
                Orientation::Columnwise => operand.columnwise = blocks,
            }
        }
        let operands: Vec<_> = operands.into_values().collect();
        self.kernels.partial_amax(op.format, op.via, &operands, self.vote_of(op.vote))
    }

    pub(super) fn fused_scale(&self, op: &FusedScale) -> Result<KernelLaunch, CudaFailure> {
        let operands: Vec<_> = op
            .parts
            .iter()
            .map(|part| ScaleOperand {
                orientation: part.orientation,
                shape: part.shape,
                block_amax: self.value(op.block_amax, part.amaxes.start),
                tensor_amax: self.value(op.tensor_amax, part.scaled_with.start),
                scaled_with: part.scaled_with.len(),
                encode: self.value(op.encode, part.factors.start),
                scale_plane: self.scale_at(op.format, part.scale_plane),
                scale_rows: ScaleRows::Compact,
                tensor_scale: self.value(op.tensor_scale, part.position),
            })
            .collect();
        self.kernels.fused_scale(op.format, &operands, self.vote_of(op.vote), self.diverged)
    }

    pub(super) fn delayed_scale(&self, op: &DelayedScale) -> Result<KernelLaunch, CudaFailure> {
        let operand = DelayedScaleOperand {
            scaled_with: op.scaled_with.clone(),
            length: op.settings.history as usize,
            history: op.history.map_or(DeviceAddress::NULL, |history| self.at(history)),
            scale: self.at(op.scale),
            tensor_scale: self.at(op.tensor_scale),
        };
        self.kernels.delayed_scale(op.tensor, op.settings.choice, &operand, self.vote_of(op.vote))
    }

    pub(super) fn record_amax(&self, op: &RecordAmax) -> Result<KernelLaunch, CudaFailure> {
        let operand = RecordAmaxOperand {
            weights: op.tensor_amax.bytes / size_of::<f32>(),
            length: op.settings.history as usize,
            tensor_amax: self.at(op.tensor_amax),
            history: self.at(op.history),
        };
        self.kernels.record_amax(&operand, self.vote_of(op.vote))
    }

    pub(super) fn partial_cast(&self, op: &PartialCast) -> Result<KernelLaunch, CudaFailure> {
        let mut operands: BTreeMap<Region, CastOperand> = BTreeMap::new();
        for part in &op.parts {
            let encode =
                op.encode.map_or(DeviceAddress::NULL, |encode| self.value(encode, part.factors.start));
            let operand = operands.entry(part.master).or_insert_with(|| CastOperand {
                fragment: MasterFragment::whole(self.arena.plus(part.master.offset), part.shape),
                encode: DeviceAddress::NULL,
                columnwise_encode: DeviceAddress::NULL,
                data: DeviceAddress::NULL,
                columnwise_data: DeviceAddress::NULL,
            });
            let data = self.at(part.data_plane);
            match part.orientation {
                Orientation::Rowwise => (operand.encode, operand.data) = (encode, data),
                Orientation::Columnwise => {
                    (operand.columnwise_encode, operand.columnwise_data) = (encode, data);
                }
            }
        }
        let operands: Vec<_> = operands.into_values().collect();
        self.kernels.partial_cast(op.format, op.via, &operands, self.vote_of(op.vote))
    }

    /// One launch for all of the rank's own parts. Another one zeroes and, for each format that repeats scale
    /// rows, one spreads them, where there is something to zero or to spread.
    pub(super) fn assemble(&self, op: &Assemble) -> Result<Vec<KernelLaunch>, CudaFailure> {
        let mut launches = Vec::new();
        let own = |part: &Move| CopyOperand {
            from: self.at(part.from),
            to: self.at(part.to),
            bytes: part.from.bytes,
        };
        let own: Vec<_> = op.own.iter().map(own).collect();
        if !own.is_empty() {
            launches.push(self.kernels.copy(&own)?);
        }
        let zero = |region: &Region| ZeroOperand { to: self.at(*region), bytes: region.bytes };
        let zeros: Vec<_> = op.zeros.iter().map(zero).collect();
        if !zeros.is_empty() {
            launches.push(self.kernels.zero(&zeros)?);
        }
        let kind = |spread: &Spread| (spread.format, spread.orientation);
        for alike in op.spread.chunk_by(|one, other| kind(one) == kind(other)) {
            let operand = |spread: &Spread| {
                let plane = self.at(spread.plane);
                ExpandOperand { shape: spread.shape, compact: plane, plane }
            };
            let operands: Vec<_> = alike.iter().map(operand).collect();
            if let Some(first) = alike.first() {
                launches.push(self.kernels.expand_scale(first.format, first.orientation, &operands)?);
            }
        }
        Ok(launches)
    }

    /// One launch for every format among parts that are next to each other.
    pub(super) fn transpose(&self, parts: &[Transpose]) -> Result<Vec<KernelLaunch>, CudaFailure> {
        let operand = |part: &Transpose| TransposeOperand {
            shape: part.shape,
            data: self.at(part.from.data),
            scale: self.scale_at(part.format, part.from.scale),
            columnwise_data: self.at(part.to.data),
            columnwise_scale: self.scale_at(part.format, part.to.scale),
        };
        let alike = parts.chunk_by(|one, other| one.format == other.format);
        let launch = |parts: &[Transpose]| {
            let operands: Vec<_> = parts.iter().map(operand).collect();
            parts.first().map(|first| self.kernels.transpose(first.format, &operands))
        };
        alike.filter_map(launch).collect()
    }

    /// One launch for every kind of planes and values among parts that are next to each other.
    pub(super) fn dequantize(&self, parts: &[Dequantize]) -> Result<Vec<KernelLaunch>, CudaFailure> {
        let operand = |part: &Dequantize| DequantizeOperand {
            shape: part.shape,
            data: self.at(part.from.data),
            scale: self.scale_at(part.format, part.from.scale),
            scale_rows: if part.compact { ScaleRows::Compact } else { ScaleRows::Padded },
            tensor_scale: part.tensor_scale.map_or(DeviceAddress::NULL, |scale| self.at(scale)),
            out: self.at(part.to),
        };
        let kind = |part: &Dequantize| (part.format, part.orientation, part.values);
        let launch = |parts: &[Dequantize]| {
            let operands: Vec<_> = parts.iter().map(operand).collect();
            let (format, orientation, values) = parts.first().map(kind)?;
            Some(self.kernels.dequantize(format, orientation, values, &operands))
        };
        parts.chunk_by(|one, other| kind(one) == kind(other)).filter_map(launch).collect()
    }

    /// A cast to bf16 of values that were not rounded before; to MXFP8, a sum of one slice for each unit.
    pub(super) fn round(&self, op: &Round) -> Result<KernelLaunch, CudaFailure> {
        if op.wire == WireType::Mxfp8 {
            return self.quantize(op);
        }
        let operand = CastOperand {
            fragment: MasterFragment::whole(self.at(op.from), op.shape),
            encode: DeviceAddress::NULL,
            columnwise_encode: DeviceAddress::NULL,
            data: self.at(op.to),
            columnwise_data: DeviceAddress::NULL,
        };
        self.kernels.partial_cast(Format::Bf16, Via::None, &[operand], DeviceAddress::NULL)
    }

    fn quantize(&self, op: &Round) -> Result<KernelLaunch, CudaFailure> {
        let element = if op.element == ElementType::Bf16 { WireType::Bf16 } else { WireType::F32 };
        let units = op.shape.elements().checked_div(op.unit).unwrap_or(0);
        let operand = |unit: usize| SlicesOperand {
            slices: vec![self.at(op.from).plus(unit * element.bytes(op.unit))],
            into: self.at(op.to).plus(unit * op.wire.bytes(op.unit)),
            elements: op.unit,
            target: SumTarget::Quantized,
            squares: None,
        };
        self.kernels.sum_slices(element, &(0..units).map(operand).collect::<Vec<_>>(), 1.0)
    }

    /// One launch for the sums that are quantized, and one for the others, where there are such: of weights that travel
    /// together one may be in slices, whose sum travels on, and another whole.
    pub(super) fn sum_gradient(&self, op: &SumGradient) -> Result<Vec<KernelLaunch>, CudaFailure> {
        let operand = |sum: &RowSum| SlicesOperand {
            slices: sum.slices.iter().map(|slice| self.at(*slice)).collect(),
            into: self.at(sum.into),
            elements: sum.elements,
            target: sum.target,
            squares: sum.squares.map(|taken| (self.at(taken.to), taken.elements)),
        };
        let (quantized, others): (Vec<_>, Vec<_>) =
            op.sums.iter().map(operand).partition(|sum| sum.target == SumTarget::Quantized);
        let launches = [quantized, others].into_iter().filter(|sums| !sums.is_empty());
        launches.map(|sums| self.kernels.sum_slices(op.wire, &sums, op.factor)).collect()
    }

    pub(super) fn accumulate(&self, op: &Accumulate) -> Result<KernelLaunch, CudaFailure> {
        let operand = AccumulateOperand {
            from: self.at(op.from),
            into: self.at(op.into),
            elements: op.from.bytes / size_of::<f32>(),
            squares: op.squares.map(|taken| (self.at(taken.to), taken.elements)),
        };
        self.kernels.accumulate(&[operand], op.factor, op.first)
    }

    pub(super) fn grad_norm(&self, op: &GradNorm) -> Result<KernelLaunch, CudaFailure> {
        let operand = |part: &NormPart| NormOperand {
            from: match part.source {
                NormSource::MainGrad(values) => NormFrom::Values(self.at(values)),
                NormSource::Squares(taken) => NormFrom::Squares(self.at(taken)),
            },
            elements: part.elements,
        };
        let operands: Vec<_> = op.parts.iter().map(operand).collect();
        self.kernels.grad_norm(&operands, self.at(op.fault), self.at(op.record))
    }

    pub(super) fn vote(&self, op: &CastVote) -> Result<KernelLaunch, CudaFailure> {
        self.kernels.vote(&VoteOperand {
            records: self.at(op.records),
            ranks: op.records.bytes / size_of::<warpweft_plan::op::NormRecord>(),
            optimizer_step: self.at(op.optimizer_step),
            gradient_scale: self.at(op.gradient_scale),
            vote: self.at(op.vote),
            max_norm: op.max_norm,
        })
    }

    /// What is checked after a custom optimizer.
    pub(super) fn finite_check(&self, op: &CustomOptimizer) -> Result<Option<KernelLaunch>, CudaFailure> {
        if op.checked.is_empty() {
            return Ok(None);
        }
        let operand = |(values, largest): &(Region, f32)| FiniteCheckOperand {
            values: self.at(*values),
            elements: values.bytes / size_of::<f32>(),
            largest: *largest,
        };
        let operands: Vec<_> = op.checked.iter().map(operand).collect();
        self.kernels.finite_check(ElementType::F32, &operands, self.at(op.vote), (self.diverged, 1)).map(Some)
    }

    /// Inspects a gradient as a call wrote it; `word` gets `number` if it is not finite and no other number is there.
    pub(super) fn inspect(
        &self,
        (gradient, region): (Gradient, Region),
        (word, number): (DeviceAddress, u32),
    ) -> Result<KernelLaunch, CudaFailure> {
        let elements = region.bytes / gradient.element.bytes();
        let operand = FiniteCheckOperand { values: self.at(region), elements, largest: f32::MAX };
        self.kernels.finite_check(gradient.element, &[operand], DeviceAddress::NULL, (word, number))
    }

    /// Where a master is, and what becomes of it beside.
    fn master(&self, op: &Adam, position: usize, master: &Master) -> MasterState {
        let amaxes = op.amaxes.as_ref().and_then(|amaxes| Some((amaxes, amaxes.parts.get(position)?)));
        match (master, amaxes) {
            (Master::Whole(master), None) => MasterState::Whole(self.at(*master)),
            (Master::Whole(master), Some((amaxes, part))) => MasterState::Amax(MasterAmax {
                master: self.at(*master),
                shape: part.shape,
                stored_rows: part.stored_rows,
                format: amaxes.format,
                via: amaxes.via,
                block_amax: self.value(amaxes.block_amax, part.blocks.stored.start),
                tensor_amax: self.value(amaxes.tensor_amax, part.position),
            }),
            (Master::Cast(master, cast), _) => MasterState::Cast(MasterCast {
                master: self.at(*master),
                shape: cast.shape,
                format: cast.format,
                via: cast.via,
                data: self.at(cast.planes.data),
                scale: self.scale_at(cast.format, cast.planes.scale),
                tensor_scale: cast.tensor_scale.map_or(DeviceAddress::NULL, |scale| self.at(scale)),
            }),
            (Master::Split { shard, remainder }, _) => {
                MasterState::Split { shard: self.at(*shard), remainder: self.at(*remainder) }
            }
        }
    }

    pub(super) fn adam(&self, op: &Adam) -> Result<KernelLaunch, CudaFailure> {
        let operand = |(position, state): (usize, &State)| AdamOperand {
            master: self.master(op, position, &state.master),
            exp_avg: self.at(state.exp_avg),
            exp_avg_sq: self.at(state.exp_avg_sq),
            main_grad: self.at(state.main_grad),
            hyperparameters: self.at(state.hyperparameters),
            elements: state.main_grad.bytes / size_of::<f32>(),
        };
        let operands: Vec<_> = op.states.iter().enumerate().map(operand).collect();
        let Largest { master, moment } = op.largest;
        let bounds = Bounds { master, moment, diverged: self.diverged };
        self.kernels.adam(&op.settings, op.moments, &operands, self.at(op.vote), bounds)
    }
}
