//! Human-readable figures and text, for the page and the command line.

use std::borrow::Cow;

/// `0 B`, `999 B`, `1.2 kB`, `35 MB`: powers of 1000.
pub(crate) fn bytes(bytes: f64) -> String {
    let mut value = bytes;
    for unit in ["B", "kB", "MB", "GB", "TB"] {
        // 999.6 would be printed as 1000.
        if value < 999.5 {
            let decimals = usize::from(value < 9.95 && unit != "B");
            return format!("{value:.decimals$} {unit}");
        }
        value /= 1000.0;
    }
    format!("{value:.1} PB")
}

/// `12,345`.
pub(crate) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `0`, `0.3`, `12`, `1,234`.
pub(crate) fn rate(per_s: f64) -> String {
    if per_s > 0.0 && per_s < 9.95 { format!("{:.1}", per_s.max(0.1)) } else { count(per_s.round() as u64) }
}

/// `350 ms`, `4.2 s`, `3 m 12 s`, `2 h 05 m`, `3 d 04 h`: rounded down, as clocks do. [`super::duration`] reads it.
pub(crate) fn duration_ms(ms: u64) -> String {
    let (s, m, h) = (ms / 1000, ms / 60_000, ms / 3_600_000);
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..10_000 => format!("{s}.{} s", ms % 1000 / 100),
        10_000..60_000 => format!("{s} s"),
        60_000..3_600_000 => format!("{m} m {:02} s", s % 60),
        3_600_000..86_400_000 => format!("{h} h {:02} m", m % 60),
        _ => format!("{} d {:02} h", h / 24, h % 24),
    }
}

/// `350 ms`, `2.3 s`, `12.3 s`, `10 s`, then as [`duration_ms`]: rounded up, for a time that nothing exceeds.
pub(crate) fn limit_ms(ms: u64) -> String {
    let tenths = ms.div_ceil(100);
    match ms {
        1_000..60_000 if tenths >= 100 && tenths.is_multiple_of(10) => format!("{} s", tenths / 10),
        1_000..60_000 => format!("{}.{} s", tenths / 10, tenths % 10),
        _ => duration_ms(if ms < 1_000 { ms } else { ms.next_multiple_of(1_000) }),
    }
}

/// `850 µs`, `3.1 ms`, then as [`duration_ms`].
pub(crate) fn duration_us(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..10_000 => format!("{}.{} ms", us / 1000, us % 1000 / 100),
        _ => duration_ms(us / 1000),
    }
}

/// `2026-11-21` and `10:03:35`, UTC. Days to a date after Hinnant, "chrono-compatible low-level date algorithms".
pub(crate) fn date_and_time(unix_ms: u64) -> (String, String) {
    let (days, second) = (unix_ms / 86_400_000, unix_ms / 1000 % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let date = format!("{year:04}-{month:02}-{day:02}");
    (date, format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60))
}

/// `text` for a terminal or a log: control characters and those that turn the direction of writing, as U+202E does, are written
/// `\u{1b}`. A tab stays.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let is_hidden = |letter: char| {
        letter.is_control() && letter != '\t' || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let written = |letter: char| match is_hidden(letter) {
        true => letter.escape_unicode().to_string(),
        false => letter.to_string(),
    };
    Cow::Owned(text.chars().map(written).collect())
}

/// [`printable`] for several lines.
pub(crate) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// `10.0.0.100, fd00::100`.
pub(crate) fn list(all: &[impl ToString]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// `1 flow`, `2 flows`, `1,234 flows`.
pub(crate) fn plural(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let seen = [0.0, 999.0, 999.7, 1234.0, 35_400_000.0, 999_600.0, 1e15, 2.5e18].map(bytes);
        assert_eq!(seen, ["0 B", "999 B", "1.0 kB", "1.2 kB", "35 MB", "1.0 MB", "1.0 PB", "2500.0 PB"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 0.01, 0.34, 9.96, 1234.4].map(rate), ["0", "0.1", "0.3", "10", "1,234"]);
        let seen = [5, 4_250, 59_999, 192_000, 7_500_000, 273_600_000].map(duration_ms);
        assert_eq!(seen, ["5 ms", "4.2 s", "59 s", "3 m 12 s", "2 h 05 m", "3 d 04 h"]);
        assert_eq!([850, 3_140, 12_000].map(duration_us), ["850 µs", "3.1 ms", "12 ms"]);
    }

    #[test]
    fn dates_are_right_at_the_edges() {
        for (unix_s, expected) in [
            (0, ("1970-01-01", "00:00:00")),
            (951_782_399, ("2000-02-28", "23:59:59")),
            (951_782_400, ("2000-02-29", "00:00:00")),
            (1_795_255_415, ("2026-11-21", "10:03:35")),
            (4_107_542_400, ("2100-03-01", "00:00:00")),
        ] {
            let (date, time) = date_and_time(unix_s * 1000);
            assert_eq!((date.as_str(), time.as_str()), expected);
        }
    }

    #[test]
    fn text_of_a_foreign_file_cannot_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[31m\r\u{9b}2J\0"), r"a\u{1b}[31m\u{d}\u{9b}2J\u{0}");
        assert_eq!(printable("\u{202e}cba"), r"\u{202e}cba");
        assert_eq!(printable("é\tß"), "é\tß");
        assert_eq!(printable_lines("a\n\u{7}"), "a\n\\u{7}");
    }
}
