//! Files of other programs, given by mistake or in hope.

use std::ops::Range;

/// What to do with a configuration of HAProxy.
pub const ADVICE: &str = "write a [[frontend]] with name and listen for each bind, and a [[frontend.backend]] with name and address for each server";

/// Where the first section of an HAProxy configuration (configuration.txt, section 2) stands in `text`, if there is one.
pub fn haproxy_section(text: &str) -> Option<Range<usize>> {
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let words: Vec<_> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        if is_section(&words) {
            let start = offset + line.len() - line.trim_start().len();
            return Some(start..start + words[0].len());
        }
        offset += line.len();
    }
    None
}

fn is_section(words: &[&str]) -> bool {
    match words {
        ["global" | "defaults"] => true,
        // Newer ones may name their defaults: `frontend a from b`.
        ["defaults" | "frontend" | "backend" | "listen", name, ..] => !name.starts_with(['=', '.']),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_section_is_found_and_toml_has_none() {
        assert_eq!(haproxy_section("# lb\nglobal\n    log stdout\n"), Some(5..11));
        assert_eq!(haproxy_section("  frontend apiserver # all\n  bind :6443\n"), Some(2..10));
        assert_eq!(haproxy_section("frontend a from b\n"), Some(0..8));
        for toml in ["listen = [\"a\"]\n", "[[frontend]]\nname = \"x\"", "frontend = 1", "global = 1", ""] {
            assert_eq!(haproxy_section(toml), None, "{toml}");
        }
    }
}
