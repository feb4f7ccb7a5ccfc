//! A peer as people see it.

use std::sync::Arc;

use super::{Link, Mirror, Session, Telling};
use crate::model::fleet::summary::{InstanceSummary, OLD_MS};
use crate::model::fleet::{Farewell, LastHeard, Liveness, MemberView, PeerSummary};

/// A host that is cut off fails to reach its peer in two or three ways by turns; what comes after so many is for the status alone.
const REASONS_MAX: usize = 8;

impl Session {
    /// The link has ended.
    pub(in crate::model::fleet) fn lost(&mut self, why: &str) {
        self.link = None;
        self.has_no_link(why);
    }

    /// There is no link for this reason. Returns whether people have not been told so since the last one.
    pub(in crate::model::fleet) fn has_no_link(&mut self, why: &str) -> bool {
        self.why_not = Some(why.to_owned());
        let is_news = self.told_why_not.len() < REASONS_MAX && !self.told_why_not.iter().any(|told| told == why);
        if is_news {
            self.told_why_not.push(why.to_owned());
        }
        is_news
    }

    pub(in crate::model::fleet) fn view(&self, mirror: &Mirror, now_ns: u64) -> MemberView {
        let (behind, since_ns) = match &self.link {
            None => (0, None),
            Some(Link { telling: Telling::Following, acked: Some(acked), .. }) => {
                (mirror.end().saturating_sub(*acked) as usize, mirror.made_at_ns(*acked))
            }
            // Nothing counts before it has the whole snapshot.
            Some(_) => (mirror.len(), None),
        };
        MemberView {
            name: self.name.clone(),
            address: self.address,
            liveness: self.vitals.liveness,
            epoch: self.vitals.epoch,
            slot: self.vitals.slot,
            version: self.vitals.version.clone(),
            synced: self.vitals.synced,
            told: matches!(&self.link, Some(Link { telling: Telling::Following, acked: Some(_), .. })),
            flows: self.flows.len(),
            offloaded: self.offloaded,
            behind,
            lag_ms: since_ns.map_or(0, |since| now_ns.saturating_sub(since) / 1_000_000),
            resyncs: self.vitals.resyncs,
            round_trip_us: self.vitals.round_trip_us,
            // What it had is not what it has.
            vips: if self.is_gone() { Vec::new() } else { self.vips.clone() },
            summary: self.summary.as_ref().map(|summary| self.summary_view(summary, now_ns)),
            why_not: self.why_not.clone(),
            last_heard: self.last_heard(now_ns),
        }
    }

    fn last_heard(&self, now_ns: u64) -> LastHeard {
        let ago_ms = |at_ns: Option<u64>| at_ns.map(|at_ns| now_ns.saturating_sub(at_ns) / 1_000_000);
        // Its own beats count as witnesses, too.
        let by_others =
            self.vitals.witnessed_ns.filter(|at_ns| self.vitals.beat_ns.is_none_or(|beat_ns| *at_ns > beat_ns));
        LastHeard {
            link_ms: ago_ms(self.vitals.heard_ns),
            beat_ms: ago_ms(self.vitals.beat_ns),
            others_ms: ago_ms(by_others),
        }
    }

    fn is_gone(&self) -> bool {
        matches!(self.vitals.liveness, Liveness::Dead | Liveness::Left(Farewell::Stopped))
    }

    fn summary_view(&self, (at_ns, summary): &(u64, Arc<InstanceSummary>), now_ns: u64) -> PeerSummary {
        let age_ms = now_ns.saturating_sub(*at_ns) / 1_000_000;
        let is_present = self.vitals.liveness == Liveness::Alive && age_ms < OLD_MS;
        PeerSummary { age_ms, is_present, summary: summary.clone() }
    }
}
