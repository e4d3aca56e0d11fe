//! Muon in sessions on a GPU: a custom optimizer that orthogonalizes whole matrices.

#![allow(unsafe_code, reason = "memory that a session lends is copied; each block says why it is sound")]

use std::collections::BTreeMap;

use warpweft_base::id::RankId;
use warpweft_cuda::cudarc::driver::result::memcpy_dtod_async;
use warpweft_cuda::linear::{Device, NewtonSchulz};
use warpweft_cuda::{CudaHandles, CudaSurface, DeviceOrdinal, DeviceSlice, DeviceSliceMut};
use warpweft_format::{ElementType, Format, Shape};
use warpweft_plan::compute::{
    ComputeContext, ComputeError, PrepareContext, Seat, TransformContext, UpdateContext,
};
use warpweft_plan::model::{Call, Model, ParameterGroup, Phase, StepProgram};
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Session, initial};
use warpweft_testing::custom_optimizer::ByMatrices;

use super::newton_schulz::{bits, run};
use super::reference::noise;
use crate::gpu::Gpu;

/// On two ranks the first two are one round, and the last is alone.
const MATRICES: [(&str, Shape); 3] =
    [("wide", Shape::new(64, 192)), ("tall", Shape::new(192, 64)), ("square", Shape::new(97, 97))];

fn copy(
    handles: &CudaHandles,
    from: DeviceSlice<'_, f32>,
    to: DeviceSliceMut<'_, f32>,
) -> Result<(), ComputeError> {
    assert_eq!(from.len(), to.len());
    let (target, source, bytes) = (to.address().number(), from.address().number(), to.len() * 4);
    // SAFETY: both were lent to this task, are as long, and lie apart; the stream is the session's.
    unsafe { memcpy_dtod_async(target, source, bytes, handles.stream()) }.map_err(ComputeError::closure)
}

/// Every weight's gradient is what its input says.
fn backward(_: &Call, context: &ComputeContext<'_, CudaSurface>) -> Result<(), ComputeError> {
    MATRICES.iter().try_for_each(|(name, _)| {
        let gradient = context.gradient(context.weight_named(name)?)?;
        copy(context.handles(), context.read(context.buffer_named(&format!("{name} in"))?)?, gradient)
    })
}

fn prepare(context: &PrepareContext<'_, CudaSurface>) -> Result<(), ComputeError> {
    context.weights().try_for_each(|weight| {
        copy(context.handles(), context.main_grad(weight.id)?, context.prepared(weight.id)?)
    })
}

fn transform(
    gpu: DeviceOrdinal,
) -> impl FnMut(&TransformContext<'_, CudaSurface>) -> Result<(), ComputeError> {
    let mut opened: Option<Device> = None;
    let mut made: BTreeMap<(usize, usize), NewtonSchulz> = BTreeMap::new();
    move |context| {
        let shape = context.weight().shape;
        let device = match &opened {
            Some(device) => device,
            None => opened.insert(Device::open(gpu)?),
        };
        let products = match made.entry((shape.rows, shape.cols)) {
            std::collections::btree_map::Entry::Occupied(made) => made.into_mut(),
            std::collections::btree_map::Entry::Vacant(room) => {
                room.insert(NewtonSchulz::new(device, shape, &NewtonSchulz::QUINTIC)?)
            }
        };
        Ok(products.enqueue(context.handles(), context.matrix()?, context.transformed()?)?)
    }
}

/// The master becomes what came of the gradient.
fn update(context: &UpdateContext<'_, CudaSurface>) -> Result<(), ComputeError> {
    context.weights().try_for_each(|weight| {
        copy(context.handles(), context.transformed(weight.id)?, context.master(weight.id)?)
    })
}

fn declare() -> StepProgram {
    let mut model = Model::builder();
    for (name, shape) in MATRICES {
        let weight = model.sharded(name, shape.rows, shape.cols, Format::F32).unwrap();
        let whole_matrix = true;
        model.parameters(weight, ParameterGroup { whole_matrix, ..ParameterGroup::default() }).unwrap();
    }
    let model = model.build();
    let mut program = StepProgram::builder("train", &model);
    let inputs = MATRICES.map(|(name, shape)| {
        program.input(&format!("{name} in"), shape.elements(), ElementType::F32).unwrap()
    });
    let mut call = program.call("backward", Phase::Backward);
    for ((weight, _), input) in model.entries().zip(inputs) {
        call = call.gradient(weight).reads(input);
    }
    call.add().unwrap();
    program.build_training().unwrap()
}

/// EX-1: rows that came together from all ranks, transformed on one of them, and back, in the bits of the matrix alone.
#[test]
fn matrices_of_a_session_are_transformed_as_they_are_outside_of_one() {
    let Some(gpu) = Gpu::open("matrices of a session") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let first = DeviceOrdinal::new(0);
    // Only ranks with a GPU of their own are captured.
    let all = DeviceOrdinal::all().unwrap();
    let own = |ranks: usize| all.iter().copied().take(ranks).collect::<Vec<_>>();
    let mut cases: Vec<_> = [1, 2, 4].map(|ranks| (Capture::Off, vec![first; ranks])).into();
    cases.push((Capture::Step, own(1)));
    for ranks in [2, 4].into_iter().filter(|ranks| *ranks <= all.len()) {
        cases.extend([Capture::Off, Capture::Step].map(|capture| (capture, own(ranks))));
    }
    for (capture, devices) in cases {
        let ranks = devices.len();
        let config = Config { capture, ..Config::default() };
        let made = |seat: Seat<DeviceOrdinal>| Ok(ByMatrices(0, prepare, transform(seat.device), update));
        let builder = Session::builder(config, |_| backward).try_optimizer(0, made);
        let builder = builder.program(declare()).initialize(initial::zeros());
        runtime.block_on(async {
            let mut session = builder.start_cuda(devices).await.unwrap();
            for step in 0..3_u64 {
                let inputs = MATRICES.map(|(_, shape)| noise(shape, 100 + step));
                for rank in 0..ranks {
                    for ((name, _), input) in MATRICES.iter().zip(&inputs) {
                        session.write_input("train", RankId::at(rank), &format!("{name} in"), input).unwrap();
                    }
                }
                let report = session.step("train").await.unwrap();
                assert_eq!(report.segments, usize::from(capture == Capture::Step && step > 0));
                let left = session.export().await.unwrap();
                for (((name, shape), input), weight) in MATRICES.iter().zip(&inputs).zip(&left.weights) {
                    let alone = run(&gpu, *shape, &NewtonSchulz::QUINTIC, input);
                    assert_eq!(weight.name, *name);
                    let is_same = bits(&weight.master) == bits(&alone);
                    assert!(is_same, "{name}, {capture:?}, {ranks} ranks, step {step}");
                }
            }
            session.close().await.unwrap();
        });
    }
}
