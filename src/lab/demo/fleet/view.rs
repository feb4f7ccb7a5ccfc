//! The content of the fleet's display, and the count of the connections that kubelets lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::host::{BatonDuty, FleetLink};
use super::layout::{PORT, VIP};
use super::stage::{FleetError, FleetStage};
use crate::lab::demo::chronicle::{Chronicle, ViewLine};
use crate::lab::demo::process::Condition;
use crate::lab::demo::view::own_name;
use crate::lab::kubelet::{KubeletEvent, Summary};
use crate::sys::clock::ns_of_unix_ms;
use crate::table::journal::What;

/// The state of the fleet at one moment.
#[derive(Clone, Debug)]
pub(super) struct FleetPicture {
    /// Time since the fleet's start.
    pub elapsed: Duration,
    pub layout: &'static str,
    pub hosts: Vec<HostRow>,
    pub kubelets: Vec<Summary>,
    pub lost: Losses,
    /// A command that shows the status of an instance in another terminal.
    pub command: String,
    /// Oldest first.
    pub lines: VecDeque<ViewLine>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostRow {
    pub name: &'static str,
    pub has_vip: bool,
    /// `None`: it does not balance.
    pub baton: Option<BatonState>,
    /// Its flows that are offloaded, and the others.
    pub offloaded: u64,
    pub proxied: u64,
    /// `None`: it has no apiserver.
    pub apiserver: Option<Condition>,
    pub kubelets: usize,
    pub link: FleetLink,
    pub strict: bool,
}

/// What a row says of Baton.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BatonState {
    Serves,
    Does(&'static str),
    Silent,
}

/// Connections that kubelets lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    /// Their apiserver, or its host, was gone or was to go: nobody can keep them.
    pub with_apiserver: u64,
    /// Their apiserver lived.
    pub without_cause: u64,
}

impl Losses {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            with_apiserver: self.with_apiserver - before.with_apiserver,
            without_cause: self.without_cause - before.without_cause,
        }
    }
}

impl BatonState {
    pub(super) fn label(&self) -> &str {
        match self {
            Self::Serves => "serves",
            Self::Does(what) => what,
            Self::Silent => "silent",
        }
    }
}

impl FleetPicture {
    pub(super) fn longest_gap(&self) -> Duration {
        Duration::from_millis(self.kubelets.iter().map(|kubelet| kubelet.longest_gap_ms).max().unwrap_or(0))
    }

    /// The first lines without a terminal.
    pub(super) fn head(&self) -> Vec<String> {
        let hosts: Vec<_> = self.hosts.iter().map(|host| host.name).collect();
        vec![
            format!("{} kubelets connect to the VIP {VIP}:{PORT}; hosts: {}", self.kubelets.len(), hosts.join(", ")),
            format!("or run: {}", self.command),
        ]
    }
}

/// Keeps the lines about events between two pictures, and counts lost connections.
#[derive(Debug, Default)]
pub(super) struct FleetWatcher {
    chronicle: Chronicle,
    /// By host.
    seen: BTreeMap<&'static str, SeenEvents>,
    /// Kubelets that were connected before.
    known: BTreeSet<String>,
    /// The apiserver of each kubelet's present connection.
    served_by: BTreeMap<String, String>,
    lost: Losses,
    /// When each change of a backend was told last: all instances tell the same.
    said: BTreeMap<String, u64>,
}

/// The events of an instance that are known.
#[derive(Clone, Copy, Debug, Default)]
struct SeenEvents {
    pid: u32,
    next: u64,
    last_unix_ms: u64,
}

impl FleetWatcher {
    pub(super) fn lost(&self) -> Losses {
        self.lost
    }

    /// Adds the line of an event that happened at `at_ns`.
    pub(super) fn say_at(&mut self, at_ns: u64, who: &str, text: impl Into<String>) {
        self.chronicle.add(at_ns, who, text);
    }

    /// The lines to print now.
    pub(super) fn due(&mut self) -> Vec<ViewLine> {
        self.chronicle.due()
    }

    /// All lines that are not printed yet.
    pub(super) fn rest(&mut self) -> Vec<ViewLine> {
        self.chronicle.rest()
    }

    /// Takes in the events of all since the last call.
    pub(super) fn gather(&mut self, stage: &mut FleetStage) -> Result<(), FleetError> {
        for (at_ns, who, text) in stage.look_after()? {
            self.chronicle.add(at_ns, who, text);
        }
        for host in &stage.hosts {
            if let Some(baton) = &host.baton {
                let status = baton.status.borrow();
                let seen = self.seen.entry(host.plan.name).or_default();
                if status.instance.pid == 0 {
                    continue;
                }
                if status.instance.pid != seen.pid {
                    // The numbers of another process, which may have the events of the one before.
                    *seen = SeenEvents { pid: status.instance.pid, next: 0, ..*seen };
                }
                let (events, next) = status.events_since(seen.next);
                seen.next = next;
                let before = seen.last_unix_ms;
                for event in events.into_iter().filter(|event| event.at_unix_ms > before) {
                    seen.last_unix_ms = seen.last_unix_ms.max(event.at_unix_ms);
                    let at_ns = ns_of_unix_ms(event.at_unix_ms);
                    // A host that is cut off finds all others dead.
                    let is_heard = at_ns > self.chronicle.start_ns()
                        && (host.link == FleetLink::Up || matches!(event.what, What::VipGivenUp { .. }));
                    if is_heard && is_worth_a_line(&event.what) && is_new(&mut self.said, &event.what, at_ns) {
                        self.chronicle.add(at_ns, host.plan.name, event.what.sentence());
                    }
                }
            }
        }
        self.gather_clients(stage);
        Ok(())
    }

    fn gather_clients(&mut self, stage: &mut FleetStage) {
        let FleetStage { clients, hosts, .. } = stage;
        for client in clients {
            let name = client.kubelet.summary().name;
            while let Ok(seen) = client.observed.try_recv() {
                let at_ns = client.start_ns + seen.at_ms * 1_000_000;
                match seen.event {
                    KubeletEvent::Connected { stand_in, .. } => {
                        let stand_in = stand_in.unwrap_or_default();
                        if !self.known.insert(name.clone()) {
                            self.chronicle.add(at_ns, &name, format!("connected again, to {stand_in}"));
                        }
                        self.served_by.insert(name.clone(), stand_in);
                    }
                    KubeletEvent::Disconnected { .. } => {
                        let served_by = self.served_by.remove(&name).unwrap_or_default();
                        let its = hosts.iter().find(|host| host.plan.name == served_by);
                        let with_apiserver = its.is_some_and(|host| host.apiserver_was_away(at_ns));
                        let text = match with_apiserver {
                            true => format!("lost its connection: {served_by} is gone"),
                            false => format!("LOST its connection, although {served_by} lives"),
                        };
                        match with_apiserver {
                            true => self.lost.with_apiserver += 1,
                            false => self.lost.without_cause += 1,
                        }
                        self.chronicle.add(at_ns, &name, text);
                    }
                    _ => {}
                }
            }
        }
    }

    pub(super) fn view(&self, stage: &FleetStage) -> FleetPicture {
        let hosts = stage.hosts.iter().map(|host| {
            let (mut offloaded, mut proxied) = (0, 0);
            let baton = host.baton.as_ref().map(|baton| {
                let status = baton.status.borrow();
                let flows = status.totals.flows;
                (offloaded, proxied) = (flows.offloaded, flows.accepted + flows.connecting + flows.proxied);
                match baton.duty {
                    BatonDuty::Killed { .. } => BatonState::Does("killed"),
                    BatonDuty::Evacuating => BatonState::Does("evacuates"),
                    BatonDuty::Evacuated => BatonState::Does("evacuated"),
                    BatonDuty::Upgrading => BatonState::Does("upgrades"),
                    BatonDuty::Serves if host.link == FleetLink::Pulled => BatonState::Does("cut off"),
                    BatonDuty::Serves if status.instance.phase == "serving" => BatonState::Serves,
                    BatonDuty::Serves => BatonState::Silent,
                }
            });
            HostRow {
                name: host.plan.name,
                has_vip: host.has_vip(),
                baton,
                offloaded,
                proxied,
                apiserver: host.apiserver.as_ref().map(|it| it.condition()),
                kubelets: stage.kubelets_of(host),
                link: host.link,
                strict: host.strict,
            }
        });
        FleetPicture {
            elapsed: self.chronicle.elapsed(),
            layout: stage.layout.in_words(),
            hosts: hosts.collect(),
            kubelets: stage.clients.iter().map(|client| client.kubelet.summary()).collect(),
            lost: self.lost,
            command: format!("{} {} status", own_name(), stage.command()),
            lines: self.chronicle.lines().clone(),
        }
    }
}

/// Whether the event gets a line: three instances tell more than anyone reads.
fn is_worth_a_line(what: &What) -> bool {
    match what {
        What::FailedOver { inherited, reset, .. } => inherited + reset > 0,
        What::BackendChanged { from, to, .. } => from != to,
        What::VipGained { .. }
        | What::VipGivenUp { .. }
        | What::OffloadRecovered { .. }
        | What::EvacuationBegun { .. }
        | What::EvacuationCancelled { .. } => true,
        _ => false,
    }
}

/// Whether no other instance has said the same a moment ago.
fn is_new(said: &mut BTreeMap<String, u64>, what: &What, at_ns: u64) -> bool {
    // The cause of a change is a matter of the instance that found it.
    let key = match what {
        What::BackendChanged { frontend, backend, to, .. } => format!("{frontend}/{backend} {}", to.label()),
        _ => return true,
    };
    let last = said.insert(key, at_ns);
    last.is_none_or(|last| at_ns.abs_diff(last) > SAME.as_nanos() as u64)
}

const SAME: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::health::{Cause, HealthState};

    #[test]
    fn three_instances_that_find_the_same_say_it_once() {
        let change = |to| What::BackendChanged {
            frontend: "apiserver".to_owned(),
            backend: "cp1".to_owned(),
            from: HealthState::Ready,
            to,
            cause: Cause::Passed,
        };
        let mut said = BTreeMap::new();
        let mut new = |to, at_s: u64| is_new(&mut said, &change(to), at_s * 1_000_000_000);
        assert!(new(HealthState::Ejected, 100));
        assert!(!new(HealthState::Ejected, 101));
        assert!(new(HealthState::Ready, 102));
        assert!(new(HealthState::Ejected, 120), "the next fault");
    }
}
