//! `[offload]`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use toml::de::DeValue;

use super::kind::{Kind, OneOf, Time, path_text, time, whole};
use super::section::Section;
use super::{OffloadMode, OffloadSettings};

impl Default for OffloadSettings {
    fn default() -> Self {
        Self {
            mode: OffloadMode::Auto,
            interfaces: Vec::new(),
            max_flows: 65_536,
            after_round_trips: 2,
            after: Duration::from_millis(20),
            pins: PathBuf::from("/sys/fs/bpf/baton"),
        }
    }
}

/// Reads `[offload]`. `max_connections` is `[process]`'s.
pub(super) fn read(section: &Section, max_connections: Option<u32>) -> OffloadSettings {
    let default = OffloadSettings::default();
    let mode = section.read_or("mode", &MODE, default.mode);
    let max_flows = section.read_or("max_flows", &whole(1, FLOWS_MAX), default.max_flows);
    let settings = OffloadSettings {
        mode: mode.value,
        interfaces: interfaces(section),
        max_flows: max_flows.value,
        after_round_trips: section.read_or("after_round_trips", &whole(1, 1000), default.after_round_trips).value,
        after: section.read_or("after", &AFTER, default.after).value,
        pins: section.read_or("pins", &PinsFolder, default.pins).value,
    };
    if mode.value == OffloadMode::Off && mode.is_given() {
        for key in KEYS.iter().filter(|key| section.has(key)) {
            let message = format!("{} has no effect with mode = \"off\"", section.name(key));
            section.warn(key, message, "remove it, or set another mode");
        }
    }
    if let Some(connections) = max_connections.filter(|connections| *connections > max_flows.value)
        && max_flows.is_given()
        && mode.value != OffloadMode::Off
    {
        let name = section.name("max_flows");
        let message = format!("{name} is {}, below the max_connections of [process], {connections}", max_flows.value);
        section.warn("max_flows", message, "set at least max_connections, or further flows stay proxied");
    }
    settings
}

/// The map also holds the other instances' offloaded flows. `instances`: number in the fleet, with this one.
pub(super) fn warn_of_fleet(
    section: &Section,
    settings: &OffloadSettings,
    max_connections: Option<u32>,
    instances: usize,
) {
    let Some(connections) = max_connections else { return };
    let fleet = u64::from(connections) * instances as u64;
    if settings.mode != OffloadMode::Off && fleet > u64::from(settings.max_flows) {
        let message = format!(
            "{} is {}, and {instances} instances with max_connections = {connections} may have {fleet} flows",
            section.name("max_flows"),
            settings.max_flows
        );
        let help = format!("set {fleet}: Baton resets the flows beyond that when their host dies");
        section.warn("max_flows", message, help);
    }
}

fn interfaces(section: &Section) -> Vec<Arc<str>> {
    let mut first = HashMap::new();
    let mut names = Vec::new();
    for element in section.list("interfaces", &InterfaceName) {
        let before = first.entry(element.value.clone()).or_insert_with(|| element.place.key.clone());
        if *before != element.place.key {
            let message = format!("interface {:?} is named twice in {}", element.value, section.title());
            section.document.error(&element.place, message, "name each interface once");
        }
        names.push(Arc::from(element.value));
    }
    names
}

/// The name of a network interface (net/core/dev.c, dev_valid_name).
pub(super) struct InterfaceName;

impl Kind for InterfaceName {
    type Value = String;

    fn read(&self, value: &DeValue) -> Option<String> {
        let text = value.as_str()?;
        let fits = (1..=INTERFACE_LENGTH_MAX).contains(&text.len()) && text != "." && text != "..";
        let plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/' && byte != b':');
        (fits && plain).then(|| text.to_owned())
    }

    fn allowed(&self) -> String {
        format!("the name of a network interface, such as \"eth0\", of at most {INTERFACE_LENGTH_MAX} bytes")
    }
}

/// A folder of its own in a BPF file system, made if needed.
struct PinsFolder;

impl Kind for PinsFolder {
    type Value = PathBuf;

    fn read(&self, value: &DeValue) -> Option<PathBuf> {
        let path = Path::new(path_text(value)?);
        let plain = path.components().all(|part| !matches!(part, std::path::Component::ParentDir));
        (path.is_absolute() && plain && path.file_name().is_some()).then(|| path.to_path_buf())
    }

    fn allowed(&self) -> String {
        "an absolute path in a BPF file system, such as \"/sys/fs/bpf/baton\"".into()
    }
}

const MODE: OneOf<OffloadMode> =
    OneOf(&[("auto", OffloadMode::Auto), ("off", OffloadMode::Off), ("require", OffloadMode::Require)]);
/// Keys without effect while offload is off.
const KEYS: [&str; 5] = ["interfaces", "max_flows", "after_round_trips", "after", "pins"];
const FLOWS_MAX: u32 = 4_000_000;
/// IFNAMSIZ is 16, with the NUL.
const INTERFACE_LENGTH_MAX: usize = 15;
const AFTER: Time = Time { zero: Some("at once"), ..time(Duration::from_millis(1), Duration::from_secs(3600)) };
