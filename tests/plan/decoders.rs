//! Decoders declared by their sizes: what their weights and calls are, and sizes that are refused.

use warpweft_plan::model::Decoder;
use warpweft_session::config::Declared;

const DECODER: &str = "name = 'small'\nlayers = 2\nhidden = 64\nffn = 128\nheads = 4\nvocabulary = 256\ntokens = 32\nmath = 'bf16'\nformat = 'bf16'\n";

/// A token goes through two of eight experts: each gives its part of what `up` leaves, `down` adds theirs up, and the
/// memory that a call touches is the weights of all and what goes in and out.
#[test]
fn experts_of_a_decoder_give_one_sum_for_each_token_and_cost_what_is_computed() {
    let text = format!("{DECODER}experts = 8\nexperts_per_token = 2\n");
    let (tokens, hidden, ffn, bytes) = (32, 64, 128, 2);
    for text in [text.clone(), format!("{text}expert_groups = 2\n")] {
        let decoder = Decoder::from_toml(&text, "small.toml").unwrap();
        let program = decoder.program(&decoder.model().unwrap()).unwrap();
        let costs = |name: &str| {
            let call = program.calls().iter().find(|call| call.name == name);
            let call = call.unwrap_or_else(|| panic!("{name}"));
            let values: usize = call
                .buffers
                .iter()
                .filter(|access| access.access.writes())
                .map(|access| program.buffers()[access.buffer.index()].elements)
                .sum();
            (values, call.cost[0].flops, call.cost[0].bytes)
        };
        let of = |out: usize, into: usize, weights: usize, computed: usize| {
            (tokens * out, (2 * tokens * computed) as u64, (bytes * (weights + tokens * (into + out))) as u64)
        };
        let (attends, width) = (2 * tokens * tokens * hidden, 2 * 2 * ffn);
        let (_, flops, touched) = of(hidden, 3 * hidden, hidden * hidden, hidden * hidden);
        let attention = (tokens * hidden, flops + attends as u64, touched);
        assert_eq!(costs("blocks.1.attention.forward"), attention);
        assert_eq!(costs("blocks.1.up.forward"), of(width, hidden, 8 * 2 * ffn * hidden, width * hidden));
        assert_eq!(costs("blocks.1.down.forward"), of(hidden, width, 8 * hidden * ffn, 2 * hidden * ffn));
    }
}

/// As in models whose first blocks have no experts: one MLP there, and experts of a width of their own after them.
#[test]
fn the_first_layers_of_a_decoder_may_be_dense_and_its_experts_of_another_width() {
    let text = format!(
        "{DECODER}experts = 8\nexperts_per_token = 2\nexpert_groups = 1\nexpert_ffn = 32\ndense_layers = 1\n"
    );
    let decoder = Decoder::from_toml(&text, "small.toml").unwrap();
    let model = decoder.model().unwrap();
    let of = |block: usize| {
        let stem = format!("blocks.{block}.");
        let mlps = model.weights().iter().filter(|spec| spec.name.starts_with(&stem));
        let mlps = mlps.filter(|spec| spec.name.contains(".up.") || spec.name.contains(".down."));
        let matrices = mlps.filter(|spec| !spec.name.ends_with("norm"));
        matrices.map(|spec| (spec.shape.rows, spec.shape.cols)).collect::<Vec<_>>()
    };
    assert_eq!(of(0), [(2 * 128, 64), (64, 128)]);
    assert_eq!(of(1), [vec![(2 * 32, 64); 8], vec![(64, 32); 8]].concat());
    let program = decoder.program(&model).unwrap();
    let flops = |name: &str| program.calls()[program.call(name).unwrap().index()].cost[0].flops;
    assert_eq!(flops("blocks.0.up.forward"), 2 * 32 * 64 * (2 * 128));
    assert_eq!(flops("blocks.1.up.forward"), 2 * (2 * 32 * 64 * (2 * 32)));
    assert_eq!(flops("blocks.1.down.forward"), 2 * (2 * 32 * 32 * 64));
}

/// The fields are public, so sizes made in code meet the checks that files meet.
#[test]
fn sizes_of_a_decoder_that_do_not_fit_each_other_declare_nothing() {
    type Damage = fn(&mut Decoder);
    let valid = Decoder::from_toml(DECODER, "small.toml").unwrap();
    let model = valid.model().unwrap();
    assert_eq!(valid.check(), Ok(()));
    let damages: [(&str, Damage); 17] = [
        ("`heads` of decoder `small` is 3; set it to a number that divides 64", |sizes| sizes.heads = 3),
        ("`heads` of decoder `small` is 0; set it to at least 1", |sizes| sizes.heads = 0),
        ("`layers` of decoder `small` is 0", |sizes| sizes.layers = 0),
        ("`layers` of decoder `small` is 4097; set it to at most 4096", |sizes| sizes.layers = 4097),
        ("`replays` of decoder `small` is 4097", |sizes| sizes.replays = Some(4097)),
        ("`experts` of decoder `small` is 65537", |sizes| sizes.experts = Some(65_537)),
        ("`experts` of decoder `small` is 128; set it to at most 64 in each of 4096 layers", |sizes| {
            sizes.layers = 4096;
            (sizes.experts, sizes.expert_groups) = (Some(128), Some(1));
        }),
        (
            "`experts` of decoder `small` is 128; set it to at most 127 in each of 1 layers and 2048 replays",
            |sizes| {
                (sizes.layers, sizes.replays) = (1, Some(2048));
                (sizes.experts, sizes.expert_groups) = (Some(128), Some(1));
            },
        ),
        ("`kv_heads` of decoder `small` is 3", |sizes| sizes.kv_heads = Some(3)),
        ("`sequence` of decoder `small` is 33; set it to at most `tokens`, 32", |sizes| {
            sizes.sequence = Some(33);
        }),
        ("`experts_per_token` of decoder `small` is 2; set it to at most `experts`, 1", |sizes| {
            sizes.experts_per_token = Some(2);
        }),
        ("`experts` of decoder `small` is 0", |sizes| sizes.experts = Some(0)),
        ("`expert_groups` of decoder `small` is 4; set it to a number that divides 6", |sizes| {
            (sizes.experts, sizes.expert_groups) = (Some(6), Some(4));
        }),
        ("`dense_layers` of decoder `small` is 3; set it to at most `layers`, 2", |sizes| {
            (sizes.experts, sizes.dense_layers) = (Some(4), Some(3));
        }),
        ("`expert_ffn` of decoder `small` is 0", |sizes| {
            (sizes.experts, sizes.expert_ffn) = (Some(4), Some(0));
        }),
        (
            "`expert_ffn` of decoder `small` is 64; set it to that of a decoder with `experts`, or leave it out",
            |sizes| sizes.expert_ffn = Some(64),
        ),
        ("`expert_groups` of decoder `small` is 0", |sizes| {
            (sizes.experts, sizes.expert_groups) = (Some(6), Some(0));
        }),
    ];
    for (says, damage) in damages {
        let mut sizes = valid.clone();
        damage(&mut sizes);
        for refused in [sizes.check().err(), sizes.model().err(), sizes.program(&model).err()] {
            let error = refused.unwrap().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
