//! Scale groups in plans: the order of a bucket, and what cannot share a scale.

use warpweft_base::id::WeightId;
use warpweft_format::{AmaxChoice, Format};
use warpweft_plan::layout::{Delayed, StateLayout, Weights};
use warpweft_plan::model::{DeclareError, Mesh, Model, Placement, WeightSpec};
use warpweft_plan::plan::{PlanError, ResidentLayout, StepPlan};

use super::policy;

/// Weights of the same shape, each with the letter of its scale group, or `-` for none.
fn model(formats: &[Format], groups: &str) -> Model {
    let mut model = Model::builder();
    for (number, group) in groups.chars().enumerate() {
        let mut spec = WeightSpec::sharded(&format!("w{number}"), 64, 64, formats[number % formats.len()]);
        spec.scale_group = (group != '-').then(|| group.to_string());
        model.add(spec).unwrap();
    }
    model.build()
}

fn laid_out(model: &Model) -> Weights {
    Weights::new(model.weights(), Mesh::new(2).unwrap())
}

/// The prologue's plan, which has all that quantizes.
fn prologue(weights: &Weights) -> Result<StepPlan, PlanError> {
    StepPlan::prologue(weights, &ResidentLayout::new(weights, &[])?, &policy(1))
}

#[test]
fn weights_of_a_scale_group_follow_the_first_of_them_in_their_bucket() {
    let weights = laid_out(&model(&[Format::NVFP4_2D], "a-bab-a"));
    let order: Vec<usize> = weights.buckets[0].weights.iter().map(|weight| weight.index()).collect();
    assert_eq!(order, [0, 3, 6, 1, 2, 4, 5]);
    let shared: Vec<_> = weights.buckets[0].weights.iter().map(|one| weights.scaled_with(*one)).collect();
    assert_eq!(shared, [0..3, 0..3, 0..3, 3..4, 4..6, 4..6, 6..7]);
    for (position, weight) in weights.buckets[0].weights.iter().enumerate() {
        assert_eq!(weights.layout(*weight).position, position);
    }
}

/// No task more, and none where there is nothing to share.
#[test]
fn a_scale_group_costs_no_task_and_changes_nothing_of_formats_without_a_scale_of_the_tensor() {
    let ops = |plan: &StepPlan| plan.tasks.iter().map(|task| task.op.name()).collect::<Vec<_>>();
    for format in Format::CANONICAL.into_iter().filter(|format| format.check_weight().is_ok()) {
        let [alone, grouped] = ["----", "a-aa"].map(|groups| laid_out(&model(&[format], groups)));
        let [of_alone, of_grouped] = [&alone, &grouped].map(|weights| prologue(weights).unwrap());
        assert_eq!(ops(&of_alone), ops(&of_grouped), "{format}");
        let shares = grouped.scaled_with(WeightId::new(0)).len() > 1;
        assert_eq!(shares, format.needs_tensor_amax(), "{format}");
        if !shares {
            assert_eq!(alone.buckets, grouped.buckets, "{format}");
        }
    }
    // Nor need its weights be alike there.
    let mut mixed = model(&[Format::Bf16, Format::Mxfp8], "aa").weights().to_vec();
    mixed[1].frozen = true;
    prologue(&Weights::new(&mixed, Mesh::new(2).unwrap())).unwrap();
}

/// PL-1: ranks that would share scales otherwise do not start.
#[test]
fn scale_groups_are_part_of_the_fingerprint() {
    let fingerprint =
        |groups| prologue(&laid_out(&model(&[Format::NVFP4_2D], groups))).unwrap().fingerprint();
    assert_ne!(fingerprint("aa--"), fingerprint("--aa"));
    assert_ne!(fingerprint("aa--"), fingerprint("----"));
}

#[test]
fn weights_that_cannot_share_a_scale_are_refused_by_name_with_what_to_do() {
    let refused = |model: &[WeightSpec]| {
        let weights = Weights::new(model, Mesh::new(2).unwrap());
        let error = prologue(&weights).unwrap_err();
        assert!(matches!(error, PlanError::ScaleGroup { .. }), "{error}");
        error.to_string()
    };
    let formats = [Format::NVFP4_2D, Format::Bf16];
    let said = refused(model(&formats, "aa").weights());
    assert!(
        said.contains("scale group `a`: `w0` is in nvfp4_2d and `w1` in bf16; give all of its weights one"),
        "{said}"
    );
    let mut frozen = model(&formats[..1], "aa").weights().to_vec();
    frozen[1].frozen = true;
    let said = refused(&frozen);
    assert!(said.contains("`w1` is frozen") && said.contains("scale_group = \"\""), "{said}");
    let mut replicated = model(&formats[..1], "aa").weights().to_vec();
    (replicated[0].placement, replicated[0].format) = (Placement::Replicated, Format::F32);
    let said = refused(&replicated);
    assert!(said.contains("`w1` is in nvfp4_2d and `w0` in f32"), "{said}");
}

#[test]
fn a_scale_group_is_declared_over_weights_of_its_model_and_a_later_one_counts() {
    let mut declared = Model::builder();
    let [one, other] = ["one", "other"].map(|name| declared.sharded(name, 64, 64, Format::NVFP4_2D).unwrap());
    declared.scale_group("first", &[one, other]).unwrap();
    declared.scale_group("second", &[other]).unwrap();
    let unknown = declared.scale_group("third", &[one, WeightId::new(7)]).unwrap_err();
    assert!(matches!(unknown, DeclareError::Unknown { .. }), "{unknown}");
    assert!(declared.scale_group("", &[one]).is_err());
    let model = declared.build();
    let groups: Vec<_> = model.weights().iter().map(|weight| weight.scale_group.as_deref()).collect();
    assert_eq!(groups, [Some("first"), Some("second")]);
}

/// Amaxes are remembered of each weight by itself, so any groups can go on from them.
#[test]
fn histories_of_delayed_scales_keep_their_size_in_a_scale_group() {
    let delayed = Delayed { history: 4, choice: AmaxChoice::Largest };
    let state = StateLayout { delayed: Some(delayed), ..StateLayout::default() };
    let bytes = |groups| {
        let weights = laid_out(&model(&[Format::FP8_TENSOR_E4M3], groups)).with_state(state);
        prologue(&weights).unwrap().bounds.resident_bytes
    };
    assert_eq!(bytes("aaaa"), bytes("----"));
}
