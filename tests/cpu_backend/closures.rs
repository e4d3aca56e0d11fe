//! Failing closures: they fault their step, and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::bf16;
use warpweft_backend::cpu::{CpuOptions, CpuSurface};
use warpweft_backend::{Backend, BackendError, ClosureFault};
use warpweft_base::id::{BufferId, CallId, SlotId, WeightId};
use warpweft_format::ElementType;
use warpweft_plan::compute::{ComputeContext, ComputeError, ComputeFactory};
use warpweft_plan::layout::{Content, Residency};
use warpweft_plan::model::{Access, Call};
use warpweft_plan::op::{ClearFault, Op, Operand, OperandRole};

use crate::bodies::harness::{COMPUTE, LANES, Plan, Rank};
use crate::device::{closures, on_every_rank};

const BUFFER: BufferId = BufferId::new(0);

/// Clears the fault word, then three calls that update one buffer.
fn three_calls() -> (Plan, SlotId, SlotId) {
    let mut plan = Plan::new(1, &[]);
    let fault = plan.resident("fault", Content::FaultWord);
    let (_, slot) = plan.buffer("counts", 3, Residency::Resident);
    plan.op(COMPUTE, Op::ClearFault(ClearFault { fault }));
    for name in ["first", "second", "third"] {
        let operand = Operand { slot, access: Access::Update, role: OperandRole::Buffer(BUFFER) };
        plan.call(name, fault, vec![operand]);
    }
    (plan, fault, slot)
}

#[test]
fn a_failed_closure_faults_the_step_and_later_steps_are_unharmed() {
    let (plan, fault, counts) = three_calls();
    on_every_rank(plan, CpuOptions::default(), move |backend, plan| {
        let fails = Arc::new(AtomicUsize::new(1));
        let count = closures({
            let fails = Arc::clone(&fails);
            move |call, context| {
                let mut counts = context.write::<f32>(BUFFER)?;
                counts[context.call().index()] += 1.0;
                if call.name == "second" && fails.load(Ordering::SeqCst) == 1 {
                    return Err(ComputeError::closure("out of data"));
                }
                Ok(())
            }
        });
        let mut rank = Rank::start(backend, plan, count).unwrap();
        rank.step().unwrap();
        assert_eq!(rank.get::<f32>(counts), [1.0, 1.0, 0.0], "no closure runs after a fault");
        assert_eq!(rank.get::<u32>(fault), [2]);
        let told = rank.backend.take_fault(&mut rank.streams[0]);
        let expected = ClosureFault { call: CallId::new(1), message: "out of data".into(), panicked: false };
        assert_eq!(told, Some(expected));
        assert_eq!(rank.backend.take_fault(&mut rank.streams[0]), None);
        fails.store(0, Ordering::SeqCst);
        rank.step().unwrap();
        assert_eq!(rank.get::<f32>(counts), [2.0, 2.0, 1.0]);
        assert_eq!(rank.get::<u32>(fault), [0]);
    });
}

#[test]
fn after_a_panic_no_closure_runs_again_and_every_step_says_so() {
    let (plan, fault, counts) = three_calls();
    on_every_rank(plan, CpuOptions::default(), move |backend, plan| {
        let count = closures(|call, context| {
            context.write::<f32>(BUFFER)?[context.call().index()] += 1.0;
            assert!(call.name != "second", "second thoughts");
            Ok(())
        });
        let mut rank = Rank::start(backend, plan, count).unwrap();
        rank.step().unwrap();
        let first = rank.backend.take_fault(&mut rank.streams[0]).unwrap();
        assert_eq!(
            (first.call, first.panicked, first.message.as_str()),
            (CallId::new(1), true, "second thoughts")
        );
        assert_eq!(rank.get::<u32>(fault), [2]);
        for _ in 0..2 {
            rank.step().unwrap();
            let again = rank.backend.take_fault(&mut rank.streams[0]).unwrap();
            assert_eq!((again.call, again.panicked), (CallId::new(0), true));
            assert!(again.message.contains("`second` panicked before: second thoughts"), "{}", again.message);
            assert_eq!(rank.get::<u32>(fault), [1]);
        }
        assert_eq!(rank.get::<f32>(counts), [1.0, 1.0, 0.0]);
    });
}

#[test]
fn a_closure_gets_only_what_its_call_declares_and_no_two_writers() {
    let (plan, fault, _) = three_calls();
    on_every_rank(plan, CpuOptions::default(), move |backend, plan| {
        let probe = closures(|call, context| match call.name.as_str() {
            "first" => {
                assert!(matches!(
                    context.read::<f32>(BufferId::new(9)),
                    Err(ComputeError::NotDeclared { .. })
                ));
                let held = context.write::<f32>(BUFFER)?;
                let refused = context.write::<f32>(BUFFER).map(drop).unwrap_err();
                let named = |name: &str| name.starts_with("buffer `");
                assert!(
                    matches!(&refused, ComputeError::Race { wanted, held, .. } if named(wanted) && named(held)),
                    "{refused}"
                );
                assert!(refused.to_string().contains("drop what it holds first"), "{refused}");
                drop(held);
                let (one, two) = (context.read::<f32>(BUFFER)?, context.read::<f32>(BUFFER)?);
                assert_eq!((one.len(), two.len()), (3, 3));
                Ok(())
            }
            "second" => context.gradient(WeightId::new(0)).map(drop),
            _ => Ok(()),
        });
        let mut rank = Rank::start(backend, plan, probe).unwrap();
        rank.step().unwrap();
        let told = rank.backend.take_fault(&mut rank.streams[0]).unwrap();
        assert_eq!((told.call, told.panicked), (CallId::new(1), false));
        assert!(
            told.message.contains("`second`")
                && told.message.contains("weight 0 of another model, which it did not declare"),
            "{}",
            told.message
        );
        assert_eq!(rank.get::<u32>(fault), [2]);
    });
}

#[test]
fn a_buffer_is_lent_in_the_element_type_it_is_declared_in_or_as_bytes() {
    let (plan, fault, _) = three_calls();
    on_every_rank(plan, CpuOptions::default(), move |backend, plan| {
        let probe = closures(|call, context| match call.name.as_str() {
            "first" => {
                let read = context.read::<bf16>(BUFFER).unwrap_err();
                let written = context.write::<u8>(BUFFER).unwrap_err();
                let (call, buffer, declared) = ("first".to_owned(), "counts".to_owned(), ElementType::F32);
                let refused = |requested| ComputeError::BufferElement {
                    call: call.clone(),
                    buffer: buffer.clone(),
                    declared,
                    requested,
                };
                assert_eq!([read, written], [refused(ElementType::Bf16), refused(ElementType::U8)]);
                context.write::<f32>(BUFFER)?.copy_from_slice(&[1.0, 2.0, 3.0]);
                assert_eq!(*context.read_bytes(BUFFER)?, *bytemuck::bytes_of(&[1.0_f32, 2.0, 3.0]));
                context.write_bytes(BUFFER)?[..4].copy_from_slice(&4.0_f32.to_le_bytes());
                assert_eq!(*context.read::<f32>(BUFFER)?, [4.0, 2.0, 3.0]);
                let other = BufferId::new(9);
                assert!(matches!(context.read_bytes(other), Err(ComputeError::NotDeclared { .. })));
                assert!(matches!(context.write_bytes(other), Err(ComputeError::NotDeclared { .. })));
                Ok(())
            }
            "second" => context.read::<bf16>(BUFFER).map(drop),
            _ => Ok(()),
        });
        let mut rank = Rank::start(backend, plan, probe).unwrap();
        rank.step().unwrap();
        let told = rank.backend.take_fault(&mut rank.streams[0]).unwrap();
        assert_eq!((told.call, told.panicked), (CallId::new(1), false));
        let said = "call `second` requested `counts` in bf16, which is declared in f32";
        assert!(told.message.contains(said), "{}", told.message);
        assert_eq!(rank.get::<u32>(fault), [2]);
    });
}

#[test]
fn a_call_on_a_buffer_that_the_program_does_not_declare_is_not_bound() {
    let (mut plan, ..) = three_calls();
    plan.buffers.clear();
    on_every_rank(plan, CpuOptions::default(), |backend, plan| {
        let message = Rank::start(backend, plan, None).err().unwrap().to_string();
        assert!(message.contains("buffer 0 is not in the program"), "{message}");
    });
}

#[test]
fn a_factory_that_panics_is_an_error_of_the_lane() {
    let (plan, ..) = three_calls();
    on_every_rank(plan, CpuOptions::default(), |backend, plan| {
        let memory = backend.reserve(plan.arena.bytes(), 0).unwrap();
        let refused =
            backend.open(&memory, LANES[0], Some(Arc::new(|seat| panic!("no model for {}", seat.rank))));
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("no model for rank 0"), "{message}");
    });
}

#[test]
fn a_factory_that_fails_is_an_error_of_the_lane() {
    let (plan, ..) = three_calls();
    on_every_rank(plan, CpuOptions::default(), |backend, plan| {
        let memory = backend.reserve(plan.arena.bytes(), 0).unwrap();
        let fails: ComputeFactory<CpuSurface> =
            Arc::new(|seat| Err(ComputeError::closure(format!("no model for {}", seat.rank))));
        let message = backend.open(&memory, LANES[0], Some(fails)).unwrap_err().to_string();
        assert!(message.contains("rank 0") && message.contains("failed: no model for rank 0"), "{message}");
    });
}

#[test]
fn closures_live_on_one_thread() {
    let (plan, ..) = three_calls();
    on_every_rank(plan, CpuOptions::default(), |backend, plan| {
        let factory: ComputeFactory<CpuSurface> = Arc::new(|_| {
            // Neither `Send` nor `Sync`.
            let seen = std::rc::Rc::new(std::cell::Cell::new(0));
            let home = std::thread::current().id();
            Ok(Box::new(move |_: &Call, _: &ComputeContext<'_, CpuSurface>| {
                seen.set(seen.get() + 1);
                assert_eq!(std::thread::current().id(), home);
                Ok(())
            }))
        });
        let mut rank = Rank::start(backend, plan, Some(factory)).unwrap();
        rank.step().unwrap();
        assert_eq!(rank.backend.take_fault(&mut rank.streams[0]), None);
    });
}

#[test]
fn a_call_on_a_lane_without_closures_is_an_error_of_the_task() {
    let (plan, ..) = three_calls();
    on_every_rank(plan, CpuOptions::default(), |backend, plan| {
        let mut rank = Rank::start(backend, plan, None).unwrap();
        let error = rank.step().unwrap_err();
        assert!(matches!(&error, BackendError::Task { op: "compute", .. }), "{error}");
    });
}
