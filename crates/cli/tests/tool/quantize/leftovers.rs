//! TL-2: interrupted work leaves nothing behind.

use std::ops::ControlFlow;

use warpweft_cli::{Progress, QuantizeOptions, ToolError, dequantize_checkpoint, quantize_checkpoint};
use warpweft_format::{Format, Shape};
use warpweft_testing::random_weight::normal;

use super::checkpoint::{Contents, Folder, Tensor};

/// Breaks at the `at`-th piece.
struct Stop {
    at: usize,
    announced: u64,
    read: u64,
    finished: bool,
}

impl Stop {
    fn new(at: usize) -> Self {
        Self { at, announced: 0, read: 0, finished: false }
    }
}

impl Progress for Stop {
    fn start(&mut self, bytes: u64) {
        self.announced = bytes;
    }

    fn advance(&mut self, bytes: u64) -> ControlFlow<()> {
        self.read += bytes;
        self.at = self.at.wrapping_sub(1);
        if self.at == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn finish(&mut self) {
        self.finished = true;
    }
}

#[test]
fn an_interrupt_at_any_piece_leaves_nothing_behind() {
    let shape = Shape::new(32, 32);
    let contents = Contents::default()
        .with("a", Tensor::f32s(&[32, 32], &normal(shape, 1)))
        .with("b", Tensor::f32s(&[3], &[0.0; 3]))
        .with("c", Tensor::f32s(&[32, 32], &normal(shape, 2)));
    let folder = Folder::with(&contents.to_bytes());
    let options = QuantizeOptions::new(Format::Mxfp8);
    let quantize = |stop: &mut Stop| quantize_checkpoint(&folder.input(), &folder.output(), &options, stop);
    for at in 1..=3 {
        let error = quantize(&mut Stop::new(at)).unwrap_err();
        assert!(matches!(error, ToolError::Interrupted), "{error}");
        assert_eq!(folder.files(), ["in.safetensors"]);
    }
    let mut watched = Stop::new(4);
    quantize(&mut watched).unwrap();
    assert!(watched.finished);
    assert_eq!((watched.announced, watched.read), (8204, 8204), "all bytes, each once");

    let back = folder.path("back");
    // Data and scale of both matrices; the other tensor.
    for at in 1..=5 {
        let stop = &mut Stop::new(at);
        let error = dequantize_checkpoint(&folder.output(), &back, false, stop).unwrap_err();
        assert!(matches!(error, ToolError::Interrupted), "{error}");
        assert_eq!(folder.files(), ["in.safetensors", "out.safetensors"]);
    }
    let mut watched = Stop::new(6);
    dequantize_checkpoint(&folder.output(), &back, false, &mut watched).unwrap();
    assert_eq!(watched.announced, watched.read, "what is announced is read");
}
