//! `[admin]`, `[process]` and `[log]`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::DeValue;

use super::kind::{Kind, Listen, OneOf, Time, Whole, path_text, time, whole};
use super::section::Section;
use super::{Admin, FlowLog, Log, LogFormat, LogLevel, Process};

pub(super) fn admin(section: &Section) -> Admin {
    let http = section.read_or("http", &AdminHttp, Some(ADMIN_HTTP_DEFAULT.into()));
    let socket = section.read_or("socket", &SocketPath, PathBuf::from("/run/baton/admin.sock"));
    if let Some(address) = http.value.filter(|address| http.is_given() && !address.ip().is_loopback()) {
        let message = format!("{} is \"{address}\", which is no loopback address", section.name("http"));
        section.warn(
            "http",
            message,
            "set a loopback address: any host that can connect to this address reads the addresses of clients and \
             backends",
        );
    }
    // A refused address counts as none, so that no listening address is reported as equal to the default.
    let refused = http.is_refused();
    Admin { http: http.value.filter(|_| !refused), socket: socket.value }
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

/// The address of the read-only HTTP server; the empty string turns it off.
struct AdminHttp;

impl Kind for AdminHttp {
    type Value = Option<std::net::SocketAddr>;

    fn read(&self, value: &DeValue) -> Option<Self::Value> {
        if value.as_str() == Some("") {
            Some(None)
        } else {
            Listen.read(value).map(|address| Some(address.socket_addr()))
        }
    }

    fn allowed(&self) -> String {
        "an address with its port, such as \"127.0.0.1:9470\", or \"\" (not served)".into()
    }
}

/// An absolute path that fits into a socket's address (unix(7): 108 bytes with the NUL).
struct SocketPath;

impl Kind for SocketPath {
    type Value = PathBuf;

    fn read(&self, value: &DeValue) -> Option<PathBuf> {
        let path = Path::new(path_text(value)?);
        (path.is_absolute() && path.file_name().is_some() && path.as_os_str().len() <= 107).then(|| path.to_path_buf())
    }

    fn allowed(&self) -> String {
        "an absolute path of at most 107 bytes".into()
    }
}

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
