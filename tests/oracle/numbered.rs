//! The steps of the numbered examples, and of those for other libraries.
//!
//! Law: each is declared as in its example, whose functions only it can call, so this is a copy: an example
//! may be written anew, and its first step stays here. 04 and 05 have no step, and 09 is among the files.

use std::error::Error;

use warpweft::prelude::*;
use warpweft_plan::model::{Collective, CollectiveKind, Layer, LayerStack};
use warpweft_session::session::plan_program;

use crate::planned;
use crate::record::Entry;

type Declared = Result<StepProgram, DeclareError>;

/// Plans of all of them.
pub(crate) fn plans() -> Result<Vec<Entry>, Box<dyn Error>> {
    let mut all = Vec::new();
    let mut add = |name: &str, program: &StepProgram, config: &Config, ranks: u32| {
        let plan = plan_program(program, config, ranks)?;
        all.push(planned(name, &plan));
        Ok::<(), SessionError>(())
    };
    let usual = Config::default();
    let of = |text: &str| Config::from_toml_str(text, "rules.toml");

    let two = two_layers()?;
    add("01_print_a_plan", &two, &usual, 4)?;
    add("01_print_a_plan --depth 0", &two, &of("prefetch.depth = 0")?, 4)?;
    add("02_plug_in_a_closure", &one_map(true)?, &usual, 2)?;
    let rules = of(RULES)?;
    add("03_mixed_formats", &mixed(&rules)?, &rules, 4)?;
    for ranks in [1, 2] {
        add(&format!("07_export_and_import on {ranks}"), &one_map(false)?, &usual, ranks)?;
    }
    for (name, form) in [("planes", Form::Planes), ("bf16 values", Form::DenseBf16)] {
        add(&format!("08_linear_layer_on_a_gpu with {name}"), &linear(form)?, &usual, 1)?;
    }
    add("10_own_kernel_on_a_gpu", &own_kernel()?, &usual, 1)?;
    for ranks in [1, 2, 4] {
        add(&format!("11_adapters_beside_a_frozen_weight on {ranks}"), &adapters()?, &usual, ranks)?;
    }
    add("12_custom_optimizer, AdamW", &one_map(true)?, &usual, 2)?;
    add("12_custom_optimizer, Lion", &one_map(true)?, &keeping_one(Config::default()), 2)?;
    for ranks in [1, 4] {
        add(&format!("13_loss_over_the_whole_batch on {ranks}"), &contrastive(ranks)?, &usual, ranks as u32)?;
    }
    let rules = keeping_one(of(MATRICES)?);
    for ranks in [1, 2] {
        add(&format!("14_muon on {ranks}"), &muon(&rules, ranks)?, &rules, ranks as u32)?;
    }
    for format in ["f32", "fp8_block", "nvfp4_2d"] {
        for (name, keeps_graph) in [("recomputed", false), ("kept", true)] {
            let program = bytes(format.parse()?, 64, keeps_graph)?;
            add(&format!("burn and candle in {format}, graphs {name}"), &program, &usual, 2)?;
        }
    }
    Ok(all)
}

/// Two programs over one set of weights share its addresses, so their plans are those of a session.
pub(crate) async fn session_plans() -> Result<Vec<Entry>, Box<dyn Error>> {
    let idle = on_cpu(|_, _| Ok(()));
    let builder = Session::builder(Config::default(), move |_| idle);
    let builder = builder.program(batches(8, true)?).program(batches(32, false)?);
    let session = builder.initialize(initial::zeros()).start_cpu(2).await?;
    let entry = |name: &str| {
        let plan = session.plan(name)?;
        Ok::<_, SessionError>(planned(format!("06_evaluate_beside_training, {name}"), plan))
    };
    let entries = vec![entry("train")?, entry("evaluate")?];
    session.close().await?;
    Ok(entries)
}

/// 01.
fn two_layers() -> Declared {
    let mut model = Model::builder();
    let up = model.sharded("mlp.up", 256, 64, Format::NVFP4_2D)?;
    let down = model.sharded("mlp.down", 64, 256, Format::NVFP4_2D)?;
    let bias = model.replicated("mlp.bias", 1, 64)?;
    let mut program = StepProgram::builder("train", &model.build());
    let tokens = 32;
    let input = program.input("input", tokens * 64, ElementType::F32)?;
    let layers =
        vec![Layer::new("up", vec![up], tokens * 256), Layer::new("down", vec![down, bias], tokens * 64)];
    let stack = LayerStack::forward(&mut program, input, layers, Form::Dense)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let gradient = program.activation("loss.gradient", tokens * 64)?;
    program.call("loss", Phase::Forward).reads(stack.output()).writes(loss).writes(gradient).add()?;
    let unused = program.activation("input.gradient", tokens * 64)?;
    stack.backward(&mut program, gradient, unused)?;
    program.build_training()
}

/// 02 and 12 fit a map to inputs; 07 shrinks one.
fn one_map(fits: bool) -> Declared {
    let mut model = Model::builder();
    let weight = model.sharded("map", 32, 32, Format::NVFP4_2D)?;
    let mut program = StepProgram::builder("train", &model.build());
    let input = fits.then(|| program.input("input", 32, ElementType::F32)).transpose()?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let name = if fits { "fit" } else { "shrink" };
    let call = program.call(name, Phase::Backward).uses(weight, Orientation::Rowwise, Form::Dense);
    let call = input.into_iter().fold(call.gradient(weight), |call, input| call.reads(input));
    call.writes(loss).add()?;
    program.build_training()
}

/// Of 03.
const RULES: &str = r#"
[[weights]]
match = "blocks.*.mlp.*"
format = "fp8_block"

[[weights]]
match = "*.gate"
placement = "replicated"
"#;

/// 03.
fn mixed(config: &Config) -> Result<StepProgram, Box<dyn Error>> {
    let mut model = Model::builder();
    for layer in 0..2 {
        model.sharded(&format!("blocks.{layer}.attention.qkv"), 768, 256, Format::NVFP4_2D)?;
        model.sharded(&format!("blocks.{layer}.mlp.up"), 1024, 256, Format::NVFP4_2D)?;
        model.sharded(&format!("blocks.{layer}.mlp.down"), 256, 1024, Format::NVFP4_2D)?;
        model.sharded(&format!("blocks.{layer}.gate"), 16, 256, Format::NVFP4_2D)?;
    }
    let model = config.apply_weight_rules(&model.build())?;
    let mut program = StepProgram::builder("read", &model);
    let mut call = program.call("read", Phase::Forward);
    for (weight, _) in model.entries() {
        call = call.uses(weight, Orientation::Rowwise, Form::Dense);
    }
    call.add()?;
    Ok(program.build_evaluation()?)
}

/// 06.
fn batches(batch: usize, trains: bool) -> Declared {
    let mut model = Model::builder();
    let weight = model.sharded("map", 32, 32, Format::NVFP4_2D)?;
    let mut program = StepProgram::builder(if trains { "train" } else { "evaluate" }, &model.build());
    let input = program.input("input", batch * 32, ElementType::F32)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let call = program.call("fit", if trains { Phase::Backward } else { Phase::Forward });
    let call = call.uses(weight, Orientation::Rowwise, Form::Dense).reads(input).writes(loss);
    if trains {
        call.gradient(weight).add()?;
        return program.build_training();
    }
    call.add()?;
    program.build_evaluation()
}

/// 08, by the form that the recipe of a GPU asks for.
fn linear(form: Form) -> Declared {
    let mut model = Model::builder();
    let weight = model.sharded("w", 256, 128, Format::FP8_BLOCK128_POW2)?;
    let mut program = StepProgram::builder("train", &model.build());
    let x = program.input("x", 64 * 128, ElementType::Bf16)?;
    let y = program.output("y", 64 * 256, ElementType::Bf16)?;
    let call = program.call("shrink", Phase::Backward).uses(weight, Orientation::Rowwise, form);
    call.reads(x).writes(y).add()?;
    program.call("gradient", Phase::Backward).reads(x).reads(y).gradient(weight).add()?;
    program.build_training()
}

/// 10.
fn own_kernel() -> Declared {
    let mut model = Model::builder();
    let w = model.sharded("map", 32, 32, Format::NVFP4_2D)?;
    let mut program = StepProgram::builder("train", &model.build());
    let x = program.input("x", 32, ElementType::F32)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let call = program.call("fit", Phase::Backward).uses(w, Orientation::Rowwise, Form::Dense);
    call.gradient(w).reads(x).writes(loss).add()?;
    program.build_training()
}

/// 11.
fn adapters() -> Declared {
    let mut model = Model::builder();
    let base = model.sharded("base.map", 256, 256, Format::NVFP4_2D)?;
    model.freeze(base)?;
    let down = model.replicated("adapter.down", 4, 256)?;
    let up = model.replicated("adapter.up", 256, 4)?;
    let mut program = StepProgram::builder("train", &model.build());
    let input = program.input("input", 256, ElementType::F32)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let call = program.call("fit", Phase::Backward).uses(base, Orientation::Rowwise, Form::Dense);
    let call = call.uses(down, Orientation::Rowwise, Form::Dense).uses(up, Orientation::Rowwise, Form::Dense);
    call.gradient(down).gradient(up).reads(input).writes(loss).add()?;
    program.build_training()
}

/// 13.
fn contrastive(ranks: usize) -> Declared {
    let mut model = Model::builder();
    let ask = model.sharded("ask", 32, 32, Format::NVFP4_2D)?;
    let answer = model.sharded("answer", 32, 32, Format::NVFP4_2D)?;
    let mut program = StepProgram::builder("train", &model.build());
    let (own, all) = (32 * 32 / ranks, 32 * 32);
    let [x, y] = [program.input("x", own, ElementType::F32)?, program.input("y", own, ElementType::F32)?];
    let loss = program.output("loss", 1, ElementType::F32)?;
    let asked = program.activation("asked", own)?;
    let answers = program.activation("answers", own)?;
    let all_answers = program.activation("all_answers", all)?;
    let asked_gradient = program.activation("asked_gradient", own)?;
    let gradients_given = program.activation("gradients_given", all)?;
    let gradients_got = program.activation("gradients_got", all)?;
    let maps = program.call("map", Phase::Forward).reads(x).reads(y).writes(asked).writes(answers);
    maps.uses(ask, Orientation::Rowwise, Form::Dense)
        .uses(answer, Orientation::Rowwise, Form::Dense)
        .add()?;
    let gather = Collective::new(CollectiveKind::AllGather, answers, all_answers);
    program.collective("gather answers", Phase::Forward, gather)?;
    let compare = program.call("compare", Phase::Backward).reads(asked).reads(all_answers);
    compare.writes(asked_gradient).writes(gradients_given).writes(loss).add()?;
    let give_back = Collective::new(CollectiveKind::AllToAll, gradients_given, gradients_got);
    program.collective("give gradients back", Phase::Backward, give_back)?;
    let learn = program.call("learn", Phase::Backward).reads(x).reads(y);
    learn.reads(asked_gradient).reads(gradients_got).gradient(ask).gradient(answer).add()?;
    program.build_training()
}

/// A custom optimizer with one state.
fn keeping_one(mut config: Config) -> Config {
    config.optimizer.custom_states = Some(1);
    config
}

/// Of 14.
const MATRICES: &str = "[[weights]]\nmatch = \"*\"\nwhole_matrix = true\n\
                        [[weights]]\nmatch = \"bias\"\nwhole_matrix = false";

/// 14.
fn muon(config: &Config, ranks: usize) -> Result<StepProgram, Box<dyn Error>> {
    let mut model = Model::builder();
    let up = model.sharded("up", 64, 32, Format::NVFP4_2D)?;
    let down = model.sharded("down", 32, 64, Format::NVFP4_2D)?;
    let bias = model.replicated("bias", 1, 64)?;
    let model = config.apply_weight_rules(&model.build())?;
    let mut program = StepProgram::builder("train", &model);
    let x = program.input("x", 32 / ranks * 32, ElementType::F32)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let mut call = program.call("fit", Phase::Backward);
    for weight in [up, down, bias] {
        call = call.uses(weight, Orientation::Rowwise, Form::Dense).gradient(weight);
    }
    call.reads(x).writes(loss).add()?;
    Ok(program.build_training()?)
}

/// Of the examples for other libraries: name, rows, columns; a gain is replicated.
type Part = (String, Vec<(&'static str, usize, usize)>);

fn parts() -> Vec<Part> {
    let mut parts = vec![("embed".to_owned(), vec![("table", 256, 16), ("mix", 256, 256)])];
    let block = [("gain", 1, 256), ("up", 512, 256), ("down", 256, 512)];
    parts.extend((0..3).map(|number| (format!("blocks.{number}"), block.to_vec())));
    parts.push(("head".to_owned(), vec![("gain", 1, 256), ("map", 256, 256)]));
    parts
}

/// `examples/shared/program.rs` over the layers of `examples/candle_on_a_gpu`, for `samples` on a rank. Where a
/// layer's graph is kept from forward to backward, backward uses no weight again.
fn bytes(format: Format, samples: usize, keeps_graph: bool) -> Declared {
    let (parts, mut model) = (parts(), Model::builder());
    let mut weights = Vec::new();
    for (layer, own) in &parts {
        let declare = |(name, rows, columns): &(&str, usize, usize)| match *name {
            "gain" => model.replicated(&format!("{layer}.{name}"), *rows, *columns),
            _ => model.sharded(&format!("{layer}.{name}"), *rows, *columns, format),
        };
        weights.push(own.iter().map(declare).collect::<Result<Vec<_>, _>>()?);
    }
    let mut program = StepProgram::builder("train", &model.build());
    let windows = program.input("windows", samples * 16, ElementType::U32)?;
    let targets = program.input("targets", samples, ElementType::U32)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let last = parts.len() - 1;
    let (mut inputs, mut gradients) = (vec![windows], Vec::new());
    for (layer, _) in &parts[..last] {
        inputs.push(program.activation(&format!("{layer}.output"), samples * 256)?);
        gradients.push(program.activation(&format!("{layer}.output_gradient"), samples * 256)?);
    }
    for (layer, (name, _)) in parts[..last].iter().enumerate() {
        let mut call = program.call(&format!("{name}.forward"), Phase::Forward).reads(inputs[layer]);
        for weight in &weights[layer] {
            call = call.uses(*weight, Orientation::Rowwise, Form::Dense);
        }
        call.writes(inputs[layer + 1]).add()?;
    }
    for (layer, (name, _)) in parts.iter().enumerate().rev() {
        let is_last = layer == last;
        let name = if is_last { name.clone() } else { format!("{name}.backward") };
        let (mut call, has_graph) = (program.call(&name, Phase::Backward), keeps_graph && !is_last);
        if !has_graph {
            call = call.reads(inputs[layer]);
        }
        for weight in &weights[layer] {
            if !has_graph {
                call = call.uses(*weight, Orientation::Rowwise, Form::Dense);
            }
            call = call.gradient(*weight);
        }
        call = match is_last {
            true => call.reads(targets).writes(loss).writes(gradients[layer - 1]),
            false => call.reads(gradients[layer]),
        };
        if !is_last && layer > 0 {
            call = call.writes(gradients[layer - 1]);
        }
        call.add()?;
    }
    program.build_training()
}
