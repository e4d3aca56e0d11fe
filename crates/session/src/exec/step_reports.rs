//! Step reports between processes; and weights on their way to rank 0.
//!
//! Laws:
//! - **EX-2** every process knows of every rank what it knows of its own: fault, divergence, gradients that are not
//!   finite, outputs, why a step was not captured.
//! - What arrives is checked against the plan before it is kept. Processes that were asked for different steps end.
//! - Values travel as they are in memory, little endian on every host this library is built for.
//! - None of this happens in a world of one process.

use std::sync::Arc;

use super::world::{failed, misfit};
use super::{ComingStep, Diverged, ExecError, Gradients, Handover, World};
use crate::checkpoint::ranks::{RankPart, WeightShard};
use warpweft_backend::ClosureFault;
use warpweft_backend::rendezvous::{Reader, Topic, Truncated, Writer, cut};
use warpweft_base::digest::Digest;
use warpweft_base::id::{CallId, ProgramId, RankId};
use warpweft_format::{DelayedState, OwnedPlanes};
use warpweft_plan::model::{BufferSpec, Role};
use warpweft_plan::plan::StepPlan;

/// Why nothing is imported where every process could.
pub(super) const DIFFERENT_CHECKPOINTS: &str =
    "processes were given different checkpoints; give every process the same";

/// The report of a step from one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankReport {
    /// The fault of its closures.
    pub fault: Option<ClosureFault>,
    /// What it left from which no training goes on.
    pub diverged: Option<Diverged>,
    /// What it knows of gradients that are not finite.
    pub gradients: Gradients,
    /// Why it did not capture the step, if it was supposed to.
    pub uncaptured: Option<String>,
    /// Whether its part of a save under way is written, and waits for those of others.
    pub part_is_written: bool,
    /// Per buffer of the program: the bytes of outputs, nothing for other buffers.
    pub outputs: Vec<Vec<u8>>,
}

impl RankReport {
    /// Built from what a rank left in its handover.
    #[must_use]
    pub fn of(plan: &StepPlan, program: ProgramId, handover: &Handover) -> Self {
        let staged =
            handover.staged.get(program.index()).map_or(&[][..], Vec::as_slice).iter().zip(&plan.buffers);
        let output = |(bytes, spec): (&Vec<u8>, &warpweft_plan::model::BufferSpec)| {
            if spec.role == Role::Output { bytes.clone() } else { Vec::new() }
        };
        Self {
            fault: handover.last.fault.clone(),
            diverged: handover.last.diverged,
            gradients: handover.last.gradients,
            uncaptured: handover.last.uncaptured.clone(),
            part_is_written: handover.coming.part_is_written,
            outputs: staged.map(output).collect(),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.byte(u8::from(self.fault.is_some()));
        if let Some(fault) = &self.fault {
            let message = cut(&fault.message).as_bytes();
            writer.number(fault.call.number()).byte(u8::from(fault.panicked)).list(message);
        }
        Diverged::encode(self.diverged.as_ref(), &mut writer);
        self.gradients.encode(&mut writer);
        writer.byte(u8::from(self.uncaptured.is_some()));
        if let Some(reason) = &self.uncaptured {
            writer.list(cut(reason).as_bytes());
        }
        writer.byte(u8::from(self.part_is_written));
        for output in &self.outputs {
            writer.list(output);
        }
        writer.take()
    }

    fn decode(plan: &StepPlan, bytes: &[u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let mut report = Self::default();
        if reader.byte()? != 0 {
            let (call, panicked) = (CallId::new(reader.number()?), reader.byte()? != 0);
            report.fault = Some(ClosureFault { call, message: reader.text()?, panicked });
        }
        report.diverged = Diverged::decode(&mut reader, plan.weights.layouts.len())?;
        report.gradients = Gradients::decode(&mut reader, plan)?;
        if reader.byte()? != 0 {
            report.uncaptured = Some(reader.text()?);
        }
        report.part_is_written = reader.byte()? != 0;
        for spec in &plan.buffers {
            let output = reader.list()?;
            if output.len() != reported_bytes(plan, spec) {
                return Err(Truncated);
            }
            report.outputs.push(output.to_vec());
        }
        reader.end()?;
        Ok(report)
    }
}

/// The step that a process requested of its ranks, which must be the same in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StepRequest {
    /// The number of the plan: that of a program, or of a part of a sum over steps.
    plan: ProgramId,
    /// A digest of what the optimizer goes by, bits of the loss scale and the gradient scale, and how many steps in
    /// a row may be skipped.
    scalars: [u32; 4],
}

impl StepRequest {
    fn of(plan: ProgramId, handover: &Handover) -> Self {
        let ComingStep { hyperparameters, loss_scale, gradient_scale, max_skipped, .. } = &handover.coming;
        let digest = Digest::from_iter([bytemuck::cast_slice::<_, u8>(hyperparameters)]).short();
        let [loss_scale, gradient_scale] = [loss_scale, gradient_scale].map(|scale| scale.to_bits());
        Self { plan, scalars: [(digest ^ digest >> 32) as u32, loss_scale, gradient_scale, *max_skipped] }
    }

    fn encode(self) -> [u32; 5] {
        let Self { plan, scalars: [hyperparameters, loss_scale, gradient_scale, max_skipped] } = self;
        [plan.number(), hyperparameters, loss_scale, gradient_scale, max_skipped]
    }

    /// What is different, in words.
    fn unlike(self, other: [u32; 5]) -> Option<&'static str> {
        const WORDS: [&str; 5] = [
            "another program, or another step of a sum",
            "another learning rate, weight decay or beta",
            "another loss scale",
            "a sum of another number of steps",
            "another optimizer.max_skipped",
        ];
        let pairs = self.encode().into_iter().zip(other).zip(WORDS);
        pairs.into_iter().find_map(|((own, theirs), words)| (own != theirs).then_some(words))
    }
}

impl World {
    /// Tells the ranks of other processes how a step by the plan numbered `by` ended here, and puts into `handover` how
    /// it ended there.
    pub(super) fn share_report(
        &self,
        rank: RankId,
        plan: &StepPlan,
        (program, by): (ProgramId, ProgramId),
        handover: &mut Handover,
    ) -> Result<(), ExecError> {
        let rendezvous = self.rendezvous();
        handover.last.elsewhere.clear();
        if rendezvous.is_whole() {
            return Ok(());
        }
        let requested = StepRequest::of(by, handover);
        let mut own = bytemuck::cast_slice(&requested.encode()).to_vec();
        own.extend(RankReport::of(plan, program, handover).encode());
        let all = rendezvous.exchange(rank, Topic::Reports, &own).map_err(|error| failed(rank, error))?;
        let here = rendezvous.range();
        // One rank of a process keeps it for all.
        if rank.index() != here.start {
            return Ok(());
        }
        for (other, bytes) in all.iter().enumerate().filter(|(other, _)| !here.contains(other)) {
            let (theirs, bytes) = bytes
                .split_first_chunk::<{ size_of::<[u32; 5]>() }>()
                .ok_or_else(|| failed(rank, misfit("the report of a step")))?;
            if let Some(unlike) = requested.unlike(bytemuck::cast(*theirs)) {
                let (program, other) = (plan.name.clone(), RankId::at(other));
                return Err(ExecError::StepsDiffer { rank, program, other, unlike });
            }
            let report = RankReport::decode(plan, bytes);
            let report = report.map_err(|_| failed(rank, misfit("the report of a step")))?;
            handover.last.elsewhere.push((RankId::at(other), report));
        }
        Ok(())
    }

    /// Brings what all ranks exported to rank 0, whose handover then has it.
    pub(super) fn gather_weights(&self, rank: RankId, handover: &mut Handover) -> Result<(), ExecError> {
        let rendezvous = self.rendezvous();
        if rendezvous.is_whole() {
            return Ok(());
        }
        let ranks = rendezvous.ranks() as usize;
        let mut gathered: Vec<RankPart> = Vec::new();
        let first = rank == RankId::new(0);
        if first {
            let step = handover.transfer.own.optimizer_step;
            gathered.resize_with(ranks, || RankPart { optimizer_step: step, ..RankPart::default() });
        }
        for shard in std::mem::take(&mut handover.transfer.own.shards) {
            let all =
                rendezvous.gather_to_first(rank, &encode(&shard)).map_err(|error| failed(rank, error))?;
            for (place, bytes) in gathered.iter_mut().zip(all.unwrap_or_default()) {
                let shard = decode(&bytes).map_err(|_| failed(rank, misfit("a part of a checkpoint")))?;
                place.shards.push(shard);
            }
        }
        for carried in std::mem::take(&mut handover.transfer.own.carried) {
            let all = rendezvous.gather_to_first(rank, &carried).map_err(|error| failed(rank, error))?;
            for (place, bytes) in gathered.iter_mut().zip(all.unwrap_or_default()) {
                place.carried.push(bytes);
            }
        }
        handover.transfer.gathered = gathered;
        Ok(())
    }

    /// Whether all processes import the same checkpoint and each can; if not, why not.
    pub(super) fn agree_on_import(&self, rank: RankId, handover: &mut Handover) -> Result<(), ExecError> {
        handover.transfer.refused = None;
        if self.rendezvous().is_whole() {
            return Ok(());
        }
        let all = self.exchange(rank, handover.transfer.checkpoint.unwrap_or(0))?;
        let refusing = all.iter().position(|digest| *digest == 0);
        handover.transfer.refused = match refusing {
            Some(other) => Some(format!("the process of {} refused its checkpoint", RankId::at(other))),
            None if all.windows(2).all(|pair| pair[0] == pair[1]) => None,
            None => Some(DIFFERENT_CHECKPOINTS.to_owned()),
        };
        Ok(())
    }
}

fn encode(shard: &WeightShard) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.list(bytemuck::cast_slice(&shard.master));
    writer.number(u32::try_from(shard.states.len()).unwrap_or(u32::MAX));
    for values in &shard.states {
        writer.list(bytemuck::cast_slice(values));
    }
    writer.number(u32::try_from(shard.planes.len()).unwrap_or(u32::MAX));
    for planes in &shard.planes {
        writer.list(&planes.data).list(&planes.scale);
    }
    let frozen = shard.frozen.map(|digest| digest.to_string()).unwrap_or_default();
    writer.list(frozen.as_bytes());
    writer.number(shard.tensor_scale.to_bits()).byte(u8::from(shard.delayed.is_some()));
    if let Some(delayed) = &shard.delayed {
        writer.number(delayed.scale.to_bits()).list(bytemuck::cast_slice(&delayed.history));
    }
    writer.take()
}

fn decode(bytes: &[u8]) -> Result<WeightShard, Truncated> {
    let mut reader = Reader::new(bytes);
    let values = |reader: &mut Reader<'_>| {
        let (values, rest) = reader.list()?.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(Truncated);
        }
        Ok(values.iter().map(|value| f32::from_le_bytes(*value)).collect::<Vec<_>>())
    };
    let (master, mut states) = (values(&mut reader)?, Vec::new());
    for _ in 0..reader.number()? {
        states.push(values(&mut reader)?);
    }
    let mut planes = Vec::new();
    for _ in 0..reader.number()? {
        planes.push(OwnedPlanes { data: reader.list()?.to_vec(), scale: reader.list()?.to_vec() });
    }
    let frozen = match reader.list()? {
        [] => None,
        text => Some(std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(Truncated)?),
    };
    let tensor_scale = f32::from_bits(reader.number()?);
    let delayed = match reader.byte()? {
        0 => None,
        _ => {
            let scale = f32::from_bits(reader.number()?);
            Some(DelayedState { scale, history: values(&mut reader)? })
        }
    };
    reader.end()?;
    Ok(WeightShard { master, states, planes, tensor_scale, delayed, frozen, stays: false })
}

/// What a report holds beside buffers, at most.
const WORDS: usize = 64 << 10;
/// Bytes by which a list says how long it is.
const LENGTH: usize = size_of::<u64>();

/// Bytes of the outputs of one rank, and what a report adds to them at most: a length for each buffer, two texts as
/// long as they may be, and numbers.
#[must_use]
pub(crate) fn report_bytes(plan: &Arc<StepPlan>) -> usize {
    let told = plan.buffers.iter().map(|spec| reported_bytes(plan, spec).saturating_add(LENGTH));
    told.fold(WORDS, usize::saturating_add)
}

/// Bytes that a report has of a buffer: only outputs are reported.
fn reported_bytes(plan: &StepPlan, spec: &BufferSpec) -> usize {
    if spec.role == Role::Output { staged_bytes(plan, spec) } else { 0 }
}

/// Bytes of a buffer as it is staged: once for every micro-batch.
fn staged_bytes(plan: &StepPlan, spec: &BufferSpec) -> usize {
    spec.bytes().saturating_mul(plan.micro_batches as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use warpweft_format::ElementType;
    use warpweft_plan::model::{CallBuilder, Mesh, Model, Phase, StepProgram};
    use warpweft_plan::plan::Policy;

    #[test]
    fn a_shard_arrives_as_it_was_sent_and_a_torn_one_is_refused() {
        let shard = WeightShard {
            master: vec![1.0, -0.0, f32::MIN_POSITIVE],
            states: vec![vec![2.0; 3], vec![3.0; 3], vec![4.0; 3]],
            planes: vec![OwnedPlanes { data: vec![1, 2, 3], scale: Vec::new() }],
            tensor_scale: 0.5,
            delayed: Some(DelayedState { scale: 4.0, history: vec![5.0, 6.0] }),
            frozen: Some("00000000000000a7".parse().unwrap()),
            stays: false,
        };
        for shard in [shard.clone(), WeightShard { delayed: None, frozen: None, ..shard }] {
            let bytes = encode(&shard);
            assert_eq!(decode(&bytes).unwrap(), shard);
            for end in 0..bytes.len() {
                assert!(decode(&bytes[..end]).is_err(), "{end} bytes");
            }
        }
    }

    /// However much a closure says, a report is no longer than [`report_bytes`] counts.
    #[test]
    fn words_of_any_length_leave_a_report_within_what_was_counted() {
        let report = |length: usize| RankReport {
            fault: Some(ClosureFault { call: CallId::new(1), message: "ä".repeat(length), panicked: false }),
            diverged: None,
            gradients: Gradients::default(),
            uncaptured: Some("ö".repeat(length)),
            part_is_written: true,
            outputs: Vec::new(),
        };
        let longest = report(1 << 20).encode().len();
        assert!(longest <= WORDS, "{longest}");
        assert_eq!(
            report(100).encode().len(),
            1 + 4 + 1 + 2 * (8 + 200) + 1 + 2 + 1 + 1,
            "short words travel whole"
        );
    }

    /// Buffers of which nothing is reported still have a length in a report.
    #[test]
    fn what_a_report_has_of_buffers_is_what_was_counted_and_it_arrives() {
        let mut program = StepProgram::builder("look", &Model::builder().build());
        let x = program.input("x", 3, ElementType::F32).unwrap();
        let between = ["a", "b", "c"].map(|name| program.activation(name, 5).unwrap());
        let loss = program.output("loss", 7, ElementType::F32).unwrap();
        let call = program.call("look", Phase::Forward).reads(x).writes(loss);
        between.into_iter().fold(call, CallBuilder::writes).add().unwrap();
        let program = program.build_evaluation().unwrap();
        let plan =
            StepPlan::build(&program, &Policy::from(&Config::default()), Mesh::new(1).unwrap()).unwrap();
        let outputs: Vec<_> = plan.buffers.iter().map(|spec| vec![1; reported_bytes(&plan, spec)]).collect();
        let report = RankReport { outputs, ..RankReport::default() };
        let bytes = report.encode();
        assert_eq!(
            bytes.len() - RankReport::default().encode().len(),
            report_bytes(&Arc::new(plan.clone())) - WORDS
        );
        assert_eq!(RankReport::decode(&plan, &bytes), Ok(report));
    }
}
