//! The sentences about a peer: its link and why it is so, what it knows and has, and what its death would do to its flows.

use std::path::Path;

use super::story::failovers::{last_death, vip_at_death};
use super::story::last::last_start_ms;
use super::story::{Explained, Figures, Story, is_of_link, moment};
use crate::admin::protocol::Command;
use crate::admin::status::PeersReport;
use crate::admin::what_if::{WhatIfCase, WhatIfReport, WhatIfRequest};
use crate::admin::words;
use crate::cli::socket;
use crate::cli::what_if::decided;
use crate::model::fleet::{Liveness, MemberView};
use crate::model::humane::{count, duration_ms, duration_us, plural};
use crate::model::what_if::Happening;
use crate::table::journal::{Event, What};

/// What the running instance knows of a peer.
pub(super) struct KnownPeer {
    pub peer: MemberView,
    /// `None`: it gave no answer.
    pub dies: Option<WhatIfReport>,
}

impl KnownPeer {
    /// The peer with this name or address, as the instance at `socket` knows it. `None`: it has none, or no instance answers.
    pub(super) fn find(asked: &str, socket: &Path) -> Option<Self> {
        let mut client = socket::connect_briefly(socket).ok()?;
        let report: PeersReport = client.ask(&Command::Peers {}).ok()?;
        let peer = Self::among(report, asked)?;
        // A backend may have its name.
        let subject = format!("instance:{}", peer.name);
        let dies = client.ask(&Command::WhatIf(WhatIfRequest { subject, happens: Happening::Dies })).ok();
        Some(Self { peer, dies })
    }

    /// The peer as it was when the bundle with this report was made.
    pub(super) fn of_bundle(report: PeersReport, asked: &str) -> Option<Self> {
        Self::among(report, asked).map(|peer| Self { peer, dies: None })
    }

    fn among(report: PeersReport, asked: &str) -> Option<MemberView> {
        report
            .peers
            .into_iter()
            .find(|it| *it.name.0 == *asked || it.address.to_string() == asked || it.address.ip().to_string() == asked)
    }

    /// `story`: what this instance recorded. `now_ms`: since 1970.
    pub(super) fn tell(&self, story: &Story<'_>, now_ms: u64) -> Explained {
        let peer = &self.peer;
        let mut figures = Figures::default();
        let mut sentences = vec![self.state()];
        // Why a dead one is not reached is told by its death.
        let is_told =
            |event: &Event| peer.liveness != Liveness::Dead || !matches!(event.what, What::PeerUnreachable { .. });
        let mut changes = story.of_peer(&peer.name.0).filter(|event| is_of_link(event) && is_told(event));
        let is_failover = |event: &&Event| matches!(event.what, What::FailedOver { .. });
        let last = changes.next().map(|last| {
            // This instance has its flows before it is counted as dead.
            let mut unlinked = story.of_peer(&peer.name.0).take_while(|it| !matches!(it.what, What::PeerLinked { .. }));
            let failover = unlinked.find(is_failover).filter(|it| it.at_unix_ms < last.at_unix_ms);
            failover.filter(|_| peer.liveness == Liveness::Dead).unwrap_or(last)
        });
        if let Some(last) = last {
            figures.at_unix_ms = last.at_unix_ms;
            let ago = duration_ms(now_ms.saturating_sub(last.at_unix_ms));
            // What a process before this one saw is another matter.
            let since_ms = last_start_ms(story);
            let before = changes.find(|it| it.at_unix_ms <= last.at_unix_ms).filter(|it| it.at_unix_ms >= since_ms);
            let mut since =
                format!("That is so since {}, {ago} ago: {}", moment(last.at_unix_ms), last.what.sentence());
            if let Some(before) = before {
                since += &format!("; before, at {}, {}", moment(before.at_unix_ms), before.what.sentence());
            }
            sentences.push(since + ".");
        }
        sentences.push(self.flows());
        sentences.extend(self.place(story));
        let death = last_death(story, &peer.name.0).map(|at| story.event_at(at));
        let told = |event: &Event| format!("at {} {}.", moment(event.at_unix_ms), event.what.sentence());
        if matches!(peer.liveness, Liveness::Dead | Liveness::Left(_)) {
            let untold = death.filter(is_failover).filter(|event| !last.is_some_and(|last| std::ptr::eq(last, *event)));
            sentences.extend(untold.map(|event| format!("Its flows: {}", told(event))));
        } else {
            sentences.extend(death.map(|event| format!("It had died before: {}", told(event))));
            sentences.extend(self.dies.iter().flat_map(in_words));
        }
        (sentences, figures)
    }

    fn state(&self) -> String {
        let MemberView { name, address, version, liveness, why_not, round_trip_us, .. } = &self.peer;
        let release = if version.is_empty() { String::new() } else { format!(", Baton {version}") };
        let mut state = format!("{name} ({address}{release}) is {}", liveness.label());
        match why_not {
            Some(why_not) => state += &format!(": there is no link to it, {why_not}"),
            None if *round_trip_us > 0 => {
                state += &format!(", a beat takes {} to it and back", duration_us(*round_trip_us))
            }
            None => {}
        }
        state + "."
    }

    /// What it has of the VIP, or had when it was heard last: a dead one has nothing. `None`: that was not recorded.
    fn place(&self, story: &Story<'_>) -> Option<String> {
        let MemberView { name, vips, liveness, .. } = &self.peer;
        match (liveness, &vips[..]) {
            (Liveness::Dead, []) => vip_at_death(story, &name.0),
            // It tells them by the link alone.
            (Liveness::Unlinked, vips) => {
                Some(format!("When it was linked last, {name} {}.", words::vips(vips).replacen("has", "had", 1)))
            }
            (Liveness::Dead, vips) => Some(format!("It {} then.", words::vips(vips).replacen("has", "had", 1))),
            _ => Some(format!("{name} {}.", words::vips(vips))),
        }
    }

    /// What either knows of the other's flows, and how late it learns of a change.
    fn flows(&self) -> String {
        let MemberView { name, synced, flows, offloaded, told, behind, lag_ms, liveness, .. } = &self.peer;
        let number = plural(*flows as u64, "flow");
        if matches!(liveness, Liveness::Dead | Liveness::Left(_)) {
            // It takes none any more, and what became of its own is told as an event.
            return match synced {
                true => format!(
                    "When {name} was heard last, this instance knew all its flows: {number}, {} of them offloaded.",
                    count(*offloaded as u64)
                ),
                false => {
                    format!("When {name} was heard last, this instance did not know all its flows, only {number}.")
                }
            };
        }
        if *liveness == Liveness::Unlinked {
            return format!(
                "While there is no link, neither learns of a change: this instance knows {number} of {name} as of then, {} of them offloaded, \
                 and each resets what the other began since with its next packet.",
                count(*offloaded as u64)
            );
        }
        let known = match synced {
            true => format!(
                "This instance knows all flows of {name}: {number}, {} of them offloaded",
                count(*offloaded as u64)
            ),
            false => format!("This instance does not know all flows of {name}, only {number}"),
        };
        let its = match (told, behind) {
            (false, _) => format!("{name} does not have all flows of this instance yet"),
            (true, 0) => format!("{name} has all flows of this instance, without a lag"),
            (true, behind) => format!(
                "{name} has all flows of this instance but for {}, the oldest {} old",
                plural(*behind as u64, "change"),
                duration_ms(*lag_ms)
            ),
        };
        format!("{known}; {its}.")
    }
}

/// A sentence for each way to die, and those that limit what is said.
fn in_words(report: &WhatIfReport) -> Vec<String> {
    let case = |case: &WhatIfCase| {
        let Some(fates) = &case.fates else { return format!("{}: {}.", case.fault, decided(&case.gap)) };
        let fates = [
            (fates.kept, "go on"),
            (fates.moved, "go on at another instance"),
            (fates.reset, "be reset"),
            (fates.waiting, "wait until their clients give up"),
        ];
        let of_it: Vec<_> = fates
            .iter()
            .filter(|(flows, _)| *flows > 0)
            .map(|(n, fate)| format!("{} would {fate}", count(*n)))
            .collect();
        let of_it = if of_it.is_empty() {
            "it has no flow to lose".to_owned()
        } else {
            format!("of its flows {}", of_it.join(", "))
        };
        format!("If it dies ({}), {of_it}; the longest gap is decided by this: {}.", case.fault, decided(&case.gap))
    };
    report.cases.iter().map(case).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::what_if::{ExpectedGap, GapSetting};
    use crate::cli::explain::story::testing::{AT_MS, recording};
    use crate::cli::samples;
    use crate::model::fleet::InstanceName;
    use crate::model::what_if::FlowFates;

    const PEER: &str = "lb-b";

    fn view(liveness: Liveness) -> MemberView {
        MemberView { liveness, behind: 3, lag_ms: 40, ..samples::peer() }
    }

    fn dies() -> WhatIfReport {
        let fates = FlowFates { moved: 1092, reset: 112, ..FlowFates::default() };
        let setting = GapSetting { lasts_ms: 10_000, setting: "cluster.lease_renew = 10s".to_owned() };
        let gap = ExpectedGap::Decided(vec![setting]);
        let case = WhatIfCase { fault: "Baton's host gone".to_owned(), fates: Some(fates), resets_over_ms: 0, gap };
        WhatIfReport {
            subject: PEER.to_owned(),
            happens: Happening::Dies,
            flows: 1204,
            of_subject: 1204,
            clients: None,
            grace_period_ms: 40_000,
            cases: vec![case],
            notes: Vec::new(),
        }
    }

    fn lost() -> What {
        What::PeerLost { peer: PEER.to_owned(), why: "nothing came for 200 ms".to_owned() }
    }

    #[test]
    fn a_living_peer_has_its_link_its_lag_its_vip_and_what_its_death_would_do() {
        let linked = |peer: &str| What::PeerLinked { peer: peer.to_owned(), version: "0.1.0".to_owned() };
        let recording = recording(vec![(0, lost()), (9_000, linked(PEER)), (9_500, linked("lb-c"))]);
        let it = KnownPeer { peer: view(Liveness::Alive), dies: Some(dies()) };
        let (said, figures) = it.tell(&Story::new(&recording), AT_MS + 69_000);
        assert_eq!(figures.at_unix_ms, AT_MS + 9_000);
        assert_eq!(said.len(), 5, "{said:?}");
        assert_eq!(said[0], "lb-b (10.0.0.22:9471, Baton 0.1.0) is alive, a beat takes 180 µs to it and back.");
        assert!(said[1].contains(", 1 m 00 s ago: this instance is linked with lb-b"), "{said:?}");
        assert!(
            said[1].contains("; before, at 2026-11-25 03:12:07.412Z, the link to lb-b is lost: nothing came"),
            "{said:?}"
        );
        assert!(said[2].starts_with("This instance knows all flows of lb-b: 1,204 flows, 1,092 of them offloaded; "));
        assert!(said[2].ends_with("but for 3 changes, the oldest 40 ms old."), "{said:?}");
        assert_eq!(said[3], "lb-b has 10.0.0.100.");
        assert!(
            said[4].starts_with("If it dies (Baton's host gone), of its flows 1,092 would go on at another"),
            "{said:?}"
        );
        assert!(said[4].ends_with("10s = 10s (cluster.lease_renew = 10s)."), "{said:?}");
    }

    /// Regression: of a death that was over for 15 s nothing was said.
    #[test]
    fn a_peer_that_came_back_is_told_with_its_death() {
        let failed_over = What::FailedOver { instance: InstanceName(PEER.into()), inherited: 30, reset: 0 };
        let linked = What::PeerLinked { peer: PEER.to_owned(), version: "0.1.0".to_owned() };
        let late = What::PeerLiveness { peer: PEER.to_owned(), liveness: Liveness::Alive, stuck_ms: None };
        let recording = recording(vec![(0, lost()), (300, failed_over), (40_000, linked), (50_000, late)]);
        let (said, _) =
            KnownPeer { peer: view(Liveness::Alive), dies: None }.tell(&Story::new(&recording), AT_MS + 60_000);
        assert!(
            said.last().unwrap().starts_with("It had died before: at 2026-11-25 03:12:07.712Z lb-b is dead"),
            "{said:?}"
        );
    }

    /// Regression: it was dead only since 0.6 s after its flows had been carried on.
    #[test]
    fn a_peer_is_dead_since_its_flows_were_carried_on() {
        let dead = What::PeerLiveness { peer: PEER.to_owned(), liveness: Liveness::Dead, stuck_ms: None };
        let failed_over = What::FailedOver { instance: InstanceName(PEER.into()), inherited: 30, reset: 0 };
        let said = |events| {
            let recording = recording(events);
            KnownPeer { peer: view(Liveness::Dead), dies: None }.tell(&Story::new(&recording), AT_MS + 1_000).0
        };
        // Regression: what came after it was told as of before it.
        let late = said(vec![(300, failed_over.clone()), (600, lost()), (900, dead.clone())]);
        assert!(
            late[1].starts_with("That is so since 2026-11-25 03:12:07.712Z") && !late[1].contains("before"),
            "{late:?}"
        );
        let said = said(vec![(0, lost()), (300, failed_over), (900, dead)]);
        assert!(said[1].starts_with("That is so since 2026-11-25 03:12:07.712Z, 700 ms ago: lb-b is dead"), "{said:?}");
        assert_eq!(said.iter().filter(|it| it.contains("carries on 30 flows")).count(), 1, "{said:?}");
    }

    #[test]
    fn of_a_dead_peer_is_said_what_became_of_its_flows_and_not_what_would() {
        let dead = What::PeerLiveness { peer: PEER.to_owned(), liveness: Liveness::Dead, stuck_ms: None };
        let failed_over = What::FailedOver { instance: InstanceName(PEER.into()), inherited: 1092, reset: 112 };
        let recording = recording(vec![(0, lost()), (800, dead), (801, failed_over)]);
        let peer = MemberView { why_not: Some("connection refused".to_owned()), synced: false, ..view(Liveness::Dead) };
        let (said, _) = KnownPeer { peer, dies: Some(dies()) }.tell(&Story::new(&recording), AT_MS + 1_000);
        assert!(said[0].ends_with("is dead: there is no link to it, connection refused."), "{said:?}");
        assert!(said[1].contains("lb-b is considered dead"), "{said:?}");
        assert_eq!(said[2], "When lb-b was heard last, this instance did not know all its flows, only 1,204 flows.");
        assert!(said.last().unwrap().contains("carries on 1,092 flows of it and resets 112 others"), "{said:?}");
        assert!(!said.iter().any(|it| it.contains("If it dies")), "{said:?}");
    }

    /// Regression: of a peer that was dead "lb-b has no VIP" was told, as if it could have one.
    #[test]
    fn what_a_dead_peer_had_is_told_as_of_then() {
        let dead = What::PeerLiveness { peer: PEER.to_owned(), liveness: Liveness::Dead, stuck_ms: None };
        let held = |by: &str| What::VipHeld { vip: "10.0.0.100".to_owned(), by: by.to_owned() };
        let said = |liveness, vips: &[&str], by: &str| {
            let recording = recording(vec![(0, held(by)), (5_000, dead.clone()), (5_300, held("lb-c"))]);
            let vips = vips.iter().map(|vip| vip.parse().unwrap()).collect();
            let peer = MemberView { vips, ..view(liveness) };
            KnownPeer { peer, dies: None }.tell(&Story::new(&recording), AT_MS + 9_000).0
        };
        let of_dead = said(Liveness::Dead, &[], PEER);
        assert!(
            of_dead.contains(&"It had the VIP 10.0.0.100 then, since 2026-11-25 03:12:07.412Z.".to_owned()),
            "{of_dead:?}"
        );
        let of_dead = said(Liveness::Dead, &[], "lb-c");
        assert!(of_dead.contains(&"It had no VIP then.".to_owned()), "{of_dead:?}");
        let of_dead = said(Liveness::Dead, &["10.0.0.100"], "lb-c");
        assert!(of_dead.contains(&"It had 10.0.0.100 then.".to_owned()), "{of_dead:?}");
        assert!(!of_dead.iter().any(|it| it.contains("lb-b has")), "{of_dead:?}");
        assert!(said(Liveness::Alive, &[], PEER).contains(&"lb-b has no VIP.".to_owned()));
        // Regression: without a link it was told as if it were known now.
        let unlinked = said(Liveness::Unlinked, &["10.0.0.100"], PEER);
        assert!(unlinked.contains(&"When it was linked last, lb-b had 10.0.0.100.".to_owned()), "{unlinked:?}");
    }
}
