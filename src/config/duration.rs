//! Durations as the file spells them: a whole number and its unit.

use std::time::Duration;

/// Units and their length in milliseconds, longest first.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Reads `250ms`, `1s`, `2m`, `1h`. `None` for anything else: no sign, fraction, space or sum.
pub fn parse(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, unit_ms) = UNITS.iter().find(|(name, _)| *name == unit)?;
    Some(Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(*unit_ms)?))
}

/// The shortest exact spelling, in whole milliseconds.
pub fn display(duration: Duration) -> String {
    let ms = duration.as_millis();
    if ms == 0 {
        return "0s".into();
    }
    let (unit, unit_ms) =
        UNITS.iter().find(|(_, unit_ms)| ms.is_multiple_of(u128::from(*unit_ms))).unwrap_or(&UNITS[3]);
    format!("{}{unit}", ms / u128::from(*unit_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_is_read_and_shown() {
        for (text, ms) in [("250ms", 250), ("1s", 1000), ("150s", 150_000), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(parse(text), Some(Duration::from_millis(ms)));
            assert_eq!(display(Duration::from_millis(ms)), text);
        }
        assert_eq!(parse("0ms"), Some(Duration::ZERO));
    }

    #[test]
    fn what_is_not_a_number_with_a_unit_is_refused() {
        for text in [
            "",
            "1",
            "s",
            "-1s",
            "+1s",
            "1 s",
            "1.5s",
            "1m30s",
            "1d",
            "1S",
            "99999999999999999999s",
            "9999999999999999h",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_shown_reads_back(ms in 0u64..u64::MAX / 2) {
            let duration = Duration::from_millis(ms);
            assert_eq!(parse(&display(duration)), Some(duration));
        }
    }
}
