//! The calls of a random program: what they use, read and write.
//!
//! Law: whatever program order allows comes up, and every weight that trains gets a gradient.

use warpweft_format::{ElementType, Orientation};
use warpweft_plan::model::{
    Access, BufferSpec, CallBuilder, CostHint, Form, Lifetime, Model, Phase, Placement, ProgramBuilder,
    Reuse, Role, StepProgram, Use, WeightSpec,
};

use super::Draw;

/// How a program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Optimizer,
    Gradients,
    Nothing,
}

/// What is known of the buffers while calls are declared.
struct Buffers {
    specs: Vec<BufferSpec>,
    filled: Vec<bool>,
    written: Vec<bool>,
    read: Vec<bool>,
    taken: Vec<bool>,
}

pub(super) fn program(draw: &mut Draw, dynamic: &mut Draw, model: &Model, ending: Ending) -> StepProgram {
    let has_dynamic = dynamic.one_in(3);
    let trains = ending != Ending::Nothing;
    let mut program = StepProgram::builder("step", model);
    program.micro_batches(draw.among(&[1, 1, 2, 3])).unwrap();
    let specs: Vec<BufferSpec> = (0..1 + draw.below(5)).map(|number| buffer(draw, number)).collect();
    let ids: Vec<_> = specs.iter().map(|spec| program.buffer(spec.clone()).unwrap()).collect();
    let begins = |spec: &BufferSpec| spec.role == Role::Input || spec.lifetime == Lifetime::Carried;
    let mut buffers = Buffers {
        filled: specs.iter().map(begins).collect(),
        written: vec![false; specs.len()],
        read: vec![false; specs.len()],
        taken: vec![false; specs.len()],
        specs,
    };
    let mut owed = vec![trains; model.weights().len()];
    let calls = 1 + draw.below(8);
    let mut done: Vec<Vec<Use>> = Vec::new();
    for number in 0..calls {
        let is_last = number + 1 == calls;
        let phase = if number * 2 < calls && !is_last { Phase::Forward } else { Phase::Backward };
        let mut call = program.call(&format!("c{number}"), phase);
        let uses = match draw.of(&done) {
            // A call replayed, or recomputed in backward.
            Some(again) if draw.one_in(4) => again.clone(),
            _ => (0..draw.below(4)).map(|_| a_use(draw, model)).collect(),
        };
        call = uses.iter().fold(call, |call, usage| with_use(call, *usage));
        done.push(uses);
        for (weight, spec) in model.entries() {
            if trains && (draw.one_in(3) || is_last && owed[weight.index()]) {
                // Drawn for frozen weights too, so that freezing them changes nothing else of the program.
                let element = element(draw, spec);
                if !spec.frozen {
                    call = call.gradient_in(weight, element);
                }
                owed[weight.index()] = false;
            }
        }
        for (position, access) in accesses(draw, &mut buffers, is_last) {
            call = call.accesses(ids[position], access);
        }
        call = call.cost(CostHint { flops: 1 << draw.below(34), ..CostHint::default() });
        if has_dynamic && dynamic.one_in(3) {
            call = call.dynamic();
        }
        call.add().unwrap();
    }
    built(program, ending)
}

pub(super) fn built(program: ProgramBuilder, ending: Ending) -> StepProgram {
    match ending {
        Ending::Optimizer => program.build_training().unwrap(),
        Ending::Gradients => program.build_gradients().unwrap(),
        Ending::Nothing => program.build_evaluation().unwrap(),
    }
}

/// In what a call writes a gradient: one in four of a sharded weight in bf16.
fn element(draw: &mut Draw, spec: &WeightSpec) -> ElementType {
    match spec.placement == Placement::Sharded && draw.one_in(4) {
        true => ElementType::Bf16,
        false => ElementType::F32,
    }
}

/// What the next call does with the buffers: anything that program order allows.
fn accesses(draw: &mut Draw, buffers: &mut Buffers, is_last: bool) -> Vec<(usize, Access)> {
    let mut chosen = Vec::new();
    for position in 0..buffers.specs.len() {
        let (role, lifetime) = (buffers.specs[position].role, buffers.specs[position].lifetime);
        let owed = is_last && role == Role::Output && !buffers.written[position] && !buffers.taken[position];
        if !owed && !draw.one_in(2) {
            // An input or an activation that no call reads is refused, but for one of backward.
            let is_activation = (role, lifetime) == (Role::Internal, Lifetime::Step);
            if is_last && (role == Role::Input || is_activation) && !buffers.read[position] {
                let access = if buffers.filled[position] { Access::Read } else { Access::Write };
                chosen.push((position, access));
            }
            continue;
        }
        if lifetime == Lifetime::Call && std::mem::replace(&mut buffers.taken[position], true) {
            continue;
        }
        let access = match draw.among(&[Access::Read, Access::Write, Access::Update]) {
            _ if role == Role::Input => Access::Read,
            _ if owed || lifetime == Lifetime::Call || !buffers.filled[position] => Access::Write,
            wanted => wanted,
        };
        buffers.filled[position] |= access.writes();
        buffers.written[position] |= access.writes();
        buffers.read[position] |= access.reads();
        chosen.push((position, access));
    }
    chosen
}

fn buffer(draw: &mut Draw, number: usize) -> BufferSpec {
    BufferSpec {
        name: format!("b{number}"),
        elements: 1 + number * 97,
        element: ElementType::F32,
        role: draw.among(&[Role::Internal, Role::Input, Role::Output]),
        lifetime: draw.among(&[Lifetime::Step, Lifetime::Step, Lifetime::Call, Lifetime::Carried]),
    }
}

/// A use of some weight in an orientation and form that it can serve.
fn a_use(draw: &mut Draw, model: &Model) -> Use {
    let weights: Vec<_> = model.entries().collect();
    let (weight, spec) = weights[draw.below(weights.len())];
    let (orientation, form, reuse) = (Orientation::Rowwise, Form::Dense, None);
    if spec.placement == Placement::Replicated {
        return Use { weight, orientation, form, reuse };
    }
    let orientation = draw.among(&[Orientation::Rowwise, Orientation::Columnwise]);
    let form = draw.among(&[Form::Planes, Form::Dense, Form::DenseBf16]);
    let reuse = draw.among(&[Some(Reuse::Keep), Some(Reuse::Regather), None, None, None, None]);
    Use { weight, orientation, form, reuse }
}

pub(super) fn with_use<'p>(call: CallBuilder<'p>, usage: Use) -> CallBuilder<'p> {
    let call = call.uses(usage.weight, usage.orientation, usage.form);
    match usage.reuse {
        Some(reuse) => call.reuse(reuse),
        None => call,
    }
}
