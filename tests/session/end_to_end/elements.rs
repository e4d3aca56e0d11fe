//! Inputs and outputs in the element types they are declared in.

use warpweft::bf16;
use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::{ElementType, Format};
use warpweft_plan::compute::ComputeContext;
use warpweft_plan::model::{Call, Model, Phase, StepProgram};
use warpweft_session::config::Config;
use warpweft_session::session::{Session, SessionError};
use warpweft_testing::trainer::{self, Trainer, feed, within_a_minute};

#[test]
fn inputs_and_outputs_are_refused_in_another_element_type_than_declared_and_taken_as_bytes() {
    within_a_minute(async {
        let first = RankId::new(0);
        let trainer = Trainer::new(1, Format::F32);
        let mut session = trainer.start(Config::default(), 2).await.unwrap();
        let doubled = vec![bf16::ONE; 2 * trainer::SIZE];
        let error = session.write_input("train", first, "input", &doubled).unwrap_err();
        let (declared, requested) = (ElementType::F32, ElementType::Bf16);
        let refused = |error: &SessionError, name: &str| {
            let SessionError::Element { buffer, declared: one, requested: other, .. } = error else {
                return false;
            };
            (buffer.as_str(), *one, *other) == (name, declared, requested)
        };
        assert!(refused(&error, "input"), "{error}");
        let said = "`input` of program `train` is declared in f32, not in bf16";
        assert!(error.to_string().contains(said), "{error}");

        feed(&mut session, "evaluate", 2, 0);
        let typed = session.step("evaluate").await.unwrap();
        feed(&mut session, "evaluate", 2, 1);
        for rank in 0..2 {
            let values = trainer::input(0, rank, 0);
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let short = session.write_input_bytes("evaluate", RankId::new(rank), "input", &bytes[1..]);
            assert!(matches!(short, Err(SessionError::InputSize { .. })));
            session.write_input_bytes("evaluate", RankId::new(rank), "input", &bytes).unwrap();
        }
        let from_bytes = session.step("evaluate").await.unwrap();
        assert_eq!(from_bytes.mean_output("loss").unwrap(), typed.mean_output("loss").unwrap());
        let error = typed.output::<bf16>(first, "loss").unwrap_err();
        assert!(refused(&error, "loss"), "{error}");
        let loss = typed.output::<f32>(first, "loss").unwrap();
        assert_eq!(typed.output_bytes(first, "loss").unwrap(), loss[0].to_le_bytes());
        let none = typed.output_bytes(first, "input");
        assert!(matches!(none, Err(SessionError::NoOutput { .. })), "{none:?}");
    });
}

#[test]
fn a_mean_is_taken_of_outputs_of_one_f32_alone() {
    within_a_minute(async {
        let model = Model::builder().build();
        let mut program = StepProgram::builder("evaluate", &model);
        let one = program.output("one", 1, ElementType::F32).unwrap();
        let several = program.output("several", 3, ElementType::F32).unwrap();
        let rounded = program.output("rounded", 1, ElementType::Bf16).unwrap();
        let call = program.call("write", Phase::Forward).writes(one).writes(several).writes(rounded);
        call.add().unwrap();
        let closures = move |rank: RankId| {
            move |_: &Call, context: &ComputeContext<'_, CpuSurface>| {
                context.write::<f32>(one)?.fill(1.0 + rank.number() as f32);
                context.write::<f32>(several)?.fill(2.0);
                context.write::<bf16>(rounded)?.fill(bf16::ONE);
                Ok(())
            }
        };
        let builder = Session::builder(Config::default(), closures);
        let mut session = builder.program(program.build_evaluation().unwrap()).start_cpu(2).await.unwrap();
        let report = session.step("evaluate").await.unwrap();
        assert_eq!(report.mean_output("one").unwrap(), 1.5);
        let error = report.mean_output("several").unwrap_err();
        assert!(matches!(&error, SessionError::NoMean { elements: 3, .. }), "{error}");
        assert!(error.to_string().contains("StepReport::output"), "{error}");
        let error = report.mean_output("rounded").unwrap_err();
        assert!(matches!(&error, SessionError::Element { requested: ElementType::F32, .. }), "{error}");
        let error = report.mean_output("none").unwrap_err();
        assert!(matches!(&error, SessionError::NoOutput { .. }), "{error}");
    });
}

/// Ids of more than two bytes, which are neither as many u8 nor f32 values of the same size.
#[test]
fn token_ids_go_in_and_out_as_u32() {
    within_a_minute(async {
        let model = Model::builder().build();
        let mut program = StepProgram::builder("evaluate", &model);
        let tokens = program.input("tokens", 3, ElementType::U32).unwrap();
        let kept = program.carried("kept", 3, ElementType::U32).unwrap();
        let before = program.output("before", 3, ElementType::U32).unwrap();
        program.call("shift", Phase::Forward).reads(tokens).updates(kept).writes(before).add().unwrap();
        let closures = move |_: RankId| {
            move |_: &Call, context: &ComputeContext<'_, CpuSurface>| {
                let requested = context.read::<f32>(tokens).unwrap_err().to_string();
                assert!(requested.contains("`tokens` in f32, which is declared in u32"), "{requested}");
                let mut kept = context.write::<u32>(kept)?;
                context.write::<u32>(before)?.copy_from_slice(&kept);
                kept.copy_from_slice(&context.read::<u32>(tokens)?);
                Ok(())
            }
        };
        let builder = Session::builder(Config::default(), closures);
        let mut session = builder.program(program.build_evaluation().unwrap()).start_cpu(1).await.unwrap();
        let (rank, ids) = (RankId::new(0), [128_255, 0, u32::MAX]);
        let floats = session.write_input("evaluate", rank, "tokens", &[0_f32; 3]);
        assert!(
            matches!(floats, Err(SessionError::Element { requested: ElementType::F32, .. })),
            "{floats:?}"
        );
        session.write_input("evaluate", rank, "tokens", &ids).unwrap();
        let first = session.step("evaluate").await.unwrap();
        assert_eq!(first.output::<u32>(rank, "before").unwrap(), [0; 3]);
        let second = session.step("evaluate").await.unwrap();
        assert_eq!(second.output::<u32>(rank, "before").unwrap(), ids);
        assert_eq!(second.output_bytes(rank, "before").unwrap(), ids.map(u32::to_le_bytes).concat());
        assert!(matches!(second.output::<f32>(rank, "before"), Err(SessionError::Element { .. })));
    });
}
