//! The table of nodes: filter and selection. The instance orders it: silent nodes first, then those with the least time left.

use crate::admin::nodes::{NodeRow, NodesReport};
use crate::admin::search;

/// The nodes of the last look, those of them that are shown, and the one that keys act on.
#[derive(Debug, Default)]
pub(super) struct NodeRows {
    /// `None`: the instance has not told them yet, or it is of a version that cannot.
    report: Option<NodesReport>,
    /// Places in the report.
    shown: Vec<usize>,
    filter: String,
    selected: Option<String>,
    /// Where the selected node is in `shown`; where it was, if it is gone.
    place: usize,
    page: usize,
}

impl NodeRows {
    /// The next look.
    pub(super) fn renew(&mut self, report: Option<NodesReport>) {
        self.report = report;
        self.arrange();
    }

    pub(super) fn report(&self) -> Option<&NodesReport> {
        self.report.as_ref()
    }

    pub(super) fn len(&self) -> usize {
        self.shown.len()
    }

    pub(super) fn filter(&self) -> &str {
        &self.filter
    }

    pub(super) fn set_filter(&mut self, filter: String) {
        self.filter = filter;
        self.arrange();
    }

    pub(super) fn selected(&self) -> Option<&NodeRow> {
        self.at(*self.shown.get(self.place)?)
    }

    /// Selects the node so many places below; above, if negative.
    pub(super) fn go(&mut self, places: isize) {
        let last = self.shown.len().saturating_sub(1);
        self.place = self.place.saturating_add_signed(places).min(last);
        self.selected = self.selected().map(|node| node.node.clone());
    }

    pub(super) fn go_pages(&mut self, pages: isize) {
        self.go(pages.saturating_mul(self.page.max(1).try_into().unwrap_or(isize::MAX)));
    }

    /// Those that the screen has room for, the selected one among them, the place of the first, and that of the selected one among these.
    pub(super) fn window(&mut self, room: usize) -> (impl Iterator<Item = &NodeRow>, usize, Option<usize>) {
        self.page = room.max(1);
        let first = (self.place + 1).saturating_sub(self.page);
        let marked = (!self.shown.is_empty() && room > 0).then(|| self.place - first);
        (self.shown.iter().skip(first).take(room).filter_map(|place| self.at(*place)), first, marked)
    }

    fn at(&self, place: usize) -> Option<&NodeRow> {
        self.report.as_ref()?.nodes.get(place)
    }

    fn arrange(&mut self) {
        let nodes = self.report.as_ref().map_or(&[][..], |report| &report.nodes);
        let words = search::SearchWords::new(&self.filter);
        self.shown = (0..nodes.len()).filter(|place| words.find_node(&nodes[*place])).collect();
        // The first one is selected until a key selects another: silent nodes come to the top.
        let found = self.selected.as_ref().and_then(|name| self.shown.iter().position(|it| nodes[*it].node == *name));
        self.place = found.unwrap_or(self.place).min(self.shown.len().saturating_sub(1));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::admin::nodes::NodeRowState;
    use crate::table::names::NodeListSource;
    use crate::table::nodes::SilenceKind;

    pub(in crate::cli::top) fn report(nodes: &[&str]) -> NodesReport {
        let node = |(place, name): (usize, &&str)| NodeRow {
            node: (*name).to_owned(),
            state: match place {
                0 => NodeRowState::Silent { why: SilenceKind::NoConnection, for_ms: 38_000 },
                _ => NodeRowState::Connected,
            },
            connections: if place == 0 { 0 } else { 3 },
            peers: Vec::new(),
            backend: (place > 0).then(|| format!("cp{}", 1 + place % 2)),
            age_ms: (place > 0).then_some(273_600_000),
            last_byte_ms: Some(39_200 / (1 + place as u64)),
            budget_ms: Some(40_000 - 39_200 / (1 + place as u64)),
            refused: None,
        };
        NodesReport {
            source: Some(NodeListSource::Cluster),
            sees_not_all: None,
            lease_renew_ms: 10_000,
            grace_period_ms: 40_000,
            silent: 1,
            nodes: nodes.iter().enumerate().map(node).collect(),
        }
    }

    fn names(rows: &mut NodeRows, room: usize) -> Vec<String> {
        rows.window(room).0.map(|node| node.node.clone()).collect()
    }

    #[test]
    fn a_node_that_falls_silent_comes_to_the_top_and_the_selected_one_stays_selected() {
        let mut rows = NodeRows::default();
        rows.renew(Some(report(&["a", "b", "c"])));
        assert_eq!(rows.selected().unwrap().node, "a");
        rows.renew(Some(report(&["c", "a", "b"])));
        assert_eq!((names(&mut rows, 2), &*rows.selected().unwrap().node), (vec!["c".into(), "a".into()], "c"));
        rows.go(2);
        rows.renew(Some(report(&["b", "c", "a"])));
        assert_eq!(rows.selected().unwrap().node, "b");
        assert_eq!(rows.window(1).2, Some(0));
        rows.renew(None);
        assert!(rows.selected().is_none());
        rows.go(5);
        assert_eq!(names(&mut rows, 3), [""; 0]);
    }

    #[test]
    fn the_window_follows_the_selected_node_and_a_filter_finds_states() {
        let all: Vec<_> = (0..100).map(|number| format!("worker-{number}")).collect();
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        let mut rows = NodeRows::default();
        rows.renew(Some(report(&all)));
        assert_eq!(names(&mut rows, 2), ["worker-0", "worker-1"]);
        rows.go_pages(2);
        assert_eq!((names(&mut rows, 2), rows.window(2).2), (vec!["worker-3".into(), "worker-4".into()], Some(1)));
        rows.set_filter("NO connection".to_owned());
        assert_eq!(names(&mut rows, 9), ["worker-0"]);
        rows.set_filter("worker-9 cp2".to_owned());
        assert_eq!(rows.len(), 6, "9, 91, 93 .. 99");
    }
}
