//! Starts and ends the hosts of the fleet and its kubelets, and carries out the keys.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::baton::FleetBaton;
use super::files::FleetFiles;
use super::haproxy::{FleetHaproxy, STOP_WITHIN};
use super::host::{Balancer, Duty, FleetHost, FleetLink};
use super::layout::{BalancerKind, FleetLayout, KUBELETS, PORT, VIP};
use super::orders::{OrderOutcome, OrderOver, over};
use crate::addr::VipAddr;
use crate::admin::client::{Client, ClientError};
use crate::admin::evacuate::{EvacuationReport, EvacuationRequest};
use crate::admin::protocol::Command;
use crate::admin::upgrade::UpgradeRequest;
use crate::lab::certs::{Authority, CertError, Flaw};
use crate::lab::demo::baton::status;
use crate::lab::demo::guard::{DIR_PREFIX, Guard};
use crate::lab::demo::process::{Condition, ProcessError, Recipe, StandInProcess};
use crate::lab::demo::space::{self, NetSpace, SpaceError};
use crate::lab::demo::stage::{DemoClient, Dir, SHUTDOWN_DELAY, WATCH_PERIOD};
use crate::lab::kubelet::{KubeletSettings, Summary};
use crate::lab::tls::{self, TlsFileError};
use crate::sys::clock::now_ns;

#[derive(Debug, thiserror::Error)]
pub(crate) enum FleetError {
    #[error("--fleet: {0}; `baton demo` needs nothing of this")]
    Impossible(String),
    #[error("--compare haproxy: it needs {missing}: apt-get install {missing}")]
    NothingToCompare { missing: String },
    #[error("the files of the fleet: {0}")]
    Files(#[from] io::Error),
    #[error(transparent)]
    Space(#[from] SpaceError),
    #[error(transparent)]
    Certs(#[from] CertError),
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    #[error(transparent)]
    StandIn(#[from] ProcessError),
    #[error("{balancer} of {host} ended. Its last words:\n{last_words}")]
    BalancerEnded { balancer: &'static str, host: &'static str, last_words: String },
    #[error("after {} s this was still awaited: {awaited}\n{last_words}", within.as_secs())]
    Awaited { awaited: String, within: Duration, last_words: String },
    #[error("the terminal: {0}")]
    Terminal(#[source] io::Error),
    #[error("the tour was ended before it was over")]
    CutShort,
}

/// A key of the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FleetKey {
    /// SIGKILL to the apiserver with the most kubelets.
    KillApiserver,
    /// SIGKILL to the VIP's balancer; it starts again after [`RESTART`].
    KillBalancer,
    /// Cuts the VIP's host off.
    PullPlug,
    Evacuate,
    Upgrade,
    /// Each host without the VIP drops packets of connections that it has not tracked, or no longer.
    Firewall,
    /// Undoes all of these.
    Repair,
}

/// All hosts, processes and tasks of the fleet. Dropping it ends them; the guard then removes the namespaces.
#[derive(Debug)]
pub(super) struct FleetStage {
    pub layout: FleetLayout,
    pub kind: BalancerKind,
    pub clients: Vec<DemoClient>,
    pub hosts: Vec<FleetHost>,
    switch: NetSpace,
    network: Option<Runtime>,
    orders: (mpsc::UnboundedSender<OrderOver>, mpsc::UnboundedReceiver<OrderOver>),
    dir: Dir,
    guard: Guard,
}

impl FleetStage {
    /// Starts everything, and returns once all kubelets are served; with Baton, by offloaded flows.
    pub(super) async fn start(kind: BalancerKind, layout: FleetLayout, kubelets: usize) -> Result<Self, FleetError> {
        let program = std::env::current_exe()?;
        space::sweep(DIR_PREFIX, &program);
        let dir = Dir::create(kind.suffix())?;
        let demo = dir.0.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut guard = Guard::start(&program, &dir.0)?;
        let switch = NetSpace::make(format!("{demo}-switch"))?;
        switch.ip("link add br0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0\nlink set br0 up\n")?;
        let kubelets_space = lay_out(&demo, &switch, "kubelets", KUBELETS.into())?;
        let mut hosts = Vec::new();
        for plan in layout.hosts() {
            let host = lay_out(&demo, &switch, plan.name, plan.address.into())?;
            for (parameter, value) in sysctls().filter(|_| kind == BalancerKind::Baton) {
                // Conntrack may not be loaded.
                match host.set(parameter.trim_start_matches('-'), value) {
                    Err(error) if !parameter.starts_with('-') => return Err(error.into()),
                    _ => {}
                }
            }
            let mut host = FleetHost::new(plan, host);
            // Without nft or conntrack, only the key for the firewall does nothing, and says why.
            let _ = host.set_strict(false);
            hosts.push(host);
        }
        let authority = Authority::new()?;
        let ca = authority.write(&dir.0)?;
        for host in hosts.iter_mut().filter(|host| host.plan.has_apiserver) {
            let names = [VIP.to_string(), host.plan.address.to_string()];
            let recipe = Recipe {
                program: program.clone(),
                name: host.plan.name.to_owned(),
                certs: authority.issue(&dir.0, host.plan.name, &names, Flaw::None)?,
                watch_period: WATCH_PERIOD,
                shutdown_delay: SHUTDOWN_DELAY,
                space: Some(host.space.clone()),
            };
            // As kube-apiserver binds it.
            let everywhere = SocketAddr::from(([0, 0, 0, 0], PORT));
            host.apiserver = Some(StandInProcess::start(recipe, everywhere, Some(&mut guard)).await?);
        }
        let files = FleetFiles::write(&dir.0, &ca, layout)?;
        for (number, host) in hosts.iter_mut().filter(|host| host.plan.balances).enumerate() {
            let stem = dir.0.join(host.plan.name);
            host.balancer = Some(match kind {
                BalancerKind::Baton => {
                    std::fs::write(stem.with_extension("toml"), files.configuration(&host.plan, &host.space, &stem))?;
                    let status = status::follow_socket(stem.with_extension("sock"));
                    Balancer::Baton(FleetBaton::new(program.clone(), &stem, status))
                }
                BalancerKind::Haproxy => {
                    Balancer::Haproxy(FleetHaproxy::new(&stem, &host.space, kind.port(layout), number == 0)?)
                }
            });
            host.start_balancer(&mut guard)?;
        }
        let network = network_of(&kubelets_space)?;
        let orders = mpsc::unbounded_channel();
        let clients = Vec::new();
        let mut stage = Self { layout, kind, clients, hosts, switch, network: Some(network), orders, dir, guard };
        stage.until("one host has the VIP, and all know each other", START_WITHIN, Self::is_whole).await?;
        if kind == BalancerKind::Haproxy {
            stage.until_settled().await?;
        }
        stage.start_clients(kubelets, &ca)?;
        stage.until("all kubelets are served by the VIP", START_WITHIN, Self::is_calm).await?;
        Ok(stage)
    }

    fn start_clients(&mut self, kubelets: usize, ca: &Path) -> Result<(), FleetError> {
        let tls = tls::client_config(ca)?;
        // Tasks of that runtime have the kubelets' network.
        let _entered = self.network.as_ref().map(Runtime::enter);
        for number in 1..=kubelets {
            let server = VipAddr::new(SocketAddr::from((VIP, self.kind.port(self.layout))));
            self.clients.push(DemoClient::start(KubeletSettings::new(server, tls.clone(), format!("node-{number}"))));
        }
        Ok(())
    }

    /// Waits until keepalived's checks have passed, before which it moves the VIP to and fro: what this costs the kubelets
    /// is no effect of a key.
    async fn until_settled(&mut self) -> Result<(), FleetError> {
        let mut since = Instant::now();
        let deadline = since + START_WITHIN;
        while since.elapsed() < CHECKS_PASS {
            self.look_after()?;
            if !self.is_whole() {
                since = Instant::now();
            }
            if Instant::now() > deadline {
                return Err(self.late("keepalived leaves the VIP on the first host", START_WITHIN));
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Waits until `holds`.
    async fn until(
        &mut self,
        awaited: &str,
        within: Duration,
        holds: impl Fn(&Self) -> bool,
    ) -> Result<(), FleetError> {
        let deadline = Instant::now() + within;
        while !holds(self) {
            self.look_after()?;
            if Instant::now() > deadline {
                return Err(self.late(awaited, within));
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// The error of a wait that took too long.
    pub(super) fn late(&self, awaited: &str, within: Duration) -> FleetError {
        let words = self.hosts.iter().filter_map(|host| {
            let state = match host.balancer.as_ref()? {
                Balancer::Baton(baton) => {
                    let status = baton.status.borrow();
                    format!("{}, {:?}, {:?}", status.instance.phase, status.totals.flows, status.fleet.peers)
                }
                Balancer::Haproxy(_) => format!("{:?}", host.duty()),
            };
            let label = self.kind.label();
            Some(format!("{label} of {}: {state}. Its last words:\n{}", host.plan.name, host.last_words()))
        });
        let last_words = words.collect::<Vec<_>>().join("\n");
        FleetError::Awaited { awaited: awaited.to_owned(), within, last_words }
    }

    /// Every balancer serves, every apiserver is ready, and one host has the VIP. Every Baton knows all flows of the
    /// others. keepalived has given the VIP back to the host that it prefers.
    pub(super) fn is_whole(&self) -> bool {
        let mut batons = self.hosts.iter().filter_map(FleetHost::baton);
        let peers = batons.clone().count().saturating_sub(1);
        let is_well = |baton: &FleetBaton| {
            let status = baton.status.borrow();
            status.all_ready() && status.all_synced() && status.fleet.peers.len() == peers
        };
        let unharmed = self.hosts.iter().all(|host| host.link == FleetLink::Up);
        let serve = self.hosts.iter().all(|host| host.duty().is_none_or(|duty| duty == Duty::Serves));
        let holder = self.holder();
        let is_home = self.kind == BalancerKind::Baton || holder == Some(0);
        let holders = self.hosts.iter().filter(|host| host.has_vip()).count();
        unharmed && serve && is_home && batons.all(is_well) && holders == 1
    }

    /// As [`FleetStage::is_whole`], and each kubelet is served; with Baton, by an offloaded flow, which all hosts know.
    pub(super) fn is_calm(&self) -> bool {
        self.is_whole() && self.all_served() && (self.kind == BalancerKind::Haproxy || self.is_offloaded())
    }

    fn is_offloaded(&self) -> bool {
        let clients = self.clients.len() as u64;
        let (mut offloaded, mut proxied, mut untold, mut known) = (0, 0, 0, Vec::new());
        for host in &self.hosts {
            let Some(baton) = host.baton() else { continue };
            let status = baton.status.borrow();
            let flows = status.totals.flows;
            offloaded += flows.offloaded;
            proxied += flows.accepted + flows.connecting + flows.proxied;
            // No other host can carry on the flows to its own apiserver, so it tells none of them.
            untold += flows.offloaded.min(self.kubelets_of(host) as u64);
            known.push(flows.offloaded + status.fleet.peers.iter().map(|peer| peer.offloaded).sum::<u64>());
        }
        let is_told = known.iter().all(|known| known + untold >= clients);
        offloaded >= clients && proxied == 0 && is_told
    }

    /// Every kubelet is connected, and its last renewal is fresh.
    pub(super) fn all_served(&self) -> bool {
        let served = |it: &Summary| it.stand_in.is_some() && it.renewals > 0 && it.last_renewal_ms < FRESH_MS;
        self.clients.iter().all(|client| served(&client.kubelet.summary()))
    }

    /// The host that has the VIP.
    pub(super) fn holder(&self) -> Option<usize> {
        self.hosts.iter().position(FleetHost::has_vip)
    }

    /// Number of kubelets that this host's apiserver serves.
    pub(super) fn kubelets_of(&self, host: &FleetHost) -> usize {
        let is_its = |client: &&DemoClient| client.kubelet.summary().stand_in.as_deref() == Some(host.plan.name);
        self.clients.iter().filter(is_its).count()
    }

    /// Restarts whatever is due, and fails if a Baton ended by itself. Returns sentences about orders that are over, each
    /// with its time and the host's name.
    pub(super) fn look_after(&mut self) -> Result<Vec<(u64, &'static str, String)>, FleetError> {
        let mut said = Vec::new();
        while let Ok(OrderOver { host, at_ns, outcome }) = self.orders.1.try_recv() {
            let host = &mut self.hosts[host];
            said.push((at_ns, host.plan.name, over(host, outcome)));
        }
        for host in &mut self.hosts {
            let Some(label) = host.balancer.as_ref().map(Balancer::label) else { continue };
            if let Some(Duty::Killed { starts_ns }) = host.duty()
                && starts_ns <= now_ns()
            {
                host.start_balancer(&mut self.guard)?;
                said.push((now_ns(), host.plan.name, format!("{label} was started again, as systemd does it")));
            } else if host.has_failed(&mut self.guard) {
                let last_words = host.last_words();
                return Err(FleetError::BalancerEnded { balancer: label, host: host.plan.name, last_words });
            }
            if let Some(done) = host.carry_out(&mut self.guard)? {
                said.push((now_ns(), host.plan.name, done));
            }
        }
        Ok(said)
    }

    /// Carries out `key` and returns a sentence about it.
    pub(super) async fn press(&mut self, key: FleetKey) -> Result<String, FleetError> {
        let holder = self.holder();
        let busiest = |stage: &Self| {
            let lives =
                |host: &&FleetHost| host.apiserver.as_ref().is_some_and(|it| it.condition() == Condition::Running);
            let busiest = stage.hosts.iter().filter(lives).max_by_key(|host| stage.kubelets_of(host))?;
            stage.hosts.iter().position(|host| host.plan.name == busiest.plan.name)
        };
        match (key, holder) {
            (FleetKey::KillApiserver, _) => match busiest(self) {
                None => Ok("no apiserver is left: press r".to_owned()),
                Some(host) => {
                    let host = &mut self.hosts[host];
                    host.kill_apiserver();
                    Ok(format!("killed the apiserver of {} (SIGKILL)", host.plan.name))
                }
            },
            (FleetKey::Firewall, holder) => self.switch_firewalls(holder),
            (FleetKey::Repair, _) => self.repair().await,
            (_, None) => Ok("no host has the VIP now: wait, or press r".to_owned()),
            (key, Some(holder)) => self.press_holder(key, holder),
        }
    }

    /// A key that acts on the host with the VIP.
    fn press_holder(&mut self, key: FleetKey, holder: usize) -> Result<String, FleetError> {
        let host = &mut self.hosts[holder];
        let name = host.plan.name;
        let busy = host.duty() != Some(Duty::Serves);
        let within = EVACUATE_WITHIN.as_secs();
        let done = match (key, &mut host.balancer) {
            (FleetKey::PullPlug, _) => self.pull_plug(holder)?,
            _ if busy => format!("{name} is busy: wait, or press r"),
            (FleetKey::KillBalancer, balancer) => {
                let label = balancer.as_ref().map_or("", Balancer::label);
                host.kill_balancer();
                host.set_duty(Duty::Killed { starts_ns: now_ns() + RESTART.as_nanos() as u64 });
                format!("killed {label} on {name} (SIGKILL); it starts again after {} ms", RESTART.as_millis())
            }
            (FleetKey::Evacuate, Some(Balancer::Haproxy(haproxy))) => {
                haproxy.evacuate(EVACUATE_WITHIN);
                host.set_duty(Duty::Evacuating);
                format!("stopped keepalived on {name} (SIGTERM); haproxy has {within} s to end its connections")
            }
            (_, Some(Balancer::Haproxy(haproxy))) => {
                haproxy.upgrade();
                host.set_duty(Duty::Upgrading);
                format!("replaces haproxy on {name}: SIGUSR1, SIGKILL after {} s, a new one", STOP_WITHIN.as_secs())
            }
            (FleetKey::Evacuate, _) => {
                host.set_duty(Duty::Evacuating);
                let deadline_ms = EVACUATE_WITHIN.as_millis() as u64;
                let command = Command::Evacuate(EvacuationRequest { to: None, deadline_ms });
                let outcome = |report| OrderOutcome::Evacuated(Box::new(report));
                self.order(holder, "evacuate", command, outcome);
                format!("baton evacuate --deadline {within}s on {name}")
            }
            _ => {
                host.set_duty(Duty::Upgrading);
                let outcome = |upgraded| OrderOutcome::Upgraded(Box::new(upgraded));
                self.order(holder, "upgrade", Command::Upgrade(UpgradeRequest::default()), outcome);
                format!("baton upgrade on {name}")
            }
        };
        Ok(done)
    }

    /// Cuts a host off.
    pub(super) fn pull_plug(&mut self, host: usize) -> Result<String, FleetError> {
        let host = &mut self.hosts[host];
        host.plug(&self.switch, FleetLink::Pulled)?;
        Ok(format!("pulled the plug of {}: no packet reaches or leaves it", host.plan.name))
    }

    /// All hosts but the one with the VIP drop what they have not tracked; if one does already, none does any more.
    fn switch_firewalls(&mut self, holder: Option<usize>) -> Result<String, FleetError> {
        let strict = !self.hosts.iter().any(|host| host.strict);
        let balancers = self.hosts.iter_mut().enumerate().filter(|(_, host)| host.plan.balances);
        let mut names = Vec::new();
        for (number, host) in balancers {
            if (strict && Some(number) != holder) || (!strict && host.strict) {
                if let Err(error) = host.set_strict(strict) {
                    return Ok(format!(
                        "no firewall: {error}; it needs nft(8) and conntrack: apt-get install nftables"
                    ));
                }
                names.push(host.plan.name);
            }
        }
        let verb = if strict { "now drop" } else { "no longer drop" };
        Ok(format!("the firewalls of {} {verb} packets of connections that they have not tracked", names.join(", ")))
    }

    async fn repair(&mut self) -> Result<String, FleetError> {
        for number in 0..self.hosts.len() {
            let Self { hosts, switch, guard, .. } = self;
            let host = &mut hosts[number];
            if host.link == FleetLink::Pulled {
                host.plug(switch, FleetLink::Up)?;
            }
            if host.strict {
                host.set_strict(false)?;
            }
            if host.apiserver.as_ref().is_some_and(|it| it.condition() == Condition::Killed) {
                host.start_apiserver(guard).await?;
            }
            match host.duty() {
                Some(Duty::Killed { .. }) => host.set_duty(Duty::Killed { starts_ns: now_ns() }),
                Some(Duty::Evacuated | Duty::Evacuating) if self.kind == BalancerKind::Haproxy => {
                    if let Some(Balancer::Haproxy(haproxy)) = &mut host.balancer {
                        haproxy.end();
                    }
                    host.start_balancer(guard)?;
                }
                Some(Duty::Evacuated | Duty::Evacuating) => {
                    self.order(number, "cancel", Command::CancelEvacuation {}, |_: EvacuationReport| {
                        OrderOutcome::Cancelled
                    });
                }
                _ => {}
            }
        }
        Ok("repaired everything".to_owned())
    }

    /// Sends an order to an instance; [`FleetStage::look_after`] tells when it is over.
    fn order<T: serde::de::DeserializeOwned>(
        &self,
        host: usize,
        verb: &'static str,
        command: Command,
        outcome: impl FnOnce(T) -> OrderOutcome + Send + 'static,
    ) {
        let Some(baton) = self.hosts[host].baton() else { return };
        let (socket, sender): (PathBuf, _) = (baton.socket.clone(), self.orders.0.clone());
        tokio::task::spawn_blocking(move || {
            let asked = Client::connect(&socket).and_then(|mut client| {
                client.list(&command, |_: serde_json::Value| ControlFlow::Continue(()))?.ok_or(ClientError::Cut)
            });
            let outcome = asked.map_or_else(|error| OrderOutcome::Failed(verb, error), outcome);
            // The demo may be over.
            let _ = sender.send(OrderOver { host, at_ns: now_ns(), outcome });
        });
    }

    /// The command for another terminal.
    pub(super) fn command(&self) -> String {
        let host = self.hosts.first().map_or("", |host| host.plan.name);
        format!("--socket {}/{host}.sock", self.dir.0.display())
    }

    /// Ends everything.
    pub(super) fn stop(self) {
        drop(self);
    }
}

impl Drop for FleetStage {
    fn drop(&mut self) {
        self.clients.clear();
        if let Some(network) = self.network.take() {
            // A runtime must not wait for its threads inside another one.
            network.shutdown_background();
        }
    }
}

/// A host with this address on the switch.
fn lay_out(demo: &str, switch: &NetSpace, name: &str, address: IpAddr) -> Result<NetSpace, SpaceError> {
    let space = NetSpace::make(format!("{demo}-{name}"))?;
    let other = space.name();
    switch.ip(&format!("link add {name} type veth peer name eth0 netns {other}\nlink set {name} master br0 up\n"))?;
    space.ip(&format!("address add {address}/24 dev eth0\nlink set eth0 up\n"))?;
    Ok(space)
}

/// A runtime whose threads are in `space`.
fn network_of(space: &NetSpace) -> io::Result<Runtime> {
    // Once here, so that the threads below can do it, too.
    space.inside(|| Ok(()))?;
    let space = space.clone();
    let enter = move || space.enter().expect("another thread has entered it");
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).on_thread_start(enter).enable_all().build()
}

/// The kernel settings that Baton ships for the hosts of a fleet.
fn sysctls() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = include_str!("../../../../deploy/sysctl/90-baton.conf").lines();
    lines.filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (parameter, value) = line.split_once('=')?;
        Some((parameter.trim(), value.trim()))
    })
}

/// Less than the time until another host takes the VIP.
const RESTART: Duration = Duration::from_millis(500);
/// Connections to the host's own apiserver end then.
pub(super) const EVACUATE_WITHIN: Duration = Duration::from_secs(3);
/// Two checks at the guide's interval of 3 s, and a moment.
const CHECKS_PASS: Duration = Duration::from_secs(7);
const START_WITHIN: Duration = Duration::from_secs(30);
/// One and a half intervals of renewals.
const FRESH_MS: u64 = 1500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shipped_kernel_settings_are_read() {
        let settings: Vec<_> = sysctls().collect();
        assert!(settings.contains(&("net.ipv4.conf.all.arp_ignore", "1")), "{settings:?}");
        assert!(settings.contains(&("-net.netfilter.nf_conntrack_tcp_loose", "1")), "{settings:?}");
        assert!(settings.contains(&("net.ipv4.ip_local_port_range", "32768 65535")), "{settings:?}");
    }
}
