//! Each backend as each instance of the fleet sees it.

use super::PeersReport;
use crate::model::fleet::{BackendSummary, InstanceName, InstanceSummary, MemberView};
use crate::model::humane::duration_ms;
use crate::model::weight::Weight;

/// A table with a row for each backend that an instance speaks of, and a column for each instance.
pub(crate) struct FleetMatrix<'a> {
    /// This instance first.
    pub columns: Vec<MatrixColumn<'a>>,
    pub rows: Vec<MatrixRow<'a>>,
}

pub(crate) struct MatrixColumn<'a> {
    pub instance: &'a InstanceName,
    /// How this instance sees it. `None`: it is this instance.
    pub peer: Option<&'a MemberView>,
    /// `None`: it says nothing of itself.
    pub summary: Option<&'a InstanceSummary>,
    /// Of the summary.
    pub age_ms: u64,
    /// Whether the summary still holds.
    pub is_present: bool,
}

pub(crate) struct MatrixRow<'a> {
    pub frontend: &'a str,
    pub backend: &'a str,
    /// Whether instances disagree about it, for longer than a moment.
    pub is_disputed: bool,
}

/// What an instance sees.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SeenBackend<'a> {
    pub state: &'static str,
    pub weight: Weight,
    /// For how long, or how long ago; empty for what was not seen.
    pub when: String,
    /// The cause; empty for a backend that is ready, and for the past.
    pub why: &'a str,
}

impl<'a> FleetMatrix<'a> {
    /// Without a column: the instance has no peers.
    pub(crate) fn of(report: &'a PeersReport) -> Self {
        let own = report.name.as_ref().map(|instance| {
            let summary = report.own.as_deref();
            MatrixColumn { instance, peer: None, summary, age_ms: 0, is_present: true }
        });
        let peers = report.peers.iter().map(|it| {
            let said = it.summary.as_ref();
            MatrixColumn {
                instance: &it.name,
                peer: Some(it),
                summary: said.map(|said| &*said.summary),
                age_ms: said.map_or(0, |said| said.age_ms),
                is_present: said.is_some_and(|said| said.is_present),
            }
        });
        let columns: Vec<_> = own.into_iter().chain(peers).collect();
        let mut rows = Vec::<MatrixRow<'_>>::new();
        for of in columns.iter().filter_map(|it| it.summary).flat_map(|said| &said.backends) {
            if !rows.iter().any(|row| row.is(&of.frontend, &of.name)) {
                let is_disputed =
                    report.disagreements.iter().any(|it| (&it.frontend, &it.backend) == (&of.frontend, &of.name));
                rows.push(MatrixRow { frontend: &of.frontend, backend: &of.name, is_disputed });
            }
        }
        Self { columns, rows }
    }

    /// The instances whose summary had no room for all of their backends, each with the number of the others.
    pub(crate) fn left_out(&self) -> impl Iterator<Item = (&'a InstanceName, u32)> {
        let number = |it: &MatrixColumn<'a>| Some((it.instance, it.summary?.backends_left_out));
        self.columns.iter().filter_map(number).filter(|(_, number)| *number > 0)
    }
}

impl<'a> MatrixColumn<'a> {
    pub(crate) fn sees(&self, row: &MatrixRow<'_>) -> SeenBackend<'a> {
        let seen = self.summary.and_then(|said| said.backends.iter().find(|it| row.is(&it.frontend, &it.name)));
        let (state, weight) = match seen.map(|it| it.health_state) {
            None => ("–", Weight::Plain),
            Some(None) => ("not probed", Weight::Plain),
            Some(Some(health_state)) => (health_state.label(), Weight::of_health(health_state)),
        };
        let (when, why) = seen.map_or_else(Default::default, |it| self.when_and_why(it));
        SeenBackend { state, weight, when, why }
    }

    fn when_and_why<'b>(&self, it: &'b BackendSummary) -> (String, &'b str) {
        match it.health_state {
            _ if !self.is_present => (format!("{} ago", duration_ms(self.age_ms)), ""),
            None => (String::new(), ""),
            Some(_) => (format!("for {}", duration_ms(it.for_ms.saturating_add(self.age_ms))), &it.why),
        }
    }
}

impl MatrixRow<'_> {
    fn is(&self, frontend: &str, backend: &str) -> bool {
        (self.frontend, self.backend) == (frontend, backend)
    }
}
