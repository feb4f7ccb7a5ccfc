//! `[admin]`, `[process]` and `[log]`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::DeValue;

use super::kind::{DnsName, Kind, Listen, OneOf, Time, Whole, path_text, time, whole};
use super::section::Section;
use super::{Admin, FlowLog, Log, LogFormat, LogLevel, Process};

impl Admin {
    /// The path of the Unix socket that only reads: `admin.sock` gives `admin-read.sock`.
    pub(crate) fn read_socket(&self) -> PathBuf {
        read_socket(&self.socket)
    }
}

/// The path of the socket that only reads, beside the admin socket at `socket`.
pub(crate) fn read_socket(socket: &Path) -> PathBuf {
    let mut name = socket.file_stem().unwrap_or_default().to_owned();
    name.push("-read");
    if let Some(extension) = socket.extension() {
        name.push(".");
        name.push(extension);
    }
    socket.with_file_name(name)
}

/// A group of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// As the file names it.
    pub name: String,
    pub gid: u32,
}

pub(super) fn admin(section: &Section) -> Admin {
    let http = section.read_or("http", &AdminHttp { example: "127.0.0.1:9470" }, Some(ADMIN_HTTP_DEFAULT.into()));
    let socket = section.read_or("socket", &SocketPath, PathBuf::from("/run/baton/admin.sock"));
    if let Some(address) = http.value.filter(|address| http.is_given() && !address.ip().is_loopback()) {
        let message = format!("{} is \"{address}\", which is no loopback address", section.name("http"));
        section.warn(
            "http",
            message,
            "set a loopback address: any host that can connect to this address reads the addresses of clients and \
             backends. Give Prometheus \"metrics\", which has no client's address",
        );
    }
    // A refused address counts as none, so that no listening address is reported as equal to the default.
    let refused = http.is_refused();
    let http = http.value.filter(|_| !refused);
    let metrics = section.read_or("metrics", &AdminHttp { example: "0.0.0.0:9472" }, None).value;
    if let (Some(http), Some(metrics)) = (http, metrics)
        && overlap(http, metrics)
    {
        let message =
            format!("{} is \"{metrics}\", and {} is \"{http}\"", section.name("metrics"), section.name("http"));
        section.refuse("metrics", message, "give each of the two HTTP servers a port of its own");
    }
    let group = section.read_or("group", &OwnGroup, None);
    if group.value.is_some() && read_socket(&socket.value).as_os_str().len() > SOCKET_PATH_MAX {
        let message = format!("{} is too long for a second socket beside it", section.name("socket"));
        section.refuse("socket", message, "set a path of at most 102 bytes, or remove \"group\"");
    }
    let allowed_hosts = section.list("allowed_hosts", &DnsName).into_iter().map(|element| element.value).collect();
    Admin { http, socket: socket.value, metrics, allowed_hosts, group: group.value }
}

/// Whether no two sockets can listen on both addresses: bind(2) gives a wildcard every address of its port, and the IPv6
/// wildcard the IPv4 addresses too.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let covers = |all: SocketAddr, one: SocketAddr| all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4());
    a.port() == b.port() && a.port() != 0 && (a.ip() == b.ip() || covers(a, b) || covers(b, a))
}

pub(super) fn process(section: &Section) -> Process {
    let stop_timeout = section.read_or("stop_timeout", &STOP_TIMEOUT, Duration::from_secs(30));
    if stop_timeout.value.is_zero() && stop_timeout.is_given() {
        let message =
            format!("{} is \"0s\": Baton resets every connection when it stops", section.name("stop_timeout"));
        section.warn("stop_timeout", message, "set a few seconds, in which they can end by themselves");
    }
    Process {
        workers: section.read_or("workers", &WORKERS, 0).value.checked_sub(1).map(|less| less as usize + 1),
        max_connections: cap(section, "max_connections"),
        shutdown_delay: section.read_or("shutdown_delay", &SHUTDOWN_DELAY, Duration::from_secs(1)).value,
        stop_timeout: stop_timeout.value,
        reset_within: section.read_or("reset_within", &RESET_WITHIN, Duration::from_millis(250)).value,
        reset_rate: section.read_or("reset_rate", &whole(1, 10_000_000), 50_000).value,
    }
}

pub(super) fn log(section: &Section) -> Log {
    Log {
        format: section.read_or("format", &FORMAT, LogFormat::Human).value,
        level: section.read_or("level", &LEVEL, LogLevel::Info).value,
        flows: section.read_or("flows", &FLOWS, FlowLog::All).value,
        flows_per_second: section.read_or("flows_per_second", &whole(1, 1_000_000), 100).value,
    }
}

/// A cap: absent or 0 means none.
pub(super) fn cap(section: &Section, key: &str) -> Option<u32> {
    section.read(key, &CAP).value.filter(|cap| *cap > 0)
}

/// The address of a read-only HTTP server; the empty string turns it off.
struct AdminHttp {
    example: &'static str,
}

impl Kind for AdminHttp {
    type Value = Option<SocketAddr>;

    fn read(&self, value: &DeValue) -> Option<Self::Value> {
        if value.as_str() == Some("") {
            Some(None)
        } else {
            Listen.read(value).map(|address| Some(address.socket_addr()))
        }
    }

    fn allowed(&self) -> String {
        format!("an address with its port, such as \"{}\", or \"\" (not served)", self.example)
    }
}

/// A group by its name in /etc/group, or by its number.
struct OwnGroup;

impl Kind for OwnGroup {
    type Value = Option<Group>;

    fn read(&self, value: &DeValue) -> Option<Self::Value> {
        let name = value.as_str()?;
        if name.is_empty() {
            return Some(None);
        }
        let gid = name.parse().ok().or_else(|| gid_of(&std::fs::read_to_string(GROUPS).ok()?, name))?;
        Some(Some(Group { name: name.to_owned(), gid }))
    }

    fn allowed(&self) -> String {
        format!("the name of a group in {GROUPS}, its number as a string, or \"\" (no such socket)")
    }
}

/// group(5): NAME:PASSWORD:GID:MEMBERS.
fn gid_of(groups: &str, name: &str) -> Option<u32> {
    let mut fields = groups.lines().map(|line| line.split(':'));
    fields.find_map(|mut line| (line.next() == Some(name)).then(|| line.nth(1)?.parse().ok()).flatten())
}

const GROUPS: &str = "/etc/group";

/// An absolute path that fits into a socket's address (unix(7): 108 bytes with the NUL).
struct SocketPath;

impl Kind for SocketPath {
    type Value = PathBuf;

    fn read(&self, value: &DeValue) -> Option<PathBuf> {
        let path = Path::new(path_text(value)?);
        (path.is_absolute() && path.file_name().is_some() && path.as_os_str().len() <= SOCKET_PATH_MAX)
            .then(|| path.to_path_buf())
    }

    fn allowed(&self) -> String {
        "an absolute path of at most 107 bytes".into()
    }
}

const SOCKET_PATH_MAX: usize = 107;
const ADMIN_HTTP_DEFAULT: ([u8; 4], u16) = ([127, 0, 0, 1], 9470);
const WORKERS: Whole = Whole { min: 1, max: 1024, zero: Some("one per core") };
const CAP: Whole = Whole { min: 1, max: u32::MAX, zero: Some("no cap") };
const STOP_TIMEOUT: Time =
    Time { zero: Some("reset at once"), ..time(Duration::from_millis(100), Duration::from_secs(24 * 3600)) };
const SHUTDOWN_DELAY: Time =
    Time { zero: Some("close the listeners at once"), ..time(Duration::from_millis(100), Duration::from_secs(600)) };
const RESET_WITHIN: Time =
    Time { zero: Some("as fast as reset_rate allows"), ..time(Duration::from_millis(1), Duration::from_secs(60)) };
const FORMAT: OneOf<LogFormat> = OneOf(&[("human", LogFormat::Human), ("json", LogFormat::Json)]);
const LEVEL: OneOf<LogLevel> = OneOf(&[
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
]);
const FLOWS: OneOf<FlowLog> = OneOf(&[("all", FlowLog::All), ("errors", FlowLog::Errors), ("off", FlowLog::Off)]);
