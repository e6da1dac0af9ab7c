//! Maps values to positions: round ticks, and numbers in readable form.

/// An axis from zero, where bars begin.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Linear {
    /// The end of the axis: the last tick.
    pub(super) max: f64,
    /// Round values from zero to the end.
    pub(super) ticks: Vec<f64>,
}

impl Linear {
    /// An axis that includes `max`, with about `count` intervals.
    pub(super) fn new(max: f64, count: usize) -> Self {
        let max = if max > 0.0 { max } else { 1.0 };
        let rough = max / count.max(1) as f64;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough * 0.75).unwrap_or(10.0 * power);
        let intervals = (max / step - 1e-9).ceil().max(1.0);
        Self { max: step * intervals, ticks: (0..=intervals as usize).map(|tick| step * tick as f64).collect() }
    }

    /// The same axis, ending at `max` instead of the tick after it, to save space.
    pub(super) fn cut(mut self, max: f64) -> Self {
        if max > 0.0 {
            self.ticks.retain(|tick| *tick <= max * (1.0 + 1e-9));
            self.max = max;
        }
        self
    }

    /// The part of the axis below `value`, from 0 to 1.
    pub(super) fn part(&self, value: f64) -> f64 {
        (value / self.max).clamp(0.0, 1.0)
    }

    /// The ticks as text, all with the same number of decimals.
    pub(super) fn labels(&self) -> Vec<String> {
        let step = self.ticks.get(1).copied().unwrap_or(self.max);
        // A step of 2.5 has one decimal more than one of 2.
        let decimals = (0..=9).find(|decimals| is_whole(step * 10_f64.powi(*decimals))).unwrap_or(9) as usize;
        self.ticks.iter().map(|tick| if *tick == 0.0 { "0".into() } else { group(&format!("{tick:.decimals$}")) }).collect()
    }
}

/// A logarithmic axis, for values over orders of magnitude. Bars never use it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Logarithmic {
    min: f64,
    max: f64,
    /// Round values on the axis.
    pub(super) ticks: Vec<f64>,
}

impl Logarithmic {
    /// An axis for positive values from `min` to `max`.
    pub(super) fn new(min: f64, max: f64) -> Self {
        let min = if min > 0.0 { min } else { 1.0 };
        let max = max.max(min);
        let (first, last) = (min.log10().floor() as i32, max.log10().ceil() as i32);
        // One, two, five within three decades; for more, only the decades.
        let steps: &[f64] = if last - first <= 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let all = || (first - 1..=last).flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
        let low = all().filter(|tick| *tick <= min * (1.0 + 1e-9)).fold(10_f64.powi(first), f64::max);
        let high = all().chain([10_f64.powi(last.max(first + 1))]).filter(|tick| *tick >= max * (1.0 - 1e-9) && *tick > low).fold(f64::INFINITY, f64::min);
        Self { min: low, max: high, ticks: all().filter(|tick| (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(tick)).collect() }
    }

    /// The part of the axis below `value`, from 0 to 1.
    pub(super) fn part(&self, value: f64) -> f64 {
        if value <= self.min { 0.0 } else { ((value / self.min).log10() / (self.max / self.min).log10()).clamp(0.0, 1.0) }
    }
}

/// A number with three significant digits, as a label.
pub(super) fn short(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let size = value.abs();
    if size >= 1e6 {
        let power = if size >= 1e12 {
            return format!("{value:.2e}");
        } else if size >= 1e9 {
            9
        } else {
            6
        };
        return format!("{} {}", short(value / 10_f64.powi(power)), if power == 9 { "G" } else { "M" });
    }
    // By the rounded value: 9.999 is 10.0, not 10.00.
    let exponent: i32 = format!("{size:.2e}").split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    if exponent < -4 {
        return format!("{value:.2e}");
    }
    group(&format!("{value:.0$}", usize::try_from(2 - exponent).unwrap_or(0)))
}

/// A time in nanoseconds, as text with a suitable unit.
pub(super) fn time(nanoseconds: f64) -> String {
    let (factor, unit) = match nanoseconds.abs() {
        size if size >= 0.9995e9 => (1e9, "s"),
        size if size >= 0.9995e6 => (1e6, "ms"),
        size if size >= 999.5 => (1e3, "\u{b5}s"),
        _ => (1.0, "ns"),
    };
    format!("{}\u{a0}{unit}", plain(nanoseconds / factor))
}

/// A number with at most three significant digits, without trailing zeros.
pub(super) fn plain(value: f64) -> String {
    let text = short(value);
    let (number, unit) = text.split_once(' ').map_or((text.as_str(), None), |(number, unit)| (number, Some(unit)));
    let number = if number.contains('.') && !number.contains('e') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    unit.map_or_else(|| number.into(), |unit| format!("{number} {unit}"))
}

/// Puts narrow spaces between thousands.
fn group(text: &str) -> String {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("\u{2212}", digits));
    let whole = digits.find('.').unwrap_or(digits.len());
    let mut grouped = String::from(sign);
    for (at, digit) in digits.char_indices() {
        if at > 0 && at < whole && whole > 4 && (whole - at).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

fn is_whole(value: f64) -> bool {
    (value - value.round()).abs() < 1e-6 * value.abs().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_hold_the_maximum() {
        for (max, count, end, labels) in [
            (0.93, 4, 1.0, vec!["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
            (9.6, 4, 10.0, vec!["0", "2", "4", "6", "8", "10"]),
            (1.9, 4, 2.0, vec!["0", "0.5", "1.0", "1.5", "2.0"]),
            (7.9, 4, 8.0, vec!["0", "2", "4", "6", "8"]),
            (1.0, 2, 1.0, vec!["0", "0.5", "1.0"]),
            (31_000.0, 2, 40_000.0, vec!["0", "20\u{202f}000", "40\u{202f}000"]),
            (0.0, 1, 1.0, vec!["0", "1"]),
        ] {
            let scale = Linear::new(max, count);
            assert_eq!((scale.max, scale.labels()), (end, labels.into_iter().map(String::from).collect::<Vec<_>>()), "{max}");
            assert!(scale.part(max) <= 1.0 && scale.part(-1.0) == 0.0);
        }
    }

    #[test]
    fn axes_hold_every_value_there_is() {
        let mut value = 1e-15;
        while value < 1e15 {
            let linear = Linear::new(value, 4);
            assert!(linear.max >= value * (1.0 - 1e-9) && linear.max <= value * 2.6 && (2..=7).contains(&linear.ticks.len()), "{value}: {linear:?}");
            for factor in [1.0, 1.3, 12.0, 5e4] {
                let log = Logarithmic::new(value, value * factor);
                assert!(log.min <= value * (1.0 + 1e-6) && log.max >= value * factor * (1.0 - 1e-6) && log.max.is_finite(), "{value} x {factor}: {log:?}");
                assert!(log.max > log.min && (1..=12).contains(&log.ticks.len()), "{value} x {factor}: {log:?}");
            }
            value *= 1.37;
        }
    }

    #[test]
    fn numbers_are_as_a_reader_expects_them() {
        let cases = [
            (0.0, "0"),
            (0.01234, "0.0123"),
            (0.9999, "1.00"),
            (9.999, "10.0"),
            (12.34, "12.3"),
            (999.6, "1000"),
            (12_345.0, "12\u{202f}345"),
            (2.5e6, "2.50 M"),
            (-3.2, "\u{2212}3.20"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
        assert_eq!(
            [0.5, 207.0, 1000.0, 1234.0, 2e6, 3.05e9].map(time),
            ["0.5\u{a0}ns", "207\u{a0}ns", "1\u{a0}\u{b5}s", "1.23\u{a0}\u{b5}s", "2\u{a0}ms", "3.05\u{a0}s"]
        );
        assert_eq!([1.0, 1.5, 1e6, 2.5e9, 100.0].map(plain), ["1", "1.5", "1 M", "2.5 G", "100"]);
    }
}
