//! The plainest trainer there is: whole weights, one process, program order.
//!
//! Law: nothing of planner, actors and backends is used. Weights are quantized whole, or where tensor
//! parallelism cuts them part by part with the scale of the whole one, and those of a scale group by their
//! largest magnitude; ranks are a loop, and sums are written as the specification words them: over the ranks
//! of a replica in rank order in f32, over the replicas in their order, scaled, then added in program order,
//! step after step until the optimizer's.

use std::collections::HashMap;

use half::bf16;
use warpweft_base::id::{BufferId, RankId, WeightId};
use warpweft_format::{Directions, ElementType, Orientation, Planes, Quantized, Via, dequantize, quantize};
use warpweft_plan::model::{
    Call, Collective, CollectiveKind, Form, Gradient, Lifetime, NonNegative, Placement, Role, TensorParallel,
    WeightSpec,
};
use warpweft_plan::op::WireType;
use warpweft_plan::policy::{Masters, Moments, ReduceDtype, ReduceEvery};
use warpweft_session::config::Scaling;
use warpweft_session::session::initial::MasterRows;
use warpweft_testing::random_programs::{Sample, bound_counts, counts_beside, filled};
use warpweft_testing::reference::travel;

use super::closure::{self, Digest, has_tensor_scale};
use super::parameter::{Parameter, transformed};
use super::tensor_parts as parts;

/// What came of some steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// Bits of every weight's master, in the order of [`names`].
    pub(crate) masters: Vec<Vec<u32>>,
    /// Bits of what is kept beside each: two moments, or as many lists as the optimizer has.
    pub(crate) lists: Vec<[Vec<u32>; 2]>,
    /// Bytes of every carried buffer that calls write, by name, per rank.
    pub(crate) carried: HashMap<String, Vec<Vec<u8>>>,
    /// Per step, rank and output: `[micro_batches, elements]`.
    pub(crate) outputs: Vec<Vec<Outputs>>,
}

/// Buffers of one rank, as bytes.
type Buffers = HashMap<BufferId, Vec<u8>>;

/// Outputs of one rank, `[micro_batches, elements]`.
type Outputs = HashMap<String, Vec<u32>>;

/// Gradients of one weight, in program order: step, micro-batch and values.
type Gradients = Vec<(u32, u32, Vec<f32>)>;

/// Every weight of a model, once for each of the ranks that have other experts in its place: the n-th is that of the
/// ranks whose numbers leave n.
type Parameters = Vec<Vec<Parameter>>;

/// Every sharded weight as a rank reads it.
type Stored = Vec<Option<Quantized>>;

/// Is it a program that this trainer can run? It keeps its state in f32 and its scales current.
pub(crate) fn is_plain(sample: &Sample) -> bool {
    let config = &sample.config;
    (config.optimizer.moments, config.optimizer.masters, config.quantize.scaling)
        == (Moments::F32, Masters::F32, Scaling::Current)
}

/// As many steps of the optimizer, if the program has one, as there are numbers; each for the gradients of so many
/// steps of the program.
pub(crate) fn run(sample: &Sample, sums: &[u32]) -> Outcome {
    let model = sample.program.model();
    let begun = |spec: &WeightSpec, name: String| {
        let mut master = vec![0.0; spec.shape.elements()];
        closure::initial(MasterRows::from_the_first(&name, spec.shape.cols), &mut master);
        let kept = if spec.frozen { 0 } else { sample.config.optimizer.custom_states.unwrap_or(2) };
        let lists = [0, 1].map(|list| vec![0.0; if list < kept { master.len() } else { 0 }]);
        Parameter { master, lists }
    };
    let of_places = |spec: &WeightSpec| names_of(sample, spec).map(|name| begun(spec, name)).collect();
    let mut parameters: Parameters = model.weights().iter().map(of_places).collect();
    let mut memories: Vec<Buffers> = (0..sample.ranks).map(|_| carried(sample)).collect();
    let mut outcome = Outcome::default();
    let mut step = 0;
    for (number, added) in sums.iter().copied().enumerate() {
        let stored: Vec<_> = (0..unlike(sample)).map(|rank| stored(sample, &parameters, rank)).collect();
        let mut gradients = vec![vec![Gradients::new(); model.weights().len()]; memories.len()];
        for _ in 0..added {
            let of_step = one_step(sample, step, (&stored, &parameters), &mut memories, &mut gradients);
            outcome.outputs.push(of_step);
            step += 1;
        }
        let taken = number as i32 + 1;
        if sample.program.updates_weights() {
            let custom_states = sample.config.optimizer.custom_states;
            let trained =
                parameters.iter_mut().enumerate().filter(|(number, _)| !model.weights()[*number].frozen);
            let trained = trained.flat_map(|(number, of_places)| {
                let ep = of_places.len();
                of_places.iter_mut().enumerate().map(move |(place, parameter)| (number, place, ep, parameter))
            });
            for (number, place, ep, parameter) in trained {
                let with_it = gradients.iter().skip(place).step_by(ep);
                let of: Vec<&Gradients> = with_it.map(|rank| &rank[number]).collect();
                let group = model.weights()[number].parameters;
                let mut gradient = mean(sample, WeightId::at(number), &of);
                let undone = 1.0 / added as f32;
                gradient.iter_mut().for_each(|value| *value *= undone);
                let decay = group.weight_decay.map_or(0.0, NonNegative::value);
                let rate = 1e-3f32 * group.learning_rate_scale.map_or(1.0, NonNegative::value);
                if let (true, Some(lists)) = (group.whole_matrix, custom_states) {
                    let prepared = parameter.prepare(lists, &gradient, taken);
                    let transformed = transformed(&prepared, model.weights()[number].shape.cols, number);
                    parameter.descend_by(lists, (&transformed, &gradient), taken, rate, decay);
                    continue;
                }
                match custom_states {
                    None | Some(2) => parameter.update(&gradient, taken, rate, decay),
                    Some(1) => parameter.roll(&gradient, rate, decay),
                    _ => parameter.descend(&gradient, rate, decay),
                }
            }
        }
    }
    let bits = |values: &Vec<f32>| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
    let masters = model.weights().iter().zip(&parameters).flat_map(|(spec, of_places)| {
        let has_master = !spec.frozen || spec.placement == Placement::Replicated;
        of_places.iter().map(move |it| if has_master { bits(&it.master) } else { Vec::new() })
    });
    outcome.masters = masters.collect();
    outcome.lists =
        parameters.iter().flatten().map(|parameter| parameter.lists.each_ref().map(bits)).collect();
    for (number, spec) in sample.program.buffers().iter().enumerate() {
        if spec.lifetime == Lifetime::Carried && spec.role != Role::Input {
            let of = |memory: &Buffers| memory[&BufferId::at(number)].clone();
            outcome.carried.insert(spec.name.clone(), memories.iter().map(of).collect());
        }
    }
    outcome
}

/// Carried buffers begin as zeros.
fn carried(sample: &Sample) -> Buffers {
    let specs = sample.program.buffers().iter().enumerate();
    specs
        .filter(|(_, spec)| spec.lifetime == Lifetime::Carried)
        .map(|(number, spec)| (BufferId::at(number), vec![0; spec.bytes()]))
        .collect()
}

/// What the weights of a model are called in files: of those of experts one name for each expert, in the order of the
/// ranks that have them.
pub(crate) fn names(sample: &Sample) -> Vec<String> {
    sample.program.model().weights().iter().flat_map(|spec| names_of(sample, spec)).collect()
}

/// Those of one weight. Where each of several ranks has n experts of a layer, the k-th of the e-th rank is that of
/// number e · n + k.
fn names_of(sample: &Sample, spec: &WeightSpec) -> impl Iterator<Item = String> {
    let ep = if spec.expert { sample.mesh().expert() } else { 1 };
    let in_layer = |name: &str| {
        let (layer, rest) = name.split_once(".experts.")?;
        Some((layer.to_owned(), rest.split_once('.')?.0.parse::<u32>().unwrap()))
    };
    let found = in_layer(&spec.name).filter(|_| ep > 1);
    let of_rank = sample.program.model().weights().iter().filter(|other| {
        other.expert && in_layer(&other.name).map(|of| of.0) == found.as_ref().map(|of| of.0.clone())
    });
    let (of_rank, name) = (of_rank.count() as u32, spec.name.clone());
    (0..ep).map(move |rank| match &found {
        Some((layer, number)) => format!("{layer}.experts.{}.w", rank * of_rank + number),
        None => name.clone(),
    })
}

/// How many ranks in a row read other weights: parts of them, or other experts.
fn unlike(sample: &Sample) -> usize {
    let (tensor, ep) = (sample.mesh().tensor() as usize, sample.mesh().expert() as usize);
    (tensor..).step_by(tensor).find(|ranks| ranks.is_multiple_of(ep)).unwrap()
}

/// Every sharded weight as it would be stored on a rank, in all orientations the format has.
fn stored(sample: &Sample, parameters: &Parameters, rank: usize) -> Stored {
    let weights = sample.program.model().weights().iter();
    let ranks = sample.mesh().tensor() as usize;
    weights
        .zip(parameters)
        .map(|(spec, parameter)| {
            let master = &of_rank(parameter, rank).master;
            let whole = || quantize(spec.format, Directions::Both, Via::Bf16, spec.shape, master).unwrap();
            let of_part = |of| parts::quantized(spec, master, of, amax(sample, parameters, spec, rank));
            let of_rank = || match (parts::is_cut(spec) && ranks > 1, &spec.scale_group) {
                (true, _) => of_part((rank % ranks, ranks)),
                (false, Some(_)) if spec.format.needs_tensor_amax() => of_part((0, 1)),
                (false, _) => whole(),
            };
            (spec.placement == Placement::Sharded).then(of_rank)
        })
        .collect()
}

/// What a rank has of a weight.
fn of_rank(parameter: &[Parameter], rank: usize) -> &Parameter {
    &parameter[rank % parameter.len()]
}

/// The largest magnitude of what a rank has of a weight, and of all that share its scale.
fn amax(sample: &Sample, parameters: &Parameters, spec: &WeightSpec, rank: usize) -> f32 {
    let weights = sample.program.model().weights();
    let shares = |other: &WeightSpec| {
        other.name == spec.name || spec.scale_group.is_some() && other.scale_group == spec.scale_group
    };
    let of_all = weights.iter().zip(parameters).filter(|(other, _)| shares(other));
    let values = of_all.flat_map(|(_, parameter)| &of_rank(parameter, rank).master);
    values.fold(0.0, |amax, value| amax.max(Via::Bf16.round(spec.format, *value).abs()))
}

/// Adds the ranks' gradients of a step to those of each weight, and returns their outputs. Calls run one after the
/// other, each on all ranks, so that a collective finds what all of them gave.
fn one_step(
    sample: &Sample,
    step: u32,
    weights: (&[Stored], &Parameters),
    memories: &mut [Buffers],
    gradients: &mut [Vec<Gradients>],
) -> Vec<Outputs> {
    let program = &sample.program;
    let of_role = |role: Role| {
        let specs = program.buffers().iter().enumerate();
        specs.filter(move |(_, spec)| spec.role == role).map(|(number, spec)| (BufferId::at(number), spec))
    };
    let mut outputs = vec![Outputs::new(); memories.len()];
    for micro_batch in 0..program.micro_batches() {
        for (rank, memory) in memories.iter_mut().enumerate() {
            for (buffer, spec) in of_role(Role::Input) {
                let mut values = vec![0.0; spec.elements];
                closure::input(step, RankId::at(rank), micro_batch, &spec.name, &mut values);
                memory.insert(buffer, bytemuck::cast_slice(&values).to_vec());
            }
        }
        for call in program.calls() {
            if let Some(exchange) = call.collective {
                give(sample, exchange, memories);
                continue;
            }
            for (rank, memory) in memories.iter_mut().enumerate() {
                for (weight, values) in one_call(sample, call, RankId::at(rank), weights, memory) {
                    gradients[rank][weight.index()].push((step, micro_batch, values));
                }
            }
        }
        for (outputs, memory) in outputs.iter_mut().zip(&*memories) {
            for (buffer, spec) in of_role(Role::Output) {
                let values: Vec<u32> = bytemuck::pod_collect_to_vec(&memory[&buffer]);
                outputs.entry(spec.name.clone()).or_default().extend(values);
            }
        }
    }
    outputs
}

/// The gradients that a rank's call writes.
fn one_call(
    sample: &Sample,
    call: &Call,
    rank: RankId,
    (stored, parameters): (&[Stored], &Parameters),
    memory: &mut Buffers,
) -> Vec<(WeightId, Vec<f32>)> {
    let tensor = sample.mesh().tensor() as usize;
    let stored = &stored[rank.index() % stored.len()];
    let (program, model) = (&sample.program, sample.program.model());
    let mut digest = Digest::new(&call.name, rank);
    for usage in &call.uses {
        let number = usage.weight.index();
        match &stored[number] {
            None => digest.bytes(bytemuck::cast_slice(&of_rank(&parameters[number], rank.index()).master)),
            Some(weight) => read(&mut digest, weight, usage.orientation, usage.form, || {
                has_tensor_scale(model, usage.weight)
            }),
        }
    }
    for access in call.buffers.iter().filter(|access| access.access.reads()) {
        match counts_beside(program, access.buffer) {
            Some(counts) => {
                digest.bytes(&filled(program, access.buffer, &memory[&access.buffer], &memory[&counts]));
            }
            None => digest.bytes(&memory[&access.buffer]),
        }
    }
    let mut gradients = Vec::new();
    for (position, Gradient { weight, element }) in call.gradients.iter().enumerate() {
        let mut values = vec![0.0; parts::shape(model.weight(*weight).unwrap(), tensor).elements()];
        digest.fill(position, &mut values);
        if *element == ElementType::Bf16 {
            round(&mut values);
        }
        gradients.push((*weight, values));
    }
    for (position, access) in call.buffers.iter().enumerate().filter(|(_, access)| access.access.writes()) {
        let spec = &program.buffers()[access.buffer.index()];
        let bytes = digest.bytes_of(call.gradients.len() + position, spec.element, spec.elements);
        memory.insert(access.buffer, bound_counts(program, access.buffer, bytes));
    }
    gradients
}

/// What ranks give each other, as the kinds are worded: all that all ranks of a replica, or of one place in all
/// replicas, gave before any of them gets something.
fn give(sample: &Sample, exchange: Collective, memories: &mut [Buffers]) {
    let mesh = sample.mesh();
    let given: Vec<Vec<u8>> = memories.iter().map(|memory| memory[&exchange.from].clone()).collect();
    // Rows are moved whole here, and nobody computes anything of those after the counts.
    if let Some(counts) = exchange.counts.filter(|counts| !counts.known) {
        give(sample, Collective { from: counts.given, to: counts.taken, counts: None, ..exchange }, memories);
    }
    for (rank, memory) in memories.iter_mut().enumerate() {
        let members: Vec<usize> = mesh.members(RankId::at(rank), exchange.group).map(RankId::index).collect();
        let place = members.iter().position(|member| *member == rank).unwrap();
        let given = || members.iter().map(|member| given[*member].as_slice());
        let element = sample.program.buffers()[exchange.from.index()].element;
        let values = || given().map(|bytes| values_of(element, bytes));
        let got: Vec<u8> = match exchange.kind {
            CollectiveKind::AllGather => given().collect::<Vec<_>>().concat(),
            CollectiveKind::AllToAll => {
                let part = |from: &[u8]| from.chunks(from.len() / members.len()).nth(place).unwrap().to_vec();
                given().flat_map(part).collect()
            }
            CollectiveKind::ReduceScatter => {
                let part =
                    |from: Vec<f32>| from.chunks(from.len() / members.len()).nth(place).unwrap().to_vec();
                bytes_of(element, sum(values().map(part)))
            }
            CollectiveKind::Sum => bytes_of(element, sum(values())),
            CollectiveKind::Max => {
                let larger = |one: Vec<f32>, other: Vec<f32>| {
                    one.into_iter().zip(other).map(|(one, other)| one.max(other)).collect()
                };
                bytes_of(element, values().reduce(larger).unwrap())
            }
        };
        memory.insert(exchange.to, got);
    }
}

/// Values that are combined, as f32.
fn values_of(element: ElementType, bytes: &[u8]) -> Vec<f32> {
    match element {
        ElementType::Bf16 => {
            bytemuck::pod_collect_to_vec::<u8, bf16>(bytes).into_iter().map(bf16::to_f32).collect()
        }
        _ => bytemuck::pod_collect_to_vec(bytes),
    }
}

/// They rounded once.
fn bytes_of(element: ElementType, values: Vec<f32>) -> Vec<u8> {
    match element {
        ElementType::Bf16 => {
            let rounded: Vec<bf16> = values.into_iter().map(bf16::from_f32).collect();
            bytemuck::cast_slice(&rounded).to_vec()
        }
        _ => bytemuck::cast_slice(&values).to_vec(),
    }
}

/// What a call reads of a weight.
fn read(
    digest: &mut Digest,
    weight: &Quantized,
    orientation: Orientation,
    form: Form,
    scaled: impl Fn() -> bool,
) {
    let planes = match orientation {
        Orientation::Rowwise => weight.rowwise.as_ref().unwrap(),
        Orientation::Columnwise => weight.columnwise.as_ref().unwrap(),
    };
    if form == Form::Planes {
        digest.bytes(&planes.data);
        digest.bytes(&planes.scale);
        if scaled() {
            digest.bytes(&weight.tensor_scale.to_ne_bytes());
        }
        return;
    }
    let mut values = vec![0.0; weight.shape.elements()];
    let planes = Planes { data: &planes.data, scale: &planes.scale };
    dequantize(weight.format, orientation, weight.shape, planes, weight.tensor_scale, &mut values).unwrap();
    if form == Form::DenseBf16 {
        let rounded: Vec<bf16> = values.into_iter().map(bf16::from_f32).collect();
        digest.bytes(bytemuck::cast_slice(&rounded));
    } else {
        digest.bytes(bytemuck::cast_slice(&values));
    }
}

/// To bf16, nearest even.
fn round(values: &mut [f32]) {
    values.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
}

/// Added one after the other in f32.
fn sum(values: impl Iterator<Item = Vec<f32>>) -> Vec<f32> {
    let add = |mut sum: Vec<f32>, more: Vec<f32>| {
        sum.iter_mut().zip(&more).for_each(|(sum, more)| *sum += more);
        sum
    };
    values.reduce(add).unwrap()
}

/// The mean over ranks and micro-batches of one weight's gradients, given per rank that has the weight; those of
/// several steps added up. Gradients of an expert are of the tokens of all ranks, which are counted whether they have
/// it or not.
fn mean(sample: &Sample, weight: WeightId, ranks: &[&Gradients]) -> Vec<f32> {
    let (mesh, spec) = (sample.mesh(), sample.program.model().weight(weight).unwrap());
    let tensor = mesh.tensor() as usize;
    if tensor > 1 && parts::is_cut(spec) {
        let of_part = |part: usize| {
            let of: Vec<&Gradients> = ranks.iter().skip(part).step_by(tensor).copied().collect();
            mean_of(sample, weight, &of, sample.ranks / mesh.tensor(), mesh.tensor())
        };
        return parts::joined(spec, &(0..tensor).map(of_part).collect::<Vec<_>>());
    }
    // Ranks of a tensor-parallel group count as one, or each has counted all of its tokens.
    let alike = spec.tensor == Some(TensorParallel::AlikeTokens);
    let counted = if alike { sample.ranks } else { sample.ranks / mesh.tensor() };
    mean_of(sample, weight, ranks, counted, if spec.expert { mesh.expert() } else { 1 })
}

/// The same of one part of a weight, or of one that is not cut: of ranks that are `apart` from each other, whose sum
/// is divided by `counted`.
fn mean_of(sample: &Sample, weight: WeightId, ranks: &[&Gradients], counted: u32, apart: u32) -> Vec<f32> {
    let factor = 1.0 / (counted * sample.program.micro_batches()) as f32;
    let scaled = |values: Vec<f32>| values.into_iter().map(|value| value * factor).collect::<Vec<f32>>();
    if sample.program.model().weight(weight).unwrap().placement == Placement::Replicated {
        let own = |of: &&Gradients| sum(of.iter().map(|(.., values)| scaled(values.clone())));
        let mesh = sample.mesh();
        let (mut sums, mut before) = (ranks.iter().map(own).collect::<Vec<_>>(), 1);
        for block in mesh.levels().blocks().iter().copied().chain([mesh.ranks()]) {
            sums = sums.chunks((block / before) as usize).map(|of| sum(of.iter().cloned())).collect();
            before = block;
        }
        return sums.remove(0);
    }
    // What a rank adds before anything is reduced.
    let together = |of: &Gradients| -> Vec<Vec<f32>> {
        let is_one =
            |one: &(u32, u32, Vec<f32>), other: &(u32, u32, Vec<f32>)| match sample.config.reduce_every {
                ReduceEvery::Call => false,
                ReduceEvery::MicroBatch => (one.0, one.1) == (other.0, other.1),
                ReduceEvery::Step => one.0 == other.0,
            };
        of.chunk_by(is_one).map(|all| sum(all.iter().map(|(.., values)| values.clone()))).collect()
    };
    let columns = sample.weights().layout(weight).shard.shape.cols;
    let wire = match sample.config.reduce_dtype {
        ReduceDtype::F32 => WireType::F32,
        ReduceDtype::Mxfp8 if columns.is_multiple_of(32) => WireType::Mxfp8,
        ReduceDtype::Bf16 | ReduceDtype::Mxfp8 => WireType::Bf16,
    };
    let sent = |mut values: Vec<f32>| {
        travel(&mut values, wire);
        values
    };
    let ranks: Vec<Vec<Vec<f32>>> =
        ranks.iter().map(|of| together(of).into_iter().map(sent).collect()).collect();
    let mesh = sample.mesh();
    let over = match sample.program.model().weight(weight).unwrap().expert && mesh.has_experts() {
        true => mesh.expert() * mesh.expert_shards(),
        false => mesh.shards() * mesh.tensor(),
    };
    let of_replica = over / apart;
    let replicas = || ranks.chunks(of_replica as usize);
    let in_slices = sample.weights().layout(weight).is_in_slices();
    // Blocks of ranks first, then blocks of these, and so on.
    let sum_of = |replica: &[Vec<Vec<f32>>], number: usize| {
        let mut sums: Vec<Vec<f32>> = replica.iter().map(|of| of[number].clone()).collect();
        let levels = mesh.levels();
        let several = levels.blocks().iter().filter(|block| (apart + 1..over).contains(*block));
        let blocks = several.map(|block| (block / apart) as usize).chain([replica.len()]);
        let mut before = 1;
        for block in blocks {
            sums = sums.chunks(block / before).map(|of| sum(of.iter().cloned())).collect();
            before = block;
            // What travels on is rounded as contributions are: to other blocks, and to other replicas in slices.
            if sums.len() > 1 || in_slices {
                sums.iter_mut().for_each(|values| travel(values, wire));
            }
        }
        sums.remove(0)
    };
    // Slices are summed over the replicas of an optimizer instance, and then over instances.
    let together = if in_slices { replicas().len() / mesh.instances() as usize } else { replicas().len() };
    let of_all = |number: usize| {
        let sums: Vec<Vec<f32>> = replicas().map(|replica| sum_of(replica, number)).collect();
        sum(sums.chunks(together).map(|instance| sum(instance.iter().cloned())))
    };
    sum((0..ranks[0].len()).map(|number| scaled(of_all(number))))
}
