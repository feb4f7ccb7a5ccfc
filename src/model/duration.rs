//! Durations in the configuration file and on the command line.
//!
//! ```text
//! duration = part { part }                   the units from long to short, each at most once; or "0" alone
//! part     = digits [ "." digits ] unit      1s, 0.2s, 1m30s, "1h 30m", "1 s": spaces do not count
//! unit     = "d" | "h" | "m" | "s" | "ms" | "µs" | "us"
//! ```
//! So it reads all that Baton prints: [`display`], and [`duration_ms`] and [`duration_us`] with their `3 d 04 h` and
//! `850 µs`. A setting is in whole milliseconds, and [`parse`] refuses finer values.
//!
//! [`duration_ms`]: super::humane::duration_ms
//! [`duration_us`]: super::humane::duration_us

use std::time::Duration;

/// Why a text is not a duration. Each message is a clause that follows the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DurationFault {
    #[error("it is empty")]
    Empty,
    #[error("it is negative")]
    Negative,
    #[error("{0:?} does not begin with a number")]
    NoNumber(String),
    #[error("it has a number without a unit (d, h, m, s, ms or µs)")]
    NoUnit,
    #[error("{0:?} is no unit, the units are d, h, m, s, ms and µs")]
    UnknownUnit(String),
    #[error("its units are not in the order d, h, m, s, ms, µs, each at most once")]
    Order,
    #[error("it has parts of a millisecond")]
    TooFine,
    #[error("it is too long")]
    TooLong,
}

/// Units and their length in microseconds, longest first.
const UNITS: [(&str, u128); 6] =
    [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1000), ("µs", 1)];

/// Other spellings of a unit: for keyboards without the sign, and the Greek letter that looks like it.
const SAME: [(&str, &str); 2] = [("us", "µs"), ("μs", "µs")];

/// Units of [`display`], and their length in milliseconds, longest first.
const SHOWN: [(&str, u128); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Reads the duration of a setting, in whole milliseconds; the form that clap takes as a value parser.
pub(crate) fn parse(text: &str) -> Result<Duration, DurationFault> {
    let duration = parse_fine(text)?;
    if duration.subsec_micros().is_multiple_of(1000) { Ok(duration) } else { Err(DurationFault::TooFine) }
}

/// Reads one duration, in whole microseconds.
pub(crate) fn parse_fine(text: &str) -> Result<Duration, DurationFault> {
    let mut rest = text.trim_matches(' ');
    match rest {
        "" => return Err(DurationFault::Empty),
        "0" => return Ok(Duration::ZERO),
        _ if rest.starts_with('-') => return Err(DurationFault::Negative),
        _ => {}
    }
    let mut units = &UNITS[..];
    let mut total_us = 0u128;
    while !rest.is_empty() {
        let (number, after) = cut(rest, |c| c.is_ascii_digit() || c == '.');
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
            return Err(DurationFault::NoNumber(shorten(rest)));
        }
        let after = after.trim_start_matches(' ');
        let (unit, next) = cut(after, char::is_alphabetic);
        if after.is_empty() || after.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(DurationFault::NoUnit);
        }
        let unit = SAME.iter().find(|(other, _)| *other == unit).map_or(unit, |(_, same)| same);
        let (_, unit_us) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(|| DurationFault::UnknownUnit(shorten(if unit.is_empty() { after } else { unit })))?;
        let index = units.iter().position(|(name, _)| *name == unit).ok_or(DurationFault::Order)?;
        units = &units[index + 1..];
        let whole: u64 = whole.parse().map_err(|_| DurationFault::TooLong)?;
        // At most six parts, each of 64 bits times a unit: this cannot overflow.
        total_us += u128::from(whole) * unit_us + fraction_us(fraction, *unit_us)?;
        rest = next.trim_start_matches(' ');
    }
    let ms = u64::try_from(total_us / 1000).map_err(|_| DurationFault::TooLong)?;
    // As few milliseconds as leave room for the microseconds.
    Ok(Duration::from_millis(ms) + Duration::from_micros((total_us % 1000) as u64))
}

/// The shortest exact spelling, in whole milliseconds: in one unit rather than as a sum (`1h1ms`) or with a point (`1.5s`).
pub(crate) fn display(duration: Duration) -> String {
    let ms = duration.as_millis();
    if ms == 0 {
        return "0s".into();
    }
    let whole = SHOWN.iter().find(|(_, unit_ms)| ms.is_multiple_of(*unit_ms));
    let whole = whole.map(|(unit, unit_ms)| format!("{}{unit}", ms / unit_ms));
    let mut left = ms;
    let mut sum = String::new();
    for (unit, unit_ms) in SHOWN {
        if left >= unit_ms {
            sum += &format!("{}{unit}", left / unit_ms);
            left %= unit_ms;
        }
    }
    let point = format!("{}.{:03}", ms / 1000, ms % 1000);
    let point = (ms > 1000).then(|| format!("{}s", point.trim_end_matches('0').trim_end_matches('.')));
    let spellings = whole.into_iter().chain([sum]).chain(point);
    spellings.min_by_key(String::len).expect("a sum there always is")
}

/// The value of `digits` after the point, in a unit.
fn fraction_us(digits: &str, unit_us: u128) -> Result<u128, DurationFault> {
    let digits = digits.trim_end_matches('0');
    if digits.is_empty() {
        return Ok(0);
    }
    // A day has 2^13 * 5^8 * 27 microseconds, so more than 13 digits never give whole ones.
    let places = u32::try_from(digits.len()).ok().filter(|places| *places <= 13).ok_or(DurationFault::TooFine)?;
    let parts = digits.parse::<u128>().map_err(|_| DurationFault::TooFine)? * unit_us;
    let scale = 10u128.pow(places);
    if parts.is_multiple_of(scale) { Ok(parts / scale) } else { Err(DurationFault::TooFine) }
}

/// The longest prefix of such characters, and the rest.
fn cut(text: &str, such: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !such(c)).unwrap_or(text.len()))
}

fn shorten(text: &str) -> String {
    text.chars().take(20).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_people_write_is_read() {
        for (text, ms) in [
            ("250ms", 250),
            ("1s", 1000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1m30s", 90_000),
            ("0.2s", 200),
            ("1.50m", 90_000),
            ("1 s", 1000),
            ("1h 30m", 5_400_000),
            (" 1 h 30 m ", 5_400_000),
            ("1h1ms", 3_600_001),
            ("0.0000025h", 9),
            ("90m", 5_400_000),
            ("0", 0),
            ("0ms", 0),
            ("1d", 86_400_000),
            ("3 d 04 h", 273_600_000),
            ("0.0000125d", 1_080),
            ("3000 µs", 3),
            ("1ms 2000us", 3),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_the_reason() {
        use DurationFault::*;
        for (text, fault) in [
            ("", Empty),
            ("  ", Empty),
            ("-1s", Negative),
            ("-0", Negative),
            ("+1s", NoNumber("+1s".into())),
            ("s", NoNumber("s".into())),
            (".5s", NoNumber(".5s".into())),
            ("1.s", NoNumber("1.s".into())),
            ("1.2.3s", NoNumber("1.2.3s".into())),
            ("1s, 2ms", NoNumber(", 2ms".into())),
            ("1", NoUnit),
            ("00", NoUnit),
            ("1s 5", NoUnit),
            ("1 30s", NoUnit),
            ("1w", UnknownUnit("w".into())),
            ("1S", UnknownUnit("S".into())),
            ("250µs", TooFine),
            ("1s 250 us", TooFine),
            ("0.5µs", TooFine),
            ("1h 1d", Order),
            ("1us 1µs", Order),
            ("2 minutes", UnknownUnit("minutes".into())),
            ("1,5s", UnknownUnit(",5s".into())),
            ("30s1m", Order),
            ("1s1s", Order),
            ("0.5ms", TooFine),
            ("0.12345678901234567890s", TooFine),
            ("99999999999999999999s", TooLong),
            ("9999999999999h", TooLong),
            ("18446744073709551616ms", TooLong),
            ("18446744073709551s616ms", TooLong),
        ] {
            assert_eq!(parse(text), Err(fault), "{text:?}");
        }
    }

    #[test]
    fn the_shortest_spelling_is_shown() {
        for text in ["0s", "250ms", "100ms", "1s", "1.5s", "255s", "90s", "2m", "90m", "1h", "720h", "1h1ms", "30h1s"] {
            assert_eq!(display(parse(text).unwrap()), text);
        }
        assert_eq!(display(Duration::from_millis(1250)), "1.25s");
        assert_eq!(display(parse("1m30s").unwrap()), "90s");
    }

    /// What `text` says in microseconds, and the value of its last digit.
    fn read_back(text: &str) -> (u128, u128) {
        let last = text.trim_end_matches(|c: char| c.is_alphabetic() || c == ' ');
        let unit = text[last.len()..].trim();
        let (_, unit_us) = UNITS.into_iter().find(|(name, _)| *name == unit).expect("a unit");
        let digit_us = if last.rsplit(' ').next().is_some_and(|it| it.contains('.')) { unit_us / 10 } else { unit_us };
        (parse_fine(text).unwrap_or_else(|fault| panic!("{text:?}: {fault}")).as_micros(), digit_us)
    }

    proptest! {
        #[test]
        fn what_people_are_shown_reads_back_to_its_last_digit(
            us in prop_oneof![0u64..20_000, 0u64..100_000_000, 0u64..100_000_000_000, any::<u64>()],
        ) {
            use crate::model::humane::{duration_ms, duration_us};
            for (text, exact_us) in [(duration_us(us), us.into()), (duration_ms(us), u128::from(us) * 1000)] {
                let (read_us, digit_us) = read_back(&text);
                prop_assert!((read_us..read_us + digit_us).contains(&exact_us), "{}: {} of {}", text, read_us, exact_us);
            }
        }

        #[test]
        fn what_is_shown_reads_back(ms in prop_oneof![0u64..10_000_000, any::<u64>()]) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse(&display(duration)), Ok(duration));
        }

        #[test]
        fn parts_add_up(h in 0u64..1000, m in 0u64..1000, s in 0u64..100_000, ms in 0u64..1000, space in " ?") {
            let text = format!("{h}h{space}{m}{space}m{space}{s}.{ms:03}s");
            let expected = Duration::from_millis(((h * 60 + m) * 60 + s) * 1000 + ms);
            prop_assert_eq!(parse(&text), Ok(expected));
        }

        #[test]
        fn no_text_breaks_it(text in "\\PC{0,12}|[0-9.hms ]{0,30}") {
            if let Ok(duration) = parse(&text) {
                prop_assert_eq!(parse(&display(duration)), Ok(duration));
            }
        }
    }
}
