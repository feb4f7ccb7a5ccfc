//! The kinds of values: each reads one value and describes in words the values that it allows.

mod address;

pub(super) use address::{
    AddressKind, DnsName, Host, Listen, LoneAddress, Network, ProbePlace, SourcePlace, path_text,
};

use std::time::Duration;

use toml::de::DeValue;

use crate::model::duration;

/// A kind of value.
pub(super) trait Kind {
    type Value;

    /// `None`: the value is of another kind, or out of range.
    fn read(&self, value: &DeValue) -> Option<Self::Value>;

    /// Completes "expected ...".
    fn allowed(&self) -> String;

    /// Completes "found ...", for a value that was refused.
    fn found(&self, value: &DeValue) -> String {
        show(value)
    }
}

/// `true` or `false`.
#[derive(Debug)]
pub(super) struct Truth;

/// A whole number of a range, both ends included.
#[derive(Debug)]
pub(super) struct Whole {
    pub min: u32,
    pub max: u32,
    /// What 0 means, if it is allowed although `min` is above it.
    pub zero: Option<&'static str>,
}

/// A number of a range, both ends included.
#[derive(Debug)]
pub(super) struct Decimal {
    pub min: f64,
    pub max: f64,
}

/// A duration of a range, both ends included.
#[derive(Debug)]
pub(super) struct Time {
    pub min: Duration,
    pub max: Duration,
    /// What zero means, if it is allowed although `min` is above it.
    pub zero: Option<&'static str>,
    /// The kernel counts it in seconds.
    pub whole_seconds: bool,
}

/// A word of a closed list.
#[derive(Debug)]
pub(super) struct OneOf<T: 'static>(pub &'static [(&'static str, T)]);

/// A name that commands, logs and metric labels show.
#[derive(Debug)]
pub(super) struct Name;

/// A string that names a file.
#[derive(Debug)]
pub(super) struct FilePath;

/// The path of a request.
#[derive(Debug)]
pub(super) struct UrlPath;

/// One word of a command: the program, or an argument.
#[derive(Debug)]
pub(super) struct CommandWord;

pub(super) const fn whole(min: u32, max: u32) -> Whole {
    Whole { min, max, zero: None }
}

pub(super) const fn time(min: Duration, max: Duration) -> Time {
    Time { min, max, zero: None, whole_seconds: false }
}

/// `text` for a message: in quotes, escaped, cut to a readable length.
pub(super) fn quote(text: &str) -> String {
    let head: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    let rest = if head.len() < text.len() { " ..." } else { "" };
    format!("{head:?}{rest}")
}

/// A value for a message.
pub(super) fn show(value: &DeValue) -> String {
    match value {
        DeValue::String(text) => quote(text),
        DeValue::Integer(number) => shorten(&number.to_string()),
        DeValue::Float(number) => shorten(number.as_str()),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Datetime(time) => format!("the date or time {time}"),
        DeValue::Array(items) if items.is_empty() => "an empty array".into(),
        DeValue::Array(_) => "an array".into(),
        DeValue::Table(_) => "a table".into(),
    }
}

impl Kind for Truth {
    type Value = bool;

    fn read(&self, value: &DeValue) -> Option<bool> {
        value.as_bool()
    }

    fn allowed(&self) -> String {
        "true or false".into()
    }
}

impl Kind for Whole {
    type Value = u32;

    fn read(&self, value: &DeValue) -> Option<u32> {
        let integer = value.as_integer()?;
        let number = u32::from_str_radix(integer.as_str(), integer.radix()).ok()?;
        let allowed = (self.min..=self.max).contains(&number) || (number == 0 && self.zero.is_some());
        allowed.then_some(number)
    }

    fn allowed(&self) -> String {
        let zero = self.zero.map(|meaning| format!(", or 0 ({meaning})")).unwrap_or_default();
        format!("a whole number from {} to {}{zero}", self.min, self.max)
    }
}

impl Kind for Decimal {
    type Value = f64;

    fn read(&self, value: &DeValue) -> Option<f64> {
        let text = match value {
            DeValue::Float(float) => float.as_str(),
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str(),
            _ => return None,
        };
        text.parse().ok().filter(|number| (self.min..=self.max).contains(number))
    }

    fn allowed(&self) -> String {
        format!("a number from {} to {}", self.min, self.max)
    }
}

impl Kind for Time {
    type Value = Duration;

    fn read(&self, value: &DeValue) -> Option<Duration> {
        let read = duration::parse(value.as_str()?).ok()?;
        if read.is_zero() && self.zero.is_some() {
            return Some(read);
        }
        let whole = !self.whole_seconds || read.subsec_nanos() == 0;
        (whole && (self.min..=self.max).contains(&read)).then_some(read)
    }

    fn allowed(&self) -> String {
        let (min, max) = (duration::display(self.min), duration::display(self.max));
        let whole = if self.whole_seconds { " of whole seconds" } else { "" };
        let zero = self.zero.map(|meaning| format!(", or \"0s\" ({meaning})")).unwrap_or_default();
        let fits = |sample: &&(&str, u64)| (self.min..=self.max).contains(&Duration::from_millis(sample.1));
        let samples = SAMPLES_MS.iter().filter(fits).filter(|sample| !self.whole_seconds || sample.1 >= 1000);
        let samples = samples.map(|(text, _)| format!("{text:?}")).collect::<Vec<_>>();
        let samples = match samples.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
            None => format!("{min:?}"),
        };
        format!("a duration{whole} such as {samples}, from \"{min}\" to \"{max}\"{zero}")
    }

    fn found(&self, value: &DeValue) -> String {
        match value {
            DeValue::String(text) => match duration::parse(text) {
                Err(fault) => format!("{}: {fault}", quote(text)),
                Ok(_) => show(value),
            },
            DeValue::Integer(_) | DeValue::Float(_) => format!("{}, a number without quotes and a unit", show(value)),
            _ => show(value),
        }
    }
}

impl<T: Copy> Kind for OneOf<T> {
    type Value = T;

    fn read(&self, value: &DeValue) -> Option<T> {
        let word = value.as_str()?;
        self.0.iter().find(|(name, _)| *name == word).map(|(_, meaning)| *meaning)
    }

    fn allowed(&self) -> String {
        let names = self.0.iter().map(|(name, _)| format!("{name:?}")).collect::<Vec<_>>();
        format!("one of {}", names.join(", "))
    }
}

impl Kind for Name {
    type Value = String;

    fn read(&self, value: &DeValue) -> Option<String> {
        let text = value.as_str()?;
        let fits = (1..=NAME_LENGTH_MAX).contains(&text.len()) && text.starts_with(|c: char| c.is_ascii_alphanumeric());
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        (fits && plain).then(|| text.to_owned())
    }

    fn allowed(&self) -> String {
        format!("1 to {NAME_LENGTH_MAX} letters, digits, \"-\", \"_\" and \".\", the first a letter or digit")
    }
}

impl Kind for FilePath {
    type Value = String;

    fn read(&self, value: &DeValue) -> Option<String> {
        path_text(value).map(str::to_owned)
    }

    fn allowed(&self) -> String {
        "the path of a file, relative ones beginning at this file's directory".into()
    }
}

impl Kind for CommandWord {
    type Value = String;

    fn read(&self, value: &DeValue) -> Option<String> {
        path_text(value).map(str::to_owned)
    }

    fn allowed(&self) -> String {
        "a word of a command: first the whole path of a program, then its arguments".into()
    }
}

impl Kind for UrlPath {
    type Value = String;

    fn read(&self, value: &DeValue) -> Option<String> {
        let text = value.as_str()?;
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
        (text.starts_with('/') && visible && text.len() <= URL_PATH_LENGTH_MAX).then(|| text.to_owned())
    }

    fn allowed(&self) -> String {
        "a path beginning with \"/\", of visible ASCII without \"#\"".into()
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

const SHOWN_CHARS_MAX: usize = 60;
/// Examples for messages: those within the range.
const SAMPLES_MS: [(&str, u64); 3] = [("500ms", 500), ("2s", 2000), ("1m30s", 90_000)];
/// As long as a DNS label.
const NAME_LENGTH_MAX: usize = 63;
const URL_PATH_LENGTH_MAX: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    fn read<K: Kind>(kind: &K, toml: &str) -> Option<K::Value> {
        kind.read(DeValue::parse(toml).unwrap().get_ref())
    }

    #[test]
    fn ranges_include_their_ends_and_nothing_beyond() {
        let kind = Whole { min: 5, max: 7, zero: Some("off") };
        let taken: Vec<_> = (0..10).filter_map(|number| read(&kind, &number.to_string())).collect();
        assert_eq!(taken, [0, 5, 6, 7]);
        for toml in ["-5", "5.0", "\"5\"", "99999999999999999999", "true"] {
            assert_eq!(read(&kind, toml), None, "{toml}");
        }
        assert_eq!(read(&whole(0, 255), "0xff"), Some(255));
        assert_eq!(read(&whole(0, u32::MAX), "1_000"), Some(1000));
    }

    #[test]
    fn numbers_that_are_none_are_refused() {
        let kind = Decimal { min: 0.5, max: 10.0 };
        assert_eq!(read(&kind, "3"), Some(3.0));
        assert_eq!(read(&kind, "1.5"), Some(1.5));
        for toml in ["nan", "inf", "0.4", "11", "0x5", "\"1\""] {
            assert_eq!(read(&kind, toml), None, "{toml}");
        }
    }

    #[test]
    fn seconds_that_the_kernel_cannot_count_are_refused() {
        let kind = Time { whole_seconds: true, ..time(Duration::from_secs(1), Duration::from_secs(10)) };
        assert_eq!(read(&kind, "\"2000ms\""), Some(Duration::from_secs(2)));
        assert_eq!(read(&kind, "\"1500ms\""), None);
        assert_eq!(read(&kind, "\"0s\""), None);
        assert_eq!(read(&kind, "5"), None);
    }

    #[test]
    fn a_name_is_safe_in_a_command_and_a_label() {
        assert_eq!(read(&Name, "\"cp-1.a_b\"").as_deref(), Some("cp-1.a_b"));
        for toml in ["\"\"", "\"-x\"", "\"a b\"", "\"a/b\"", "\"é\"", "5", &format!("\"{}\"", "a".repeat(64))] {
            assert_eq!(read(&Name, toml), None, "{toml}");
        }
    }

    #[test]
    fn a_long_value_is_cut_in_messages() {
        assert_eq!(quote(&"é".repeat(70)), format!("\"{}\" ...", "é".repeat(60)));
    }
}
