//! Conformance C10, C11 and I1: every layout of every partial-cast case, amaxes, fragments and the full
//! result.

use warpweft_format::{
    FlatShard, Format, Nvfp4Scale, Orientation, OwnedPlanes, Shape, Via, flat_amax, flat_cast, fused_scale,
    place_fragment, transpose,
};
use warpweft_testing::golden_file::{Case, GoldenFile, assert_bytes, assert_f32s};

/// One case: what is quantized, and how.
struct Setup<'a> {
    case: &'a Case<'a>,
    format: Format,
    via: Via,
    shape: Shape,
    master: Vec<f32>,
}

impl<'a> Setup<'a> {
    fn new(case: &'a Case<'a>) -> Self {
        let format = match case.text("format") {
            "nvfp4" => Format::NVFP4_2D,
            "fp8block" => Format::FP8_BLOCK128_POW2,
            "fp8blockf32" => Format::FP8_BLOCK128_F32SCALE,
            "mxfp8" => Format::Mxfp8,
            "fp8tensor" => Format::FP8_TENSOR_E4M3,
            other => panic!("unknown format {other}"),
        };
        let via = match case.text("cast_via") {
            "bf16" => Via::Bf16,
            "none" => Via::None,
            other => panic!("unknown rounding {other}"),
        };
        let shape = Shape::new(case.dimension("M"), case.dimension("K"));
        Self { case, format, via, shape, master: case.f32s("master") }
    }

    fn field(&self, name: &str, orientation: Orientation) -> String {
        match orientation {
            Orientation::Rowwise => name.to_owned(),
            Orientation::Columnwise => format!("{name}_columnwise"),
        }
    }

    fn check_layout(&self, layout: &str, orientation: Orientation) -> (OwnedPlanes, f32) {
        let Self { case, format, via, shape, ref master } = *self;
        let label = |field: &str| format!("{}/{layout}/{field}", case.name);
        let shards: Vec<FlatShard> = case
            .i64s(&format!("{layout}/shards"))
            .as_chunks::<2>()
            .0
            .iter()
            .map(|&[start, len]| FlatShard { start: start as usize, len: len as usize })
            .collect();
        assert_eq!(shards.iter().map(|shard| shard.len).sum::<usize>(), shape.elements());
        let slice = |shard: &FlatShard| &master[shard.start..][..shard.len];

        // What each rank contributes, and the maximum over the ranks.
        let mut block_amax = vec![0.0f32; format.amax_blocks(orientation, shape)];
        let mut amax = 0.0f32;
        for (rank, shard) in shards.iter().enumerate() {
            let mut partial = vec![f32::NAN; block_amax.len()];
            let partial_amax =
                flat_amax(format, orientation, via, shape, *shard, slice(shard), &mut partial).unwrap();
            let field = format!("{layout}/{}_{rank}", self.field("partial_block_amax", orientation));
            if format.amax_blocks(orientation, shape) > 0 {
                assert_f32s(&label(&field), &partial, &case.f32s(&field));
            }
            let field = format!("{layout}/partial_global_amax_{rank}");
            if case.has(&field) {
                assert_f32s(&label(&field), &[partial_amax], &case.f32s(&field));
            }
            amax = amax.max(partial_amax);
            for (block, partial) in block_amax.iter_mut().zip(partial) {
                *block = block.max(partial);
            }
        }
        let field = self.field("block_amax", orientation);
        if !block_amax.is_empty() {
            assert_f32s(&label(&field), &block_amax, &case.f32s(&field));
        }

        // The same scales on every rank.
        let mut planes = OwnedPlanes::zeroed(format, orientation, shape);
        planes.scale.fill(0xEE);
        let mut encode = vec![0.0; format.encode_blocks(orientation, shape)];
        let tensor_scale =
            fused_scale(format, orientation, shape, &block_amax, amax, &mut encode, &mut planes.scale)
                .unwrap();
        self.check_scales(&block_amax, amax, &encode);

        // Fragments, each around foreign bytes, merged into a plane of garbage.
        planes.data.fill(0x5A);
        for (rank, shard) in shards.iter().enumerate() {
            let mut fragment = vec![0xA5; shard.fragment(format).len()];
            flat_cast(format, orientation, via, shape, *shard, slice(shard), &encode, &mut fragment).unwrap();
            let field = format!("{layout}/{}_{rank}", self.field("fragment", orientation));
            assert_bytes(&label(&field), &fragment, case.bytes(&field));
            let field = format!("{layout}/owned_mask_{rank}");
            if case.has(&field) {
                let masks: Vec<u8> = (0..fragment.len()).map(|at| shard.owned_mask(format, at)).collect();
                assert_bytes(&label(&field), &masks, case.bytes(&field));
            }
            place_fragment(format, shape, *shard, &fragment, &mut planes.data).unwrap();
        }
        (planes, tensor_scale)
    }

    fn check_scales(&self, block_amax: &[f32], amax: f32, encode: &[f32]) {
        let case = self.case;
        match self.format {
            Format::Nvfp4(_) => {
                assert_f32s(&case.name, &[amax], &case.f32s("global_amax"));
                let scale = Nvfp4Scale::new(amax);
                assert_f32s(&case.name, &[scale.encode], &case.f32s("global_encode_scale"));
                let decode: Vec<f32> = block_amax.iter().map(|&amax| scale.block_decode(amax)).collect();
                assert_f32s(&case.name, &decode, &case.f32s("per_block_decode_scale"));
            }
            Format::Fp8Tensor(_) => {
                assert_f32s(&case.name, &[amax], &case.f32s("amax"));
                assert_f32s(&case.name, encode, &case.f32s("scale"));
            }
            _ => {}
        }
    }

    fn check_result(&self, orientation: Orientation, planes: &OwnedPlanes, tensor_scale: f32) {
        let case = self.case;
        let scale = match self.format {
            Format::Fp8Tensor(_) => tensor_scale.to_le_bytes().to_vec(),
            _ => planes.scale.clone(),
        };
        assert_bytes(&case.name, &planes.data, case.bytes(&format!("{orientation}_data")));
        assert_bytes(&case.name, &scale, case.bytes(&format!("{orientation}_scale")));
    }
}

#[test]
fn c10_c11_every_layout_gives_the_golden_fragments_and_the_golden_weight() {
    for case in GoldenFile::open("partial_cast").cases() {
        let setup = Setup::new(&case);
        let layouts = case.entry["layouts"].as_array().unwrap();
        assert!(!layouts.is_empty());
        for layout in layouts {
            let layout = layout.as_str().unwrap();
            for &orientation in setup.format.stored_orientations() {
                let (planes, tensor_scale) = setup.check_layout(layout, orientation);
                setup.check_result(orientation, &planes, tensor_scale);
                if setup.format.derives_columnwise().is_ok() {
                    let mut columnwise =
                        OwnedPlanes::zeroed(setup.format, Orientation::Columnwise, setup.shape);
                    columnwise.scale.fill(0xEE);
                    transpose(setup.format, setup.shape, planes.as_planes(), columnwise.as_planes_mut())
                        .unwrap();
                    setup.check_result(Orientation::Columnwise, &columnwise, tensor_scale);
                }
            }
        }
    }
}
