//! All products of all recipes: right to within rounding, and the same bits every time.

use warpweft_cuda::linear::{Device, LinearSpec, Recipe};
use warpweft_format::{ElementType, Format, Fp8Element, Orientation, Shape};

use super::reference::{assert_product, assert_rounded_once};
use super::rig::{GPU, Rig};
use crate::gpu::Gpu;

/// Computes everything twice, one by one and together.
fn check(gpu: &Gpu, device: &Device, spec: LinearSpec) {
    let what = format!(
        "{} {} tokens by {}, {:?}, {:?} gradients, dx {}",
        spec.recipe, spec.tokens, spec.weight, spec.output, spec.gradients, spec.dgrad
    );
    let mut rig = Rig::new(gpu, device, spec).unwrap_or_else(|error| panic!("{what}: {error}"));
    let results = rig.run(gpu, false);
    let seen = &rig.seen;
    let (recipe, output) = (spec.recipe, spec.output);
    assert_product(&format!("{what}: y"), recipe, &seen.x, &seen.weight, &results.y, output);
    assert_product(&format!("{what}: dx"), recipe, &seen.dy, &seen.weight_turned, &results.dx, output);
    let dw = spec.weight_gradient;
    let recipe = if recipe == Recipe::Nvfp4 { Recipe::Bf16 } else { recipe };
    assert_product(&format!("{what}: dW {dw:?}"), recipe, &seen.dy_turned, &seen.x_turned, &results.dw, dw);
    // LI-2, GE-1: the same bits again, from the same layer and from a new one.
    assert_eq!(rig.run(gpu, false), results, "{what}: a second run");
    assert_eq!(rig.run(gpu, true), results, "{what}: both gradients together");
    let mut again = Rig::new(gpu, device, spec).unwrap();
    assert_eq!(again.run(gpu, true), results, "{what}: a second layer");
}

/// In what results may come. Each is held against f64, and one rounding to bf16 is allowed where it is bf16,
/// dW too.
fn outputs(spec: LinearSpec) -> [LinearSpec; 3] {
    [
        spec,
        LinearSpec { output: ElementType::F32, ..spec },
        LinearSpec { weight_gradient: ElementType::Bf16, ..spec },
    ]
}

/// LI-3: the bound of the reference is that of sums in f32
#[test]
fn bf16_products_of_any_shape_are_right() {
    let Some(gpu) = Gpu::open("bf16 products") else { return };
    let device = Device::open(GPU).unwrap();
    for (tokens, outs, ins) in [(128, 256, 384), (37, 48, 80), (1, 16, 16), (33, 17, 31), (300, 130, 77)] {
        for spec in outputs(LinearSpec::new(Recipe::Bf16, tokens, Shape::new(outs, ins))) {
            check(&gpu, &device, spec);
            check(&gpu, &device, LinearSpec { dgrad: Orientation::Columnwise, ..spec });
        }
    }
}

/// LI-3: long sums with small results are split among the GPU's units, and none of the parts is rounded by itself.
#[test]
fn a_long_sum_is_taken_in_f32_and_rounded_to_bf16_once() {
    let Some(gpu) = Gpu::open("long sums in bf16") else { return };
    let device = Device::open(GPU).unwrap();
    for (tokens, outs, ins) in [(65536, 64, 64), (16384, 128, 128), (64, 128, 16384), (16, 64, 65536)] {
        let spec = LinearSpec {
            weight_gradient: ElementType::Bf16,
            ..LinearSpec::new(Recipe::Bf16, tokens, Shape::new(outs, ins))
        };
        let mut rig = Rig::new(&gpu, &device, spec).unwrap();
        let (results, seen) = (rig.run(&gpu, false), &rig.seen);
        if tokens > ins {
            assert_rounded_once(&format!("dW over {tokens}"), &seen.dy_turned, &seen.x_turned, &results.dw);
        } else {
            assert_rounded_once(&format!("y over {ins}"), &seen.x, &seen.weight, &results.y);
        }
    }
}

/// The recipe of a format on this GPU; says that it is skipped where there is none.
fn native(device: &Device, name: &str) -> Option<Recipe> {
    let format: Format = name.parse().unwrap();
    match Recipe::native(format, device.capability()) {
        Ok(recipe) => Some(recipe),
        Err(error) => {
            crate::say_skipped(&error);
            None
        }
    }
}

#[test]
fn products_of_fp8_with_one_scale_are_right() {
    let Some(gpu) = Gpu::open("products of FP8 with one scale") else { return };
    let device = Device::open(GPU).unwrap();
    for name in ["fp8_tensor_e4m3", "fp8_tensor_e4m3_pow2", "fp8_tensor_e5m2"] {
        let Some(recipe) = native(&device, name) else { return };
        for (tokens, outs, ins) in [(128, 256, 384), (37, 48, 80), (1, 16, 16), (302, 144, 272)] {
            for spec in outputs(LinearSpec::new(recipe, tokens, Shape::new(outs, ins))) {
                check(&gpu, &device, spec);
            }
        }
    }
    let Some(recipe) = native(&device, "fp8_tensor_e4m3") else { return };
    let spec = LinearSpec::new(recipe, 64, Shape::new(128, 256));
    for weight_gradient in [ElementType::F32, ElementType::Bf16] {
        check(&gpu, &device, LinearSpec { gradients: Fp8Element::E5m2, weight_gradient, ..spec });
    }
}

#[test]
fn products_of_fp8_blocks_are_right() {
    let Some(gpu) = Gpu::open("products of FP8 blocks") else { return };
    let device = Device::open(GPU).unwrap();
    for name in ["fp8_block128_pow2", "fp8_block128_f32scale"] {
        let Some(recipe) = native(&device, name) else { return };
        for (tokens, outs, ins) in
            [(128, 256, 384), (36, 128, 256), (4, 384, 128), (300, 144, 272), (132, 16, 48)]
        {
            for spec in outputs(LinearSpec::new(recipe, tokens, Shape::new(outs, ins))) {
                check(&gpu, &device, spec);
            }
        }
    }
    let Some(recipe) = native(&device, "fp8_block128_pow2") else { return };
    let spec = LinearSpec::new(recipe, 64, Shape::new(128, 256));
    for weight_gradient in [ElementType::F32, ElementType::Bf16] {
        check(&gpu, &device, LinearSpec { gradients: Fp8Element::E5m2, weight_gradient, ..spec });
    }
}

/// Tokens, outputs, inputs: features are whole blocks of 32.
const OF_BLOCK_SCALED: [(usize, usize, usize); 5] =
    [(128, 256, 384), (37, 96, 160), (1, 32, 32), (300, 160, 288), (132, 32, 64)];

/// Never seen running: no GPU of compute capability 10.x was at hand.
#[test]
fn products_of_mxfp8_are_right() {
    let Some(gpu) = Gpu::open("products of MXFP8") else { return };
    let device = Device::open(GPU).unwrap();
    let Some(recipe) = native(&device, "mxfp8") else { return };
    for (tokens, outs, ins) in OF_BLOCK_SCALED {
        for spec in outputs(LinearSpec::new(recipe, tokens, Shape::new(outs, ins))) {
            check(&gpu, &device, spec);
        }
    }
}

/// Never seen running, as above.
#[test]
fn products_of_nvfp4_are_right() {
    let Some(gpu) = Gpu::open("products of NVFP4") else { return };
    let device = Device::open(GPU).unwrap();
    let Some(recipe) = native(&device, "nvfp4_2d") else { return };
    for (tokens, outs, ins) in OF_BLOCK_SCALED {
        for spec in outputs(LinearSpec::new(recipe, tokens, Shape::new(outs, ins))) {
            check(&gpu, &device, spec);
        }
    }
}
