//! `[failover]`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::FailoverSettings;
use super::kind::{FilePath, Network, Time, Truth, quote, time, whole};
use super::section::Section;

impl Default for FailoverSettings {
    fn default() -> Self {
        Self {
            challenge: true,
            resets_per_second: 20_000,
            guard: Duration::from_secs(2),
            priority: Vec::new(),
            track_file: None,
        }
    }
}

/// Reads `[failover]`; without peers it has no effect.
pub(super) fn read(section: &Section, has_peers: bool) -> FailoverSettings {
    let default = FailoverSettings::default();
    let settings = FailoverSettings {
        challenge: section.read_or("challenge", &Truth, default.challenge).value,
        resets_per_second: section.read_or("resets_per_second", &whole(1, 1_000_000), default.resets_per_second).value,
        guard: section.read_or("guard", &GUARD, default.guard).value,
        priority: section.list("priority", &Network).into_iter().map(|element| element.value).collect(),
        track_file: section.read("track_file", &FilePath).value.and_then(|named| track_file(section, &named)),
    };
    if !has_peers {
        for key in KEYS.iter().filter(|key| section.has(key)) {
            section.warn(
                key,
                format!("{} has no effect without [peers]", section.name(key)),
                "remove it, or add [peers]",
            );
        }
    }
    settings
}

/// keepalived reads the same file, whatever Baton's working directory.
fn track_file(section: &Section, named: &str) -> Option<PathBuf> {
    let path = Path::new(named);
    if !path.is_absolute() || path.is_dir() {
        section.refuse_value("track_file", "the whole path of a file, beginning with /", &quote(named));
        return None;
    }
    Some(path.to_owned())
}

const KEYS: [&str; 5] = ["challenge", "resets_per_second", "guard", "priority", "track_file"];
/// TCP repeats a packet after 200 ms, 600 ms, 1.4 s, 3 s: a longer guard only delays clients.
const GUARD: Time = Time { zero: Some("not at all"), ..time(Duration::from_millis(100), Duration::from_secs(30)) };
