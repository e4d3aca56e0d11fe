//! Tensors of three dimensions, such as the experts of a layer: each matrix is quantized by itself.

use std::num::NonZeroUsize;

use warpweft_cli::QuantizeOptions;
use warpweft_format::{Directions, Format, Orientation, Shape, Via, quantize};
use warpweft_testing::random_weight::normal;

use super::checkpoint::{Contents, Folder, Tensor};

const EXPERTS: usize = 3;
const SHAPE: Shape = Shape::new(64, 96);

/// The experts, of magnitudes that are far from each other.
fn experts() -> Vec<Vec<f32>> {
    let expert =
        |at: usize| normal(SHAPE, at as u64).iter().map(|value| value * 1000f32.powi(at as i32)).collect();
    (0..EXPERTS).map(expert).collect()
}

fn stacked() -> Folder {
    let all = Tensor::f32s(&[EXPERTS, SHAPE.rows, SHAPE.cols], &experts().concat());
    Folder::with(&Contents::default().with("experts.up", all).to_bytes())
}

/// The shape of the planes of one matrix after the number of matrices.
#[test]
fn a_tensor_of_three_dimensions_is_quantized_one_matrix_at_a_time_and_comes_back_so() {
    for format in Format::CANONICAL.into_iter().filter(|format| !matches!(format, Format::F32 | Format::Bf16))
    {
        let folder = stacked();
        let report =
            folder.quantize(&QuantizeOptions { strict: true, ..QuantizeOptions::new(format) }).unwrap();
        assert_eq!((report.tensors[0].matrices, report.tensors[0].shape), (EXPERTS, SHAPE), "{format}");
        assert!(report.to_string().contains("3 of 64×96") && report.copied.is_empty(), "{report}");
        let written = folder.read("out.safetensors");
        assert_eq!(written.tensors.len(), 5);
        let each: Vec<_> = experts()
            .iter()
            .map(|values| quantize(format, Directions::Both, Via::None, SHAPE, values).unwrap())
            .collect();
        for (part, of_one) in [
            ("rowwise_data", each.iter().map(|one| one.rowwise.as_ref().unwrap().data.clone()).collect()),
            (
                "columnwise_data",
                each.iter().map(|one| one.columnwise.as_ref().unwrap().data.clone()).collect(),
            ),
            ("amax", each.iter().map(|one| one.amax.to_le_bytes().to_vec()).collect::<Vec<_>>()),
        ] {
            let tensor = written.tensor(&format!("experts.up.{part}"));
            assert_eq!(tensor.bytes, of_one.concat(), "{format} {part}");
            assert_eq!(tensor.shape[0], EXPERTS, "{format} {part}");
        }
        for (orientation, of_one) in [
            ("rowwise", each.iter().map(|one| one.rowwise.as_ref()).collect::<Vec<_>>()),
            ("columnwise", each.iter().map(|one| one.columnwise.as_ref()).collect()),
        ] {
            let tensor = written.tensor(&format!("experts.up.{orientation}_scale"));
            let planes =
                of_one.iter().map(|planes| planes.unwrap().scale.clone()).collect::<Vec<_>>().concat();
            if planes.is_empty() {
                let scales: Vec<f32> = each.iter().map(|one| one.tensor_scale).collect();
                assert_eq!(tensor, &Tensor::f32s(&[EXPERTS], &scales), "{format}");
            } else {
                assert_eq!((&tensor.bytes, tensor.shape.len()), (&planes, 3), "{format}");
            }
        }

        folder.dequantize().unwrap();
        let back: Vec<f32> =
            each.iter().flat_map(|one| one.dequantize(Orientation::Rowwise).unwrap()).collect();
        let back = Tensor::f32s(&[EXPERTS, SHAPE.rows, SHAPE.cols], &back);
        assert_eq!(folder.read("back.safetensors").tensor("experts.up"), &back, "{format}");
    }
}

#[test]
fn the_matrices_of_a_stack_are_sharded_as_each_alone() {
    let [whole, sharded] = [None, NonZeroUsize::new(3)].map(|shards| {
        let folder = stacked();
        folder.quantize(&QuantizeOptions { shards, ..QuantizeOptions::new(Format::NVFP4_2D) }).unwrap();
        folder.read("out.safetensors")
    });
    assert_eq!(whole, sharded);
}

#[test]
fn a_value_of_a_stack_that_no_format_takes_is_reported_with_its_matrix() {
    let mut values = experts().concat();
    values[2 * SHAPE.elements() + SHAPE.cols + 5] = f32::NAN;
    let all = Tensor::f32s(&[EXPERTS, SHAPE.rows, SHAPE.cols], &values);
    let folder = Folder::with(&Contents::default().with("up", all).to_bytes());
    let error = folder.quantize(&QuantizeOptions::new(Format::Mxfp8)).unwrap_err().to_string();
    assert!(error.contains("tensor `up[2]` holds NaN at [1, 5]"), "{error}");
}

/// Files of version 1 had no such tensors, and are read.
#[test]
fn a_file_of_the_version_before_is_turned_back() {
    let matrix = Tensor::f32s(&[SHAPE.rows, SHAPE.cols], &experts()[0]);
    let folder = Folder::with(&Contents::default().with("up", matrix).to_bytes());
    folder.quantize(&QuantizeOptions::new(Format::NVFP4_2D)).unwrap();
    let mut contents = folder.read("out.safetensors");
    let text = contents.metadata.get_mut("warpweft_quantized").unwrap();
    let older = text.replace("\"version\":2", "\"version\":1");
    assert_ne!(*text, older);
    *text = older;
    std::fs::write(folder.output(), contents.to_bytes()).unwrap();
    assert_eq!(folder.dequantize().unwrap().tensors[0].matrices, 1);
}
