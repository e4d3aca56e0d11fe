//! One element: from f32 to its code and back, by definition.

/// Magnitudes of the E2M1 codes 0..=7.
pub const E2M1_MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The E2M1 code of `value`: nearest magnitude, ties to the even code, saturating at 6; NaN gives 7.
#[must_use]
pub fn e2m1(value: f32) -> u8 {
    if value.is_nan() {
        return 7;
    }
    let sign = if value.is_sign_negative() { 8 } else { 0 };
    let a = value.abs();
    let code = match a {
        _ if a <= 0.25 => 0,
        _ if a < 0.75 => 1,
        _ if a <= 1.25 => 2,
        _ if a < 1.75 => 3,
        _ if a <= 2.5 => 4,
        _ if a < 3.5 => 5,
        _ if a <= 5.0 => 6,
        _ => 7,
    };
    sign | code
}

/// The value of an E4M3 code.
#[must_use]
pub fn e4m3_value(code: u8) -> f64 {
    if code & 0x7F == 0x7F { f64::NAN } else { fp8_value(code, 3, 7) }
}

/// The value of an E5M2 code.
#[must_use]
pub fn e5m2_value(code: u8) -> f64 {
    match code & 0x7F {
        0x7C => f64::INFINITY.copysign(fp8_value(code, 2, 15)),
        0x7D..=0x7F => f64::NAN,
        _ => fp8_value(code, 2, 15),
    }
}

fn fp8_value(code: u8, mantissa_bits: u32, bias: i32) -> f64 {
    let mantissa = f64::from(u32::from(code) & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    let exponent = i32::from((code & 0x7F) >> mantissa_bits);
    let magnitude = if exponent == 0 {
        mantissa * 2f64.powi(1 - bias)
    } else {
        (1.0 + mantissa) * 2f64.powi(exponent - bias)
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The magnitudes of the codes of finite values, which grow with the code.
static E4M3_MAGNITUDES: [f64; 0x7F] = magnitudes(3, 7);
static E5M2_MAGNITUDES: [f64; 0x7C] = magnitudes(2, 15);

/// What [`fp8_value`] says of the codes from 0 on, made while compiling.
const fn magnitudes<const CODES: usize>(mantissa_bits: u32, bias: u64) -> [f64; CODES] {
    let mut all = [0.0; CODES];
    let mut code = 0;
    while code < CODES {
        let (exponent, mantissa) = (code as u64 >> mantissa_bits, code as u32 & ((1 << mantissa_bits) - 1));
        let (significand, exponent) =
            if exponent == 0 { (mantissa, 1) } else { (mantissa + (1 << mantissa_bits), exponent) };
        // A power of two by its exponent field, whose bias is 1023 in f64.
        let scale = f64::from_bits((1023 + exponent - bias - mantissa_bits as u64) << 52);
        all[code] = significand as f64 * scale;
        code += 1;
    }
    all
}

/// The E4M3 code of `value`: nearest, ties to the even code, saturating at 448; NaN gives 0x7F.
#[must_use]
pub fn e4m3(value: f32) -> u8 {
    nearest(value, &E4M3_MAGNITUDES)
}

/// The E5M2 code of `value`: nearest, ties to the even code, saturating at 57344; NaN gives 0x7F.
#[must_use]
pub fn e5m2(value: f32) -> u8 {
    nearest(value, &E5M2_MAGNITUDES)
}

fn nearest(value: f32, magnitudes: &[f64]) -> u8 {
    if value.is_nan() {
        return 0x7F;
    }
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let a = f64::from(value.abs());
    // Find the pair around `a` and take the nearer one.
    let above = magnitudes.partition_point(|magnitude| *magnitude <= a);
    let below = above - 1;
    let code = match magnitudes.get(above) {
        None => below,
        Some(up) => {
            let (down, up) = (a - magnitudes[below], up - a);
            if down < up || (down == up && below % 2 == 0) { below } else { above }
        }
    };
    sign | code as u8
}

/// The E8M0 code of the smallest power of two that is not below `value` ≥ 0; infinity gives 254, NaN 255.
#[must_use]
pub fn e8m0(value: f32) -> u8 {
    if value.is_nan() {
        return 255;
    }
    (0..254).find(|&code| e8m0_value(code) >= f64::from(value)).unwrap_or(254)
}

/// The value of an E8M0 code.
#[must_use]
pub fn e8m0_value(code: u8) -> f64 {
    if code == 255 { f64::NAN } else { 2f64.powi(i32::from(code) - 127) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_magnitudes_have_the_values_of_their_codes() {
        let codes = |count: usize| (0..count).map(|code| u8::try_from(code).unwrap_or(u8::MAX));
        assert!(codes(0x7F).map(e4m3_value).eq(E4M3_MAGNITUDES));
        assert!(codes(0x7C).map(e5m2_value).eq(E5M2_MAGNITUDES));
    }
}
