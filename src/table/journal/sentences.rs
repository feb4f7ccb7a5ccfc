//! The words of each event, in one place: its level, the fields of its log line and its sentence. The log, `baton
//! events`, the status and the page all use them.

#[cfg(test)]
mod tests;
mod words;

use std::net::SocketAddr;

use tracing::Level;

use super::{REFUSALS_QUIET_MS, What};
use crate::model::end_reason::EndedBy;
use crate::model::humane::{bytes, date_and_time, duration_ms, duration_us, plural};
use crate::model::names::named;
use crate::model::weight::Weight;
use crate::table::offload::OFF;
use words::{in_words, named_nodes, ordered_because, ports_overlap, strange, stuck_before};

impl What {
    /// One sentence without a full stop.
    pub(crate) fn sentence(&self) -> String {
        self.tell(false).1
    }

    pub(crate) fn weight(&self) -> Weight {
        self.tell(false).0
    }

    /// Writes its line to the log. [`super::Journal::record`] calls this, but not for ended flows.
    pub(crate) fn log(&self) {
        self.tell(true);
    }

    /// The table. A log line's fields have the names of the event's fields, so that `baton --json events` and a log in
    /// JSON agree. Text at the end of the sentence (a reason, changes, errors) is not repeated as a field.
    fn tell(&self, is_logged: bool) -> (Weight, String) {
        use Weight::{Bad, Good, Notice, Plain};
        /// Level, fields as tracing's macros take them, sentence as `format!` takes it. `often` in place of the level:
        /// an event that may come many times a second, which is logged for debugging.
        macro_rules! say {
            (often { $($field:tt)* }, $($sentence:tt)+) => {{
                let sentence = format!($($sentence)+);
                if is_logged {
                    tracing::event!(target: "baton::event", Level::DEBUG, { $($field)* }, "{sentence}");
                }
                (Plain, sentence)
            }};
            ($weight:expr, { $($field:tt)* }, $($sentence:tt)+) => {
                say!("baton::event", $weight, { $($field)* }, $($sentence)+)
            };
            ($target:literal, $weight:expr, { $($field:tt)* }, $($sentence:tt)+) => {{
                let (weight, sentence) = ($weight, format!($($sentence)+));
                if is_logged {
                    match weight {
                        Bad => tracing::event!(target: $target, Level::ERROR, { $($field)* }, "{sentence}"),
                        Notice => tracing::event!(target: $target, Level::WARN, { $($field)* }, "{sentence}"),
                        Good | Plain => {
                            tracing::event!(target: $target, Level::INFO, { $($field)* }, "{sentence}");
                        }
                    }
                }
                (weight, sentence)
            }};
        }
        match self {
            Self::BackendChanged { frontend, backend, from, to, cause } => {
                // A new backend counts as ready until its first probe, but no probe has found it so.
                let was = (from != to).then(|| from.label());
                let change = was.map_or(String::new(), |was| format!("{was} → "));
                let (weight, to) = (Weight::of_health(*to), to.label());
                say!(
                    weight,
                    { frontend, backend, from = was, to, %cause },
                    "{frontend}/{backend}: {change}{to}: {cause}"
                )
            }
            Self::FlowsOrdered { frontend, backend, flows, reason } => {
                let weight = if reason.by() == EndedBy::Operator { Plain } else { Notice };
                let (number, why, reason) = (plural(*flows as u64, "flow"), ordered_because(*reason), reason.label());
                say!(
                    weight,
                    { frontend, backend, flows, reason },
                    "{frontend}/{backend}: Baton ends {number} because {why}"
                )
            }
            Self::RefusalsBegun { frontend, reason } => {
                let (weight, why) = (words::weight_of_refusals(*reason), reason.about().trim_end_matches('.'));
                say!(weight, { frontend, reason = reason.label() }, "{frontend}: Baton began to reset new connections: {why}")
            }
            Self::RefusalsOver { frontend, reason, refused, lasted_ms, last_unix_ms } => {
                let (number, reason) = (plural(*refused, "new connection"), reason.label());
                let lasted = duration_ms(*lasted_ms);
                let since = match last_unix_ms {
                    Some(last) => format!("since {}Z", date_and_time(*last).1),
                    None => format!("for {}", duration_ms(REFUSALS_QUIET_MS)),
                };
                say!(
                    Good,
                    { frontend, reason, refused, lasted_ms, last_unix_ms },
                    "{frontend}: Baton has reset no new connection {since}; before that it had reset {number} within {lasted} ({reason})"
                )
            }
            Self::BackendAdded { frontend, backend } => {
                say!(Plain, { frontend, backend }, "{frontend}/{backend}: Baton added this backend")
            }
            Self::BackendRemoved { frontend, backend } => {
                say!(Plain, { frontend, backend }, "{frontend}/{backend}: Baton removed this backend")
            }
            Self::BackendResolved { frontend, backend, address, error: Some(error) } => {
                let address = address.map(tracing::field::display);
                say!(Notice, { frontend, backend, address, error }, "{frontend}/{backend}: Baton cannot resolve its name: {error}")
            }
            Self::BackendResolved { frontend, backend, address: Some(address), error: None } => {
                say!(Plain, { frontend, backend, %address }, "{frontend}/{backend}: its name resolves to {address}")
            }
            Self::BackendResolved { frontend, backend, address: None, error: None } => {
                say!(Plain, { frontend, backend }, "{frontend}/{backend}: its name resolves to no address")
            }
            Self::BackendsDiscovered { frontend, source, added, removed } => {
                let signed = |sign: &'static str| move |address: &SocketAddr| format!("{sign}{address}");
                let all = added.iter().map(signed("+")).chain(removed.iter().map(signed("-")));
                let all = all.collect::<Vec<_>>().join(" ");
                say!(Plain, { frontend, source }, "{frontend}: {source} lists other backends: {all}")
            }
            Self::DiscoveryFailed { frontend, source, error, kept } => {
                let number = plural(*kept as u64, "discovered backend");
                say!(
                    Notice,
                    { frontend, source, kept },
                    "{frontend}: Baton keeps {number}, because {source} gives no valid list: {error}"
                )
            }
            Self::DiscoveryRecovered { frontend, source } => {
                say!(Good, { frontend, source }, "{frontend}: {source} gives a valid list of backends again")
            }
            Self::DiscoveryUnwatched { frontend, source, error } => {
                say!(
                    Notice,
                    { frontend, source },
                    "{frontend}: Baton lists {source} every 10 seconds, because it may not watch it: {error}"
                )
            }
            Self::DiscoveryWatched { frontend, source } => {
                say!(Good, { frontend, source }, "{frontend}: Baton watches {source} again")
            }
            Self::Reloaded { changes } if changes.is_empty() => {
                say!(Plain, {}, "Baton reloaded the configuration: nothing changed")
            }
            Self::Reloaded { changes } => say!(Plain, {}, "Baton reloaded the configuration: {}", changes.join("; ")),
            Self::ReloadRefused { errors } => {
                // Each error may contain a semicolon.
                say!(Bad, {}, "Baton refused the new configuration and keeps the running one: {}", errors.join(" | "))
            }
            Self::AcceptPaused { worker, error } => {
                say!(Bad, { worker, error }, "worker {worker} pauses accepting: {error}")
            }
            Self::AcceptResumed { worker, paused_ms } => {
                let paused = duration_ms(*paused_ms);
                say!(Good, { worker, paused_ms }, "worker {worker} accepts again after {paused}")
            }
            Self::WorkerStuck { worker, for_ms } => {
                let stuck = duration_ms(*for_ms);
                say!(Bad, { worker, for_ms }, "worker {worker} is stuck for {stuck}: its flows and new connections wait")
            }
            Self::WorkerMoves { worker } => say!(Good, { worker }, "worker {worker} moves again"),
            Self::ProcessPaused { for_ms, proxied } => {
                let (paused, flows) = (duration_ms(*for_ms), plural(*proxied, "proxied flow"));
                say!(
                    Bad,
                    { for_ms, proxied },
                    "this process did not run for {paused} (stopped by a signal, without a free processor, or its machine suspended): \
                     {flows} and all new connections waited"
                )
            }
            Self::VipShared { address, by } => {
                say!(Bad, { %address, by }, "another host ({by}) has {address} too: clients reach one of the two at random")
            }
            Self::VipAlone { address } => say!(Good, { %address }, "no other host has {address} any more"),
            Self::VipLeftBehind { address } => {
                say!(
                    Bad,
                    { %address },
                    "keepalived has ended and left {address} on this host, and another host takes it too: start keepalived, or \
                     remove the address"
                )
            }
            Self::VipGained { vip, why, silent, .. } => {
                say!(Good, { vip, silent = silent.as_deref() }, "this host has the VIP {vip} now: {why}")
            }
            Self::VipGivenUp { vip, why, late_ms, cut_off, .. } => {
                // It had clients, who waited.
                let weight = if late_ms.is_some() || *cut_off { Bad } else { Notice };
                say!(weight, { vip, late_ms, cut_off }, "this host has given up the VIP {vip}: {why}")
            }
            Self::VipHostCutOff { why, .. } => {
                say!(Bad, {}, "this host is cut off from its peers, and does not have the VIP: {why}")
            }
            Self::VipHeld { vip, by } => say!(Plain, { vip, by }, "{by} has the VIP {vip} now"),
            Self::VipRestored { vip } => {
                say!(
                    Notice,
                    { vip },
                    "another program had removed the VIP {vip} from this host; Baton has added it again"
                )
            }
            Self::VipOtherMask { address } => {
                say!(
                    Notice,
                    { address },
                    "another program had added {address} to this host; Baton has removed it, because the VIP is on it alone"
                )
            }
            Self::VipNotRemoved { address, error } => {
                say!(
                    Bad,
                    { address },
                    "cannot remove {address} from this host: {error}; remove it by hand, because this host answers for it"
                )
            }
            Self::VipAnswered { by, address } => {
                let what = address.map_or_else(|| "it".to_owned(), |address| address.to_string());
                say!(
                    Notice,
                    { by, address = address.map(tracing::field::display) },
                    "no instance has the VIP, and another host ({by}) answers for {what}: this host does not take it while that \
                     host answers"
                )
            }
            Self::VipDefended { by } => {
                say!(
                    Notice,
                    { by },
                    "another host ({by}) claims the VIP, which this instance holds: Baton has announced the VIP again; if that host \
                     goes on, clients reach either host by chance"
                )
            }
            Self::VipRefused { error } => {
                say!(Bad, {}, "this host cannot have the VIP: {error}")
            }
            Self::VipHookFailed { command, error } => {
                say!(Bad, { command }, "{command} has failed: {error}")
            }
            Self::OrderReceived { uid, pid, order } => {
                say!(Plain, { uid, pid, order }, "uid {uid} (process {pid}) orders: baton {order}")
            }
            Self::Started { version } => say!(Plain, { version }, "Baton {version} starts"),
            Self::ProcessDied { pid, silent_ms, flows } => {
                let had =
                    flows.map_or_else(String::new, |flows| format!(", when it had {}", plural(flows.into(), "flow")));
                let silent = duration_ms(*silent_ms);
                say!(
                    Bad,
                    { pid, silent_ms, ?flows },
                    "the process before this one (pid {pid}) ended without a stop, as by a crash, a kill or a power cut: its last \
                     record was made {silent} ago{had}"
                )
            }
            Self::Stopping { flows, timeout_ms } => {
                let (number, timeout) = (plural(*flows as u64, "flow"), duration_ms(*timeout_ms));
                say!(Plain, { flows, timeout_ms }, "Baton stops: {number} may go on for {timeout}")
            }
            Self::RebalancePlanned { frontend, moves } => {
                let flows = plural(*moves as u64, "flow");
                say!(Plain, { frontend, moves }, "{frontend}: Baton moves {flows} to backends with fewer flows")
            }
            Self::Rebalanced { frontend, flows } => {
                let number = plural(*flows as u64, "flow");
                say!(Good, { frontend, flows }, "{frontend}: Baton has moved {number} to backends with fewer flows")
            }
            Self::UpgradeBegun { binary, config } => {
                say!(Plain, { binary, config }, "Baton begins an upgrade to {binary} with {config}")
            }
            Self::UpgradeFailed { why, moved: 0 } => say!(Bad, {}, "the upgrade failed, this process goes on: {why}"),
            Self::UpgradeFailed { why, moved } => {
                let flows = plural(*moved, "flow");
                say!(Bad, { moved }, "the upgrade failed, this process goes on; {flows} stay with the new one: {why}")
            }
            Self::UpgradeFinished {
                from_version,
                from_pid,
                flows,
                not_moved,
                held_bytes,
                longest_pause_us,
                took_us,
            } => {
                let mut text = format!(
                    "this process imported {} from process {from_pid} (Baton {from_version}) in {}, {} on the way, longest pause {}",
                    plural(*flows, "flow"),
                    duration_us(*took_us),
                    bytes(*held_bytes as f64),
                    duration_us(*longest_pause_us),
                );
                if *not_moved > 0 {
                    text += &format!("; {} could not be moved", plural(*not_moved, "flow"));
                }
                let weight = if *not_moved > 0 { Notice } else { Good };
                say!(
                    weight,
                    { from_version, from_pid, flows, not_moved, held_bytes, longest_pause_us, took_us },
                    "{text}"
                )
            }
            Self::UpgradeImported { from_pid, flows } => {
                let number = plural(*flows, "flow");
                say!(
                    Bad,
                    { from_pid, flows },
                    "process {from_pid} died during the upgrade; this process has imported {number} from it"
                )
            }
            Self::OffloadOpened { interfaces } if interfaces.is_empty() => say!(Good, {}, "Baton offloads flows"),
            Self::OffloadOpened { interfaces } => {
                say!(Good, { ?interfaces }, "Baton offloads flows on {}", interfaces.join(", "))
            }
            Self::OffloadShut { why, unwatched } => {
                let weight = match unwatched {
                    true => Bad,
                    // The configuration asks for this.
                    false if why == OFF => Plain,
                    false => Notice,
                };
                say!(weight, {}, "Baton offloads no flow: {why}")
            }
            Self::OffloadRecovered { flows, reset: 0 } => {
                let number = plural(*flows, "flow");
                say!(Good, { flows }, "Baton recovered {number} that an earlier process had offloaded")
            }
            Self::OffloadRecovered { flows, reset } => {
                let number = plural(*flows, "flow");
                say!(
                    Notice,
                    { flows, reset },
                    "Baton recovered {number} that an earlier process had offloaded, and reset {reset} that it was about to offload"
                )
            }
            Self::OffloadStopped { reset, of } => {
                say!(
                    Bad,
                    { reset, of },
                    "Baton offloads no flow any more: {reset} of the last {of} were reset right after it, flows that stayed \
                     proxied were not"
                )
            }
            Self::OffloadResumed {} => {
                say!(Good, {}, "the offloaded flow was not reset: Baton offloads all flows again")
            }
            Self::ProgramReattached { interfaces, unpinned } => {
                let from = interfaces.join(", ");
                let told = match unpinned {
                    None => format!("another process detached the BPF program from {from}; Baton attached it again"),
                    Some(directory) if interfaces.is_empty() => format!(
                        "somebody has removed pins of the BPF program from {directory}; Baton pinned it again, and no flow was interrupted: \
                         without them the next process would not have known the offloaded flows"
                    ),
                    Some(directory) => format!(
                        "somebody has removed pins of the BPF program from {directory}, which detached it from {from}; Baton pinned and attached it \
                         again: offloaded flows with a packet meanwhile were reset by this host's kernel, and are told as client_reset or backend_reset. \
                         Nothing but `baton offload remove` may remove these pins"
                    ),
                };
                let weight = if interfaces.is_empty() { Notice } else { Bad };
                say!(weight, { ?interfaces, unpinned }, "{told}")
            }
            Self::ProgramLost { error, flows } => {
                let number = plural(*flows as u64, "offloaded flow");
                say!(
                    Bad,
                    { flows },
                    "somebody has removed pins of the BPF program, and Baton cannot pin it again: {error}; it resets {number} that nothing carries \
                     (internal), and others stay proxied until it can"
                )
            }
            Self::PeerLinked { peer, version } => {
                say!(Good, { peer, version }, "this instance is linked with {peer} (Baton {version})")
            }
            Self::PeerLost { peer, why } => say!(Notice, { peer }, "the link to {peer} is lost: {why}"),
            Self::PeerUnreachable { peer, why } => say!(Notice, { peer }, "this instance has no link to {peer}: {why}"),
            Self::PeerSynced { peer, flows } => {
                say!(Good, { peer, flows }, "this instance knows all flows of {peer}: {}", plural(*flows, "flow"))
            }
            Self::PortsOverlap { peer, theirs, own } => say!(Bad, { peer }, "{}", ports_overlap(peer, *theirs, *own)),
            Self::PeerGap { peer } => {
                say!(
                    Notice,
                    { peer },
                    "this instance missed a change of {peer}'s flows; {peer} sends all of them again"
                )
            }
            Self::PeerLiveness { peer, liveness, stuck_ms } => {
                let (weight, label) = (Weight::of_liveness(*liveness), liveness.label());
                let stuck = stuck_ms.map_or_else(String::new, stuck_before);
                say!(weight, { peer, liveness = label, stuck_ms }, "{peer} is {}{stuck}", in_words(*liveness))
            }
            Self::FailedOver { instance, inherited, reset } => {
                // One death may be told in steps: at the death, and as its addresses come here.
                let [goes_on, ends] = [*inherited, *reset].map(|flows| plural(flows as u64, "flow"));
                let did = match (inherited, reset) {
                    (0, 0) => "carries on none of its flows".to_owned(),
                    (_, 0) => format!("carries on {goes_on} of it"),
                    (0, _) => format!("resets {ends} of it"),
                    (_, _) => format!("carries on {goes_on} of it and resets {reset} others"),
                };
                say!(Bad, { %instance, inherited, reset }, "{instance} is dead: this instance {did}")
            }
            Self::ClientsTold { instance, answered, silent } => {
                let clients = plural(*answered as u64, "client");
                say!(
                    Plain,
                    { %instance, answered, silent },
                    "{clients} of {instance} answered the challenge and got RST, {silent} did not answer"
                )
            }
            Self::FlowsStrange { instance, client, vip, local, why } => {
                let such = strange(*why);
                say!(
                    Bad,
                    { %instance, %client, %vip, %local },
                    "{instance} tells of flows that {such}, like that of {client} to {vip}, from {local} on: Baton does not take them"
                )
            }
            Self::FlowsStuck { instance, flows, unforwarded } => {
                let number = plural(*flows as u64, "flow");
                let why = match unforwarded {
                    true => {
                        ": their VIP is on this host now, and without a BPF program nothing here forwards their packets"
                    }
                    false => " to a backend on this host: their source address is on this host now",
                };
                say!(Notice, { %instance, flows }, "Baton resets {number} of {instance}{why}")
            }
            Self::FlowsClaimed { instance, flows } => {
                let number = plural(*flows as u64, "flow");
                say!(often { %instance, flows }, "packets of {number} of {instance} come here")
            }
            Self::FlowsReleased { instance, flows } => {
                let number = plural(*flows as u64, "flow");
                say!(often { %instance, flows }, "packets of {number} come to {instance} now")
            }
            Self::AddressCame { address } => say!(Plain, { %address }, "{address} has come to this host"),
            Self::AddressWent { address } => say!(Plain, { %address }, "{address} has left this host"),
            Self::EvacuationBegun { to, flows } => {
                let number = plural(*flows as u64, "flow");
                let whom = to.as_ref().map_or("another instance", |to| &to.0);
                let to = to.as_ref().map(tracing::field::display);
                say!(Plain, { to, flows }, "Baton begins to evacuate this host: the VIP goes to {whom}, and this host has {number}")
            }
            Self::Evacuated { flows_reset: 0, took_ms } => {
                let took = duration_ms(*took_ms);
                say!(
                    Good,
                    { flows_reset = 0, took_ms },
                    "Baton emptied this host in {took} and reset no flow: an operator may switch the host off"
                )
            }
            Self::Evacuated { flows_reset, took_ms } => {
                let (flows, took) = (plural(*flows_reset, "flow"), duration_ms(*took_ms));
                say!(
                    Notice,
                    { flows_reset, took_ms },
                    "Baton emptied this host in {took} and had to reset {flows}: an operator may switch the host off"
                )
            }
            Self::EvacuationCancelled { why: None } => {
                say!(Plain, {}, "an operator cancelled the evacuation: this host may have the VIP again")
            }
            Self::EvacuationCancelled { why: Some(why) } => {
                say!(Bad, {}, "the evacuation failed, this host may have the VIP again: {why}")
            }
            Self::NamesFailed { source, error, kept } => {
                let (number, stay) = (plural(*kept as u64, "name"), if *kept == 1 { "stays" } else { "stay" });
                say!(Notice, { source, error, kept }, "names of clients are missing: {source}: {error}; {number} {stay}")
            }
            Self::NamesRecovered { source, names } => {
                let number = plural(*names as u64, "name");
                say!(Good, { source, names }, "names of clients come again from {source}: {number}")
            }
            Self::NodesSilent { nodes, more, why, for_ms, refused } => {
                let (who, for_how_long) = (named_nodes(nodes, *more), duration_ms(*for_ms));
                let (why, done) = (why.label(), why.in_words());
                let is_one = nodes.len() + more == 1;
                let have = if is_one { "has" } else { "have" };
                let refused = refused.map_or_else(String::new, |it| format!(": {}", it.in_words(is_one)));
                say!(Notice, { why, for_ms }, "{who} {have} {done} for {for_how_long}{refused}")
            }
            Self::NodesBack { nodes, more, for_ms } => {
                let (who, lasted) = (named_nodes(nodes, *more), duration_ms(*for_ms));
                let are = if nodes.len() + more == 1 { "is" } else { "are" };
                say!(Good, { for_ms }, "{who} {are} heard again after {lasted}")
            }
            Self::RecorderFailed { directory, error } => {
                say!(Notice, { directory, error }, "the recorder cannot write to {directory}: {error}; it tries again each second")
            }
            Self::RecordsDropped { records } => {
                let number = plural(*records, "event");
                say!(Notice, { records }, "the recorder's files lack {number}, which could not be written")
            }
            Self::RecordsTorn { bytes: torn, files } => {
                let whole = if *files > 0 { format!(" and {}", plural(*files, "whole file")) } else { String::new() };
                let torn_bytes = plural(*torn, "byte");
                say!(
                    Notice,
                    { bytes = torn, files },
                    "the recorder's files of before this process are torn: {torn_bytes}{whole} cannot be read, as after a power cut or with a bad \
                     disk; which records these had is not known"
                )
            }
            Self::FlowEnded {
                flow,
                frontend,
                backend,
                backend_address,
                source,
                client,
                node,
                reason,
                duration_ms: lasted_ms,
                connect_us,
                bytes_to_backend,
                bytes_to_client,
                error,
            } => {
                let mut text = format!(
                    "flow {flow} {} → {frontend}/{}: {} after {}, {} to the backend, {} to the client",
                    named(*client, node.as_deref()),
                    backend.as_deref().unwrap_or("-"),
                    reason.label(),
                    duration_ms(*lasted_ms),
                    bytes(*bytes_to_backend as f64),
                    bytes(*bytes_to_client as f64),
                );
                if *connect_us > 0 {
                    text += &format!(", connected in {}", duration_us(*connect_us));
                }
                if let Some(error) = error {
                    text += &format!(" ({error})");
                }
                say!(
                    "baton::flow",
                    Plain,
                    {
                        flow = flow.0,
                        %client,
                        node = node.as_deref(),
                        frontend,
                        backend = backend.as_deref(),
                        backend_address = backend_address.map(tracing::field::display),
                        source = source.map(tracing::field::display),
                        reason = reason.label(),
                        by = reason.by().label(),
                        duration_ms = lasted_ms,
                        connect_us,
                        bytes_to_backend,
                        bytes_to_client,
                        error = error.as_deref(),
                    },
                    "{text}"
                )
            }
        }
    }
}
