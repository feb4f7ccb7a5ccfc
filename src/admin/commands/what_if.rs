//! Counts the flows that a fault would keep, move and reset, and the gap that the timers leave; changes nothing.

mod succession;
mod unheard;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::kill::pace;
use super::names;
use crate::admin::protocol::{BackendName, Refusal};
use crate::admin::what_if::{ExpectedGap, GapSetting, WhatIfCase, WhatIfFailed, WhatIfReport, WhatIfRequest};
use crate::admin::{Admin, status};
use crate::config::budget::{BudgetHost, FrontendBudget, LongestGap, VipTrack};
use crate::config::{Config, RebalanceWhen};
use crate::model::budget::{BudgetFault, lasts};
use crate::model::duration::display;
use crate::model::fleet::vip::VipView;
use crate::model::fleet::{InstanceName, Liveness, MemberView};
use crate::model::health::HealthState;
use crate::model::humane::plural;
use crate::model::ids::BackendId;
use crate::model::what_if::{BackendFlows, FlowFates, Happening, OwnFlows, restarted_in_turn};
use crate::sys::clock::now_ns;
use crate::sys::{bpffs, netdev};
use crate::table::backend::{BackendEntry, Registry};
use crate::table::flows::{FlowState, FlowView};
use succession::{Survivor, VipMover, VipSuccession, doubt};

enum WhatIfSubject {
    /// All addresses of one name, the present one first.
    Backend(Vec<Arc<BackendEntry>>),
    AllBackends,
    ThisInstance,
    Peer(Box<MemberView>),
}

/// The flows and settings of one moment.
struct WhatIfLook<'a> {
    admin: &'a Admin,
    config: &'a Config,
    host: BudgetHost,
    flows: Vec<FlowView>,
}

/// Looks at every flow, and at keepalived's file.
pub(super) fn answer(admin: &Admin, asked: &WhatIfRequest) -> Result<WhatIfReport, Refusal> {
    let config = admin.config.load_full();
    let subject = find(admin, &config, &asked.subject)?;
    let flows = admin.table.flows.iter().collect();
    let look = WhatIfLook { admin, config: &config, host: admin.control.budget_host(), flows };
    let restarts = asked.happens == Happening::Restarts;
    match subject {
        WhatIfSubject::Backend(entries) => Ok(look.of_backend(&entries, asked.happens)),
        WhatIfSubject::AllBackends => Ok(look.of_all_backends(asked.happens)),
        WhatIfSubject::ThisInstance | WhatIfSubject::Peer(_) if restarts => {
            Err(Refusal::WhatIf(WhatIfFailed::InstanceRestarts { subject: asked.subject.clone() }))
        }
        WhatIfSubject::ThisInstance => Ok(look.of_this_instance()),
        WhatIfSubject::Peer(peer) => Ok(look.of_peer(&peer)),
    }
}

fn find(admin: &Admin, config: &Config, asked: &str) -> Result<WhatIfSubject, Refusal> {
    let (instance_only, backend_only) = (asked.strip_prefix(INSTANCE), asked.strip_prefix(BACKEND));
    let name = instance_only.or(backend_only).unwrap_or(asked);
    if ALL_BACKENDS.contains(&name.to_lowercase().as_str()) && instance_only.is_none() {
        return Ok(WhatIfSubject::AllBackends);
    }
    let members = admin.table.fleet.members();
    let own = own_name(config);
    let instance = match members.iter().find(|it| *it.name.0 == *name) {
        Some(peer) => Some(WhatIfSubject::Peer(Box::new(peer.clone()))),
        None => (THIS.contains(&name) || name == own || name == host_name()).then_some(WhatIfSubject::ThisInstance),
    };
    let backend = names::addresses(&admin.table.registry, &BackendName(name.to_owned()));
    match (instance.filter(|_| backend_only.is_none()), backend) {
        (Some(_), Ok(_)) if instance_only.is_none() => {
            let matches = vec![format!("{INSTANCE}{name}"), format!("{BACKEND}{name}")];
            Err(Refusal::WhatIf(WhatIfFailed::Ambiguous { asked: asked.to_owned(), matches }))
        }
        (Some(instance), _) => Ok(instance),
        (None, Ok(entries)) if instance_only.is_none() => Ok(WhatIfSubject::Backend(entries)),
        (None, Err(refusal @ Refusal::AmbiguousBackend { .. })) if instance_only.is_none() => Err(refusal),
        (None, _) => {
            let present = admin.table.registry.backends().into_iter().filter(|it| !it.is_former());
            let backends = present.map(|it| format!("{}/{}", it.frontend.name, it.name));
            let instances = std::iter::once(own).chain(members.iter().map(|it| it.name.to_string()));
            let allowed = instances.chain(backends).chain([ALL_BACKENDS[0].to_owned()]).collect();
            Err(Refusal::WhatIf(WhatIfFailed::Unknown { asked: asked.to_owned(), allowed }))
        }
    }
}

impl WhatIfLook<'_> {
    fn of_backend(&self, entries: &[Arc<BackendEntry>], happens: Happening) -> WhatIfReport {
        let ids: HashSet<_> = entries.iter().map(|entry| entry.id).collect();
        let current = &entries[0];
        let (of_it, others): (Vec<&FlowView>, Vec<&FlowView>) =
            self.flows.iter().partition(|flow| flow.backend.is_some_and(|id| ids.contains(&id)));
        let spare = takers(&self.admin.table.registry, current);
        let served = of_it.iter().filter(|flow| flow.state.is_served()).count() as u64;
        let flows = BackendFlows { served, connecting: of_it.len() as u64 - served };
        let fates = FlowFates::of_lost_backend(flows, others.len() as u64, !spare.is_empty());
        let faults: &[BudgetFault] = match happens {
            Happening::Dies => {
                &[BudgetFault::ApiserverKilled, BudgetFault::ApiserverHung, BudgetFault::ApiserverSilent]
            }
            Happening::Restarts => &[BudgetFault::ApiserverKilled],
        };
        let room = room_in(&spare).filter(|room| *room < of_it.len() as u64);
        let names = spare.iter().map(|it| it.label().into_owned()).collect::<Vec<_>>().join(", ");
        let draining = match (spare.first().map(|it| it.health().health_state), spare.len()) {
            (None | Some(HealthState::Ready), _) => "",
            (_, 1) => ", which only drains",
            (_, _) => ", which only drain",
        };
        let cases = faults.iter().map(|fault| {
            let gap = match (spare.is_empty(), room) {
                (true, _) => ExpectedGap::Unknown(NO_OTHER.to_owned()),
                (false, Some(_)) => ExpectedGap::Unknown(FULL.to_owned()),
                (false, None) if of_it.is_empty() => ExpectedGap::Unknown(match room_in(&spare) {
                    Some(0) => format!("{NO_FLOW}, but {FULL_FOR_NEW}"),
                    _ => format!("{NO_FLOW}, so none of its clients waits: new connections go to {names}{draining}"),
                }),
                (false, None) => self.gap(*fault, Some(&current.frontend.name)),
            };
            // A backend's own kernel closes each connection; Baton spreads its resets.
            let resets_over_ms = if *fault == BudgetFault::ApiserverKilled { 0 } else { self.resets_over_ms(&of_it) };
            WhatIfCase { fault: fault.label().to_owned(), fates: Some(fates), resets_over_ms, gap }
        });
        let mut notes = Vec::new();
        if !spare.is_empty() && !of_it.is_empty() {
            notes.push(format!("Clients that are reset connect again to {names}{draining}."));
            notes.extend(room.map(|room| {
                let left = plural(of_it.len() as u64 - room, "flow");
                format!("These have room for {room} of them (max_connections): {left} would be reset again and again until a backend has room.")
            }));
        }
        notes.extend(self.peers_have_more());
        let (frontend, backend) = current.full_name();
        self.report(format!("{frontend}/{backend}"), happens, &of_it, cases.collect(), notes)
    }

    fn of_all_backends(&self, happens: Happening) -> WhatIfReport {
        let all: Vec<_> = self.flows.iter().collect();
        let backends: Vec<_> = self.admin.table.registry.backends();
        let present = backends.iter().filter(|it| !it.is_former()).count();
        let lost = BackendFlows { served: all.len() as u64, connecting: 0 };
        let fates = FlowFates::of_lost_backend(lost, 0, false);
        let mut notes = Vec::new();
        let at_once = |gap| WhatIfCase {
            fault: "all at once".to_owned(),
            fates: Some(fates),
            resets_over_ms: if happens == Happening::Dies { self.resets_over_ms(&all) } else { 0 },
            gap,
        };
        let mut cases = Vec::new();
        if happens == Happening::Restarts {
            let of_one = |frontend: &str| {
                let its = backends.iter().filter(|it| *it.frontend.name == *frontend && !it.is_former());
                its.map(|it| all.iter().filter(|flow| flow.backend == Some(it.id)).count() as u64).collect::<Vec<_>>()
            };
            let by_frontend: Vec<_> = self.config.frontends.iter().map(|it| of_one(&it.name)).collect();
            let wanders = self.config.frontends.iter().map(|it| it.rebalance.when == RebalanceWhen::Always);
            let in_turn = by_frontend.iter().zip(wanders).map(|(flows, wander)| restarted_in_turn(flows, wander));
            let of_present: u64 = by_frontend.iter().flatten().sum();
            // Of backends that were removed, and being connected: each ends at most once.
            let others = (all.len() as u64).saturating_sub(of_present);
            let (at_most, about) =
                in_turn.fold((others, others), |(most, about), it| (most + it.at_most, about + it.about));
            let is_ready = |it: &&Arc<BackendEntry>| !it.is_former() && it.health().health_state == HealthState::Ready;
            let ready =
                |frontend: &str| backends.iter().filter(|it| *it.frontend.name == *frontend).filter(is_ready).count();
            // While one restarts, its clients need another.
            let alone = self.config.frontends.iter().find(|it| ready(&it.name) < 2);
            let has_no_room = |it: &Arc<BackendEntry>| {
                let others = takers(&self.admin.table.registry, it);
                room_in(&others).is_some_and(|room| room < u64::from(it.load()))
            };
            let gap = match alone {
                None if backends.iter().filter(|it| !it.is_former()).any(has_no_room) => {
                    ExpectedGap::Unknown(FULL.to_owned())
                }
                Some(frontend) => ExpectedGap::Unknown(match ready(&frontend.name) {
                    0 => format!("no backend of {} is ready now", frontend.name),
                    _ => format!("one backend of {} alone is ready now: its restart decides", frontend.name),
                }),
                None => self.gap(BudgetFault::ApiserverKilled, None),
            };
            let fates = FlowFates { reset: at_most, ..fates };
            let fault = "one after another".to_owned();
            cases.push(WhatIfCase { fault, fates: Some(fates), resets_over_ms: 0, gap });
            if at_most > all.len() as u64 {
                notes.push(format!(
                    "One after another, at most {at_most} connections end, about {about} if clients spread evenly: a client may go to one that restarts later, and has at worst as many resets as there are backends.",
                ));
            }
            let moves = self.config.frontends.iter().any(|it| it.rebalance.when != RebalanceWhen::Ordered);
            if moves && at_most > 0 && present > 1 {
                notes.push(
                    "Not among these: connections that rebalancing ends in a quiet moment once a backend is back ([frontend.rebalance])."
                        .to_owned(),
                );
            }
            notes.push(
                "Assumed: each restarts once, the next one when it is ready, and clients make no further connections."
                    .to_owned(),
            );
            notes.push(
                "An apiserver that fails /readyz before it stops (--shutdown-delay-duration) gets no new connections meanwhile."
                    .to_owned(),
            );
        }
        cases.push(at_once(ExpectedGap::Unknown(NO_OTHER.to_owned())));
        notes.extend(self.peers_have_more());
        self.report(format!("all {}", plural(present as u64, "backend")), happens, &all, cases, notes)
    }

    fn of_this_instance(&self) -> WhatIfReport {
        let own: Vec<IpAddr> = netdev::addresses().unwrap_or_default().into_iter().map(|(_, ip)| ip).collect();
        let here: HashSet<BackendId> = self.backends_at(&own);
        let is_here = |flow: &FlowView| flow.stays_here || flow.backend.is_some_and(|id| here.contains(&id));
        let mut counted = OwnFlows::default();
        for flow in &self.flows {
            match (flow.state, is_here(flow)) {
                (FlowState::Offloaded, false) => counted.offloaded += 1,
                (FlowState::Offloaded, true) => counted.offloaded_to_own += 1,
                _ => counted.with_sockets += 1,
            }
        }
        let members = self.admin.table.fleet.members();
        let has_vip = !status::vips(self.config, self.admin).is_empty();
        let view = self.admin.table.fleet.vip();
        let mover = self.mover(view.as_deref());
        let survivors: Vec<_> = members.iter().map(|peer| Survivor::of_peer(peer, mover, peer.told)).collect();
        let mut succession = VipSuccession::of(&survivors, has_vip, mover);
        let (silent, known): (Vec<_>, Vec<_>) = survivors.into_iter().partition(|it| it.may_live);
        let if_alive = (succession.takers.is_empty() && !silent.is_empty()).then(|| {
            succession = VipSuccession::of(&known, has_vip, mover);
            let living: Vec<_> = silent.iter().cloned().map(Survivor::alive).collect();
            VipSuccession::of(&living, true, mover)
        });
        let stacked = !here.is_empty();
        let offloaded = (counted.offloaded + counted.offloaded_to_own) as usize;
        let mut notes = match members.is_empty() {
            true => vec!["There is no [peers]: no other instance knows these flows.".to_owned()],
            false => succession_notes(&succession, has_vip, (self.flows.len(), offloaded)),
        };
        notes.extend(members.iter().filter(|it| it.liveness == Liveness::Unlinked).map(unheard::without_link));
        let knows = |peer: &&MemberView| succession.takers.iter().any(|it| it.knows && it.name == peer.name);
        let behind = members.iter().filter(knows).map(|it| it.behind).min().unwrap_or(0);
        if behind > 0 {
            notes.push(format!("{} have not been acknowledged yet.", plural(behind as u64, "change")));
        }
        if counted.offloaded_to_own > 0 {
            let its = plural(counted.offloaded_to_own, "offloaded flow");
            notes.push(format!("{its} end with their backend, which is on this host."));
        }
        let stays = offloaded == 0 || !bpffs::ends_with_process(&self.config.offload.pins);
        notes.extend((!stays).then(|| UNPINNED.to_owned()));
        let is_idle = !members.is_empty() && self.flows.is_empty() && !has_vip;
        let lonely = members.is_empty() && matches!(mover, VipMover::AsksBaton | VipMover::Ignorant);
        // Another program may know hosts that Baton does not.
        let mut cases = self.of_instance(counted, stays, (!lonely).then_some(&succession), stacked, is_idle);
        if let Some(if_alive) = if_alive.filter(|it| !is_idle && !it.takers.is_empty()) {
            let alive = self.of_instance(counted, stays, Some(&if_alive), stacked, is_idle);
            let gap = alive.iter().filter_map(|case| case.gap.lasts_ms()).max();
            let is_cut_off = view.as_deref().is_some_and(|view| !view.hears);
            let gap = gap.map(|ms| display(Duration::from_millis(ms)));
            notes.splice(0..0, doubt(&silent, is_cut_off, counted.offloaded, gap));
            let who = if_alive.names();
            let named =
                |case: WhatIfCase, state: &str| WhatIfCase { fault: format!("{}, {who} {state}", case.fault), ..case };
            let dead = cases.into_iter().map(|case| named(case, "dead"));
            cases = alive.into_iter().map(|case| named(case, "alive")).chain(dead).collect();
        }
        let all = self.flows.iter().collect::<Vec<_>>();
        self.report(own_name(self.config), Happening::Dies, &all, cases, notes)
    }

    /// As far as this instance knows it.
    fn of_peer(&self, peer: &MemberView) -> WhatIfReport {
        // What a dead one had is another's by now, or has ended.
        let bare = || MemberView { flows: 0, offloaded: 0, vips: Vec::new(), ..peer.clone() };
        let bare = (peer.liveness == Liveness::Dead).then(bare);
        let (is_dead, peer) = (bare.is_some(), bare.as_ref().unwrap_or(peer));
        let flows = peer.flows as u64;
        let there = self.backends_at(&[peer.address.ip()]);
        let view = self.admin.table.fleet.vip();
        let mover = self.mover(view.as_deref());
        let may_live = is_dead && Survivor::of_peer(peer, mover, true).may_live;
        let name = &peer.name;
        let mut notes = match (is_dead, may_live) {
            (true, true) => unheard::outcomes(peer),
            (true, false) => {
                vec![format!("{name} counts as dead already: other instances carry its flows on or have reset them.")]
            }
            (false, _) => vec![format!("Counted are the flows of {name} that this instance knows.")],
        };
        if !is_dead && (peer.liveness != Liveness::Alive || !peer.synced) {
            notes.push(unheard::in_doubt(peer));
        }
        if !there.is_empty() {
            let with_it = self.flows.iter().filter(|flow| flow.backend.is_some_and(|id| there.contains(&id))).count();
            notes.push(format!(
                "A backend is on the same host: {} of this instance end with it, and so do those of {} itself, which only its own baton what-if counts.",
                plural(with_it as u64, "flow"),
                peer.name
            ));
        }
        let has_vip = !peer.vips.is_empty();
        let succession = VipSuccession::of(&self.survivors_of(peer, mover), has_vip, mover);
        let own = own_name(self.config);
        // Another instance has other frontends, maybe.
        let is_heir = succession.takers.iter().any(|it| *it.name.0 == *own);
        let unserved = if is_heir { self.admin.table.fleet.unserved(name).min(peer.offloaded) } else { 0 };
        let offloaded = (peer.offloaded - unserved) as u64;
        let counted = OwnFlows { offloaded, with_sockets: flows - offloaded.min(flows), ..OwnFlows::default() };
        let is_idle = flows == 0 && !has_vip;
        if !is_idle {
            notes.extend(succession_notes(
                &succession,
                has_vip,
                (peer.flows - unserved.min(peer.flows), peer.offloaded - unserved),
            ));
        }
        if unserved > 0 {
            let its = plural(unserved as u64, "offloaded flow");
            notes.push(format!(
                "{own} would reset {its} of {name}: its configuration has neither their frontend nor their backend any more. Such a frontend in it, \
                 and baton reload, would keep them."
            ));
        }
        let mut cases = match may_live {
            true => unheard::cases(name),
            false => self.of_instance(counted, true, Some(&succession), !there.is_empty(), is_idle),
        };
        if peer.liveness == Liveness::Unlinked && !is_idle {
            cases.iter_mut().for_each(|case| case.gap = ExpectedGap::Unknown(UNLINKED.to_owned()));
        }
        WhatIfReport {
            subject: peer.name.to_string(),
            happens: Happening::Dies,
            flows,
            of_subject: flows,
            clients: None,
            grace_period_ms: self.grace_period_ms(),
            cases,
            notes,
        }
    }

    /// This instance and the peers but for the one that dies. Whether another peer knows its flows is known only of the built-in VIP.
    fn survivors_of(&self, dies: &MemberView, mover: VipMover<'_>) -> Vec<Survivor> {
        let reasons = self.admin.not_ready().into_iter().chain(self.admin.not_live(now_ns())).collect();
        let has_vip = !status::vips(self.config, self.admin).is_empty();
        let this = Survivor::this(InstanceName(own_name(self.config).into()), reasons, mover, has_vip);
        let members = self.admin.table.fleet.members();
        let others = members.iter().filter(|it| it.name != dies.name).map(|peer| {
            let it = Survivor::of_peer(peer, mover, true);
            Survivor { knows: it.standing.as_ref().is_none_or(|its| its.synced), ..it }
        });
        std::iter::once(Survivor { knows: dies.synced, ..this }).chain(others).collect()
    }

    fn mover<'v>(&self, view: Option<&'v VipView>) -> VipMover<'v> {
        match (&self.config.vip, self.host.track) {
            (Some(_), _) => VipMover::BuiltIn(view),
            (None, VipTrack::Stays) => VipMover::Ignorant,
            (None, _) => VipMover::AsksBaton,
        }
    }

    /// `stays`: whether its BPF program does once the process has ended. `succession`: `None`: it is not known. `is_idle`: it has no VIP, and so no client that could wait for it.
    fn of_instance(
        &self,
        flows: OwnFlows,
        stays: bool,
        succession: Option<&VipSuccession>,
        stacked: bool,
        is_idle: bool,
    ) -> Vec<WhatIfCase> {
        let host = if stacked { BudgetFault::StackedHostDies } else { BudgetFault::HostDies };
        let heir = succession.is_some_and(|it| it.takers.iter().any(|taker| taker.knows));
        let moves = succession.is_some_and(|it| it.moves);
        let faults = [
            (BudgetFault::InstanceKilled, FlowFates::of_killed_instance(flows, moves.then_some(heir), stays)),
            (host, FlowFates::of_lost_host(flows, heir)),
        ];
        let case = |(fault, fates): (BudgetFault, FlowFates)| WhatIfCase {
            fault: fault.label().to_owned(),
            fates: Some(fates),
            resets_over_ms: 0,
            gap: match is_idle && fault != BudgetFault::StackedHostDies {
                true => ExpectedGap::Unknown(IDLE.to_owned()),
                false => self.gap_after(fault, fates, succession.filter(|_| !is_idle)),
            },
        };
        faults.map(case).into()
    }

    fn gap_after(&self, fault: BudgetFault, fates: FlowFates, succession: Option<&VipSuccession>) -> ExpectedGap {
        let by_timers = self.gap(fault, None);
        if let ExpectedGap::Unknown(why) = &by_timers
            && [NO_VIP, OWN_ADDRESS, VIP_STAYS].contains(&&**why)
        {
            return match fates.waiting > 0 {
                true => ExpectedGap::Unknown(WAITING.to_owned()),
                false => by_timers,
            };
        }
        match succession {
            Some(none) if none.takers.is_empty() => ExpectedGap::Unknown(NOBODY.to_owned()),
            _ if fates.waiting > 0 => ExpectedGap::Unknown(WAITING.to_owned()),
            Some(it) => match it.unready() {
                Some(why) => ExpectedGap::Unknown(format!("{} is not ready: {why}", it.names())),
                None => by_timers,
            },
            None => by_timers,
        }
    }

    fn report(
        &self,
        subject: String,
        happens: Happening,
        of_subject: &[&FlowView],
        cases: Vec<WhatIfCase>,
        notes: Vec<String>,
    ) -> WhatIfReport {
        let clients: HashSet<_> = of_subject.iter().map(|flow| flow.origin.client.ip()).collect();
        WhatIfReport {
            subject,
            happens,
            flows: self.flows.len() as u64,
            of_subject: of_subject.len() as u64,
            clients: Some(clients.len() as u64),
            grace_period_ms: self.grace_period_ms(),
            cases,
            notes,
        }
    }

    /// The longest of the frontends, or of `only`.
    fn gap(&self, fault: BudgetFault, only: Option<&str>) -> ExpectedGap {
        let frontends = self.config.frontends.iter().filter(|it| only.is_none_or(|only| *it.name == *only));
        let mut longest = None;
        for frontend in frontends {
            let budget = FrontendBudget::new(self.config, frontend, &self.host);
            match budget.longest(fault) {
                LongestGap::NoVip => return ExpectedGap::Unknown(NO_VIP.to_owned()),
                LongestGap::OwnAddress => return ExpectedGap::Unknown(OWN_ADDRESS.to_owned()),
                LongestGap::VipStays => return ExpectedGap::Unknown(VIP_STAYS.to_owned()),
                LongestGap::Routers => return ExpectedGap::Unknown(ROUTERS.to_owned()),
                LongestGap::Unknown => return ExpectedGap::Unknown(NO_MOVER.to_owned()),
                LongestGap::Parts(parts) => {
                    let setting = |part: &_| GapSetting {
                        lasts_ms: lasts(&[*part]).as_millis() as u64,
                        setting: budget.setting(*part),
                    };
                    let settings: Vec<_> = parts.iter().map(setting).collect();
                    let total = lasts(&parts);
                    if longest.as_ref().is_none_or(|(before, _)| total > *before) {
                        longest = Some((total, settings));
                    }
                }
            }
        }
        match longest {
            Some((_, settings)) => ExpectedGap::Decided(settings),
            None => ExpectedGap::Unknown(NOT_CONFIGURED.to_owned()),
        }
    }

    fn backends_at(&self, hosts: &[IpAddr]) -> HashSet<BackendId> {
        let backends = self.admin.table.registry.backends();
        backends.iter().filter(|it| it.address().is_some_and(|at| hosts.contains(&at.ip()))).map(|it| it.id).collect()
    }

    fn peers_have_more(&self) -> Option<String> {
        let members = self.admin.table.fleet.members();
        let flows: usize = members.iter().map(|it| it.flows).sum();
        (flows > 0).then(|| format!("The {} of this instance's peers are not counted.", plural(flows as u64, "flow")))
    }

    fn resets_over_ms(&self, flows: &[&FlowView]) -> u64 {
        let mut by_worker = vec![0; self.admin.table.workers.len()];
        flows.iter().for_each(|flow| by_worker[flow.worker] += 1);
        pace(self.admin).lasts(&by_worker).as_millis() as u64
    }

    fn grace_period_ms(&self) -> u64 {
        self.config.cluster.node_monitor_grace_period.as_millis() as u64
    }
}

/// Who carries on an instance with so many flows. `has_vip`: the VIP is on its host.
fn succession_notes(succession: &VipSuccession, has_vip: bool, (flows, offloaded): (usize, usize)) -> Vec<String> {
    let names = succession.names();
    let knows = succession.takers.iter().any(|it| it.knows);
    let mut notes = succession.refusals.clone();
    match (succession.takers.is_empty(), knows) {
        (true, _) => {}
        (false, false) if flows > 0 => {
            notes.push(format!("{names} would have the VIP without knowing all these flows: see baton peers."));
        }
        (false, true) if offloaded > 0 && has_vip => {
            notes.push(format!("{names} would take the VIP and carry the offloaded flows on, without a reset."));
        }
        (false, true) if offloaded > 0 => {
            notes.push(format!("{names} would carry the offloaded flows on, without a reset."));
        }
        (false, _) => {
            notes.extend(has_vip.then(|| format!("{names} would take the VIP.")));
            let none = "None of its flows is offloaded now: only such flows go on at another instance.";
            notes.extend((flows > 0).then(|| none.to_owned()));
        }
    }
    notes
}

/// The other backends of its frontend that take new flows: those that are ready, or else those that drain.
fn takers(registry: &Registry, lost: &BackendEntry) -> Vec<Arc<BackendEntry>> {
    let is_other =
        |it: &Arc<BackendEntry>| it.frontend.id == lost.frontend.id && it.name != lost.name && !it.is_former();
    let others: Vec<_> = registry.backends().into_iter().filter(is_other).collect();
    let of = |state| {
        others
            .iter()
            .filter(|it| it.health().health_state == state && it.gets_connections())
            .cloned()
            .collect::<Vec<_>>()
    };
    let ready = of(HealthState::Ready);
    if ready.is_empty() { of(HealthState::Draining) } else { ready }
}

/// How many more flows these may have by their max_connections; `None`: one of them has no such limit.
fn room_in(takers: &[Arc<BackendEntry>]) -> Option<u64> {
    takers.iter().map(|it| it.max_connections().map(|max| u64::from(max.saturating_sub(it.load())))).sum()
}

fn own_name(config: &Config) -> String {
    config.name().map_or_else(host_name, ToString::to_string)
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

const INSTANCE: &str = "instance:";
const BACKEND: &str = "backend:";
const THIS: [&str; 4] = ["this", "this instance", "this host", "baton"];
/// The first is that of errors.
const ALL_BACKENDS: [&str; 7] =
    ["apiservers", "all apiservers", "the apiservers", "backends", "all backends", "the backends", "all"];
const FULL: &str = "the other backends have no room for all of its flows (max_connections)";
const FULL_FOR_NEW: &str = "the other backends have no room (max_connections): Baton resets new connections";
const NO_FLOW: &str = "no flow of this instance is on it";
const NO_OTHER: &str = "no other backend serves: Baton resets new connections until one does";
const NOBODY: &str = "no instance would take the VIP: clients get nothing until one does";
const IDLE: &str = "it has no VIP and no flow: no client waits for it";
const NO_VIP: &str = "its clients are on its own host: no VIP moves";
const OWN_ADDRESS: &str = "its address is this host's own, not a VIP: clients wait until this host serves again";
const VIP_STAYS: &str =
    "the VIP stays, and clients wait until this host serves again: no track_script of keepalived's runs `baton ready`";
const ROUTERS: &str = "as long as the routers take to leave this host: their BFD or hold time";
const NO_MOVER: &str = "it depends on how the VIP moves: set cluster.vrrp_advert_interval, or [vip]";
const UNPINNED: &str = "The BPF file system of offload.pins is Baton's own mount, which ends with the process, and the BPF program with it: the host answers the next packet of each offloaded flow with RST, and a client that sends none waits. Mount it on the host: mount -t bpf bpf /sys/fs/bpf.";
const WAITING: &str =
    "nobody would reset the clients of flows that no other instance knows: each waits until it gives up by itself";
const UNLINKED: &str =
    "there is no link to it: flows that it has begun since are not known here, and are reset with their next packet";
const NOT_CONFIGURED: &str = "its frontend is no longer in the configuration";
