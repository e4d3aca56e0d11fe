//! Weights in and out: the module's own, files, frozen ones, buffers, adapters, ties, settings.

use burn::module::{Module, Param};
use burn::nn::conv::{Conv1d, Conv1dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams};
use burn::tensor::{Int, Tensor};
use burn_store::{BurnToPyTorchAdapter, ModuleSnapshot, PyTorchToBurnAdapter, SafetensorsStore};

use warpweft_burn::{Devices, Kind, Settings, Sharded};
use warpweft_plan::policy::AdamMode;

use crate::model::{
    Alone, Model, RATE, VOCABULARY, WIDTH, adam, apart, apart_of_largest, batch, cross_entropy, device,
    drawn, gradients, number, sharded, values,
};

#[tokio::test]
async fn the_modules_values_go_in_and_what_was_trained_comes_out_in_the_module() {
    let (model, mut alone) = (Model::new(1), Alone::new(Model::new(1)));
    let before = values(&model);
    let mut sharded = sharded(adam(), model).shard(Devices::cpu(3), batch(0, 6)).await.unwrap();
    assert_eq!(values(&sharded.module().await.unwrap()), before);
    let (ours, theirs) = (sharded.step(batch(0, 6)).await.unwrap().loss, alone.step(batch(0, 6)));
    assert!(apart(&[ours], &[theirs]) < 1e-5);
    let after = sharded.module().await.unwrap();
    assert!(after.devices()[0].is_autodiff() && after.map.weight.is_require_grad());
    for (name, theirs) in values(&alone.model) {
        let ours = &values(&after)[&name];
        let most = ours.iter().zip(theirs).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
        assert!(most < 1e-5 && ours != &before[&name], "{name}: {most}");
    }
}

#[tokio::test]
async fn records_and_files_under_hugging_face_names_go_in_and_out_through_the_module() {
    let (folder, x) = (tempfile::tempdir().unwrap(), batch(0, 8).0);
    let file = |name: &str| folder.path().join(name);
    // As PyTorch has it: maps are transposed, gains are called weight.
    let mut store = SafetensorsStore::from_file(file("in.safetensors")).with_to_adapter(BurnToPyTorchAdapter);
    Model::new(2).save_into(&mut store).unwrap();
    let mut begun = Model::new(3);
    let mut store =
        SafetensorsStore::from_file(file("in.safetensors")).with_from_adapter(PyTorchToBurnAdapter);
    begun.load_from(&mut store).unwrap();
    let builder = sharded(adam(), begun).prediction(x.clone());
    let mut model = builder.shard(Devices::cpu(1), batch(0, 8)).await.unwrap();
    let logits = |tensor: Tensor<2>| tensor.into_data().as_slice::<f32>().unwrap().to_vec();
    let expected = Model::new(2).predicted(x.clone());
    assert_eq!(logits(model.predict(x.clone()).await.unwrap()), expected);
    for step in 0..3 {
        model.step(batch(step, 8)).await.unwrap();
    }
    let trained = logits(model.predict(x.clone()).await.unwrap());
    assert_ne!(trained, expected);

    model.module().await.unwrap().save_file(file("record")).unwrap();
    let record = Model::new(4).try_load_file(file("record")).unwrap();
    assert_eq!(record.predicted(x.clone()), trained);
    let mut store =
        SafetensorsStore::from_file(file("out.safetensors")).with_to_adapter(BurnToPyTorchAdapter);
    model.module().await.unwrap().save_into(&mut store).unwrap();
    let mut loaded = Model::new(5);
    let mut store =
        SafetensorsStore::from_file(file("out.safetensors")).with_from_adapter(PyTorchToBurnAdapter);
    loaded.load_from(&mut store).unwrap();
    assert_eq!(loaded.predicted(x), trained);
}

/// A convolution over the tokens, a table that does not train, and a map.
#[derive(Module, Debug)]
struct Folded {
    embed: Embedding,
    conv: Conv1d,
    shift: Param<Tensor<1, Int>>,
    map: Linear,
}

impl Folded {
    fn new() -> Self {
        let device = device();
        let shift = Param::initialized(burn::module::ParamId::new(), Tensor::from_data([0_i64], &device));
        let folded = Self {
            embed: EmbeddingConfig::new(VOCABULARY, WIDTH).init(&device).no_grad(),
            conv: Conv1dConfig::new(WIDTH, WIDTH, 1).init(&device),
            shift,
            map: LinearConfig::new(WIDTH, VOCABULARY).init(&device),
        };
        drawn(folded, 6)
    }

    fn embedded(&self, x: Tensor<2, Int>) -> Tensor<3> {
        self.embed.forward(x + self.shift.val().unsqueeze())
    }

    fn convolved(&self, x: Tensor<3>) -> Tensor<3> {
        self.conv.forward(x.swap_dims(1, 2)).swap_dims(1, 2)
    }

    fn sharded(self) -> Sharded<Self> {
        Sharded::new(adam(), self)
            .learning_rate(RATE)
            .block("embed", |model: &Self, x: Tensor<2, Int>| model.embedded(x))
            .block("conv", |model, x: Tensor<3>| model.convolved(x))
            .block("map", |model, x: Tensor<3>| model.map.forward(x).flatten::<2>(0, 1))
            .loss(cross_entropy)
    }
}

#[tokio::test]
async fn rank_three_is_folded_vectors_are_replicated_and_what_does_not_train_is_listed_and_stays() {
    let before = values(&Folded::new());
    let mut model = Folded::new().sharded().shard(Devices::cpu(2), batch(0, 8)).await.unwrap();
    let listed = |name: &str| model.tensors().iter().find(|entry| entry.name == name).unwrap();
    let kinds: Vec<Kind> = model.tensors().iter().map(|entry| entry.kind).collect();
    assert_eq!(
        kinds,
        [Kind::Frozen, Kind::Trained, Kind::Trained, Kind::Buffer, Kind::Trained, Kind::Trained]
    );
    assert_eq!(listed("conv.weight").shape, [WIDTH, WIDTH, 1]);
    assert_eq!(listed("shift").shape, [1]);
    assert_eq!(listed("map.bias").blocks, ["map"]);
    let first = model.step(batch(0, 8)).await.unwrap().loss;
    let mut last = first;
    for _ in 0..30 {
        last = model.step(batch(0, 8)).await.unwrap().loss;
    }
    assert!(last < 0.97 * first, "{first} {last}");
    let after = values(&model.module().await.unwrap());
    for (name, values) in &before {
        assert_eq!(*values == after[name], name.starts_with("embed"), "{name}");
    }
    let refused = model.gradient("embed.weight").await.unwrap_err().to_string();
    assert!(refused.contains("frozen") && refused.contains("`embed`"), "{refused}");
    assert!(model.gradient("shift").await.unwrap_err().to_string().contains("buffer"));
}

#[tokio::test]
async fn a_weight_that_two_blocks_read_is_one_weight_whose_gradients_are_added() {
    let tied =
        |model: &Model, x: Tensor<3>| x.flatten::<2>(0, 1).matmul(model.embed.weight.val().transpose());
    let mut model = Sharded::new(adam(), Model::new(7))
        .learning_rate(RATE)
        .block("embed", |model: &Model, x: Tensor<2, Int>| model.embed.forward(x))
        .block("head", tied)
        .loss(cross_entropy)
        .may_be_unused("layers.*")
        .may_be_unused("norm.*")
        .may_be_unused("map.*")
        .shard(Devices::cpu(2), batch(0, 8))
        .await
        .unwrap();
    assert_eq!(model.tensors()[0].blocks, ["embed", "head"]);
    let (alone, (x, y)) = (Model::new(7), batch(0, 8));
    let expected = cross_entropy(tied(&alone, alone.embed.forward(x)), y);
    let report = model.step(batch(0, 8)).await.unwrap();
    assert!(apart(&[report.loss], &[number(expected.clone())]) < 1e-5);
    let theirs = &gradients(&alone, expected.backward())["embed.weight"];
    let ours = model.gradient("embed.weight").await.unwrap();
    assert!(apart_of_largest(ours.as_slice().unwrap(), theirs) < 1e-5);
    // What no block reads is there as it was.
    assert_eq!(values(&model.module().await.unwrap())["map.weight"], values(&alone)["map.weight"]);
}

#[tokio::test]
async fn lora_of_burns_trains_beside_a_frozen_base_which_stays_what_it_was() {
    let model = || Model::new(8).apply_lora(burn::module::Lora::new(4, 8.0));
    let before = values(&model());
    let mut sharded = sharded(adam(), model()).shard(Devices::cpu(2), batch(0, 8)).await.unwrap();
    let trained: Vec<&str> = (sharded.tensors().iter())
        .filter(|entry| entry.kind == Kind::Trained)
        .map(|entry| entry.name.as_str())
        .collect();
    assert!(trained.iter().any(|name| name.contains("lora")), "{trained:?}");
    let first = sharded.step(batch(0, 8)).await.unwrap().loss;
    let mut last = first;
    for _ in 0..40 {
        last = sharded.step(batch(0, 8)).await.unwrap().loss;
    }
    assert!(last < first, "{first} {last}");
    let trained: Vec<String> = trained_names(&sharded);
    let after = values(&sharded.module().await.unwrap());
    for (name, values) in &before {
        let trains = trained.contains(name);
        assert!(trains || *values == after[name], "{name}");
    }
}

fn trained_names(model: &warpweft_burn::ShardedModel<Model>) -> Vec<String> {
    let trained = model.tensors().iter().filter(|entry| entry.kind == Kind::Trained);
    trained.map(|entry| entry.name.clone()).collect()
}

#[tokio::test]
async fn decay_of_burns_adam_is_added_to_the_gradient_and_that_of_its_adamw_is_not() {
    let decay = || Some(WeightDecayConfig::new(0.3));
    let adam = || AdamConfig::new().with_beta_2(0.99).with_weight_decay(decay());
    let adamw = || AdamWConfig::new().with_beta_2(0.99).with_weight_decay(0.3);
    assert_eq!(Settings::from(adam()).config.optimizer.mode, AdamMode::Adam);
    let of_w = Settings::from(adamw()).config.optimizer;
    assert_eq!((of_w.mode, of_w.beta1, of_w.eps), (AdamMode::AdamW, f64::from(0.9_f32), f64::from(1e-5_f32)));
    for (settings, mut optimizer) in
        [(Settings::from(adam()), adam().init()), (adamw().into(), adamw().init())]
    {
        let mut model = sharded(settings, Model::new(9)).shard(Devices::cpu(1), batch(0, 8)).await.unwrap();
        let mut alone = Model::new(9);
        for step in 0..10 {
            let (x, y) = batch(step, 8);
            let theirs = cross_entropy(alone.logits(x), y);
            let ours = model.step(batch(step, 8)).await.unwrap().loss;
            assert!(apart(&[ours], &[number(theirs.clone())]) < 1e-5, "{step}: {ours} {theirs}");
            let gradients = GradientsParams::from_grads(theirs.backward(), &alone);
            alone = optimizer.step(RATE, alone, gradients);
        }
    }
}

#[tokio::test]
async fn settings_of_burns_that_nothing_here_does_are_refused_and_so_is_a_missing_rate() {
    let refused = async |settings: Settings| {
        let model = Sharded::new(settings, Model::new(1))
            .block("all", |model: &Model, x: Tensor<2, Int>| model.logits(x))
            .loss(cross_entropy);
        model.shard(Devices::cpu(1), batch(0, 4)).await.unwrap_err().to_string()
    };
    let clipped =
        AdamConfig::new().with_grad_clipping(Some(burn::grad_clipping::GradientClippingConfig::Norm(1.0)));
    assert!(refused(clipped.into()).await.contains("`grad_clipping`"));
    assert!(refused(AdamWConfig::new().with_amsgrad(true).into()).await.contains("`amsgrad`"));
    assert!(refused(AdamWConfig::new().into()).await.contains("`Sharded::learning_rate`"));
}

/// A norm whose statistics run along.
#[derive(Module, Debug)]
struct Normed {
    embed: Embedding,
    norm: BatchNorm,
    map: Linear,
}

#[tokio::test]
async fn running_statistics_are_buffers_which_each_rank_runs_along_and_the_module_has_as_they_began() {
    let device = device();
    let normed = Normed {
        embed: EmbeddingConfig::new(VOCABULARY, WIDTH).init(&device),
        norm: BatchNormConfig::new(WIDTH).init(&device),
        map: LinearConfig::new(WIDTH, VOCABULARY).init(&device),
    };
    let begun = drawn(normed, 10);
    let before = values(&begun);
    let builder = Sharded::new(adam(), begun)
        .learning_rate(RATE)
        .block("embed", |model: &Normed, x: Tensor<2, Int>| model.embed.forward(x))
        .block("norm", |model, x: Tensor<3>| model.norm.forward(x.swap_dims(1, 2)).swap_dims(1, 2))
        .block("map", |model, x: Tensor<3>| model.map.forward(x).flatten::<2>(0, 1))
        .loss(cross_entropy);
    let mut model = builder.shard(Devices::cpu(2), batch(0, 8)).await.unwrap();
    let of = |kind| model.tensors().iter().filter(move |entry| entry.kind == kind).map(|entry| &*entry.name);
    let buffers: Vec<&str> = of(Kind::Buffer).collect();
    assert_eq!(buffers, ["norm.running_mean", "norm.running_var"]);
    let begun = model.evaluate(batch(0, 8)).await.unwrap();
    for _ in 0..30 {
        model.step(batch(0, 8)).await.unwrap();
    }
    assert!(model.evaluate(batch(0, 8)).await.unwrap() < 0.97 * begun);
    let after = values(&model.module().await.unwrap());
    assert_eq!(after["norm.running_mean"], before["norm.running_mean"]);
    assert_ne!(after["norm.gamma"], before["norm.gamma"]);
}
