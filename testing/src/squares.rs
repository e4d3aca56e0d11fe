//! Sums of squares in the order that every backend has, as plainly as it can be said.
//!
//! Law: nothing here is shared with a backend; the order is the one that `crates/backend/src/cpu/squares.rs` states.

/// The squares of up to 4096 elements.
pub fn of_block(values: &[f32]) -> f64 {
    let square = |at: usize| values.get(at).map_or(0.0, |value| f64::from(*value) * f64::from(*value));
    let own = |first: usize| (0..4).map(|turn| square(first + 1024 * turn)).fold(0.0, |sum, one| sum + one);
    let of_thread = |thread: usize| {
        let [first, second, third, fourth] = [0, 1, 2, 3].map(|neighbour| own(4 * thread + neighbour));
        (first + second) + (third + fourth)
    };
    of_threads(&(0..256).map(of_thread).collect::<Vec<f64>>())
}

/// The squares of a rank: of what it has of all weights, one after the other.
pub fn of_rank(main_grads: &[Vec<f32>]) -> f64 {
    let mut groups = Vec::new();
    for values in main_grads {
        let blocks: Vec<f64> = values.chunks(4096).map(of_block).collect();
        let count = blocks.len().div_ceil(8);
        let members = |group: usize| (0..8).map(move |number| group + number * count);
        let block = |number: usize| blocks.get(number).copied().unwrap_or(0.0);
        groups.extend((0..count).map(|group| halved(members(group).map(block).collect())));
    }
    let mut threads = vec![0.0; 256];
    groups.into_iter().enumerate().for_each(|(number, group)| threads[number % 256] += group);
    of_threads(&threads)
}

fn of_threads(threads: &[f64]) -> f64 {
    threads.chunks(32).map(|warp| halved(warp.to_vec())).fold(0.0, |sum, warp| sum + warp)
}

/// Halves added onto halves until one value is left.
fn halved(values: Vec<f64>) -> f64 {
    if let [one] = values[..] {
        return one;
    }
    let (onto, added) = values.split_at(values.len() / 2);
    halved(onto.iter().zip(added).map(|(sum, other)| sum + other).collect())
}
