//! The recipe of a format on a GPU; no GPU is needed to ask.

use warpweft_cuda::ComputeCapability;
use warpweft_cuda::CudaFailure;
use warpweft_cuda::linear::{LinearSpec, Recipe};
use warpweft_format::{Format, Fp8Element, Orientation, Shape};
use warpweft_plan::model::Form;

const AMPERE: ComputeCapability = ComputeCapability::new(8, 0);
const ADA: ComputeCapability = ComputeCapability::new(8, 9);
const HOPPER: ComputeCapability = ComputeCapability::new(9, 0);
const BLACKWELL: ComputeCapability = ComputeCapability::new(10, 0);
const BLACKWELL_ULTRA: ComputeCapability = ComputeCapability::new(10, 3);
const BLACKWELL_OF_DESKTOPS: ComputeCapability = ComputeCapability::new(12, 0);
/// Formats whose products no GPU has been seen to run.
const UNSEEN: [Format; 2] = [Format::Mxfp8, Format::NVFP4_2D];

fn has(format: Format, capability: ComputeCapability) -> bool {
    Recipe::native(format, capability).is_ok()
}

#[test]
fn each_generation_has_the_products_its_hardware_scales() {
    for capability in [AMPERE, ADA, HOPPER, BLACKWELL] {
        assert!(has(Format::Bf16, capability));
        for format in [Format::F32, Format::NVFP4_1D, Format::FP8_BLOCK1X128_POW2] {
            assert!(!has(format, capability), "{format} on {capability}");
        }
    }
    let tensor = [AMPERE, ADA, HOPPER, BLACKWELL].map(|capability| has(Format::FP8_TENSOR_E4M3, capability));
    assert_eq!(tensor, [false, true, true, true]);
    let block = [AMPERE, ADA, HOPPER, BLACKWELL].map(|capability| has(Format::FP8_BLOCK128_POW2, capability));
    assert_eq!(block, [false, false, true, false]);
    let blackwells = [HOPPER, BLACKWELL, BLACKWELL_ULTRA, BLACKWELL_OF_DESKTOPS];
    for format in UNSEEN {
        let found = blackwells.map(|capability| has(format, capability));
        assert_eq!(found, [false, true, true, false], "{format}");
    }
}

/// Whoever wants what has never run requests it.
#[test]
fn the_best_recipe_for_a_format_is_one_that_has_been_seen_running() {
    for capability in [HOPPER, BLACKWELL, BLACKWELL_ULTRA, BLACKWELL_OF_DESKTOPS] {
        for format in UNSEEN {
            assert_eq!(Recipe::best_for(format, capability), Recipe::Bf16, "{format} on {capability}");
        }
    }
    assert_eq!(Recipe::native(Format::Mxfp8, BLACKWELL), Ok(Recipe::Mxfp8));
    assert_eq!(Recipe::native(Format::NVFP4_2D, BLACKWELL), Ok(Recipe::Nvfp4));
}

#[test]
fn block_scaled_products_take_features_that_are_whole_blocks_and_gradients_in_the_one_element() {
    for recipe in [Recipe::Mxfp8, Recipe::Nvfp4] {
        check_block_scaled(recipe);
    }
}

fn check_block_scaled(recipe: Recipe) {
    let spec = |tokens, outs, ins| LinearSpec::new(recipe, tokens, Shape::new(outs, ins));
    let dimension = |spec: LinearSpec| match spec.kept_bytes().unwrap_err() {
        CudaFailure::Dimension { what, multiple: 32, .. } => what,
        other => panic!("{other}"),
    };
    assert_eq!(dimension(spec(37, 48, 64)), "outputs");
    assert_eq!(dimension(spec(37, 64, 80)), "inputs");
    assert_eq!(dimension(LinearSpec { input_pitch: 80, ..spec(37, 64, 64) }), "columns that hold the inputs");
    let coarse = LinearSpec { gradients: Fp8Element::E5m2, ..spec(37, 64, 64) };
    let refused = coarse.kept_bytes().unwrap_err();
    assert!(matches!(refused, CudaFailure::Gradients { element: Fp8Element::E5m2, .. }));
    assert!(refused.to_string().contains("LinearSpec::new"), "{refused}");
    let turned = LinearSpec { dgrad: Orientation::Rowwise, ..spec(37, 64, 64) };
    assert!(matches!(turned.kept_bytes(), Err(CudaFailure::DataGradient { .. })));
}

/// LI-4: nothing falls back silently, and the error says what to do.
#[test]
fn a_format_without_products_is_an_error_that_says_what_to_declare() {
    let error = Recipe::native(Format::NVFP4_2D, HOPPER).unwrap_err();
    assert!(matches!(error, CudaFailure::Unsupported { format: Format::NVFP4_2D, .. }));
    for word in ["nvfp4_2d", "9.0", "Form::DenseBf16", "Recipe::Bf16"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(Recipe::best_for(Format::NVFP4_2D, HOPPER), Recipe::Bf16);
    assert!(matches!(Recipe::best_for(Format::FP8_BLOCK128_POW2, HOPPER), Recipe::Fp8Block(_)));
}

#[test]
fn a_recipe_says_how_its_weight_is_declared() {
    assert_eq!(
        (Recipe::Bf16.form(), Recipe::Bf16.dgrad_orientation()),
        (Form::DenseBf16, Orientation::Rowwise)
    );
    let block = Recipe::native(Format::FP8_BLOCK128_POW2, HOPPER).unwrap();
    for recipe in [block, Recipe::Mxfp8, Recipe::Nvfp4] {
        assert_eq!((recipe.form(), recipe.dgrad_orientation()), (Form::Planes, Orientation::Columnwise));
    }
    assert_eq!(
        (Recipe::Mxfp8.weight_format(), Recipe::Mxfp8.to_string()),
        (Some(Format::Mxfp8), "mxfp8".into())
    );
}

#[test]
fn what_is_kept_of_x_is_about_half_of_it_and_follows_from_the_specification() {
    let kept = |format: Format, tokens, outs, ins| {
        let recipe = Recipe::best_for(format, HOPPER);
        LinearSpec::new(recipe, tokens, Shape::new(outs, ins)).kept_bytes()
    };
    assert_eq!(kept(Format::Bf16, 33, 17, 31), Ok(None));
    // Codes of 1024 lines of 4096 tokens, and an f32 for each 128 of them.
    assert_eq!(kept(Format::FP8_BLOCK128_POW2, 4096, 3072, 1024), Ok(Some((4 << 20) + (128 << 10))));
    assert_eq!(kept(Format::FP8_BLOCK128_POW2, 36, 128, 80), Ok(Some(80 * 48 + 80 * 4)));
    assert_eq!(kept(Format::FP8_TENSOR_E4M3, 17, 16, 32), Ok(Some(32 * 32 + 4)));
    // Whole blocks of 32 tokens, and scales of 128 lines by four blocks; then 256 lines by eight.
    let mxfp8 = |tokens, ins| LinearSpec::new(Recipe::Mxfp8, tokens, Shape::new(32, ins)).kept_bytes();
    assert_eq!(mxfp8(37, 96), Ok(Some(96 * 64 + 128 * 4)));
    assert_eq!(mxfp8(129, 160), Ok(Some(160 * 160 + 256 * 8)));
    // The weight's gradient of NVFP4 reads x itself.
    assert_eq!(LinearSpec::new(Recipe::Nvfp4, 37, Shape::new(32, 96)).kept_bytes(), Ok(None));
    // A shape without products keeps nothing, and is refused as the layer would be.
    assert!(matches!(kept(Format::FP8_BLOCK128_POW2, 33, 128, 128), Err(CudaFailure::Dimension { .. })));
    assert!(matches!(kept(Format::FP8_BLOCK128_POW2, 0, 128, 128), Err(CudaFailure::Empty { .. })));
    assert!(matches!(kept(Format::FP8_TENSOR_E4M3, 1 << 40, 16, 16), Err(CudaFailure::TooLarge { .. })));
}

#[test]
fn gelu_is_taken_on_the_way_to_blocks_whose_scales_are_their_own() {
    let fuses = |format| Recipe::best_for(format, HOPPER).fuses_gelu();
    assert!(fuses(Format::FP8_BLOCK128_POW2) && Recipe::Mxfp8.fuses_gelu());
    assert!(!fuses(Format::FP8_TENSOR_E4M3) && !fuses(Format::Bf16) && !Recipe::Nvfp4.fuses_gelu());
}
