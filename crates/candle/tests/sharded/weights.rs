//! Weights in and out: draws, `VarMap`, folders, frozen ones, adapters, ties.

use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{Init, VarBuilder, VarMap, linear_no_bias, loss};
use warpweft_candle::{Devices, Kind, Sharded};

use crate::model::{Alone, VOCABULARY, WIDTH, batch, embed, rates, sharded};

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[tokio::test]
async fn draws_follow_init_and_do_not_depend_on_ranks() {
    let (x, y) = batch(0, 4);
    let mut drawn = Vec::new();
    for ranks in [1, 3] {
        let mut model = sharded(rates()).seed(7).shard(Devices::cpu(ranks), (&x, &y)).await.unwrap();
        let all = model.export().await.unwrap();
        assert!(values(&all["model.norm.weight"]).iter().all(|gain| *gain == 1.0));
        let up = values(&all["model.layers.1.up.weight"]);
        // candle draws a linear layer by Kaiming, normal with √(2 / inputs).
        let square = up.iter().map(|value| value * value).sum::<f32>() / up.len() as f32;
        let deviation = (2.0 / WIDTH as f32).sqrt();
        assert!((square.sqrt() / deviation - 1.0).abs() < 0.05, "{square} {deviation}");
        drawn.push(
            all.iter()
                .map(|(name, tensor)| (name.clone(), values(tensor)))
                .collect::<std::collections::BTreeMap<_, _>>(),
        );
    }
    assert_eq!(drawn[0], drawn[1]);
}

#[tokio::test]
async fn a_folder_goes_in_by_name_and_comes_out_and_candle_alone_gives_the_same_logits_to_the_bit() {
    let (x, y) = batch(0, 8);
    let map = VarMap::new();
    let alone = Alone::new(&map).unwrap();
    let (before, after) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    map.save(before.path().join("model.safetensors")).unwrap();
    let builder = sharded(rates()).from_folder(before.path()).prediction(&x);
    let mut model = builder.shard(Devices::cpu(1), (&x, &y)).await.unwrap();
    let logits = model.predict(&x).await.unwrap();
    assert_eq!(values(&logits), values(&alone.logits(&x).unwrap()));
    for _ in 0..3 {
        model.step((&x, &y)).await.unwrap();
    }
    model.save(after.path()).await.unwrap();
    let mut loaded = VarMap::new();
    let _ = Alone::new(&loaded).unwrap(); // the names
    loaded.load(after.path().join("model.safetensors")).unwrap();
    let logits = model.predict(&x).await.unwrap();
    assert_eq!(values(&logits), values(&Alone::new(&loaded).unwrap().logits(&x).unwrap()));

    let more = sharded(rates()).block("more", |vb| {
        let w = linear_no_bias(VOCABULARY, VOCABULARY, vb.pp("more"))?;
        Ok(move |x: &Tensor| w.forward(x))
    });
    let refused =
        more.from_folder(before.path()).shard(Devices::cpu(1), (&x, &y)).await.unwrap_err().to_string();
    assert!(refused.contains("block `more`") && refused.contains("no tensor `more.weight`"), "{refused}");
}

#[tokio::test]
async fn a_var_map_goes_in_and_its_variables_have_the_results() {
    let (x, y) = batch(0, 8);
    let map = VarMap::new();
    let mut alone = Alone::new(&map).unwrap();
    let mut model = sharded(rates()).from_var_map(&map).shard(Devices::cpu(2), (&x, &y)).await.unwrap();
    let ours = model.step((&x, &y)).await.unwrap().loss;
    let result = VarMap::new();
    model.export_into(&result).await.unwrap();
    let theirs = alone.step((&x, &y)).unwrap();
    assert!((ours - theirs).abs() < 1e-5);
    for (name, var) in map.data().lock().unwrap().iter() {
        let result = values(&result.data().lock().unwrap()[name]);
        let most = values(var).iter().zip(result).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
        assert!(most < 1e-3, "{name}: {most}");
    }
}

/// y = Wx + B(Ax), W frozen.
fn with_adapters() -> Sharded {
    Sharded::new(rates())
        .block("embed", |vb| {
            let e = embed(vb)?;
            Ok(move |x: &Tensor| e.forward(x))
        })
        .block("adapted", |vb| {
            let w = linear_no_bias(WIDTH, WIDTH, vb.pp("w"))?;
            let a = linear_no_bias(WIDTH, 4, vb.pp("lora_a"))?;
            let b = vb.get_with_hints((WIDTH, 4), "lora_b.weight", Init::Const(0.0))?;
            Ok(move |x: &Tensor| {
                let adapted = a.forward(x)?.broadcast_matmul(&b.t()?)?;
                x + (w.forward(x)? + adapted)?
            })
        })
        .block("head", |vb| {
            let h = linear_no_bias(WIDTH, VOCABULARY, vb.pp("head"))?;
            Ok(move |x: &Tensor| h.forward(x)?.flatten_to(1))
        })
        .loss(loss::cross_entropy)
        .freeze("w.weight")
        .freeze("model.embed.weight")
        .freeze("head.weight")
}

#[tokio::test]
async fn adapters_train_beside_a_frozen_base_which_stays_what_it_was() {
    let (x, y) = batch(0, 8);
    let mut model = with_adapters().shard(Devices::cpu(2), (&x, &y)).await.unwrap();
    let kinds: Vec<Kind> = model.tensors().iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [Kind::Frozen, Kind::Frozen, Kind::Trained, Kind::Trained, Kind::Frozen]);
    let before = model.export().await.unwrap();
    let first = model.step((&x, &y)).await.unwrap().loss;
    let mut last = first;
    for _ in 0..40 {
        last = model.step((&x, &y)).await.unwrap().loss;
    }
    assert!(last < 0.95 * first, "{first} {last}");
    let after = model.export().await.unwrap();
    for (name, tensor) in &before {
        let same = values(tensor) == values(&after[name]);
        assert_eq!(same, !name.starts_with("lora"), "{name}");
    }
    let refused = model.gradient("w.weight").await.unwrap_err().to_string();
    assert!(
        refused.contains("`w.weight`") && refused.contains("frozen") && refused.contains("`adapted`"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_name_that_two_blocks_use_is_one_weight_whose_gradients_are_added() {
    let (x, y) = batch(0, 8);
    let tied = || {
        Sharded::new(rates())
            .block("embed", |vb| {
                let e = embed(vb)?;
                Ok(move |x: &Tensor| e.forward(x))
            })
            .block("head", |vb| {
                let table = vb.get((VOCABULARY, WIDTH), "model.embed.weight")?;
                Ok(move |x: &Tensor| x.flatten_to(1)?.matmul(&table.t()?))
            })
            .loss(loss::cross_entropy)
    };
    let mut model = tied().shard(Devices::cpu(2), (&x, &y)).await.unwrap();
    assert_eq!(model.tensors().len(), 1);
    assert_eq!(model.tensors()[0].blocks, ["embed", "head"]);
    let map = VarMap::new();
    model.export_into(&map).await.unwrap();
    let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
    let e = embed(vb).unwrap();
    let logits = e.forward(&x).unwrap().flatten_to(1).unwrap().matmul(&e.embeddings().t().unwrap()).unwrap();
    let expected = loss::cross_entropy(&logits, &y).unwrap();
    let gradients = expected.backward().unwrap();
    let report = model.step((&x, &y)).await.unwrap();
    assert!((report.loss - expected.to_scalar::<f32>().unwrap()).abs() < 1e-5);
    let ours = values(&model.gradient("model.embed.weight").await.unwrap());
    let theirs = values(gradients.get(e.embeddings()).unwrap());
    let size = theirs.iter().fold(0.0_f32, |size, value| size.max(value.abs()));
    assert!(ours.iter().zip(&theirs).all(|(one, other)| (one - other).abs() < 1e-5 * size));
}
