//! Keys that stand where the name of their file belongs: in text that is logged, and copied into tickets.

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

#[cfg(test)]
mod tests {
    use super::*;

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
