//! The content of the fleet's display, and the count of the connections that kubelets lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::host::{Balancer, Duty, FleetLink};
use super::layout::{BalancerKind, VIP};
use super::stage::{FleetError, FleetStage};
use crate::lab::demo::BUDGET;
use crate::lab::demo::chronicle::{Chronicle, EventTimes, ViewLine};
use crate::lab::demo::process::Condition;
use crate::lab::demo::view::own_name;
use crate::lab::kubelet::{KubeletEvent, Summary};
use crate::sys::clock::now_ns;
use crate::table::journal::What;

/// The state of the fleet at one moment.
#[derive(Clone, Debug)]
pub(super) struct FleetPicture {
    /// Time since the fleet's start.
    pub elapsed: Duration,
    pub layout: &'static str,
    /// The port of the VIP.
    pub port: u16,
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
    pub balancer: Option<BalancerState>,
    /// Baton's flows that are offloaded, and the others.
    pub offloaded: u64,
    pub proxied: u64,
    /// `None`: it has no apiserver.
    pub apiserver: Option<Condition>,
    pub kubelets: usize,
    pub link: FleetLink,
    pub strict: bool,
}

/// What a row says of the balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BalancerState {
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
    /// They gave neither an answer nor an end for as long as [`BUDGET`], whoever was gone.
    pub hung: u64,
}

impl Losses {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            with_apiserver: self.with_apiserver - before.with_apiserver,
            without_cause: self.without_cause - before.without_cause,
            hung: self.hung - before.hung,
        }
    }
}

impl BalancerState {
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
            format!(
                "{} kubelets connect to the VIP {VIP}:{}; hosts: {}",
                self.kubelets.len(),
                self.port,
                hosts.join(", ")
            ),
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
    /// Kubelets whose present connection is counted as hung.
    hung: BTreeSet<String>,
    lost: Losses,
    /// The host that had the VIP last.
    holder: Option<usize>,
    telling: FleetTelling,
    /// When each change of a backend was told last: all instances tell the same.
    said: BTreeMap<String, u64>,
}

/// How the lines are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FleetTelling {
    /// Each kubelet by itself.
    #[default]
    Alone,
    /// Two fleets share the lines, so kubelets that lost theirs together share one, and the other fleet's lines say so.
    Beside(BalancerKind),
}

/// What happened to a kubelet's connection. Those that are equal can share a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum KubeletTurn {
    WithApiserver,
    Lost,
    Back,
}

impl KubeletTurn {
    fn in_words(self, apiserver: &str) -> String {
        match self {
            Self::WithApiserver => format!("lost its connection: {apiserver} is gone"),
            Self::Lost => format!("LOST its connection, although {apiserver} lives"),
            Self::Back => format!("connected again, to {apiserver}"),
        }
    }

    /// For `count` kubelets at once.
    fn of_several(self, count: usize) -> String {
        match self {
            Self::WithApiserver => format!("{count} lost their connections with their apiserver"),
            Self::Lost => format!("{count} LOST their connections, although their apiservers live"),
            Self::Back => format!("{count} connected again"),
        }
    }
}

/// The events of an instance that are known.
#[derive(Clone, Copy, Debug, Default)]
struct SeenEvents {
    pid: u32,
    next: u64,
    last_unix_ms: u64,
    times: EventTimes,
}

impl FleetWatcher {
    /// A watcher for each of one or two fleets.
    pub(super) fn for_each_of(stages: &[FleetStage]) -> Vec<Self> {
        let telling =
            |stage: &FleetStage| if stages.len() > 1 { FleetTelling::Beside(stage.kind) } else { FleetTelling::Alone };
        stages.iter().map(|stage| Self { telling: telling(stage), ..Self::default() }).collect()
    }

    pub(super) fn lost(&self) -> Losses {
        self.lost
    }

    /// Adds the line of an event that happened at `at_ns`.
    pub(super) fn say_at(&mut self, at_ns: u64, who: &str, text: impl Into<String>) {
        self.add(at_ns, who, text.into());
    }

    fn add(&mut self, at_ns: u64, who: &str, text: String) {
        match self.telling {
            FleetTelling::Beside(BalancerKind::Haproxy) if who == "you" => self.chronicle.add(at_ns, "haproxy", text),
            FleetTelling::Beside(BalancerKind::Haproxy) => {
                self.chronicle.add(at_ns, "haproxy", format!("{who}: {text}"))
            }
            _ => self.chronicle.add(at_ns, who, text),
        }
    }

    pub(super) fn chronicle(&mut self) -> &mut Chronicle {
        &mut self.chronicle
    }

    /// Takes in the events of all since the last call.
    pub(super) fn gather(&mut self, stage: &mut FleetStage) -> Result<(), FleetError> {
        for (at_ns, who, text) in stage.look_after()? {
            self.add(at_ns, who, text);
        }
        for host in &stage.hosts {
            if let Some(baton) = host.baton() {
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
                    let at_ns = seen.times.next_ns(event.at_unix_ms);
                    // A host that is cut off finds all others dead.
                    let is_heard = at_ns > self.chronicle.start_ns()
                        && (host.link == FleetLink::Up || matches!(event.what, What::VipGivenUp { .. }));
                    if is_heard && is_worth_a_line(&event.what) && is_new(&mut self.said, &event.what, at_ns) {
                        self.chronicle.add(at_ns, host.plan.name, event.what.sentence());
                    }
                }
            }
        }
        self.gather_holder(stage);
        self.gather_clients(stage);
        Ok(())
    }

    /// keepalived tells nobody that the VIP has moved.
    fn gather_holder(&mut self, stage: &FleetStage) {
        let Some(holder) = stage.holder() else { return };
        let before = self.holder.replace(holder);
        if stage.kind == BalancerKind::Haproxy && before.is_some_and(|before| before != holder) {
            self.add(now_ns(), stage.hosts[holder].plan.name, format!("this host has the VIP {VIP} now"));
        }
    }

    fn gather_clients(&mut self, stage: &mut FleetStage) {
        let FleetStage { clients, hosts, .. } = stage;
        let mut turns = Vec::new();
        for client in clients {
            let summary = client.kubelet.summary();
            let name = summary.name;
            while let Ok(seen) = client.observed.try_recv() {
                let at_ns = client.start_ns + seen.at_ms * 1_000_000;
                match seen.event {
                    KubeletEvent::Connected { stand_in, .. } => {
                        let stand_in = stand_in.unwrap_or_default();
                        if !self.known.insert(name.clone()) {
                            turns.push((at_ns, name.clone(), KubeletTurn::Back, stand_in.clone()));
                        }
                        self.served_by.insert(name.clone(), stand_in);
                        self.hung.remove(&name);
                    }
                    KubeletEvent::Disconnected { .. } => {
                        let served_by = self.served_by.remove(&name).unwrap_or_default();
                        let its = hosts.iter().find(|host| host.plan.name == served_by);
                        let with_apiserver = its.is_some_and(|host| host.apiserver_was_away(at_ns));
                        let (counter, turn) = match with_apiserver {
                            true => (&mut self.lost.with_apiserver, KubeletTurn::WithApiserver),
                            false => (&mut self.lost.without_cause, KubeletTurn::Lost),
                        };
                        *counter += 1;
                        turns.push((at_ns, name.clone(), turn, served_by));
                    }
                    _ => {}
                }
            }
            let is_silent = u128::from(summary.last_renewal_ms) >= BUDGET.as_millis();
            if is_silent && self.served_by.contains_key(&name) && self.hung.insert(name) {
                self.lost.hung += 1;
            }
        }
        self.tell(turns);
    }

    /// Tells when each kubelet lost or got a connection: its name and its apiserver.
    fn tell(&mut self, turns: Vec<(u64, String, KubeletTurn, String)>) {
        if self.telling == FleetTelling::Alone {
            for (at_ns, name, turn, apiserver) in turns {
                self.add(at_ns, &name, turn.in_words(&apiserver));
            }
            return;
        }
        let mut groups: BTreeMap<KubeletTurn, Vec<(u64, String, String)>> = BTreeMap::new();
        for (at_ns, name, turn, apiserver) in turns {
            groups.entry(turn).or_default().push((at_ns, name, apiserver));
        }
        for (turn, kubelets) in groups {
            match kubelets.as_slice() {
                [(at_ns, name, apiserver)] => self.add(*at_ns, name, turn.in_words(apiserver)),
                [(at_ns, ..), ..] => self.add(*at_ns, "nodes", turn.of_several(kubelets.len())),
                [] => {}
            }
        }
    }

    pub(super) fn view(&self, stage: &FleetStage) -> FleetPicture {
        let hosts = stage.hosts.iter().map(|host| {
            let (mut offloaded, mut proxied) = (0, 0);
            let balancer = host.balancer.as_ref().map(|balancer| {
                let serves = match balancer {
                    Balancer::Haproxy(_) => true,
                    Balancer::Baton(baton) => {
                        let status = baton.status.borrow();
                        let flows = status.totals.flows;
                        (offloaded, proxied) = (flows.offloaded, flows.accepted + flows.connecting + flows.proxied);
                        status.instance.phase == "serving"
                    }
                };
                match host.duty().unwrap_or(Duty::Serves) {
                    Duty::Killed { .. } => BalancerState::Does("killed"),
                    Duty::Evacuating => BalancerState::Does("evacuates"),
                    Duty::Evacuated => BalancerState::Does("evacuated"),
                    Duty::Upgrading => BalancerState::Does("upgrades"),
                    Duty::Serves if host.link == FleetLink::Pulled => BalancerState::Does("cut off"),
                    Duty::Serves if serves => BalancerState::Serves,
                    Duty::Serves => BalancerState::Silent,
                }
            });
            HostRow {
                name: host.plan.name,
                has_vip: host.has_vip(),
                balancer,
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
            port: stage.kind.port(stage.layout),
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
