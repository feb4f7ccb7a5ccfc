//! Durations on the command line: a number and a unit, `250ms`, `5s`, `2m`, or `0`.

use std::time::Duration;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a duration is a number and ms, s, m or h, such as 250ms or 5s")]
pub struct NotADuration;

/// Reads one duration; the form that clap takes as a value parser.
pub fn parse(text: &str) -> Result<Duration, NotADuration> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(NotADuration)?;
    let (number, unit) = text.split_at(unit_at);
    let unit_s = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(NotADuration),
    };
    let number: f64 = number.parse().map_err(|_| NotADuration)?;
    Duration::try_from_secs_f64(number * unit_s).map_err(|_| NotADuration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_needed_except_for_nothing() {
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse("0"), Ok(Duration::ZERO));
        for wrong in ["", "5", "s", "5 s", "-1s", "1d", "1.2.3s"] {
            assert_eq!(parse(wrong), Err(NotADuration), "{wrong:?}");
        }
    }
}
