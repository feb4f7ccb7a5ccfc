//! What the loss of a backend did to clients.

use super::{AFTER_MS, Figures, OtherBackend, Story};
use crate::model::end_reason::{EndReason, EndedBy};
use crate::model::health::HealthState;
use crate::model::humane::{duration_ms, plural};
use crate::recorder::FrontendSettings;
use crate::table::journal::{Event, What};

impl Story<'_> {
    /// What a loss did to the backend's flows.
    pub(super) fn effect(
        &self,
        frontend: &str,
        backend: &str,
        times: std::ops::RangeInclusive<u64>,
        owner: usize,
        figures: &mut Figures,
        sentences: &mut Vec<String>,
    ) {
        for (event, _) in self.events.iter().filter(|(event, _)| times.contains(&event.at_unix_ms)) {
            if let What::FlowsOrdered { frontend: f, backend: b, flows, .. } = &event.what
                && f == frontend
                && b == backend
            {
                figures.flows_ordered += *flows as u64;
            }
        }
        let is_effect = |event: &Event| match &event.what {
            What::FlowEnded { frontend: f, backend: Some(b), reason, .. } => {
                f == frontend
                    && b == backend
                    && matches!(
                        reason,
                        EndReason::BackendEjected | EndReason::EjectedByOperator | EndReason::DrainDeadline
                    )
            }
            _ => false,
        };
        // Those that it has ordered end a little later, and their backend may be back by then.
        let later = self.recording.owners[owner].reset_within_ms + AFTER_MS;
        let again = self.events.iter().map(|(event, _)| *event).find(|event| {
            event.at_unix_ms > *times.end()
                && matches!(&event.what, What::BackendChanged { frontend: f, backend: b, to, .. } if (&**f, &**b) == (frontend, backend) && *to != HealthState::Ready)
        });
        let until = times.end().saturating_add(later).min(again.map_or(u64::MAX, |event| event.at_unix_ms - 1));
        self.count_ends(*times.start()..=until, is_effect, figures);
        let settings = self.settings(owner, frontend);
        let gone = settings.map_or_else(String::new, |settings| {
            let before = times.start().saturating_sub(settings.reset_after_silence_ms)..=*times.start();
            self.ended_by_backend(frontend, backend, before)
        });
        if figures.flows_ended.is_empty() {
            sentences.push(match figures.flows_ordered {
                0 => format!("Baton reset none of its flows.{gone}"),
                flows => {
                    format!("Baton ordered {} to end; the record has none of these ends.{gone}", plural(flows, "flow"))
                }
            });
            return;
        }
        sentences.push(format!(
            "Of its flows {} ({}), the last of them {} after this{}.{gone}",
            ended(figures),
            by_reason(figures),
            duration_ms(figures.ended_within_ms),
            self.pace(owner, settings, figures)
        ));
    }

    /// The settings that decided when the flows of a backend were reset.
    fn pace(&self, owner: usize, settings: Option<&FrontendSettings>, figures: &Figures) -> String {
        let has = |reason: EndReason| figures.flows_ended.contains_key(reason.label());
        let mut pace = String::new();
        if let Some(settings) = settings {
            if has(EndReason::DrainDeadline) {
                pace += &format!("; drain_timeout = {} decided when", duration_ms(settings.drain_timeout_ms));
            }
            if has(EndReason::BackendEjected) && settings.reset_fall != settings.fall {
                pace += &format!("; reset_fall = {} decided when", settings.reset_fall);
            }
        }
        match self.recording.owners[owner].reset_within_ms {
            0 => pace,
            ms => pace + &format!("; reset_within = {} spreads such resets", duration_ms(ms)),
        }
    }

    /// The flows that a backend ended itself, as one does whose process dies: a sentence.
    fn ended_by_backend(&self, frontend: &str, backend: &str, times: std::ops::RangeInclusive<u64>) -> String {
        let mut gone = Figures::default();
        let is_its = |event: &Event| {
            matches!(&event.what, What::FlowEnded { frontend: f, backend: Some(b), reason, .. }
                if (&**f, &**b) == (frontend, backend) && reason.by() == EndedBy::Backend)
        };
        let within = duration_ms(times.end() - times.start());
        self.count_ends(times, is_its, &mut gone);
        match gone.flows_ended.is_empty() {
            true => String::new(),
            false => format!(" In the {within} before, it ended {} itself ({}).", flows_of(&gone), by_reason(&gone)),
        }
    }

    /// The new connections that no backend took: a sentence.
    pub(super) fn refused_meanwhile(&self, at: usize, frontend: &str, without: OtherBackend) -> String {
        let begun_ms = self.events[at].0.at_unix_ms;
        let until_ms = match without {
            OtherBackend::Ready => return String::new(),
            OtherBackend::After(ms) => begun_ms + ms,
            OtherBackend::Never => u64::MAX,
        };
        let is_refusal = |event: &Event| {
            matches!(&event.what, What::FlowEnded { frontend: f, reason, .. }
                if f == frontend && matches!(reason, EndReason::NoBackend | EndReason::ConnectFailed | EndReason::ConnectTimedOut))
        };
        let mut refused = Figures::default();
        self.count_ends(begun_ms..=until_ms, is_refusal, &mut refused);
        match refused.flows_ended.is_empty() {
            true => String::new(),
            false => {
                let connections = plural(refused.flows_ended.values().sum(), "new connection");
                format!(" Meanwhile Baton reset {connections} ({}).", by_reason(&refused))
            }
        }
    }

    pub(super) fn count_ends(
        &self,
        times: std::ops::RangeInclusive<u64>,
        is_effect: impl Fn(&Event) -> bool,
        figures: &mut Figures,
    ) {
        for (event, _) in self.events.iter().filter(|(event, _)| times.contains(&event.at_unix_ms) && is_effect(event))
        {
            if let What::FlowEnded { reason, .. } = &event.what {
                *figures.flows_ended.entry(reason.label()).or_default() += 1;
                figures.ended_within_ms = event.at_unix_ms - times.start();
            }
        }
    }
}

fn flows_of(figures: &Figures) -> String {
    plural(figures.flows_ended.values().sum(), "flow")
}

pub(super) fn ended(figures: &Figures) -> String {
    format!("{} ended", flows_of(figures))
}

/// `backend_ejected 30, client_reset 2`.
pub(super) fn by_reason(figures: &Figures) -> String {
    figures.flows_ended.iter().map(|(reason, flows)| format!("{reason} {flows}")).collect::<Vec<_>>().join(", ")
}
