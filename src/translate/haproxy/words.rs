//! The words of a line of haproxy.cfg (configuration.txt, section 2.2).

/// Why a line has no words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::translate) struct OpenQuote;

/// Splits a line at spaces. A backslash quotes one character, 'strong' and "weak" quotes quote several, `#` begins a comment.
/// Environment variables stay as they are written.
pub(in crate::translate) fn words(line: &str) -> Result<Vec<String>, OpenQuote> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (None, '#') => break,
            (None, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (Some(open), _) if open == letter => quote = None,
            (None | Some('"'), '\\') => {
                let next = match letters.next() {
                    Some('n') => '\n',
                    Some('r') => '\r',
                    Some('t') => '\t',
                    Some(other) => other,
                    None => '\\',
                };
                word.get_or_insert_default().push(next);
            }
            (None, letter) if letter.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    if quote.is_some() { Err(OpenQuote) } else { Ok(words) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_escapes_and_comments_are_read_as_haproxy_does() {
        let read = |line| words(line).unwrap();
        assert_eq!(read("  bind *:6443  # all"), ["bind", "*:6443"]);
        assert_eq!(read(r#"a "b c" 'd "e' f\ g \# h#i"#), ["a", "b c", "d \"e", "f g", "#", "h"]);
        assert_eq!(read(r"option httpchk GET / HTTP/1.1\r\nHost:\ x")[4], "HTTP/1.1\r\nHost: x");
        assert_eq!(read(r#"log "${SINK}" ''"#), ["log", "${SINK}", ""]);
        assert_eq!(read("  # only"), [""; 0]);
        assert_eq!(words("a \"b"), Err(OpenQuote));
        assert_eq!(read(r"a\"), [r"a\"]);
    }
}
