//! Decoders of which ranks compute parts of layers, or share texts: what their ranks compute, gather and exchange.

use warpweft_base::id::WeightId;
use warpweft_plan::model::{
    CollectiveKind, CostHint, DeclareError, Decoder, Group, Mesh, StepProgram, TensorParallel,
};
use warpweft_plan::op::Op;
use warpweft_plan::plan::verify;
use warpweft_session::config::{Config, Declared};
use warpweft_session::session::plan_program;

const DECODER: &str = "name = 'small'\nlayers = 2\nhidden = 128\nffn = 256\nheads = 8\nkv_heads = 4\nvocabulary = 512\ntokens = 64\nmath = 'bf16'\nformat = 'nvfp4_2d'\n";

fn decoder(more: &str) -> Decoder {
    Decoder::from_toml(&format!("{DECODER}{more}"), "small.toml").unwrap()
}

fn program(decoder: &Decoder, mesh: Mesh) -> StepProgram {
    decoder.program_on(&decoder.model().unwrap(), mesh).unwrap()
}

fn mesh(ranks: u32, replicas: u32, tensor: u32, context: u32) -> Mesh {
    Mesh::of(ranks, replicas, tensor, None).unwrap().with_context(context).unwrap()
}

fn flops(program: &StepProgram) -> u64 {
    program.calls().iter().flat_map(|call| &call.cost).map(|cost: &CostHint| cost.flops).sum()
}

#[test]
fn without_tensor_and_context_parallelism_a_mesh_changes_no_program() {
    let decoder = decoder("");
    let plain = decoder.program(&decoder.model().unwrap()).unwrap();
    let calls = |program: &StepProgram| format!("{:?}{:?}", program.calls(), program.buffers());
    assert_eq!(calls(&program(&decoder, mesh(8, 2, 1, 1))), calls(&plain));
}

/// With tied embeddings, replays, micro-batches and products of other types.
#[test]
fn plans_are_proven_and_the_ranks_that_share_texts_compute_what_one_would() {
    for more in ["", "tied = true\n", "replays = 2\n", "micro_batches = 2\n", "math = 'fp8'\n"] {
        let decoder = match more {
            "math = 'fp8'\n" => Decoder { math: warpweft_plan::model::Math::Fp8, ..decoder("") },
            more => decoder(more),
        };
        let whole = flops(&program(&decoder, mesh(1, 1, 1, 1)));
        for (ranks, replicas, tensor, context) in
            [(2, 1, 2, 1), (2, 1, 1, 2), (8, 1, 2, 2), (8, 2, 4, 1), (8, 2, 1, 2), (16, 2, 2, 2)]
        {
            let mesh = mesh(ranks, replicas, tensor, context);
            let program = program(&decoder, mesh);
            assert_eq!(flops(&program) * u64::from(tensor * context), whole, "{mesh} {more}");
            let mut config = Config::default();
            (config.mesh.tp, config.mesh.cp) = (tensor, context);
            config.mesh.dp_replicate = Some(replicas);
            let plan = plan_program(&program, &config, ranks).unwrap();
            verify(&plan).unwrap();
            let exchanges = |wanted: Group| {
                let of = |op: &&Op| matches!(op, Op::CollectiveCall(call) if call.group == wanted);
                plan.tasks.iter().map(|task| &task.op).filter(of).count() > 0
            };
            assert_eq!(exchanges(Group::Tensor), tensor > 1, "{mesh}");
            assert_eq!(exchanges(Group::Context), context > 1, "{mesh}");
        }
    }
    let experts = decoder("experts = 4\nexperts_per_token = 2\nexpert_groups = 2\n");
    let shared = program(&experts, mesh(4, 1, 1, 2));
    assert_eq!(2 * flops(&shared), flops(&program(&experts, mesh(4, 1, 1, 1))));
    let mut config = Config::default();
    config.mesh.cp = 2;
    verify(&plan_program(&shared, &config, 4).unwrap()).unwrap();
}

/// Each rank has fewer experts, and as many tokens for them.
#[test]
fn experts_that_ranks_share_are_computed_for_as_many_tokens_which_are_exchanged() {
    let sizes = "experts = 8\nexperts_per_token = 2\nexpert_groups = 1\n";
    let experts = decoder(sizes);
    let whole = flops(&program(&experts, mesh(8, 1, 1, 1)));
    for (replicas, ep, ep_shard) in [(1, 2, None), (1, 8, None), (2, 4, Some(2))] {
        let mut config = Config::default();
        (config.mesh.ep, config.mesh.ep_shard) = (ep, ep_shard);
        config.mesh.dp_replicate = Some(replicas);
        let mesh = config.mesh_of(8).unwrap();
        let model = experts.model_on(mesh).unwrap();
        let of_rank = model.weights().iter().filter(|spec| spec.expert).count();
        assert_eq!(of_rank, 2 * 2 * 8 / ep as usize, "{mesh}");
        let program = experts.program_on(&model, mesh).unwrap();
        assert_eq!(flops(&program), whole, "{mesh}");
        let plan = plan_program(&program, &config, 8).unwrap();
        verify(&plan).unwrap();
        let is_exchange = |op: &&Op| matches!(op, Op::CollectiveCall(call) if call.group == Group::Expert);
        let exchanges = plan.tasks.iter().map(|task| &task.op).filter(is_exchange).count();
        assert_eq!(exchanges, 2 * 4, "there and back, forward and backward: {mesh}");
        let received = |name: &str| {
            let names = || program.buffers().iter();
            names().find(|buffer| buffer.name == name).map(|buffer| buffer.elements)
        };
        assert_eq!(received("blocks.1.up.dispatch.received"), Some(2 * 64 * 128));
    }
    // Where the first block has none, its MLP is gathered by all.
    let half = decoder(&format!("{sizes}expert_ffn = 128\ndense_layers = 1\n"));
    let mesh = Mesh::new(8).and_then(|mesh| mesh.with_experts(4, None)).unwrap();
    let model = half.model_on(mesh).unwrap();
    assert_eq!(model.weights().iter().filter(|spec| spec.expert).count(), 2 * 8 / 4);
    let whole = half.program(&half.model().unwrap()).unwrap();
    assert_eq!(flops(&half.program_on(&model, mesh).unwrap()), flops(&whole));

    let refused = |more: &str| {
        let mesh = Mesh::new(8).and_then(|mesh| mesh.with_experts(4, None)).unwrap();
        decoder(more).model_on(mesh).map(drop).unwrap_err().to_string()
    };
    assert!(refused("experts = 6\nexpert_groups = 1\n").contains("a multiple of mesh.ep, 4"));
    assert!(refused("experts = 8\n").contains("`expert_groups`"));
    assert!(refused("").contains("`experts`"));
}

/// What is frozen has no gradient, and no tokens are gathered for one.
#[test]
fn frozen_weights_are_computed_with_and_have_no_call_for_their_gradients() {
    let decoder = decoder("");
    let mut config =
        Config::from_toml_str("[[weights]]\nmatch = 'blocks.*.weight'\nfrozen = true", "rules").unwrap();
    config.mesh.tp = 2;
    let model = config.apply_weight_rules(&decoder.model().unwrap()).unwrap();
    let program = decoder.program_on(&model, mesh(4, 1, 2, 1)).unwrap();
    verify(&plan_program(&program, &config, 4).unwrap()).unwrap();
    let calls = |ending: &str| program.calls().iter().filter(|call| call.name.ends_with(ending)).count();
    assert_eq!((calls("wgrad"), calls("all-gather again"), calls("dgrad")), (1, 0, 1 + 2 * 4));
}

/// Every exchange but those of backward's beginning has a call after it that does not wait for it.
#[test]
fn gradients_of_weights_are_computed_while_those_of_inputs_are_exchanged() {
    let program = program(&decoder(""), mesh(4, 1, 2, 1));
    let calls = program.calls();
    let scatters = calls.iter().enumerate().filter(|(_, call)| {
        call.name.ends_with("gradient.reduce-scatter")
            && call.collective.is_some_and(|of| of.kind == CollectiveKind::ReduceScatter)
    });
    let mut hidden = 0;
    for (at, call) in scatters {
        let next = &calls[at + 1];
        let received = call.collective.unwrap().to;
        assert!(next.name.ends_with("wgrad"), "{}: {}", call.name, next.name);
        assert!(next.buffers.iter().all(|access| access.buffer != received), "{}", next.name);
        hidden += 1;
    }
    assert_eq!(hidden, 1 + 2 * 2, "the head's, and one for each half of a block");
}

#[test]
fn inner_widths_and_the_vocabulary_are_cut_and_norms_see_split_tokens() {
    let model = decoder("").model().unwrap();
    let how = |name: &str| model.weight(model.find(name).unwrap()).unwrap().tensor;
    for (name, expected) in [
        ("embedding", TensorParallel::ColumnParallel),
        ("blocks.1.qkv.weight", TensorParallel::ColumnParallel),
        ("blocks.1.attention.weight", TensorParallel::RowParallel),
        ("blocks.0.up.weight", TensorParallel::ColumnParallel),
        ("blocks.0.down.weight", TensorParallel::RowParallel),
        ("blocks.0.up.norm", TensorParallel::SplitTokens),
        ("head.norm", TensorParallel::SplitTokens),
        ("head.weight", TensorParallel::ColumnParallel),
    ] {
        assert_eq!(how(name), Some(expected), "{name}");
    }
    let stacked = |name: &str| {
        let spec = model.weight(model.find(name).unwrap()).unwrap();
        spec.segments.iter().collect::<Vec<_>>()
    };
    assert_eq!(stacked("blocks.0.qkv.weight"), [128, 64, 64]);
    assert_eq!(stacked("blocks.0.up.weight"), [256, 256]);
    assert!(
        (0..model.weights().len()).map(WeightId::at).all(|id| model.weight(id).unwrap().tensor.is_some())
    );
}

#[test]
fn sizes_that_a_mesh_does_not_divide_are_refused_with_the_axis() {
    for (more, tensor, context, wanted) in [
        ("", 8, 1, "`kv_heads`"),
        ("sequence = 8\n", 3, 1, "`kv_heads`"),
        ("experts = 2\n", 2, 1, "`experts`"),
        ("", 1, 3, "`tokens`"),
    ] {
        let decoder = decoder(more);
        let model = decoder.model().unwrap();
        let refused = decoder.program_on(&model, mesh(24, 1, tensor, context)).unwrap_err();
        assert!(matches!(refused, DeclareError::Size { .. }), "{refused}");
        let said = refused.to_string();
        assert!(said.contains(wanted) && said.contains("mesh."), "{said}");
    }
}
