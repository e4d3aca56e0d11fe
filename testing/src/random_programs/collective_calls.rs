//! Collectives between the calls of a random program.
//!
//! Law: all that was drawn of a program stays; some calls write and read a buffer more. What a collective gives is
//! written in every micro-batch, or staged, or left by an earlier step, and a call after the collective reads what came
//! of it: so none is for nothing. Buffers have the sizes that a mesh requests, so a program fits no other.

use warpweft_base::id::{BufferId, WeightId};
use warpweft_format::ElementType;
use warpweft_plan::model::{
    Access, BufferSpec, Call, Collective, CollectiveKind, Counts, Gradient, Group, Lifetime, Mesh, Model,
    Role, StepProgram, Use,
};

use super::{Draw, Ending, built, groups, with_use};

/// Those of flat meshes first.
pub(super) const KINDS: [CollectiveKind; 5] = [
    CollectiveKind::AllGather,
    CollectiveKind::AllToAll,
    CollectiveKind::Sum,
    CollectiveKind::Max,
    CollectiveKind::ReduceScatter,
];

const ELEMENTS: [ElementType; 4] = [ElementType::F32, ElementType::Bf16, ElementType::U8, ElementType::U32];

/// A collective to be, its buffers known by their place.
pub(super) struct Between {
    pub(super) name: String,
    /// The call before which it takes place.
    pub(super) before: usize,
    pub(super) kind: CollectiveKind,
    pub(super) group: Group,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) counts: Option<Counts>,
}

/// What is added to a program.
pub(super) struct Additions<'p> {
    calls: &'p [Call],
    /// Those of the program and, after them, those of collectives.
    buffers: Vec<BufferSpec>,
    /// Call, buffer, access.
    pub(super) accesses: Vec<(usize, usize, Access)>,
    pub(super) collectives: Vec<Between>,
}

/// The same program with up to three collectives, some of them there and back; of any kind, or as [`flat_samples`]
/// have them.
///
/// [`flat_samples`]: super::flat_samples
pub(super) fn with_collectives(
    program: &StepProgram,
    ending: Ending,
    mesh: Mesh,
    of_any_kind: bool,
    draw: &mut Draw,
) -> StepProgram {
    let mut additions = Additions::none(program);
    for number in 0..1 + draw.below(3) {
        additions.collective(number, mesh, of_any_kind, draw);
    }
    additions.added_to(program, program.model(), ending)
}

/// The same program over a model with the same weights, of which some say something else.
pub(super) fn over(model: &Model, program: &StepProgram, ending: Ending) -> StepProgram {
    Additions::none(program).added_to(program, model, ending)
}

impl<'p> Additions<'p> {
    pub(super) fn none(program: &'p StepProgram) -> Self {
        Self {
            calls: program.calls(),
            buffers: program.buffers().to_vec(),
            accesses: Vec::new(),
            collectives: Vec::new(),
        }
    }

    fn collective(&mut self, number: usize, mesh: Mesh, of_any_kind: bool, draw: &mut Draw) {
        let reader = draw.below(self.calls.len());
        let before = draw.below(reader + 1);
        let kinds = if of_any_kind { &KINDS[..] } else { &KINDS[..4] };
        let (kind, group) = (draw.among(kinds), draw.among(groups(mesh)));
        let ranks = mesh.size(group);
        let there: Vec<usize> =
            (0..self.buffers.len()).filter(|buffer| self.gives(*buffer, before, kind, ranks)).collect();
        let found = if draw.one_in(2) { draw.of(&there).copied() } else { None };
        let from = found.unwrap_or_else(|| self.written(number, before, (kind, ranks), of_any_kind, draw));
        let BufferSpec { element, elements, lifetime, .. } = self.buffers[from];
        let role = if element == ElementType::F32 && draw.one_in(4) { Role::Output } else { Role::Internal };
        // Of a buffer that nobody writes, the next micro-batch would get the same once more.
        let stays = found.is_none() && draw.one_in(4);
        let to = self.buffer(BufferSpec {
            name: format!("got {number}"),
            elements: kind.received(elements, ranks).unwrap(),
            element,
            role,
            lifetime: if stays { Lifetime::Carried } else { Lifetime::Step },
        });
        let name = format!("x{number}");
        self.collectives.push(Between { name: name.clone(), before, kind, group, from, to, counts: None });
        self.accesses.push((reader, to, Access::Read));
        // What one rank gives itself it has already.
        let returns = kind.received(elements, ranks) == Some(elements) && ranks > 1;
        if returns && found.is_none() && lifetime == Lifetime::Step && draw.one_in(2) {
            let reader = before + draw.below(self.calls.len() - before);
            let before = before + draw.below(reader + 1 - before);
            let name = format!("{name} back");
            self.collectives.push(Between { name, before, kind, group, from: to, to: from, counts: None });
            self.accesses.push((reader, from, Access::Read));
        }
    }

    /// Does a buffer of the program hold something before that call, which ranks can give each other so?
    fn gives(&self, buffer: usize, before: usize, kind: CollectiveKind, ranks: u32) -> bool {
        let spec = &self.buffers[buffer];
        let is_written = |call: &Call| {
            call.buffers.iter().any(|access| access.buffer.index() == buffer && access.access.writes())
        };
        let holds = spec.role == Role::Input
            || spec.lifetime == Lifetime::Carried
            || self.calls[..before].iter().any(is_written);
        holds
            && spec.lifetime != Lifetime::Call
            && spec.element == ElementType::F32
            && kind.received(spec.elements, ranks).is_some()
    }

    /// A buffer that a call writes: one before the collective, or any if it stays from step to step.
    fn written(
        &mut self,
        number: usize,
        before: usize,
        (kind, ranks): (CollectiveKind, u32),
        of_any_kind: bool,
        draw: &mut Draw,
    ) -> usize {
        let stays = before == 0 || draw.one_in(4);
        let writer = draw.below(if stays { self.calls.len() } else { before });
        let elements = match kind {
            _ if kind.has_parts() => ranks as usize * (1 + draw.below(40)),
            _ => 1 + draw.below(97),
        };
        let given = self.buffer(BufferSpec {
            name: format!("given {number}"),
            elements,
            element: match kind.combines() {
                true if of_any_kind => draw.among(&ELEMENTS[..2]),
                true => ElementType::F32,
                false => draw.among(&ELEMENTS),
            },
            role: Role::Internal,
            lifetime: if stays { Lifetime::Carried } else { Lifetime::Step },
        });
        self.accesses.push((writer, given, Access::Write));
        given
    }

    pub(super) fn buffer(&mut self, spec: BufferSpec) -> usize {
        self.buffers.push(spec);
        self.buffers.len() - 1
    }

    /// The program, declared anew.
    pub(super) fn added_to(self, old: &StepProgram, model: &Model, ending: Ending) -> StepProgram {
        let mut program = StepProgram::builder(old.name(), model);
        program.micro_batches(old.micro_batches()).unwrap();
        let ids: Vec<BufferId> = self.buffers.into_iter().map(|spec| program.buffer(spec).unwrap()).collect();
        for (number, call) in self.calls.iter().enumerate() {
            for Between { name, kind, group, from, to, counts, .. } in
                self.collectives.iter().filter(|collective| collective.before == number)
            {
                let counts = counts.map(|counts| Counts {
                    given: ids[counts.given.index()],
                    taken: ids[counts.taken.index()],
                    ..counts
                });
                let collective = Collective::new(*kind, ids[*from], ids[*to]).among(*group);
                let collective = Collective { counts, ..collective };
                program.collective(name, call.phase, collective).unwrap();
            }
            let mut added = program.call(&call.name, call.phase);
            // By its number, as it may have another name in this model.
            let here = |weight: WeightId| WeightId::at(weight.index());
            for usage in &call.uses {
                added = with_use(added, Use { weight: here(usage.weight), ..*usage });
            }
            for Gradient { weight, element } in &call.gradients {
                added = added.gradient_in(here(*weight), *element);
            }
            for access in &call.buffers {
                added = added.accesses(access.buffer, access.access);
            }
            for (_, buffer, access) in self.accesses.iter().filter(|(of, ..)| *of == number) {
                added = added.accesses(ids[*buffer], *access);
            }
            added = call.cost.iter().fold(added, |added, part| added.cost(*part));
            if call.dynamic {
                added = added.dynamic();
            }
            added.add().unwrap();
        }
        built(program, ending)
    }
}
