//! Quantizes flat (ZeRO) shards that begin anywhere, and gets the bytes of the whole weight.
//!
//! `cargo run --example 04_custom_shards`
//!
//! A trainer that already cuts its flattened weights over ranks can use the quantizer without the
//! scheduler: every rank hands over the slices it owns, and the only thing it must bring is a maximum
//! over the ranks. Slices may begin on an odd element, in the middle of a byte and of a tile. The quantizer
//! is a crate by itself, `warpweft-format`.

#[path = "shared/print.rs"]
mod print;

use std::convert::Infallible;
use std::sync::{Barrier, Mutex};

use warpweft_format::{
    Directions, FlatShard, Format, MasterWeight, Orientation, PlanesMut, Shape, Via, Workspace,
    place_fragment, quantize, quantize_master_weights,
};

use print::println;

const RANKS: usize = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (format, shape) = (Format::NVFP4_2D, Shape::new(64, 48));
    let weight: Vec<f32> = (0..shape.elements()).map(|at| ((at * 37 % 101) as f32 - 50.0) * 0.01).collect();
    let cuts = [0, 1001, 1002, shape.elements()];
    println!("{} elements cut at {cuts:?}", shape.elements());

    // The all-reduce of a real trainer; here ranks are threads.
    let largest = Mutex::new(Vec::new());
    let arrived = Barrier::new(RANKS);
    let max_over_ranks = |amaxes: &mut [f32]| -> Result<(), Infallible> {
        {
            let mut largest = largest.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            largest.resize(amaxes.len(), 0.0f32);
            largest.iter_mut().zip(amaxes.iter()).for_each(|(largest, amax)| *largest = amax.max(*largest));
        }
        arrived.wait();
        amaxes.copy_from_slice(&largest.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        Ok(())
    };

    let scale_bytes = format.planes(Orientation::Rowwise, shape)[1].bytes();
    let fragments: Vec<_> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..RANKS)
            .map(|rank| {
                let shard = FlatShard { start: cuts[rank], len: cuts[rank + 1] - cuts[rank] };
                let master = &weight[shard.start..shard.start + shard.len];
                let max_over_ranks = &max_over_ranks;
                scope.spawn(move || {
                    let mut fragment = vec![0; shard.fragment(format).len()];
                    let mut scale = vec![0; scale_bytes];
                    let mut amax = 0.0;
                    let mut weights = [MasterWeight {
                        format,
                        shape,
                        shard,
                        master,
                        rowwise: PlanesMut { data: &mut fragment, scale: &mut scale },
                        columnwise: None,
                        tensor_scale: &mut amax,
                        delayed: None,
                    }];
                    let outcome = quantize_master_weights(
                        &mut weights,
                        Via::None,
                        &mut Workspace::default(),
                        max_over_ranks,
                    );
                    outcome.map(|()| (shard, fragment, scale, amax)).map_err(|error| error.to_string())
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().map_err(|_| "a rank panicked".to_owned())?).collect()
    });

    // The gather: fragments into one plane; bytes shared by two ranks are merged, not overwritten.
    let whole = quantize(format, Directions::Rowwise, Via::None, shape, &weight)?;
    let expected = whole.rowwise.ok_or("rowwise planes were requested")?;
    let mut data = vec![0; expected.data.len()];
    for rank in &fragments {
        let (shard, fragment, scale, amax) = rank.as_ref().map_err(Clone::clone)?;
        place_fragment(format, shape, *shard, fragment, &mut data)?;
        let (first, last) = shard.shares_bytes(format);
        println!(
            "elements {:>4}..{:<4}  {:>4} bytes, shares its first byte: {first}, its last: {last}; amax {amax}; scales equal the whole's: {}",
            shard.start,
            shard.start + shard.len,
            fragment.len(),
            *scale == expected.scale,
        );
    }
    println!("gathered bytes equal the whole weight's: {}", data == expected.data);
    assert_eq!(data, expected.data);
    Ok(())
}
