//! Values to quantize: ordinary ones, extremes, and values that are not finite.

use warpweft_format::{Format, Shape};

/// A generator with a seed (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// In (-1, 1), about uniform.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// How wild values are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Like weights: about 0.02.
    Weights,
    /// Of all magnitudes, with zeros of both signs, subnormals and ties.
    Wide,
    /// The same with NaN, and with whole blocks of nothing else.
    Nan,
    /// With infinities too.
    Special,
}

pub(crate) fn values(count: usize, kind: Kind, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    let mut all: Vec<f32> = (0..count).map(|_| value(&mut random, kind)).collect();
    if matches!(kind, Kind::Nan | Kind::Special) {
        all.iter_mut().skip(count / 3).take(300).for_each(|value| *value = f32::NAN);
    }
    all
}

fn value(random: &mut Random, kind: Kind) -> f32 {
    let plain = random.unit() * 0.04;
    if kind == Kind::Weights {
        return plain;
    }
    match random.bits() % 16 {
        0 => 0.0,
        1 => -0.0,
        2 => f32::from_bits((random.bits() as u32 & 0x807F_FFFF) | 1),
        3 => plain * 2f32.powi(random.below(60) as i32 - 30),
        // Few bits: ties of every format.
        4 => f32::from_bits(plain.to_bits() & 0xFFF0_0000),
        5 => f32::from_bits(plain.to_bits() & 0xFFFF_0000 | 0x8000),
        6 if kind != Kind::Wide => f32::NAN,
        7 if kind != Kind::Wide => -f32::NAN,
        8 if kind == Kind::Special && random.below(8) == 0 => f32::INFINITY,
        9 if kind == Kind::Special && random.below(8) == 0 => f32::NEG_INFINITY,
        _ => plain,
    }
}

/// Shapes that a format takes: tiny, odd, not a multiple of 128, with rows that end within a block, larger than a tile
/// of any kernel.
pub(crate) fn shapes(format: Format) -> Vec<Shape> {
    let list: &[(usize, usize)] = match format {
        Format::Nvfp4(_) => &[
            (16, 16),
            (16, 64),
            (48, 80),
            (32, 272),
            (128, 128),
            (304, 320),
            (16, 4096),
            (144, 1040),
            (256, 768),
            (1, 16),
            (37, 80),
            (300, 1040),
            (303, 64),
        ],
        Format::Mxfp8 => &[
            (32, 32),
            (64, 96),
            (96, 128),
            (160, 416),
            (256, 1024),
            (288, 160),
            (1, 32),
            (37, 96),
            (300, 416),
            (303, 128),
        ],
        _ => &[
            (1, 1),
            (3, 5),
            (128, 128),
            (303, 300),
            (250, 500),
            (7, 1000),
            (129, 257),
            (300, 640),
            (1, 20000),
        ],
    };
    list.iter().map(|(rows, cols)| Shape::new(*rows, *cols)).collect()
}

/// Every format, with FP8 in both elements and scale rules, and with an epsilon.
pub(crate) fn formats() -> Vec<Format> {
    let mut formats = Format::CANONICAL.to_vec();
    for name in [
        "fp8_block128_e5m2_pow2",
        "fp8_block128_f32scale_eps1e-3",
        "fp8_block1x128_e5m2_f32scale",
        "fp8_tensor_e5m2",
        "fp8_tensor_e4m3_pow2_eps1e2",
    ] {
        formats.push(name.parse().unwrap());
    }
    formats
}

/// Formats with scales.
pub(crate) fn scaled_formats() -> Vec<Format> {
    formats().into_iter().filter(|format| !matches!(format, Format::F32 | Format::Bf16)).collect()
}
