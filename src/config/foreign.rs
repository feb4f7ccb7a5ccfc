//! Files of other programs that somebody gives to Baton by mistake.

use std::ops::Range;
use std::path::Path;

use super::PeerKey;
use super::diagnostic::shown;

pub(crate) const HAPROXY: &str = "HAProxy";
pub(crate) const KEEPALIVED: &str = "keepalived";

/// The name and the place of another program's configuration, and the advice what to do with it.
pub(super) struct ForeignConfig {
    pub program: &'static str,
    pub place: Range<usize>,
    pub advice: String,
}

/// Whose configuration `text`, the file at `path`, is. `None`: nobody's that is known here.
pub(super) fn program(text: &str, path: &Path) -> Option<ForeignConfig> {
    let path = shown(path);
    let haproxy = || {
        let advice = format!("translate it: baton import {path} > baton.toml");
        Some(ForeignConfig { program: HAPROXY, place: haproxy_section(text)?, advice })
    };
    let keepalived = || {
        let advice = format!("translate it together with haproxy.cfg: baton import haproxy.cfg {path} > baton.toml");
        Some(ForeignConfig { program: KEEPALIVED, place: keepalived_block(text)?, advice })
    };
    haproxy().or_else(keepalived)
}

/// The program whose configuration `text` is: "HAProxy", "keepalived", or none of them.
pub(crate) fn program_of(text: &str) -> Option<&'static str> {
    let haproxy = haproxy_section(text).map(|_| HAPROXY);
    haproxy.or_else(|| keepalived_block(text).map(|_| KEEPALIVED))
}

/// The place of the first block of a keepalived configuration in `text`.
fn keepalived_block(text: &str) -> Option<Range<usize>> {
    const BLOCKS: [&str; 6] =
        ["global_defs", "vrrp_instance", "vrrp_script", "vrrp_sync_group", "vrrp_track_file", "virtual_server"];
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let words = line.split(|letter: char| letter.is_whitespace() || letter == '{');
        let first = words.into_iter().find(|word| !word.is_empty()).unwrap_or_default();
        if BLOCKS.contains(&first) && !line.contains('=') {
            let start = offset + line.len() - line.trim_start().len();
            return Some(start..start + first.len());
        }
        offset += line.len();
    }
    None
}

/// The kind of `text` if it may be secret. Then no message may quote it: terminals and logs have other readers.
pub(super) fn secret(text: &str) -> Option<&'static str> {
    let is_key = PeerKey::parse(text.trim()).is_some();
    if is_key { Some("a key for peers") } else { text.contains("-----BEGIN ").then_some("a PEM file") }
}

/// The place of the first section of an HAProxy configuration (configuration.txt, section 2) in `text`, if it has one
/// and no table of TOML.
fn haproxy_section(text: &str) -> Option<Range<usize>> {
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
    fn a_keepalived_configuration_is_found_by_its_first_block() {
        let text = "! the VIP\nglobal_defs {\n  router_id a\n}\nvrrp_instance VI_1 {\n}\n";
        let rejected = crate::config::parse(text, Path::new("k.conf")).unwrap_err();
        assert_eq!(
            rejected.to_string(),
            "k.conf:2: this looks like a configuration of keepalived, and Baton reads TOML; translate it together with \
             haproxy.cfg: baton import haproxy.cfg k.conf > baton.toml"
        );
        assert!(program("vrrp_instance = 1\n", Path::new("f")).is_none());
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
