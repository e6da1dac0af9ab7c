//! Numbers with a fraction, as INCRBYFLOAT adds and prints them.
//!
//! Redis computes with C's `long double` and prints 17 decimals without trailing zeros, so that 0.1 + 0.2 is 0.3. Here a number below 10^21 is rounded to a
//! decimal fraction of 17 places, and sums of these are exact (Redis's may be off in the last places: there 10.6 + 5000 is 5010.60000000000000009); a larger
//! number is a double. So 1e400, which is a number as a `long double`, is none here; nor is what C reads as hexadecimal, which nobody sends.

use std::fmt;

/// Decimal places.
const PLACES: i32 = 17;
/// 10^PLACES.
const ONE: i128 = 100_000_000_000_000_000;

/// Longest number in bytes.
const TEXT_SIZE_MAX: usize = 5119;
/// The power of ten below which a `long double` is 0.
const EXPONENT_MIN: i64 = -4950;

/// A finite number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    /// In units of 10^-17.
    Decimal(i128),
    /// Too large for that.
    Double(f64),
}

impl Number {
    pub(crate) const ZERO: Self = Self::Decimal(0);

    /// Parses a number as Redis does: no spaces, no NaN, nothing too long or too small. An infinity is accepted, and fails when it is added.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > TEXT_SIZE_MAX {
            return None;
        }
        if let Some(decimal) = parse_decimal(text) {
            return (decimal != 0 || !is_too_small(text)).then_some(Self::Decimal(decimal));
        }
        let text = std::str::from_utf8(text).ok()?;
        let number: f64 = text.parse().ok()?;
        if number == 0.0 {
            return (!is_too_small(text.as_bytes())).then_some(Self::ZERO);
        }
        (!number.is_nan() && (number.is_finite() || text.trim_start_matches(['-', '+']).starts_with(['i', 'I']))).then_some(Self::Double(number))
    }

    /// The sum, if it is finite.
    pub(crate) fn add(self, other: Self) -> Option<Self> {
        if let (Self::Decimal(left), Self::Decimal(right)) = (self, other)
            && let Some(sum) = left.checked_add(right)
        {
            return Some(Self::Decimal(sum));
        }
        let sum = self.to_double() + other.to_double();
        sum.is_finite().then_some(Self::Double(sum))
    }

    fn to_double(self) -> f64 {
        match self {
            Self::Decimal(units) => units as f64 / ONE as f64,
            Self::Double(number) => number,
        }
    }
}

/// `[+-]digits[.digits][e[+-]digits]`, rounded to a multiple of 10^-17, if that is within range.
fn parse_decimal(text: &[u8]) -> Option<i128> {
    let (mantissa, exponent) = match text.iter().position(|byte| byte.eq_ignore_ascii_case(&b'e')) {
        None => (text, 0),
        Some(at) => (&text[..at], std::str::from_utf8(&text[at + 1..]).ok()?.parse::<i32>().ok()?),
    };
    let (negative, digits) = match mantissa {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let point = digits.iter().position(|&byte| byte == b'.').unwrap_or(digits.len());
    let (whole, fraction) = (&digits[..point], digits.get(point + 1..).unwrap_or_default());
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    // Distance of the digit from the last place.
    let mut distance = i64::try_from(whole.len()).ok()? + i64::from(PLACES) + i64::from(exponent);
    let (mut units, mut is_rounded_up) = (0_i128, false);
    for &digit in whole.iter().chain(fraction) {
        let digit = digit.is_ascii_digit().then(|| i128::from(digit - b'0'))?;
        distance -= 1;
        if distance >= 0 {
            units = units.checked_mul(10)?.checked_add(digit)?;
        } else if distance == -1 {
            is_rounded_up = digit >= 5;
        }
    }
    if distance > 0 && units != 0 {
        units = units.checked_mul(10_i128.checked_pow(u32::try_from(distance).ok()?)?)?;
    }
    units = units.checked_add(i128::from(is_rounded_up))?;
    Some(if negative { -units } else { units })
}

/// Whether an otherwise valid number other than 0 is so small that it would be lost.
fn is_too_small(text: &[u8]) -> bool {
    let end = text.iter().position(|byte| byte.eq_ignore_ascii_case(&b'e'));
    let mantissa = &text[..end.unwrap_or(text.len())];
    let Some(first) = mantissa.iter().position(|byte| matches!(byte, b'1'..=b'9')) else { return false };
    let point = mantissa.iter().position(|&byte| byte == b'.').unwrap_or(mantissa.len());
    // Power of the first digit that is not 0.
    let power = if first < point { (point - first - 1) as i64 } else { -((first - point) as i64) };
    // An exponent that does not fit has many digits.
    let exponent = end.map_or(Some(0), |end| std::str::from_utf8(&text[end + 1..]).ok()?.parse::<i64>().ok());
    exponent.map_or_else(|| end.is_some_and(|end| text[end + 1] == b'-'), |exponent| exponent.saturating_add(power) < EXPONENT_MIN)
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Decimal(units) => {
                let (whole, fraction) = (units.unsigned_abs() / ONE.unsigned_abs(), units.unsigned_abs() % ONE.unsigned_abs());
                let sign = if units < 0 { "-" } else { "" };
                if fraction == 0 {
                    return write!(f, "{sign}{whole}");
                }
                let places = format!("{fraction:017}");
                write!(f, "{sign}{whole}.{}", places.trim_end_matches('0'))
            }
            Self::Double(number) => {
                let text = format!("{number:.17}");
                f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums() {
        let cases = [
            ("0.1", "0.2", "0.3"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("0", "-5", "-5"),
            ("-0.5", "0.25", "-0.25"),
            ("3", "1.00000000000000001", "4.00000000000000001"),
            ("+1", ".5", "1.5"),
            ("1.", "1", "2"),
            ("5005.6", "5e3", "10005.6"),
            ("1e-2", "1E+1", "10.01"),
            // These were added as doubles, which have no more than 16 places in all.
            ("123456789012345678", "0.000000000000000001", "123456789012345678"),
            ("0.1234567890123456789", "1000000000", "1000000000.12345678901234568"),
            ("9007199254740993", "1e-400", "9007199254740993"),
            ("9007199254740993", "0e-99999999999", "9007199254740993"),
            ("9007199254740993", "0e999", "9007199254740993"),
            ("-1e-30", "0", "0"),
            ("-0.000000000000000005", "0", "-0.00000000000000001"),
            ("0.999999999999999999", "0", "1"),
            ("1234567890123456789012e-4", "1", "123456789012345679.9012"),
            ("1e300", "1", &format!("1{}", "0".repeat(300))),
        ];
        for (left, right, sum) in cases {
            let add = Number::parse(left.as_bytes()).unwrap().add(Number::parse(right.as_bytes()).unwrap()).unwrap();
            // A double of that size has other last digits than the decimal power.
            assert_eq!(add.to_string()[..1], sum[..1], "{left} + {right}");
            assert!(left == "1e300" || add.to_string() == sum, "{left} + {right} = {add}");
        }
    }

    #[test]
    fn what_is_no_number() {
        for text in ["", " 1", "1 ", "nan", "-", ".", "1.2.3", "abc", "1e", "0x"] {
            assert_eq!(Number::parse(text.as_bytes()), None, "{text:?}");
        }
        let infinite = Number::parse(b"inf").unwrap();
        assert_eq!(infinite.add(Number::ZERO), None);
        assert_eq!(Number::parse(b"1e999"), None);
        for text in ["1e-4952", "0.001e-4949", "-1e-5000", "1e-99999999999", "12e-99999999999999999999", "1E-5000"] {
            assert_eq!(Number::parse(text.as_bytes()), None, "{text:?}");
        }
        for text in ["1e-4949", "0e-5000", "0.00e-99999999999999999999", "-0", "1000e-4950"] {
            assert_eq!(Number::parse(text.as_bytes()), Some(Number::ZERO), "{text:?}");
        }
        assert_eq!(Number::parse("0".repeat(5119).as_bytes()), Some(Number::ZERO));
        assert_eq!(Number::parse("0".repeat(5120).as_bytes()), None);
    }
}
