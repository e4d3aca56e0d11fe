//! Mixes formats in one model by rules of the configuration, and shows what travels.
//!
//! `cargo run --example 03_mixed_formats`
//!
//! The model is declared once, in one format. A rule says otherwise for whatever its pattern matches;
//! a rule that matches nothing is an error, because the weights it was meant for would silently keep
//! their format. Rules usually stand in the file the trainer loads; here they are text.

#[path = "shared/print.rs"]
mod print;

use warpweft::model::Placement;
use warpweft::prelude::*;
use warpweft::session::plan_program;

use print::println;

const RULES: &str = r#"
[[weights]]                     # the MLPs tolerate 4 bits less well here: give them 8
match = "blocks.*.mlp.*"
format = "fp8_block"

[[weights]]                     # small and sensitive: whole on every rank, in f32
match = "*.gate"
placement = "replicated"
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut model = Model::builder();
    for layer in 0..2 {
        model.sharded(&format!("blocks.{layer}.attention.qkv"), 768, 256, Format::NVFP4_2D)?;
        model.sharded(&format!("blocks.{layer}.mlp.up"), 1024, 256, Format::NVFP4_2D)?;
        model.sharded(&format!("blocks.{layer}.mlp.down"), 256, 1024, Format::NVFP4_2D)?;
        model.sharded(&format!("blocks.{layer}.gate"), 16, 256, Format::NVFP4_2D)?;
    }
    let config = Config::from_toml_str(RULES, "rules")?;
    let model = config.apply_weight_rules(&model.build())?;

    println!("{:<24} {:<18} {:<11} bytes per element on the wire", "weight", "format", "placement");
    for spec in model.weights() {
        let sent = spec.format.compact_planes(Orientation::Rowwise, spec.shape);
        let bytes: usize = sent.iter().map(|plane| plane.bytes()).sum();
        let per_element = bytes as f64 / spec.shape.elements() as f64;
        let wire = match spec.placement {
            Placement::Sharded => format!("{per_element:.4}"),
            Placement::Replicated => "not gathered".to_owned(),
        };
        println!(
            "{:<24} {:<18} {:<11} {wire}",
            spec.name,
            spec.format.to_string(),
            format!("{:?}", spec.placement)
        );
    }

    // One call that uses everything, to see the buckets: one per format and placement.
    let mut program = StepProgram::builder("read", &model);
    let mut call = program.call("read", Phase::Forward);
    for (weight, _) in model.entries() {
        call = call.uses_dense(weight);
    }
    call.add()?;
    let plan = plan_program(&program.build_evaluation()?, &config, 4)?;
    println!("\n{} buckets on {} ranks:", plan.weights.buckets.len(), plan.weights.mesh.ranks());
    for (bucket, members) in plan.weights.entries() {
        println!(
            "  {bucket}: {} weights, {}, {:?}",
            members.weights.len(),
            members.format,
            members.placement
        );
    }

    let misspelt = Config::from_toml_str("[[weights]]\nmatch = \"block.*\"\nformat = \"bf16\"", "rules")?;
    if let Err(error) = misspelt.apply_weight_rules(&model) {
        println!("\na misspelt pattern: {error}");
    }
    Ok(())
}
