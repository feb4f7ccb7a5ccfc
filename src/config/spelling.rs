//! Did you mean ...?

/// The closest of `words` to `typed`, if it is close enough to be a typing error.
pub(super) fn closest<'w>(typed: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    if typed.len() > LENGTH_MAX {
        return None;
    }
    let near = words.into_iter().map(|word| (distance(typed, word), word)).min()?;
    (near.0 <= (near.1.len() / 3).max(1)).then_some(near.1)
}

/// Longer keys are no typing errors, and the distance costs the product of both lengths.
const LENGTH_MAX: usize = 64;

/// Levenshtein's edit distance, with a dash and an underscore being the same.
fn distance(a: &str, b: &str) -> usize {
    let plain =
        |text: &str| text.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect::<String>();
    strsim::levenshtein(&plain(a), &plain(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_word_and_a_stranger_none() {
        let words = ["timeout", "interval", "rise", "connect_timeout"];
        for (typed, meant) in
            [("timout", "timeout"), ("Timeout", "timeout"), ("connect-timeout", "connect_timeout"), ("rice", "rise")]
        {
            assert_eq!(closest(typed, words), Some(meant));
        }
        assert_eq!(closest("backlog", words), None);
        assert_eq!(closest("", words), None);
        assert_eq!(closest("x", []), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
