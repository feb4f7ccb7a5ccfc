//! What may be a secret in text that is logged, recorded, and copied into tickets: keys that stand where the name of their file belongs,
//! tokens in the path of a probe, and arguments of programs.

use std::borrow::Cow;

/// Fewer digits are no key, but may be a number or a checksum's beginning.
const DIGITS_MIN: usize = 32;

/// Whether `text` may be a key: hexadecimal digits, as `baton genkey` prints them.
pub(crate) fn is_key(text: &str) -> bool {
    text.len() >= DIGITS_MIN && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// `text` with a star for each digit of what may be a key; no byte changes its place.
pub(crate) fn hide_keys(text: &str) -> String {
    let mut hidden = String::with_capacity(text.len());
    for part in text.split_inclusive(|letter: char| !letter.is_ascii_hexdigit()) {
        let digits = part.trim_end_matches(|letter: char| !letter.is_ascii_hexdigit());
        match is_key(digits) {
            true => hidden.extend(std::iter::repeat_n('*', digits.len())),
            false => hidden.push_str(digits),
        }
        hidden.push_str(&part[digits.len()..]);
    }
    hidden
}

/// In the place of what may be a secret.
pub(crate) const REMOVED: &str = "(removed)";

/// The value of a key of the file, such as `frontend[0].health.path`, without what may be a secret: an apiserver takes a token behind the `?` of a path, and
/// a program one among the arguments of `on_gain` and `on_loss`.
pub(crate) fn shown_value<'v>(key: &str, value: &'v str) -> Cow<'v, str> {
    let last = key.rsplit('.').next().unwrap_or(key);
    let (name, place) = last.split_once('[').unwrap_or((last, "0]"));
    let end = match name {
        "path" => value.find('?').map(|at| at + 1),
        "on_gain" | "on_loss" if place != "0]" => Some(0),
        // The program may be there with its arguments, in one string or in a list.
        "on_gain" | "on_loss" => value.find(' ').map(|at| at + 1),
        _ => None,
    };
    match end.filter(|end| *end < value.len()) {
        // It may be a list.
        Some(end) => format!("{}{REMOVED}{}", &value[..end], if value.starts_with('[') { "]" } else { "" }).into(),
        None => value.into(),
    }
}

/// A message about a key, whose value it may end with, as in `found "/readyz?token=..."`: [`shown_value`] of that.
pub(crate) fn shown_message(key: &str, message: &str) -> String {
    const FOUND: &str = "found \"";
    let Some((before, found)) = message.rsplit_once(FOUND) else { return message.to_owned() };
    let (value, after) = found.rsplit_once('"').unwrap_or((found, ""));
    format!("{before}{FOUND}{}\"{after}", shown_value(key, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_in_a_path_and_the_arguments_of_a_program_are_not_shown() {
        for (key, value, shown) in [
            ("frontend[0].health.path", "/readyz?token=x", "/readyz?(removed)"),
            ("health.path", "/readyz?verbose", "/readyz?(removed)"),
            ("health.path", "/readyz", "/readyz"),
            ("health.path", "/readyz?", "/readyz?"),
            ("path", "?x", "?(removed)"),
            ("vip.on_gain", "[/bin/tell, --token=x, y]", "[/bin/tell, (removed)]"),
            ("on_loss", "[/bin/tell]", "[/bin/tell]"),
            ("vip.on_gain[0]", "tell --token x", "tell (removed)"),
            ("vip.on_loss[1]", "--token=x", "(removed)"),
            ("frontend[0].name", "what?now", "what?now"),
        ] {
            assert_eq!(shown_value(key, value), shown, "{key}");
        }
        let message = |key, value| shown_message(key, &format!("expected a path, \"/x\"; found \"{value}\" ..."));
        assert_eq!(message("health.path", "x?token=y"), "expected a path, \"/x\"; found \"x?(removed)\" ...");
        assert_eq!(message("balance", "x?y"), "expected a path, \"/x\"; found \"x?y\" ...");
        assert_eq!(shown_message("health.path", "did you mean \"rise\"?"), "did you mean \"rise\"?");
    }

    #[test]
    fn a_key_is_hidden_in_its_place_and_nothing_else_is() {
        let (key, stars) = ("5a".repeat(32), "*".repeat(64));
        for (text, hidden) in [
            (format!("key_file = \"{key}\" # é"), format!("key_file = \"{stars}\" # é")),
            (key.clone(), stars.clone()),
            (format!("é{key}é"), format!("é{stars}é")),
            (format!("/etc/baton/{key}.key"), format!("/etc/baton/{stars}.key")),
            ("peers.key at 10.0.0.7, abcdef01".to_owned(), "peers.key at 10.0.0.7, abcdef01".to_owned()),
            (String::new(), String::new()),
        ] {
            assert_eq!(hide_keys(&text), hidden);
        }
    }
}
