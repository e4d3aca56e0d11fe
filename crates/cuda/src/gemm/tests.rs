//! Operands of block-scaled products as a layer holds them, bit for bit. Any GPU makes them, so this needs none that
//! multiplies them; without a GPU it says that it is skipped.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::rc::Rc;

use bytemuck::Pod;
use cudarc::driver::result;
use half::bf16;

use super::scalars::Scalars;
use super::{Activation, Blas, DeviceBuffer, Kept, Lent, Queue, Scaled, Source, Swizzled};
use crate::{CudaFailure, CudaHandles, DeviceOrdinal};
use warpweft_format::{Directions, Format, Orientation, OwnedPlanes, Shape, Via, quantize, swizzle_scale};

/// Ragged tokens, and features of whole blocks; elements from one token to the next.
const X: Shape = Shape::new(131, 160);
const PITCH: usize = 192;
const WEIGHT: Shape = Shape::new(96, 160);

struct Rig {
    blas: Rc<Blas>,
    queue: Queue,
}

impl Rig {
    fn open() -> Option<Self> {
        let open = || {
            let blas = Rc::new(Blas::open(DeviceOrdinal::new(0))?);
            Ok(Self { queue: Queue::new(&blas)?, blas })
        };
        let opened: Result<Self, CudaFailure> = open();
        // Also where the harness keeps what tests print.
        let say = |reason: &CudaFailure| {
            let _ = writeln!(std::io::stderr(), "skipped: operands of block-scaled products: {reason}");
        };
        opened.inspect_err(say).ok()
    }

    fn handles(&self) -> &CudaHandles {
        self.queue.handles()
    }

    fn upload<T: Pod>(&self, values: &[T]) -> DeviceBuffer<T> {
        let buffer = DeviceBuffer::zeroed(&self.blas, values.len()).unwrap();
        // SAFETY: the buffer has as many elements, and nothing uses it yet.
        unsafe { result::memcpy_htod_sync(buffer.read().address().number(), values) }.unwrap();
        // From pageable memory it may still be on its way, and no stream here waits for it.
        result::ctx::synchronize().unwrap();
        buffer
    }

    fn download(&self, lent: Lent<'_>) -> Vec<u8> {
        self.queue.synchronize().unwrap();
        let mut bytes = vec![0; lent.bytes()];
        // SAFETY: the range was lent, and what writes it has run.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, lent.address().number()) }.unwrap();
        bytes
    }

    fn check(&self, what: &str, found: Scaled<'_>, (codes, scales): &(Vec<u8>, Vec<u8>)) {
        assert!(self.download(found.values) == *codes, "{what}: codes");
        assert!(self.download(found.scale.unwrap()) == *scales, "{what}: scales");
    }
}

fn drawn(elements: usize) -> Vec<bf16> {
    let value = |at: usize| ((at * 7919 % 1009) as f32 - 504.0) * (1.0 + (at % 13) as f32 * 3.0);
    (0..elements).map(|at| bf16::from_f32(value(at))).collect()
}

/// Codes of the first `rows` rows along lines, and swizzled scales, of values that are whole blocks.
fn expected(format: Format, rows: usize, shape: Shape, values: &[f32]) -> (Vec<u8>, Vec<u8>) {
    let quantized = quantize(format, Directions::Rowwise, Via::None, shape, values).unwrap();
    let OwnedPlanes { data, scale } = quantized.rowwise.unwrap();
    let mut swizzled = vec![0; scale.len()];
    swizzle_scale(format, Orientation::Rowwise, shape, &scale, &mut swizzled).unwrap();
    (data[..data.len() / shape.rows * rows].to_vec(), swizzled)
}

#[test]
fn activations_of_a_layer_become_codes_and_swizzled_scales_in_its_own_memory_or_in_what_is_kept() {
    let Some(rig) = Rig::open() else { return };
    let dense = drawn(X.elements());
    let spread: Vec<bf16> =
        dense.chunks(X.cols).flat_map(|row| [row, &[bf16::NAN; PITCH - X.cols]].concat()).collect();
    let values = rig.upload(&spread);
    let source = || Source::Values(values.read().into());
    // Whole blocks of tokens, and their transpose.
    let whole = Shape::new(X.rows.next_multiple_of(32), X.cols);
    let mut rows: Vec<f32> = dense.iter().map(|value| value.to_f32()).collect();
    rows.resize(whole.elements(), 0.0);
    let column = |column: usize| (0..whole.rows).map(move |row| (row, column));
    let columns: Vec<f32> =
        (0..whole.cols).flat_map(column).map(|(row, column)| rows[row * whole.cols + column]).collect();

    let along = expected(Format::Mxfp8, X.rows, whole, &rows);
    let across = expected(Format::Mxfp8, X.cols, whole.transposed(), &columns);
    let mut mxfp8 = Activation::new(&rig.blas, Format::Mxfp8, X, PITCH).unwrap();
    mxfp8.enqueue(rig.handles(), source(), Directions::Both).unwrap();
    rig.check("MXFP8 along rows", mxfp8.rowwise(), &along);
    rig.check("MXFP8 along columns", mxfp8.columnwise(), &across);
    let mut kept = DeviceBuffer::<u8>::zeroed(&rig.blas, Kept::of(Format::Mxfp8, X).bytes()).unwrap();
    let place = kept.write().into();
    let found = mxfp8.enqueue_keeping(rig.handles(), source(), &place).unwrap();
    rig.check("MXFP8 along rows, keeping", found, &along);
    rig.check("MXFP8 kept", mxfp8.kept(kept.read().into()).unwrap(), &across);

    let mut nvfp4 = Activation::new(&rig.blas, Format::NVFP4_1D, X, PITCH).unwrap();
    for _ in 0..2 {
        nvfp4.enqueue(rig.handles(), source(), Directions::Rowwise).unwrap();
    }
    let found = nvfp4.rowwise();
    rig.check("NVFP4", found, &expected(Format::NVFP4_1D, X.rows, whole, &rows));
    let amax = rows.iter().fold(0.0_f32, |amax, value| amax.max(value.abs()));
    assert_eq!(rig.download(found.amax.unwrap()), amax.to_le_bytes());
    assert!(nvfp4.kept(kept.read().into()).is_err(), "nothing is kept of NVFP4");
}

#[test]
fn scales_of_a_weight_are_swizzled_into_memory_of_the_layer_and_amaxes_become_its_scalars() {
    let Some(rig) = Rig::open() else { return };
    let values: Vec<f32> = drawn(WEIGHT.elements()).iter().map(|value| value.to_f32()).collect();
    for format in [Format::Mxfp8, Format::NVFP4_2D] {
        let quantized = quantize(format, Directions::Both, Via::Bf16, WEIGHT, &values).unwrap();
        for (orientation, planes) in [
            (Orientation::Rowwise, quantized.rowwise.as_ref().unwrap()),
            (Orientation::Columnwise, quantized.columnwise.as_ref().unwrap()),
        ] {
            let (codes, scale) = (rig.upload(&planes.data), rig.upload(&planes.scale));
            let weight = |scale| Scaled { values: codes.read().into(), scale, amax: None };
            let mut swizzled = Swizzled::new(&rig.blas, format, orientation, WEIGHT).unwrap();
            assert!(swizzled.enqueue(rig.handles(), weight(None)).is_err());
            let found = swizzled.enqueue(rig.handles(), weight(Some(scale.read().into()))).unwrap();
            let mut expected = vec![0; planes.scale.len()];
            swizzle_scale(format, orientation, WEIGHT, &planes.scale, &mut expected).unwrap();
            rig.check(&format!("{format} {orientation}"), found, &(planes.data.clone(), expected));
            assert!(rig.download(scale.read().into()) == planes.scale, "the weight's own stay");
        }
    }
    let (first, second) = (rig.upload(&[31.5_f32]), rig.upload(&[0.02_f32]));
    let mut scalars = Scalars::new(&rig.blas).unwrap();
    assert!(scalars.enqueue(rig.handles(), [Some(first.read().into()), None], false).is_err());
    for (adds, beta) in [(true, 1.0_f32), (false, 0.0)] {
        let amaxes = [Some(first.read().into()), Some(second.read().into())];
        let places = scalars.enqueue(rig.handles(), amaxes, adds).unwrap();
        let found = places.map(|place| rig.download(Lent::new(place, size_of::<f32>())));
        assert_eq!(
            found,
            [31.5 * 0.02 * (1.0 / 7_225_344.0), beta].map(|value| value.to_le_bytes().to_vec())
        );
    }
}
