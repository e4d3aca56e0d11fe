//! Declarations of lists of calls, and the errors where there can be none.

use super::*;
use warpweft_format::{ElementType, Orientation};
use warpweft_plan::model::{Collective, CollectiveKind, CostHint, Counts, Group, Math};

const EXAMPLE: &str = include_str!("../../../../../examples/simulate/calls.toml");

const VALID: &str = "name = 'two'\nmath = 'bf16'\n\
    [[weight]]\nname = 'w.#'\nnumbers = [0, 1]\nrows = 8\ncols = 4\n\
    [[buffer]]\nname = 'x'\nelements = 3\nrole = 'input'\n\
    [[call]]\nname = 'up.#'\nnumbers = [0, 1]\nphase = 'forward'\nuses = [{ weight = 'w.#' }]\nreads = ['x']\nflops = 7\n\
    [[call]]\nname = 'down.#'\nnumbers = [1, 0]\nphase = 'backward'\nuses = [{ weight = 'w.#', orientation = 'columnwise' }]\ngradients = ['w.#']\nmath = 'fp8'\n";

fn refusal(text: &str) -> String {
    let said = |error: ConfigError| error.to_string();
    let list = match CallList::from_toml(text, "m.toml") {
        Ok(list) => list,
        Err(error) => return said(error),
    };
    let model = match list.model() {
        Ok(model) => model,
        Err(error) => return said(error),
    };
    said(list.program(&model).unwrap_err())
}

#[test]
fn calls_are_declared_in_the_order_of_the_file_and_of_their_numbers() {
    let list = CallList::from_toml(VALID, "m.toml").unwrap();
    let program = list.program(&list.model().unwrap()).unwrap();
    let names: Vec<&str> = program.calls().iter().map(|call| call.name.as_str()).collect();
    assert_eq!(names, ["up.0", "up.1", "down.1", "down.0"]);
    let last = &program.calls()[3];
    assert_eq!((last.uses[0].weight.index(), last.uses[0].orientation), (0, Orientation::Columnwise));
    assert_eq!((last.cost[0].math, program.calls()[0].cost[0].math), (Math::Fp8, Math::Bf16));
    assert_eq!(program.calls()[0].cost[0].flops, 7);
    assert!(program.updates_weights());
}

#[test]
fn a_call_may_cost_several_parts_each_in_numbers_of_its_own() {
    let parts = "flops = 7\nkernels = 2\nparts = [{ bytes = 5, kernels = 1 }, { flops = 3, math = 'fp8' }]\n";
    let list = CallList::from_toml(&VALID.replace("flops = 7\n", parts), "m.toml").unwrap();
    let program = list.program(&list.model().unwrap()).unwrap();
    let part = |flops, bytes, math, kernels| CostHint { flops, bytes, math, kernels };
    let expected = [part(7, 0, Math::Bf16, 2), part(0, 5, Math::Bf16, 1), part(3, 0, Math::Fp8, 0)];
    assert_eq!(program.calls()[0].cost, expected);
    let misspelt = VALID.replace("flops = 7", "parts = [{ flop = 7 }]");
    assert!(refusal(&misspelt).contains("did you mean `call.0.parts.0.flops`?"), "{}", refusal(&misspelt));
}

#[test]
fn a_call_of_a_list_is_dynamic_if_it_says_so() {
    let text = VALID.replace("flops = 7\n", "flops = 7\ndynamic = true\n");
    let list = CallList::from_toml(&text, "m.toml").unwrap();
    let program = list.program(&list.model().unwrap()).unwrap();
    let dynamic: Vec<bool> = program.calls().iter().map(|call| call.dynamic).collect();
    assert_eq!(dynamic, [true, true, false, false]);
    assert!(refusal(&VALID.replace("flops = 7", "dynamic = 1")).contains("`true` or `false`"));
}

/// Between the calls of [`VALID`], whose second one reads what ranks give each other.
const EXCHANGING: &str = "[[buffer]]\nname = 'all'\nelements = 6\nrole = 'output'\n\
    [[call]]\nname = 'share'\nphase = 'forward'\ncollective = 'all_gather'\namong = 'shard'\nreads = ['x']\nwrites = ['all']\n";

#[test]
fn a_call_of_a_list_may_be_a_collective() {
    let list = CallList::from_toml(&format!("{VALID}{EXCHANGING}"), "m.toml").unwrap();
    let program = list.program(&list.model().unwrap()).unwrap();
    let last = program.calls().last().unwrap();
    let buffer = |name: &str| program.buffer(name).unwrap();
    let expected = Collective::new(CollectiveKind::AllGather, buffer("x"), buffer("all")).among(Group::Shard);
    assert_eq!((last.name.as_str(), last.collective), ("share", Some(expected)));
    assert!(program.calls()[..4].iter().all(|call| call.collective.is_none()));
    for (word, kind) in [
        ("reduce_scatter", CollectiveKind::ReduceScatter),
        ("all_to_all", CollectiveKind::AllToAll),
        ("sum", CollectiveKind::Sum),
        ("max", CollectiveKind::Max),
    ] {
        let other = EXCHANGING.replace("all_gather", word);
        let list = CallList::from_toml(&format!("{VALID}{other}"), "m.toml").unwrap();
        let program = list.program(&list.model().unwrap()).unwrap();
        assert_eq!(program.calls().last().unwrap().collective.map(|collective| collective.kind), Some(kind));
    }
    let world = EXCHANGING.replace("among = 'shard'\n", "");
    let list = CallList::from_toml(&format!("{VALID}{world}"), "m.toml").unwrap();
    let program = list.program(&list.model().unwrap()).unwrap();
    assert_eq!(program.calls().last().unwrap().collective.unwrap().group, Group::World);
    for (from, to, complaint) in [
        ("'all_gather'", "'gather'", "`call.2.collective` is \"gather\"; set it to one of"),
        (
            "reads = ['x']\n",
            "",
            "`call.2.collective` is given for a call that does not read one buffer and write one",
        ),
        ("writes = ['all']", "updates = ['all']", "`call.2.updates` is given for a collective"),
        (
            "writes = ['all']",
            "writes = ['x']",
            "`call.2`: collective `share` reads and overwrites buffer `x`",
        ),
        ("reads = ['x']", "reads = ['x']\nflops = 3", "m.toml:36: `call.2.flops` is given for a collective"),
        ("reads = ['x']", "reads = ['x']\ndynamic = true", "`call.2.dynamic` is given for a collective"),
        ("elements = 6", "elements = 6\nelement = 'u8'", "buffer `x` of f32 to `all` of u8"),
        ("collective = 'all_gather'\n", "", "`call.2.among` is given for a call that is no collective"),
    ] {
        let text = EXCHANGING.replacen(from, to, 1);
        assert_ne!(text, EXCHANGING, "{from}");
        let said = refusal(&format!("{VALID}{text}"));
        assert!(said.contains(complaint), "{said}\n{complaint}");
    }
}

const LAYER: &str = include_str!("../../../../../examples/mixture_of_experts/layer.toml");

#[test]
fn the_example_of_a_layer_of_experts_brings_rows_there_and_back_by_one_pair_of_counts() {
    let list = CallList::from_toml(LAYER, "layer.toml").unwrap();
    let model = list.model().unwrap();
    assert_eq!(model.weights().iter().map(|spec| spec.expert).collect::<Vec<_>>(), [false, true, true]);
    let program = list.program(&model).unwrap();
    let buffer = |name: &str| program.buffer(name).unwrap();
    let counts = Counts::new(buffer("given"), buffer("taken"), 4096).filled(25);
    let dispatch = Collective::dispatch(buffer("sent"), buffer("inputs"), counts).among(Group::Expert);
    let expected = [
        dispatch,
        dispatch.back(buffer("made"), buffer("returned")),
        dispatch.again(buffer("slopes"), buffer("slopes of made")),
        dispatch.back(buffer("slopes of inputs"), buffer("slopes of sent")),
    ];
    let found: Vec<_> = program.calls().iter().filter_map(|call| call.collective).collect();
    assert_eq!(found, expected);
    let unsaid = LAYER.replace("filled = 25 ", "");
    assert_ne!(unsaid, LAYER);
    let list = CallList::from_toml(&unsaid, "layer.toml").unwrap();
    let program = list.program(&list.model().unwrap()).unwrap();
    assert_eq!(program.calls()[1].collective.unwrap().counts.unwrap().fill, 100);
}

#[test]
fn a_dispatch_of_a_list_that_cannot_be_is_reported_with_line_and_key() {
    let line = |text: &str, of: &str| {
        let place = text.find(of).unwrap_or_else(|| panic!("{of}"));
        text[..place].matches('\n').count() + 1
    };
    let refused = |from: &str, to: &str, at: &str, complaint: &str| {
        let text = LAYER.replacen(from, to, 1);
        assert_ne!(text, LAYER, "{from}");
        let said = refusal(&text);
        assert!(said.contains(complaint), "{said}\n{complaint}");
        assert!(said.contains(&format!("m.toml:{}: ", line(&text, at))), "{said}\n{at}");
    };
    let whole = "collective = \"all_to_all\"";
    refused("capacity = 4096", "capacity = 0", "capacity = 0", "`call.1.capacity` is 0; set it to");
    refused(
        "filled = 25",
        "filled = 101",
        "filled = 101",
        "`call.1.filled` is 101; set it to a whole number",
    );
    refused("capacity = 4096", "", "filled = 25", "`call.1.filled` is given without `capacity`");
    refused(
        whole,
        "collective = \"sum\"",
        "capacity",
        "`call.1.capacity` is given for a collective that is no",
    );
    refused(
        "capacity = 4096                  # all tokens of a rank may go to one expert\nfilled = 25",
        "",
        whole,
        "`call.1.collective` is given for a call that does not read one buffer and write one; name one in `reads` and \
         another in `writes`; rows with counts need a `capacity`",
    );
    refused(whole, "", "among", "`call.1.among` is given for a call that is no collective");
    refused(
        "reads = [\"sent\", \"given\"]",
        "reads = [\"sent\"]",
        "capacity = 4096",
        "`call.1.capacity` is given for a call that does not read two buffers and write two; name rows and then",
    );
    refused(
        "reads = [\"sent\", \"given\"]",
        "reads = [\"given\", \"sent\"]",
        "name = \"dispatch\"",
        "`call.1`: `dispatch` is a collective (all-to-all) from buffer `given` of u32",
    );
    let back = "back = \"dispatch\"";
    refused(back, "back = \"route\"", "back = \"route\"", "`call.3.back`: no dispatch is named `route`");
    refused(back, "back = \"combine\"", "back = \"combine\"", "declared are: dispatch");
    refused(
        back,
        "back = \"dispatch\"\nagain = \"dispatch\"",
        "again",
        "`call.3.again` is given beside `back`",
    );
    for (key, value) in
        [("collective", "\"all_to_all\""), ("among", "\"world\""), ("capacity", "2"), ("filled", "2")]
    {
        let beside = format!("{back}\n{key} = {value}\nreads = [\"made\"]");
        let complaint = format!("`call.3.{key}` is given beside `back`; leave it out");
        refused(&format!("{back}\nreads = [\"made\"]"), &beside, &beside[back.len() + 1..], &complaint);
    }
    refused(
        back,
        "back = \"dispatch\"\nflops = 3",
        "flops = 3",
        "`call.3.flops` is given for a collective, which no closure runs; leave it out, or give it to a call without \
         `back`",
    );
    refused(
        "reads = [\"made\"]",
        "reads = [\"made\", \"given\"]",
        back,
        "`call.3.back` is given for a call that does not read one buffer and write one",
    );
    refused(
        "reads = [\"inputs\", \"taken\"]",
        "reads = [\"inputs\"]",
        "name = \"experts\"\n",
        "`call.2`: call `experts` reads rows `inputs` without their counts `taken`",
    );
}

#[test]
fn a_buffer_has_the_element_type_that_the_file_says() {
    for (word, element) in [
        ("f32", ElementType::F32),
        ("bf16", ElementType::Bf16),
        ("u8", ElementType::U8),
        ("u32", ElementType::U32),
    ] {
        let text = VALID.replace("elements = 3\n", &format!("elements = 3\nelement = '{word}'\n"));
        let list = CallList::from_toml(&text, "m.toml").unwrap();
        let program = list.program(&list.model().unwrap()).unwrap();
        assert_eq!((program.buffers()[0].element, element.to_string().as_str()), (element, word));
    }
    let signed = refusal(&VALID.replace("elements = 3\n", "elements = 3\nelement = 'i32'\n"));
    assert!(signed.contains("u32"), "{signed}");
}

#[test]
fn gradients_may_be_written_in_bf16() {
    let text = VALID.replace("gradients =", "gradients_bf16 =");
    let list = CallList::from_toml(&text, "m.toml").unwrap();
    let program = list.program(&list.model().unwrap()).unwrap();
    let elements: Vec<_> =
        program.calls().iter().flat_map(|call| &call.gradients).map(|of| of.element).collect();
    assert_eq!(elements, [ElementType::Bf16; 2]);
    assert!(program.updates_weights());
}

#[test]
fn a_list_without_gradients_evaluates() {
    let text = VALID.replace("gradients = ['w.#']\n", "");
    let list = CallList::from_toml(&text, "m.toml").unwrap();
    assert!(!list.program(&list.model().unwrap()).unwrap().updates_weights());
}

/// By the list or by a rule of the configuration.
#[test]
fn a_call_leaves_out_the_gradient_of_a_weight_that_is_frozen() {
    let rule = "[[weights]]\nmatch = 'w.0'\nfrozen = true\n";
    let ruled = crate::config::Config::from_toml_str(rule, "c.toml").unwrap();
    let first = "[[weight]]\nname = 'w.0'\nfrozen = true\nrows = 8\ncols = 4\n\
                 [[weight]]\nname = 'w.1'\nrows = 8\ncols = 4\n";
    let weights = "[[weight]]\nname = 'w.#'\nnumbers = [0, 1]\nrows = 8\ncols = 4\n";
    let listed = VALID.replace(weights, first);
    assert_ne!(listed, VALID);
    for (text, config) in [(listed.as_str(), crate::config::Config::default()), (VALID, ruled)] {
        let list = CallList::from_toml(text, "m.toml").unwrap();
        let model = config.apply_weight_rules(&list.model().unwrap()).unwrap();
        let program = list.program(&model).unwrap();
        let of = |call: usize| {
            program.calls()[call].gradients.iter().map(|of| of.weight.index()).collect::<Vec<_>>()
        };
        assert_eq!((of(2), of(3)), (vec![1], vec![]));
        assert!(program.updates_weights());
        assert_eq!(program.calls()[3].uses.len(), 1, "it is used as any other");
    }
    let all = refusal(&VALID.replace("cols = 4\n", "cols = 4\nfrozen = true\n"));
    assert!(all.contains("no weight of its model trains"), "{all}");
    assert!(refusal(&VALID.replace("cols = 4\n", "cols = 4\nfrozen = 1\n")).contains("`true` or `false`"));
}

#[test]
fn the_example_declares_groups_and_a_chain() {
    let list = CallList::from_toml(EXAMPLE, "calls.toml").unwrap();
    let model = list.model().unwrap();
    assert_eq!((model.groups().len(), model.weights().len()), (8, 25));
    assert_eq!(list.program(&model).unwrap().calls().len(), 17);
    assert!(CallList::is_meant_by(EXAMPLE) && CallList::is_meant_by(VALID));
    assert!(!CallList::is_meant_by(include_str!("../../../../../examples/simulate/8b.toml")));
}

#[test]
fn the_example_of_exchanges_gathers_features_and_gives_their_gradients_back() {
    let list =
        CallList::from_toml(include_str!("../../../../../examples/simulate/two-towers.toml"), "t.toml")
            .unwrap();
    let program = list.program(&list.model().unwrap()).unwrap();
    let kinds: Vec<_> = program.calls().iter().filter_map(|call| Some(call.collective?.kind)).collect();
    let (gather, back) = (CollectiveKind::AllGather, CollectiveKind::AllToAll);
    assert_eq!(kinds, [gather, gather, back, back]);
}

#[test]
fn what_cannot_be_is_reported_with_file_line_and_key() {
    assert!(CallList::from_toml(VALID, "m.toml").is_ok());
    for (from, to, complaint) in [
        ("flops", "flop", "m.toml:18: unknown key `call.0.flop`; did you mean `call.0.flops`?"),
        ("rows = 8\n", "", "m.toml:4: `weight.0.rows` is missing; set it to a whole number from 1"),
        ("rows = 8", "rows = 0", "m.toml:6: `weight.0.rows` is 0; set it to"),
        ("[0, 1]\nrows", "[0]\nrows", "m.toml:5: `weight.0.numbers` is [0]; set it to two whole numbers"),
        ("reads = ['x']", "reads = 'x'", "m.toml:17: `call.0.reads` is \"x\"; set it to a list of names"),
        (
            "reads = ['x']",
            "reads = ['y']",
            "m.toml:17: `call.0.reads`: no buffer is named `y`; declared are: x",
        ),
        (
            "{ weight = 'w.#' }",
            "{ weight = 'v.#' }",
            "m.toml:16: `call.0.uses.0.weight`: no weight is named `v.0`",
        ),
        ("{ weight = 'w.#' }", "{ orientation = 'rowwise' }", "`call.0.uses.0.weight` is missing"),
        ("{ weight = 'w.#' }", "{ weight = 'w.#', form = 'plane' }", "`call.0.uses.0.form` is \"plane\""),
        ("down.#", "up.#", "m.toml:20: `call.1`: call `up.1` is declared twice"),
        ("'w.#'\nnumbers", "'w'\nnumbers", "m.toml:4: `weight.0`: weight `w` is declared twice"),
        ("gradients = ['w.#']", "gradients = ['w.1', 'w.1']", "`call.1`: "),
        ("gradients = ['w.#']", "gradients_bf16 = ['v']", "`call.1.gradients_bf16`: no weight is named `v`"),
        ("gradients = ['w.#']", "gradients = ['w.1']\ngradients_bf16 = ['w.1']", "`call.1`: "),
        (
            "cols = 4\n",
            "cols = 4\nplacement = 'replicated'\ngroup = 'g'\n",
            "`weight.0.group`: weight `w.0` is replicated",
        ),
        (
            "phase = 'backward'",
            "phase = 'sideways'",
            "m.toml:22: `call.1.phase` is \"sideways\"; set it to one of",
        ),
    ] {
        let text = VALID.replacen(from, to, 1);
        assert_ne!(text, VALID, "{from}");
        let said = refusal(&text);
        assert!(said.contains(complaint), "{said}\n{complaint}");
    }
    assert!(
        refusal("name = 'x'\nweight = 3\ncall = []\n").contains("`weight` is 3; set it to a list of tables")
    );
    assert!(refusal("name = 'x'\nweight = []\ncall = []\n").contains("m.toml"));
}
