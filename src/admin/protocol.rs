//! The protocol of the admin socket: one JSON object per line.
//!
//! ```text
//! request   {"version": 1, "command": "drain", "backend": "cp1"}
//! reply     {"ok": ...}  or  {"error": {"kind": "...", "message": "...", ...}}
//! listing   {"item": ...} any number of times, then the reply
//! ```
//! A connection may send several requests, one after the other. `version` may be left out.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::control::{RebalanceDone, RebalancePlan};
use super::evacuate::{EvacuationFailed, EvacuationRequest};
use super::status::BackendStatus;
use super::upgrade::{UpgradeFailed, UpgradeRequest};
use super::what_if::{WhatIfFailed, WhatIfRequest};
use crate::config::Diagnostic;
use crate::model::duration;
use crate::model::humane::duration_ms;
use crate::model::ids::{FlowId, flow_as_text};
use crate::table::flows::FlowState;

pub const VERSION: u32 = 1;

/// Limit for one request line, including its newline.
pub const REQUEST_MAX: usize = 64 * 1024;

/// The requests. Each comment names the type of the reply's `ok`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// [`About`].
    Version {},
    /// [`super::status::Status`].
    Status {},
    /// [`crate::config::FileOwner`]: the process and the settings that its decisions follow, as the recorder writes them.
    Process {},
    /// A list of [`BackendStatus`]; one if `backend` is given.
    Backends {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        backend: Option<BackendName>,
    },
    /// Items: [`FlowRow`]; ok: [`Listed`].
    Flows(FlowFilter),
    /// Items: [`crate::table::journal::Event`]; ok, never sent while following: [`Listed`].
    Events(EventFilter),
    /// [`Ordered`].
    Drain { backend: BackendName },
    /// [`Ordered`].
    Undrain { backend: BackendName },
    /// [`Ordered`].
    Eject { backend: BackendName },
    /// [`KillReport`].
    Kill { target: KillTarget },
    /// [`KillCheck`].
    CheckKill { target: KillTarget },
    /// [`super::what_if::WhatIfReport`].
    WhatIf(WhatIfRequest),
    /// [`Reloaded`].
    Reload {},
    /// [`super::diff::ReloadDiff`].
    Diff { path: PathBuf },
    /// Items: [`Rebalance`] as it begins; ok: [`Rebalance`] when it is done.
    Rebalance {
        #[serde(default)]
        dry_run: bool,
    },
    /// Items: [`super::upgrade::UpgradeProgress`]; ok: [`super::upgrade::Upgraded`].
    Upgrade(UpgradeRequest),
    /// [`super::status::PeersReport`].
    Peers {},
    /// [`super::status::VipReport`].
    Vip {},
    /// [`super::nodes::NodesReport`].
    Nodes {},
    /// [`super::upgrade::UpgradeCheck`].
    CheckUpgrade(UpgradeRequest),
    /// Items: [`super::evacuate::EvacuationProgress`]; ok: [`super::evacuate::EvacuationReport`].
    Evacuate(EvacuationRequest),
    /// [`super::evacuate::EvacuationReport`] of the cancelled evacuation.
    CancelEvacuation {},
    /// [`super::evacuate::EvacuationCheck`].
    CheckEvacuation(EvacuationRequest),
}

/// What a command does besides its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    /// It reads or runs a file that the client names. The command as it is typed.
    OpensFile(&'static str),
    /// It changes something. The command as it is typed, and its arguments, each with a space before it.
    Order(&'static str, String),
}

/// Selects the flows to list; an absent field excludes none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowFilter {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontend: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<IpNet>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<FlowState>,
    /// Only flows with an order to end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ending: bool,
    /// Only flows with this end at Baton of the connection to the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SocketAddr>,
    /// Flows beyond this number are only counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventFilter {
    /// Only events with at least this number.
    #[serde(default)]
    pub since: u64,
    /// Ended flows too.
    #[serde(default)]
    pub flows: bool,
    /// Continue with new events.
    #[serde(default)]
    pub follow: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillTarget {
    Flow(FlowId),
    Backend(BackendName),
    Client(IpNet),
    All,
}

/// `name`, or `frontend/name` where two frontends have a backend of that name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BackendName(pub String);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    pub version: String,
    pub protocol: u32,
    pub pid: u32,
    /// By the monotonic clock, which a restart of the host begins anew: with the pid, it tells the processes of two containers apart, each of
    /// which may be 1.
    #[serde(default)]
    pub started_at_ns: u64,
    /// Whether this socket takes orders, not only questions.
    #[serde(default = "yes")]
    pub takes_orders: bool,
}

/// One flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowRow {
    #[serde(with = "flow_as_text")]
    pub id: FlowId,
    pub frontend: String,
    /// `None`: not picked yet.
    pub backend: Option<String>,
    pub client: SocketAddr,
    /// The name of its address, if one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub vip: SocketAddr,
    /// Its end at Baton of the connection to the backend. `None`: not known yet, or of IPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SocketAddr>,
    pub state: FlowState,
    /// Whether it has an order to end, and waits for its time.
    #[serde(default)]
    pub ending: bool,
    pub age_ms: u64,
    /// Time since the last byte in either direction.
    pub idle_ms: u64,
    /// From the client.
    pub bytes_to_backend: u64,
    /// To the client.
    pub bytes_to_client: u64,
    /// It began at another instance: its bytes are at least those, namely what that one last told, until bytes have passed here as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub came: bool,
    /// 0 until connected.
    pub connect_us: u64,
    /// Why the last try to offload it failed; see docs/offload.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stays: Option<String>,
    pub worker: usize,
}

/// The end of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    pub listed: u64,
    /// Number of further matches beyond the limit.
    pub more: u64,
}

/// The result of an order for a backend.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ordered {
    pub backend: BackendStatus,
    /// How long its flows may still go on, if the order sets a deadline.
    pub drain_timeout_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillReport {
    /// Number of flows that matched.
    pub flows: u64,
    /// Number of these that had ended when the reply was sent.
    pub gone: u64,
}

/// The effects of an order to end flows, if it were given now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillCheck {
    /// Number of flows that match.
    pub flows: u64,
    /// Number of addresses that these come from.
    pub clients: u64,
    /// Number of names of these. `None`: not each has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u64>,
    /// Time until the last of them has had its turn; 0: all at once.
    pub over_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Empty: the file equals the running configuration.
    pub changes: Vec<String>,
    /// Without changes: Baton had seen that the file changed, and loaded it a moment before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_before: Option<LoadedBefore>,
}

/// A change of the file that Baton saw and applied by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadedBefore {
    /// Milliseconds since 1970, UTC.
    pub at_unix_ms: u64,
    pub changes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebalance {
    pub dry_run: bool,
    #[serde(flatten)]
    pub plan: RebalancePlan,
    /// What it came to at each frontend; empty for a dry run, and until it is done.
    pub done: Vec<RebalanceDone>,
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Refusal {
    #[error("cannot parse the request: {reason}")]
    BadRequest { reason: String },
    #[error("this instance speaks version {speaks} of the admin protocol, not version {asked}")]
    Version { asked: String, speaks: u32 },
    #[error("a request has at most {REQUEST_MAX} bytes")]
    TooLarge,
    #[error("no complete request arrived within {}", duration_ms(*.limit_ms))]
    TooSlow { limit_ms: u64 },
    #[error("too many admin connections are open")]
    Busy,
    #[error("uid {uid} may not use this socket: only root and the user that Baton runs as")]
    Forbidden { uid: u32 },
    #[error(
        "the read-only socket refuses {command:?}: only root and the user that Baton runs as may use the admin socket"
    )]
    ReadOnly { command: String },
    #[error("there is no backend {asked:?}; there is {}", list(.known))]
    UnknownBackend { asked: String, known: Vec<String> },
    #[error("several backends are named {asked:?}; name one of {}", list(.matches))]
    AmbiguousBackend { asked: String, matches: Vec<String> },
    #[error("there is no frontend {asked:?}; there is {}", list(.known))]
    UnknownFrontend { asked: String, known: Vec<String> },
    #[error("there is no flow {flow}: it has ended, or never existed")]
    UnknownFlow { flow: FlowId },
    #[error("{reason}")]
    Order { reason: String },
    #[error(transparent)]
    Upgrade(UpgradeFailed),
    #[error(transparent)]
    Evacuate(EvacuationFailed),
    #[error(transparent)]
    WhatIf(WhatIfFailed),
    #[error("the configuration has {} and changed nothing:\n{}", errors_in_words(.errors), .errors.join("\n"))]
    Reload {
        /// One line each.
        errors: Vec<String>,
        /// The same in the loader's form, if they are errors of the file.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        findings: Vec<Diagnostic>,
    },
}

/// One line from the instance.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    Item(serde_json::Value),
    Ok(serde_json::Value),
    Error(Refusal),
}

impl Command {
    /// Reads one request line.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, Refusal> {
        let bad = |error: serde_json::Error| Refusal::BadRequest { reason: error.to_string() };
        let mut request: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(line).map_err(bad)?;
        if let Some(asked) = request.remove("version")
            && asked != VERSION
        {
            return Err(Refusal::Version { asked: asked.to_string(), speaks: VERSION });
        }
        serde_json::from_value(request.into()).map_err(bad)
    }

    pub(crate) fn effect(&self) -> Effect {
        let order = |command, arguments: &[&dyn fmt::Display]| {
            Effect::Order(command, arguments.iter().map(|argument| format!(" {}", typed(argument))).collect())
        };
        match self {
            Self::Version {}
            | Self::Status {}
            | Self::Process {}
            | Self::Backends { .. }
            | Self::Flows(_)
            | Self::Events(_)
            | Self::Peers {}
            | Self::Vip {}
            | Self::Nodes {}
            | Self::CheckEvacuation(_)
            | Self::CheckKill { .. }
            | Self::WhatIf(_)
            | Self::Rebalance { dry_run: true } => Effect::None,
            Self::Diff { .. } => Effect::OpensFile("diff"),
            Self::CheckUpgrade(_) => Effect::OpensFile("upgrade --check"),
            Self::Drain { backend } => order("drain", &[backend]),
            Self::Undrain { backend } => order("undrain", &[backend]),
            Self::Eject { backend } => order("eject", &[backend]),
            Self::Kill { target: KillTarget::Flow(flow) } => order("kill", &[flow]),
            Self::Kill { target: KillTarget::Backend(backend) } => order("kill", &[&"--backend", backend]),
            Self::Kill { target: KillTarget::Client(network) } => order("kill", &[&"--client", network]),
            Self::Kill { target: KillTarget::All } => order("kill", &[&"--all"]),
            Self::Reload {} => order("reload", &[]),
            Self::Rebalance { dry_run: false } => order("rebalance", &[]),
            Self::Upgrade(UpgradeRequest { binary, config }) => {
                let binary = binary.iter().flat_map(|path| ["--binary".to_owned(), path.display().to_string()]);
                let config = config.iter().flat_map(|path| ["-c".to_owned(), path.display().to_string()]);
                let words: Vec<_> = binary.chain(config).collect();
                order("upgrade", &words.iter().map(|word| word as &dyn fmt::Display).collect::<Vec<_>>())
            }
            Self::Evacuate(EvacuationRequest { to, deadline_ms }) => {
                let deadline = duration::display(Duration::from_millis(*deadline_ms));
                match to {
                    Some(to) => order("evacuate", &[&"--to", to, &"--deadline", &deadline]),
                    None => order("evacuate", &[&"--deadline", &deadline]),
                }
            }
            Self::CancelEvacuation {} => order("evacuate --cancel", &[]),
        }
    }

    /// The request line, with its newline.
    pub(crate) fn to_line(&self) -> Vec<u8> {
        let mut request = serde_json::to_value(self).expect("a command is plain data");
        request["version"] = VERSION.into();
        let mut line = request.to_string().into_bytes();
        line.push(b'\n');
        line
    }
}

impl Refusal {
    /// The request as it is sent, with its sentence for readers of the JSON.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let mut error = serde_json::to_value(self).expect("a refusal is plain data");
        error["message"] = self.to_string().into();
        serde_json::json!({ "error": error })
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An argument for a log line: what could be taken for another line or another word is quoted, and what is too long is cut.
fn typed(argument: &dyn fmt::Display) -> String {
    let text = argument.to_string();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:%[]@+".contains(&byte);
    if text.len() <= TYPED_MAX && !text.is_empty() && text.bytes().all(plain) {
        return text;
    }
    let head: String = text.chars().take(TYPED_MAX).collect();
    format!("{head:?}{}", if head.len() < text.len() { "..." } else { "" })
}

/// An instance that does not say has no socket that refuses orders, or refuses them when they come.
fn yes() -> bool {
    true
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

pub(crate) fn errors_in_words(errors: &[String]) -> String {
    match errors.len() {
        1 => "an error".to_owned(),
        count => format!("{count} errors"),
    }
}

/// Limit for the characters of one argument in a log line.
const TYPED_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_told_as_it_is_typed_and_forges_no_line() {
        let told = |command: Command| match command.effect() {
            Effect::Order(command, arguments) => command.to_owned() + &arguments,
            other => panic!("{other:?}"),
        };
        let named = |name: &str| BackendName(name.to_owned());
        assert_eq!(told(Command::Drain { backend: named("apiserver/cp1") }), "drain apiserver/cp1");
        assert_eq!(
            told(Command::Kill { target: KillTarget::Client("10.0.0.0/8".parse().unwrap()) }),
            "kill --client 10.0.0.0/8"
        );
        let upgrade = UpgradeRequest { binary: Some("/tmp/a b".into()), config: None };
        assert_eq!(told(Command::Upgrade(upgrade)), "upgrade --binary \"/tmp/a b\"");
        let evacuate = EvacuationRequest { to: None, deadline_ms: 30_000 };
        assert_eq!(told(Command::Evacuate(evacuate)), "evacuate --deadline 30s");
        assert_eq!(told(Command::Eject { backend: named("a\nuid 0 orders: x") }), r#"eject "a\nuid 0 orders: x""#);
        assert!(told(Command::Eject { backend: named(&"a".repeat(60_000)) }).len() < 200);
        assert_eq!(Command::Rebalance { dry_run: true }.effect(), Effect::None);
    }

    #[test]
    fn a_command_survives_the_wire() {
        let filter =
            FlowFilter { client: Some("10.0.0.0/8".parse().unwrap()), limit: Some(5), ..FlowFilter::default() };
        for command in [
            Command::Status {},
            Command::Flows(filter),
            Command::Kill { target: KillTarget::Flow(FlowId(7)) },
            Command::Kill { target: KillTarget::All },
            Command::Drain { backend: BackendName("apiserver/cp1".to_owned()) },
        ] {
            assert_eq!(Command::parse(&command.to_line()), Ok(command));
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for line in
            ["", "null", "[]", "{}", r#"{"command":"fly"}"#, r#"{"command":"drain"}"#, r#"{"command":"status","x":1}"#]
        {
            assert!(matches!(Command::parse(line.as_bytes()), Err(Refusal::BadRequest { .. })), "{line}");
        }
        let newer = Command::parse(br#"{"version":2,"command":"status"}"#);
        assert_eq!(newer, Err(Refusal::Version { asked: "2".to_owned(), speaks: 1 }));
    }

    #[test]
    fn a_refusal_reads_back_and_carries_its_words() {
        let refusal = Refusal::UnknownBackend { asked: "cp9".to_owned(), known: vec!["cp1".to_owned()] };
        let json = refusal.to_json();
        assert_eq!(json["error"]["message"], "there is no backend \"cp9\"; there is cp1");
        assert!(matches!(serde_json::from_value(json), Ok(Line::Error(back)) if back == refusal));
    }
    #[test]
    fn a_refused_reload_tells_each_finding_and_one_without_them_is_understood() {
        let text = "[log]\nlevel = 5\n";
        let findings = crate::config::parse(text, std::path::Path::new("baton.toml")).unwrap_err().errors;
        let errors = findings.iter().map(ToString::to_string).collect();
        let refusal = Refusal::Reload { errors, findings };
        let json = refusal.to_json();
        assert_eq!(
            (&json["error"]["findings"][1]["line"], &json["error"]["findings"][1]["column"]),
            (&2.into(), &9.into())
        );
        assert_eq!(serde_json::from_value::<Refusal>(json["error"].clone()).unwrap(), refusal);
        let before = serde_json::json!({ "kind": "reload", "errors": ["baton.toml:3: a"] });
        let expected = Refusal::Reload { errors: vec!["baton.toml:3: a".into()], findings: Vec::new() };
        assert_eq!(serde_json::from_value::<Refusal>(before).unwrap(), expected);
    }
}
