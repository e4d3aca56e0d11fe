//! Names of settings in other frameworks (FSDP2, DeepSpeed, Megatron), and what they are here.
//!
//! Law: one list. A name that has a key here is answered with that key, and any other with what takes its place. The
//! names are those of PyTorch (FSDP among it), DeepSpeed, the Hugging Face Trainer, Megatron and Transformer Engine,
//! and of `config.json` files of models; what they mean there is for their pages.

/// Names elsewhere, and the key here; `#` is the number of a rule. Of several keys of one name, the one in the table
/// where the name stands is meant.
const KEYS: &[(&[&str], &str)] = &[
    (&["lr", "learning_rate"], "weights.#.lr_scale"),
    (&["requires_grad", "trainable", "freeze"], "weights.#.frozen"),
    (&["tp_plan", "parallelize_plan", "parallel_mode", "partition_dim"], "weights.#.tensor_parallel"),
    (&["wd"], "weights.#.weight_decay"),
    (&["dtype", "precision"], "weights.#.format"),
    (&["name", "params", "pattern", "regex"], "weights.#.match"),
    (&["learning_rate", "lr", "base_lr", "peak_lr", "max_lr"], "optimizer.lr"),
    (
        &[
            "grad_clip",
            "clip_grad",
            "clip_grad_norm",
            "clip_norm",
            "gradient_clip",
            "gradient_clipping",
            "gradient_clip_val",
            "max_grad_norm",
        ],
        "optimizer.max_norm",
    ),
    (&["betas", "adam_beta1", "beta_1"], "optimizer.beta1"),
    (&["adam_beta2", "beta_2"], "optimizer.beta2"),
    (&["epsilon", "adam_eps", "adam_epsilon"], "optimizer.eps"),
    (&["wd", "decay"], "optimizer.weight_decay"),
    (&["communication_data_type", "grad_reduce_dtype", "gradient_reduce_dtype"], "reduce_dtype"),
    (
        &["forward_prefetch", "backward_prefetch", "overlap_param_gather", "limit_all_gathers"],
        "prefetch.depth",
    ),
    (&["stage3_prefetch_bucket_size", "prefetch_bucket_size"], "prefetch.bytes"),
    (&["overlap_comm", "overlap_grad_reduce"], "reduce_delay"),
    (&["reshard_after_forward"], "backward"),
    (
        &["dp_replicate", "data_parallel_replicate_degree", "num_replicas", "replicas", "replicate"],
        "mesh.dp_replicate",
    ),
    (&["dp_shard", "data_parallel_shard_degree", "fsdp_size", "shards"], "mesh.dp_shard"),
    (&["context_parallel_size", "context_parallel_degree", "cp_size", "cp"], "mesh.cp"),
    (
        &["tensor_model_parallel_size", "tensor_parallel_degree", "tp_size", "tensor_parallel_size", "tp"],
        "mesh.tp",
    ),
    (&["num_distributed_optimizer_instances"], "mesh.optimizer_instances"),
    (&["expert_model_parallel_size", "expert_parallel_degree", "ep_size", "ep"], "mesh.ep"),
    (&["cuda_graph", "cuda_graphs", "enable_cuda_graph", "use_cuda_graph"], "capture"),
    (&["timeout", "ddp_timeout", "nccl_timeout"], "deadline_s"),
    (&["amax_history_len", "fp8_amax_history_len"], "quantize.amax_history"),
    (&["amax_compute_algo", "fp8_amax_compute_algo"], "quantize.amax_choice"),
    (&["fp8_recipe"], "quantize.scaling"),
    (&["profile", "profiler"], "trace.enabled"),
    (&["num_hidden_layers", "num_layers", "n_layer", "n_layers"], "layers"),
    (&["hidden_size", "n_embd", "d_model"], "hidden"),
    (&["intermediate_size", "ffn_hidden_size", "d_ff", "n_inner"], "ffn"),
    (&["num_attention_heads", "n_head", "n_heads"], "heads"),
    (&["num_key_value_heads", "num_query_groups", "n_kv_heads"], "kv_heads"),
    (&["vocab_size", "padded_vocab_size"], "vocabulary"),
    (&["seq_length", "seq_len", "max_position_embeddings", "n_positions"], "sequence"),
    (&["num_local_experts", "num_experts", "n_routed_experts"], "experts"),
    (&["num_experts_per_tok", "moe_router_topk"], "experts_per_token"),
    (&["moe_intermediate_size", "moe_ffn_hidden_size"], "expert_ffn"),
    (&["first_k_dense_replace"], "dense_layers"),
    (&["tie_word_embeddings", "tie_embeddings"], "tied"),
];

/// Names elsewhere of what a configuration does not set, and what sets it.
const NO_KEY: &[(&[&str], &str)] = &[
    (
        &[
            "gradient_accumulation_steps",
            "accumulate_grad_batches",
            "num_microbatches",
            "number_of_microbatches",
        ],
        "the program declares micro-batches of one step (ProgramBuilder::micro_batches), and Session::accumulate accumulates gradients over several",
    ),
    (
        &[
            "scheduler",
            "lr_scheduler",
            "lr_scheduler_type",
            "lr_schedule",
            "lr_decay_style",
            "lr_decay_iters",
            "min_lr",
            "warmup",
            "warmup_steps",
            "warmup_ratio",
            "warmup_iters",
            "lr_warmup_iters",
            "num_warmup_steps",
        ],
        "the loop sets the learning rate of each step by Session::set_learning_rate",
    ),
    (
        &["fp16", "bf16", "fp8", "mixed_precision", "torch_dtype", "dtype", "precision", "param_dtype"],
        "every weight is declared with its format, which a rule under `weights` can set (`match` and `format`); `optimizer.masters` sets what masters are kept as",
    ),
    (
        &["loss_scale", "initial_loss_scale", "initial_scale_power", "init_scale"],
        "the loop sets the loss scale by Session::set_loss_scale",
    ),
    (
        &[
            "batch_size",
            "micro_batch_size",
            "per_device_train_batch_size",
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "global_batch_size",
        ],
        "the program declares its inputs, and with them the size of a batch",
    ),
    (
        &["zero_optimization", "zero_stage", "sharding_strategy", "fsdp", "data_parallel_sharding_strategy"],
        "weights, gradients and optimizer state are always sharded (ZeRO-3, FULL_SHARD); mesh.dp_replicate sets how many replicas there are (HYBRID_SHARD)",
    ),
    (
        &[
            "gradient_checkpointing",
            "activation_checkpointing",
            "recompute_granularity",
            "recompute_activations",
        ],
        "the program declares which activations are kept; what it does not keep, backward calls recompute",
    ),
];

/// The same of what concerns the whole run, and says nothing in a table of a configuration.
const NO_KEY_OF_A_RUN: &[(&[&str], &str)] = &[
    (&["seed"], "initial values are seeded by initial::normal(seed, deviation)"),
    (
        &["max_steps", "num_train_epochs", "train_iters", "epochs", "total_steps"],
        "the loop decides how many steps it runs",
    ),
];

/// The key that another framework's name stands for, if it is one of `candidates`.
pub(super) fn meant<'a>(key: &str, candidates: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let here = |known: &'static str| candidates.clone().find(|candidate| general(candidate) == known);
    let (table, mut named) = (table(&general(key)).to_owned(), known(KEYS, key));
    let inside = named.clone().find(|known| self::table(known) == table).and_then(here);
    // A key of a list's item says nothing to who stands outside the list.
    inside.or_else(|| named.find(|known| !known.contains('#')).and_then(here))
}

/// What to do in place of setting what another framework calls so. `keys` are those of a configuration.
pub(super) fn instead<'a>(key: &str, mut keys: impl Iterator<Item = &'a str>) -> Option<&'static str> {
    let first = |key: &'a str| key.split_once('.').map(|(table, _)| table);
    let is_in_a_table = keys.any(|known| first(known) == key.split('.').next());
    known(NO_KEY, key).chain(known(NO_KEY_OF_A_RUN, key).filter(|_| !is_in_a_table)).next()
}

/// What `list` has for the names in a dotted key, the last first.
fn known<'a>(
    list: &'static [(&'static [&'static str], &'static str)],
    key: &'a str,
) -> impl Iterator<Item = &'static str> + Clone + 'a {
    let of =
        |name: &'a str| list.iter().filter(move |(names, _)| names.contains(&name)).map(|(_, here)| *here);
    key.rsplit('.').flat_map(of)
}

/// A dotted key with `#` for the numbers of items.
fn general(key: &str) -> String {
    let part = |part| if str::parse::<usize>(part).is_ok() { "#" } else { part };
    key.split('.').map(part).collect::<Vec<_>>().join(".")
}

fn table(key: &str) -> &str {
    key.rsplit_once('.').map_or("", |(table, _)| table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ConfigError, Declared, Rules, keys};
    use warpweft_plan::model::Decoder;

    #[test]
    fn every_key_of_the_list_is_one_of_a_configuration_or_of_a_decoder() {
        let mut all: Vec<String> = keys::all_like("").iter().map(|key| general(key)).collect();
        all.extend(Decoder::RULES.iter().map(|rule| rule.key.to_owned()));
        for (names, key) in KEYS {
            assert!(all.iter().any(|known| known == key), "{key}");
            assert!(names.iter().all(|name| !name.contains('.')), "{key}");
        }
    }

    #[test]
    fn a_name_of_another_framework_is_answered_with_what_it_is_here() {
        for (text, words) in [
            ("learning_rate = 1e-3", "did you mean `optimizer.lr`?"),
            ("[optimizer]\nlearning_rate = 1e-3", "did you mean `optimizer.lr`?"),
            ("lr = 1e-3", "did you mean `optimizer.lr`?"),
            ("grad_clip = 1.0", "did you mean `optimizer.max_norm`?"),
            ("[optimizer]\nmax_grad_norm = 1.0", "did you mean `optimizer.max_norm`?"),
            ("[optimizer]\nbetas = [0.9, 0.95]", "did you mean `optimizer.beta1`?"),
            ("[[weights]]\nmatch = \"a\"\nlr = 0.1", "did you mean `weights.0.lr_scale`?"),
            ("[[weights]]\nmatch = \"a\"\nlearning_rate = 0.1", "did you mean `weights.0.lr_scale`?"),
            ("[[weights]]\nmatch = \"a\"\ndtype = \"bf16\"", "did you mean `weights.0.format`?"),
            ("dtype = \"bf16\"", "every weight is declared with its format"),
            ("gradient_accumulation_steps = 4", "Session::accumulate"),
            ("[scheduler]\nwarmup_steps = 4", "Session::set_learning_rate"),
            ("dtype = \"bf16\"", "`optimizer.masters` sets what masters are kept as"),
            ("seed = 1", "initial::normal(seed, deviation)"),
            ("[training]\nmax_steps = 1", "the loop decides how many steps it runs"),
            ("[tune]\nmax_steps = 1", "did you mean `tune.steps`?"),
            ("[trace]\nseed = 1", "remove it; the keys here are"),
            ("[[weights]]\nmatch = \"a\"\nseed = 1", "remove it; the keys here are"),
            ("[zero_optimization]\nstage = 3", "always sharded (ZeRO-3, FULL_SHARD)"),
        ] {
            let error = Config::from_toml_str(text, "run.toml").unwrap_err();
            assert!(matches!(error, ConfigError::UnknownKey { .. }), "{text}: {error}");
            assert!(error.to_string().contains(words), "{text}: {error}");
        }
        let error = Decoder::from_toml("hidden_size = 64", "small.toml").unwrap_err().to_string();
        assert!(error.contains("did you mean `hidden`?"), "{error}");
    }
}
