//! Replaces the plan of a program between two of its steps.
//!
//! Laws:
//! - All ranks take the same plan before the same step: they compare fingerprints first (**PL-1**), when all
//!   their lanes are drained.
//! - Nothing moves: the arena and resident slots stay where they are, and a plan that does not fit is refused
//!   before it is bound. What the weights hold (**PL-9**) does not depend on which plan left it.
//! - The previous plan's events, tables and capture are given back once the next plan is bound. All ranks
//!   have done so before any goes on, because giving memory back may wait for streams of peers.
//! - A trial is issued and timed; a capture is made only of the plan that stays.

use std::sync::Arc;

use super::agreement::agree_on_plan;
use super::installed::install;
use super::{CaptureMode, ExecError, Rank};
use warpweft_backend::Backend;
use warpweft_base::id::ProgramId;
use warpweft_plan::layout::{Content, Region, Residency};
use warpweft_plan::plan::StepPlan;

/// A plan with which a program continues.
#[derive(Clone, Debug)]
pub struct Adoption {
    /// The plan, made from the same program, over the same resident layout and mesh.
    pub plan: Arc<StepPlan>,
    /// Whether it is a trial. Its tasks are then timed and its steps issued, never captured.
    pub trial: bool,
}

impl<B: Backend> Rank<B> {
    /// Lets `program` continue with another plan.
    pub(super) fn adopt(&mut self, program: ProgramId, adoption: Adoption) -> Result<(), ExecError> {
        let Adoption { plan, trial } = adoption;
        agree_on_plan(&self.world, self.id(), &plan)?;
        self.check(program, &plan)?;
        let capture = if trial { CaptureMode::Off } else { self.capture };
        let installed = install(&self.backend, &self.memory, plan, capture, trial, &self.poison)?;
        drop(std::mem::replace(&mut self.programs[program.index()], installed));
        self.world.exchange(self.id(), 0).map(drop)
    }

    fn check(&self, program: ProgramId, plan: &StepPlan) -> Result<(), ExecError> {
        let rank = self.id();
        let Some(current) = self.programs.get(program.index()).map(|installed| &installed.plan) else {
            return Err(ExecError::NoProgram { rank, program, programs: self.programs.len() });
        };
        let (arena, room) = (plan.arena.bytes(), self.room);
        let receive_buffer = self.backend.receive_buffer_bytes(&plan.binding(rank, &plan.ops()))?;
        let reason = if current.name != plan.name || current.buffers != plan.buffers {
            format!("the plan is one of `{}`, with other buffers or another name", plan.name)
        } else if current.arena.resident_bytes != plan.arena.resident_bytes
            || !resident(current).eq(resident(plan))
            || current.lanes != plan.lanes
        {
            "its resident region or its lanes are others".to_owned()
        } else if arena > room.arena {
            format!("its arena takes {arena} bytes and {} are reserved", room.arena)
        } else if receive_buffer > room.receive_buffer {
            format!("what peers send takes {receive_buffer} bytes and {} are reserved", room.receive_buffer)
        } else {
            return Ok(());
        };
        Err(ExecError::Adoption { rank, program: current.name.clone(), reason })
    }
}

/// What must not move.
fn resident(plan: &StepPlan) -> impl Iterator<Item = (Content, Region)> {
    let stays = plan.arena.slots.iter().filter(|slot| slot.residency == Residency::Resident);
    stays.map(|slot| (slot.content, slot.region))
}
