//! Points in time as people type them, in UTC unless they say otherwise. Pure: the present moment is an argument.

use thiserror::Error;

use super::duration;

const DAY_MS: u64 = 86_400_000;

/// Why a text is no point in time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0:?} is no point in time; allowed: 03:12, 03:12:07, 2026-11-25T03:12 or \"2026-11-25 03:12:07.5\", each with Z or +02:00 behind it \
     (without: UTC), or how long ago, such as 10m"
)]
pub(crate) struct MomentFault(String);

/// Milliseconds since 1970 of the time that `text` names. A time of day without a date is the last such time up to `now_ms`; a
/// duration is that long before `now_ms`.
pub(crate) fn parse(text: &str, now_ms: u64) -> Result<u64, MomentFault> {
    let trimmed = text.trim();
    read(trimmed, now_ms).ok_or_else(|| MomentFault(trimmed.to_owned()))
}

fn read(text: &str, now_ms: u64) -> Option<u64> {
    if !text.contains(':') {
        return now_ms.checked_sub(duration::parse(text).ok()?.as_millis() as u64);
    }
    let (date, rest) = match text.split_once(['T', ' ']) {
        Some((date, rest)) => (Some(days(date)?), rest),
        None => (None, text),
    };
    let (clock, ahead_ms) = zone(rest)?;
    let of_day = time_of_day(clock)? as i64;
    let at = match date {
        Some(days) => (days * DAY_MS) as i64 + of_day - ahead_ms,
        None => {
            let today = (now_ms / DAY_MS * DAY_MS) as i64 + of_day - ahead_ms;
            // A zone may put it a day away in either direction.
            (-2..=1).rev().map(|day| today + day * DAY_MS as i64).find(|at| *at <= now_ms as i64)?
        }
    };
    u64::try_from(at).ok()
}

/// The time without its zone, and by how much the zone is ahead of UTC, in milliseconds.
fn zone(text: &str) -> Option<(&str, i64)> {
    if let Some(clock) = text.strip_suffix(['Z', 'z']) {
        return Some((clock, 0));
    }
    let Some(at) = text.rfind(['+', '-']) else { return Some((text, 0)) };
    let (clock, offset) = text.split_at(at);
    let (hours, minutes) = match offset[1..].split_once(':') {
        Some(both) => both,
        None if offset.len() == 5 && offset.is_ascii() => offset[1..].split_at(2),
        None => return None,
    };
    let ms = (two_digits(hours, 15)? * 60 + two_digits(minutes, 60)?) as i64 * 60_000;
    Some((clock.trim_end(), if offset.starts_with('-') { -ms } else { ms }))
}

/// Milliseconds since midnight.
fn time_of_day(clock: &str) -> Option<u64> {
    let mut parts = clock.split(':');
    let (hours, minutes) = (two_digits(parts.next()?, 24)?, two_digits(parts.next()?, 60)?);
    let seconds_ms = match parts.next() {
        None => 0,
        Some(seconds) => {
            let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, "0"));
            if fraction.is_empty() || fraction.len() > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            let ms: u64 = format!("{fraction:0<3}")[..3].parse().ok()?;
            two_digits(whole, 60)? * 1000 + ms
        }
    };
    parts.next().is_none().then_some((hours * 60 + minutes) * 60_000 + seconds_ms)
}

/// Days since 1970 of a date, after Hinnant, "chrono-compatible low-level date algorithms".
fn days(date: &str) -> Option<u64> {
    let mut parts = date.split('-');
    let year: u64 =
        parts.next().filter(|year| year.len() == 4 && year.bytes().all(|it| it.is_ascii_digit()))?.parse().ok()?;
    let (month, day) = (two_digits(parts.next()?, 13)?, two_digits(parts.next()?, 32)?);
    if parts.next().is_some() || year < 1970 || month == 0 || day == 0 {
        return None;
    }
    let of_month = |month: u64| match month {
        4 | 6 | 9 | 11 => 30,
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        _ => 31,
    };
    if day > of_month(month) {
        return None;
    }
    let year = year - u64::from(month <= 2);
    let (era, year_of_era) = (year / 400, year % 400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

/// One or two digits, below `end`.
fn two_digits(text: &str, end: u64) -> Option<u64> {
    let is_number = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && *number < end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::humane::date_and_time;

    /// 2026-11-21 10:03:35Z.
    const NOW_MS: u64 = 1_795_255_415_000;

    fn shown(text: &str) -> String {
        let (date, time) = date_and_time(parse(text, NOW_MS).unwrap());
        format!("{date} {time}")
    }

    #[test]
    fn a_time_of_day_is_the_last_one_that_was() {
        assert_eq!(shown("03:12"), "2026-11-21 03:12:00");
        assert_eq!(shown("10:03:35"), "2026-11-21 10:03:35");
        assert_eq!(shown("10:04"), "2026-11-20 10:04:00");
        assert_eq!(shown("23:30-11:00"), "2026-11-20 10:30:00", "10:30 UTC is yet to come today");
        assert_eq!(shown("01:00+02:00"), "2026-11-20 23:00:00");
        assert_eq!(shown("12:03+02:00"), "2026-11-21 10:03:00");
    }

    #[test]
    fn a_date_and_a_zone_count() {
        assert_eq!(shown("2026-11-25T03:12Z"), "2026-11-25 03:12:00");
        assert_eq!(shown("2026-11-25 03:12:07.5+0200"), "2026-11-25 01:12:07");
        assert_eq!(parse("1970-01-01T00:00:00.25Z", NOW_MS), Ok(250));
        assert_eq!(shown("2024-02-29T00:00"), "2024-02-29 00:00:00");
        assert_eq!(shown("10m"), "2026-11-21 09:53:35");
    }

    #[test]
    fn what_is_no_time_is_refused_with_what_is_allowed() {
        for text in [
            "",
            "3",
            "24:00",
            "03:60",
            "03:12:60",
            "2026-02-29T00:00",
            "2026-13-01T00:00",
            "1969-01-01T00:00",
            "03:12+99:00",
            "03:12x",
            "x:12",
            "03:12:07.",
        ] {
            let fault = parse(text, NOW_MS).unwrap_err().to_string();
            assert!(fault.contains("allowed: 03:12"), "{text}: {fault}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_again(second in 0..4_102_444_800u64) {
            let (date, time) = date_and_time(second * 1000);
            prop_assert_eq!(parse(&format!("{date} {time}Z"), NOW_MS), Ok(second * 1000));
        }
    }
}
