//! Parts of the plainest trainer there is: whole weights in one process, operation by operation as the
//! specification writes them.

use half::bf16;
use warpweft_format::{
    AmaxChoice, DelayedScaling, Directions, Format, Orientation, Planes, PlanesMut, Shape, Via, dequantize,
    dequantize_mxfp8, partial_cast, quantize, quantize_mxfp8, transpose,
};
use warpweft_plan::model::{Group, Levels, Mesh};
use warpweft_plan::op::WireType;
use warpweft_plan::policy::{ReduceDtype, ReduceEvery};
use warpweft_session::session::initial::MasterRows;

use crate::staged;
use crate::trainer::{SIZE, initial};

/// Learning rate of every test.
pub const RATE: f32 = 3e-3;

/// One parameter with its AdamW state.
pub struct Parameter {
    /// Its value.
    pub master: Vec<f32>,
    /// First moment.
    pub exp_avg: Vec<f32>,
    /// Second moment.
    pub exp_avg_sq: Vec<f32>,
}

impl Parameter {
    /// A parameter as a session starts with it, without history.
    pub fn new(name: &str, cols: usize, elements: usize) -> Self {
        let mut master = vec![0.0; elements];
        initial(MasterRows::from_the_first(name, cols), &mut master);
        Self { exp_avg: vec![0.0; elements], exp_avg_sq: vec![0.0; elements], master }
    }

    /// AdamW, operation by operation as the specification writes it.
    pub fn update(&mut self, gradient: &[f32], step: i32) {
        let (beta1, beta2, epsilon) = (0.9f32, 0.999f32, 1e-8f32);
        let corrected = |beta: f32| (1.0 - f64::from(beta).powi(step)) as f32;
        let (c1, c2) = (corrected(beta1), corrected(beta2));
        for (at, gradient) in gradient.iter().enumerate() {
            let m = beta1 * self.exp_avg[at] + (1.0 - beta1) * gradient;
            let v = beta2 * self.exp_avg_sq[at] + ((1.0 - beta2) * gradient) * gradient;
            let update = (m / c1) / ((v / c2).sqrt() + epsilon);
            self.master[at] -= RATE * update;
            (self.exp_avg[at], self.exp_avg_sq[at]) = (m, v);
        }
    }
}

/// The values a forward pass sees: the weight as it would be stored, and back.
pub fn as_stored(format: Format, master: &[f32]) -> Vec<f32> {
    stored_values(format, Orientation::Rowwise, Shape::new(SIZE, SIZE), master)
}

/// Those of planes of either orientation, transposed if they are columnwise.
pub fn stored_values(format: Format, orientation: Orientation, shape: Shape, master: &[f32]) -> Vec<f32> {
    let directions = match orientation {
        Orientation::Rowwise => Directions::Rowwise,
        // Derived from the rowwise ones, where a format can.
        Orientation::Columnwise => Directions::Both,
    };
    quantize(format, directions, Via::Bf16, shape, master).unwrap().dequantize(orientation).unwrap()
}

/// Those of both orientations, of a format with a scale of the tensor, as if `amax` was the largest
/// magnitude.
pub fn stored_values_by(amax: f32, format: Format, shape: Shape, master: &[f32]) -> [Vec<f32>; 2] {
    let zeroed = |orientation| {
        let planes = format.planes(orientation, shape);
        [0, 1].map(|plane| vec![0; planes.get(plane).map_or(0, |spec| spec.bytes())])
    };
    let [mut data, mut scale] = zeroed(Orientation::Rowwise);
    let planes = PlanesMut { data: &mut data, scale: &mut scale };
    let (_, tensor) =
        staged::quantize(format, Orientation::Rowwise, Via::Bf16, shape, master, Some(amax), planes);
    let [mut turned, mut turned_scale] = zeroed(Orientation::Columnwise);
    let to = PlanesMut { data: &mut turned, scale: &mut turned_scale };
    transpose(format, shape, Planes { data: &data, scale: &scale }, to).unwrap();
    let rows = (Orientation::Rowwise, Planes { data: &data, scale: &scale });
    let columns = (Orientation::Columnwise, Planes { data: &turned, scale: &turned_scale });
    [rows, columns].map(|(orientation, planes)| {
        let mut values = vec![0.0; shape.elements()];
        dequantize(format, orientation, shape, planes, tensor, &mut values).unwrap();
        values
    })
}

/// Those of both orientations with the scale of earlier steps, which then remembers an amax. That of the
/// first masters is not remembered.
pub fn stored_values_delayed(
    format: Format,
    shape: Shape,
    master: &[f32],
    scaling: &mut DelayedScaling,
    recorded: Option<f32>,
) -> [Vec<f32>; 2] {
    fn planes(data: &[u8]) -> Planes<'_> {
        Planes { data, scale: &[] }
    }
    let scale = scaling.scale();
    let (mut rows, mut columns) = (vec![0; shape.elements()], vec![0; shape.elements()]);
    partial_cast(format, Orientation::Rowwise, Via::Bf16, shape, master, &[scale.encode], &mut rows).unwrap();
    transpose(format, shape, planes(&rows), PlanesMut { data: &mut columns, scale: &mut [] }).unwrap();
    recorded.into_iter().for_each(|amax| scaling.record(amax));
    [(Orientation::Rowwise, rows), (Orientation::Columnwise, columns)].map(|(orientation, data)| {
        let mut values = vec![0.0; shape.elements()];
        dequantize(format, orientation, shape, planes(&data), scale.decode, &mut values).unwrap();
        values
    })
}

/// The history of a weight of a format with one scale.
pub fn scaling(format: Format, choice: AmaxChoice, history: u32) -> DelayedScaling {
    let Format::Fp8Tensor(tensor) = format else { panic!("{format} has no scale of the whole tensor") };
    DelayedScaling::new(tensor, choice, history as usize).unwrap()
}

/// Added one after the other in f32.
pub fn sum(values: impl Iterator<Item = Vec<f32>>) -> Vec<f32> {
    values
        .reduce(|mut sum, more| {
            sum.iter_mut().zip(&more).for_each(|(sum, more)| *sum += more);
            sum
        })
        .unwrap()
}

/// Added over a group of a mesh, of whose ranks these are: those of a block first, then blocks, whose sums travel so.
pub fn sum_in_levels(mesh: Mesh, over: Group, ranks: Vec<Vec<f32>>, wire: WireType) -> Vec<f32> {
    let in_blocks = |sums: Vec<Vec<f32>>, group| {
        let blocks = sums.chunks(mesh.size(group) as usize);
        let mut sums: Vec<Vec<f32>> = blocks.map(|block| sum(block.iter().cloned())).collect();
        if sums.len() > 1 {
            sums.iter_mut().for_each(|values| travel(values, wire));
        }
        sums
    };
    mesh.tree(over).fold(ranks, in_blocks).remove(0)
}

/// How gradients are reduced, and over whom.
#[derive(Clone, Copy)]
pub struct Reducing {
    /// When gradients are reduced.
    pub every: ReduceEvery,
    /// In what they are sent.
    pub dtype: ReduceDtype,
    /// In all replicas.
    pub ranks: u32,
    /// How many there are.
    pub replicas: u32,
    /// Ranks of a tensor-parallel group.
    pub tensor: u32,
    /// In which levels they are summed, if not in those that a mesh has by itself.
    pub levels: Option<Levels>,
    /// Of how many steps the gradients are accumulated for one of the optimizer.
    pub steps: u32,
}

impl Reducing {
    /// The mesh that reduces so.
    pub fn mesh(&self) -> Mesh {
        Mesh::of(self.ranks, self.replicas, self.tensor, self.levels).unwrap()
    }
}

impl Default for Reducing {
    fn default() -> Self {
        Self {
            every: ReduceEvery::default(),
            dtype: ReduceDtype::default(),
            ranks: 3,
            replicas: 1,
            tensor: 1,
            levels: None,
            steps: 1,
        }
    }
}

/// What values are once they travelled so: in MXFP8 as rows of whole blocks.
pub fn travel(values: &mut [f32], wire: WireType) {
    match wire {
        WireType::F32 => {}
        WireType::Bf16 => values.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32()),
        WireType::Mxfp8 => {
            let (mut codes, mut scales) = (vec![0; values.len()], vec![0; values.len() / WireType::BLOCK]);
            quantize_mxfp8(values, &mut codes, &mut scales);
            dequantize_mxfp8(&codes, &scales, values);
        }
    }
}

/// The mean over ranks and micro-batches of `[rank][contribution]`, where a contribution is what is reduced
/// at once: its ranks summed in rank order in f32, then multiplied by the reciprocal, then added to those
/// before. In MXFP8 rows are whole blocks.
pub fn mean(ranks: &[Vec<Vec<f32>>], micro_batches: u32, dtype: ReduceDtype) -> Vec<f32> {
    mean_over_replicas(ranks, 1, micro_batches, dtype)
}

/// The same over replicas of so many ranks each: their ranks are summed first, then the replicas in their order.
pub fn mean_over_replicas(
    ranks: &[Vec<Vec<f32>>],
    replicas: u32,
    micro_batches: u32,
    dtype: ReduceDtype,
) -> Vec<f32> {
    mean_over(Mesh::hybrid(ranks.len() as u32, replicas).unwrap(), ranks, micro_batches, dtype)
}

/// The same over the ranks of a mesh: within a replica the ranks of a block are summed first, then blocks.
pub fn mean_over(mesh: Mesh, ranks: &[Vec<Vec<f32>>], micro_batches: u32, dtype: ReduceDtype) -> Vec<f32> {
    let shards = mesh.shards() as usize;
    let factor = 1.0 / (ranks.len() * micro_batches as usize) as f32;
    sum((0..ranks[0].len()).map(|contribution| {
        let sent = |of: &Vec<Vec<f32>>| {
            let mut values = of[contribution].clone();
            travel(&mut values, WireType::of_sums(dtype, WireType::BLOCK));
            values
        };
        // What travels on is rounded as contributions are.
        let of_replica = |replica: &[Vec<Vec<f32>>]| {
            let wire = WireType::of_sums(dtype, WireType::BLOCK);
            sum_in_levels(mesh, Group::Shard, replica.iter().map(sent).collect(), wire)
        };
        let over_ranks = sum(ranks.chunks(shards).map(of_replica));
        over_ranks.iter().map(|sum| sum * factor).collect()
    }))
}
