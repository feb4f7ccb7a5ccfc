//! Files of other programs that somebody gives to Baton by mistake.

use std::ops::Range;

use super::PeerKey;

/// Advice for an HAProxy configuration.
pub(super) const ADVICE: &str = "write a [[frontend]] with name and listen for each bind, and a [[frontend.backend]] with name and address for each server";

/// The kind of `text` if it may be secret. Then no message may quote it: terminals and logs have other readers.
pub(super) fn secret(text: &str) -> Option<&'static str> {
    let is_key = PeerKey::parse(text.trim()).is_some();
    if is_key { Some("a key for peers") } else { text.contains("-----BEGIN ").then_some("a PEM file") }
}

/// The place of the first section of an HAProxy configuration (configuration.txt, section 2) in `text`, if it has one
/// and no table of TOML.
pub(super) fn haproxy_section(text: &str) -> Option<Range<usize>> {
    if text.lines().any(|line| line.trim_start().starts_with('[')) {
        return None;
    }
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
    use std::path::Path;

    use super::*;

    #[test]
    fn the_first_section_is_found_and_toml_has_none() {
        assert_eq!(haproxy_section("# lb\nglobal\n    log stdout\n"), Some(5..11));
        assert_eq!(haproxy_section("  frontend apiserver # all\n  bind :6443\n"), Some(2..10));
        assert_eq!(haproxy_section("frontend a from b\n"), Some(0..8));
        for toml in [
            "listen = [\"a\"]\n",
            "[[frontend]]\nname = \"x\"",
            "frontend = 1",
            "global = 1",
            "",
            "[log]\nfrontend a\n",
        ] {
            assert_eq!(haproxy_section(toml), None, "{toml}");
        }
    }

    #[test]
    fn a_key_is_never_quoted() {
        let key = PeerKey([7; 32]).spell() + "\n";
        for text in ["-----BEGIN PRIVATE KEY-----\nMIIEvwIBADANBgkqhkiG9w0BAQEFAASC\n", &key] {
            let rejected = crate::config::parse(text, Path::new("f")).unwrap_err();
            let said = format!("{rejected} {}", rejected.render(false));
            assert!(rejected.errors.len() == 1 && said.contains("and Baton reads TOML"), "{said}");
            assert!(!said.contains("0707") && !said.contains("MIIE"), "{said}");
        }
    }
}
