//! Token embedding: `x[i] = table[tokens[i]]`.
//!
//! Law: tokens are byte values, so they index the 256 rows of the table. The table is used again by the
//! head; each of the two uses writes a gradient of its own and the plan adds them.

/// Writes `x`, `[tokens, width]`, from `table`, `[VOCABULARY, width]`.
pub(crate) fn forward(width: usize, tokens: &[u8], table: &[f32], x: &mut [f32]) {
    for (&token, x) in tokens.iter().zip(x.chunks_exact_mut(width)) {
        x.copy_from_slice(&table[usize::from(token) * width..][..width]);
    }
}

/// Overwrites the gradient of the table from `residual`, the gradient of `x`. Reads no weight.
pub(crate) fn backward(width: usize, tokens: &[u8], residual: &[f32], table: &mut [f32]) {
    table.fill(0.0);
    for (&token, dx) in tokens.iter().zip(residual.chunks_exact(width)) {
        let row = &mut table[usize::from(token) * width..][..width];
        row.iter_mut().zip(dx).for_each(|(sum, dx)| *sum += dx);
    }
}
