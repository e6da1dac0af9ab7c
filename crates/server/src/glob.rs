//! Patterns as in KEYS and SCAN MATCH: `*`, `?`, `[a-z]`, `[^a]`, `\` before a literal byte.
//!
//! Matching backtracks only to the last `*`: the part before it has matched and cannot match better. So the time is at most the product of the two lengths,
//! whatever the pattern; if that would make others wait too long, it is an error.

use crate::executor::Failure;

/// Largest number of pattern bytes looked at for one text, not counting the last class.
const STEP_COUNT_MAX: usize = 1 << 24;

/// Whether all of `text` matches `pattern`; adds the number of pattern bytes looked at to `steps`.
pub(crate) fn matches(pattern: &[u8], text: &[u8], steps: &mut usize) -> Result<bool, Failure> {
    let steps_max = steps.saturating_add(STEP_COUNT_MAX);
    let (mut at, mut seen) = (0, 0);
    // Where to continue after a mismatch: after the last star, with one more byte consumed by it.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if *steps >= steps_max {
            return Err(Failure::fixed("ERR the pattern takes over 16777216 steps for one key"));
        }
        match pattern.get(at) {
            Some(b'*') => {
                *steps += 1;
                at += 1;
                retry = Some((at, seen));
                continue;
            }
            Some(_) if seen < text.len() => {
                let (matched, next) = match_byte(pattern, at, text[seen]);
                *steps += next - at;
                if matched {
                    (at, seen) = (next, seen + 1);
                    continue;
                }
            }
            None if seen == text.len() => return Ok(true),
            _ => {}
        }
        match retry {
            Some((star, taken)) if taken < text.len() => {
                retry = Some((star, taken + 1));
                (at, seen) = (star, taken + 1);
            }
            _ => return Ok(false),
        }
    }
}

/// Whether the element of `pattern` at `at`, which is no star, matches `byte`, and where the next element begins.
fn match_byte(pattern: &[u8], at: usize, byte: u8) -> (bool, usize) {
    match pattern[at] {
        b'?' => (true, at + 1),
        b'[' => match_class(pattern, at + 1, byte),
        b'\\' if at + 1 < pattern.len() => (pattern[at + 1] == byte, at + 2),
        literal => (literal == byte, at + 1),
    }
}

/// The same for the class whose text begins at `at`. An unclosed class ends with the pattern.
fn match_class(pattern: &[u8], mut at: usize, byte: u8) -> (bool, usize) {
    let negated = pattern.get(at) == Some(&b'^');
    at += usize::from(negated);
    let mut matched = false;
    loop {
        match pattern[at..] {
            [] => return (matched != negated, at),
            [b']', ..] => return (matched != negated, at + 1),
            [b'\\', literal, ..] => {
                matched |= literal == byte;
                at += 2;
            }
            [start, b'-', end, ..] => {
                matched |= (start.min(end)..=start.max(end)).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                matched |= literal == byte;
                at += 1;
            }
        }
    }
}

/// The bytes with which every match begins: in an ordered store only keys with this prefix need a look.
pub(crate) fn literal_prefix(pattern: &[u8]) -> Vec<u8> {
    let mut prefix = Vec::new();
    let mut rest = pattern;
    loop {
        match rest {
            [] | [b'*' | b'?' | b'[', ..] => return prefix,
            [b'\\', literal, after @ ..] | [literal, after @ ..] => {
                prefix.push(*literal);
                rest = after;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let cases = [
            ("*", "", true),
            ("*", "abc", true),
            ("a*c", "abbc", true),
            ("a*c", "abcd", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("h[ae]llo", "hello", true),
            ("h[^e]llo", "hello", false),
            ("h[a-f]llo", "hello", true),
            ("h[f-a]llo", "hello", true),
            ("h[a-f]llo", "hxllo", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[\\]]", "]", true),
            ("[abc", "b", true),
            ("a\\", "a\\", true),
            ("*a*b*c*", "xxaxxbxxcxx", true),
            ("*a*b*c*", "xxaxxcxxbxx", false),
            ("", "", true),
            ("", "a", false),
            ("a", "", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes(), &mut 0).unwrap(), expected, "{pattern:?} on {text:?}");
        }
    }

    #[test]
    fn many_stars_do_not_take_exponential_time() {
        let (pattern, text) = ("a*".repeat(500) + "b", "a".repeat(5000));
        let mut steps = 0;
        assert!(!matches(pattern.as_bytes(), text.as_bytes(), &mut steps).unwrap());
        assert!((text.len()..pattern.len() * text.len()).contains(&steps), "{steps}");
    }

    /// A comparison cannot be interrupted: one of half an hour kept everyone waiting.
    #[test]
    fn what_takes_too_long_is_an_error() {
        let text = "a".repeat(65_536);
        for pattern in [format!("*[{}]", "b".repeat(1 << 20)), format!("*{}b", "a".repeat(32_768))] {
            let mut steps = 5;
            assert!(matches(pattern.as_bytes(), text.as_bytes(), &mut steps).is_err());
            assert!((STEP_COUNT_MAX..=5 + STEP_COUNT_MAX + pattern.len()).contains(&steps), "{steps}");
        }
    }

    /// A match that fails early counts for little, however long its text: a walk looks at as many keys as it may.
    #[test]
    fn steps_are_those_that_were_made() {
        for (pattern, most) in [("x*", 1), ("a[^a]*", 5), ("*", 1), ("*a", 2 * 5000)] {
            let mut steps = 0;
            matches(pattern.as_bytes(), "a".repeat(5000).as_bytes(), &mut steps).unwrap();
            assert!((1..=most).contains(&steps), "{pattern:?}: {steps}");
        }
    }

    #[test]
    fn prefixes() {
        for (pattern, prefix) in [("user:*", "user:"), ("a\\*b*", "a*b"), ("*", ""), ("[ab]c", ""), ("plain", "plain"), ("x\\", "x\\")] {
            assert_eq!(literal_prefix(pattern.as_bytes()), prefix.as_bytes(), "{pattern:?}");
        }
    }
}
