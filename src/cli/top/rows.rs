//! The table of flows: rates, order, filter and selection.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use crate::admin::protocol::FlowRow;
use crate::model::ids::FlowId;

/// The columns, in the order of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Client,
    Backend,
    Age,
    Idle,
    Rate,
    ToBackend,
    ToClient,
    Connect,
    Flow,
    State,
}

impl Column {
    pub(super) const ALL: [Column; 10] = [
        Self::Client,
        Self::Backend,
        Self::Age,
        Self::Idle,
        Self::Rate,
        Self::ToBackend,
        Self::ToClient,
        Self::Connect,
        Self::Flow,
        Self::State,
    ];

    /// The title, bare, and with the mark of an order from the highest or from the lowest.
    pub(super) fn titles(self) -> [&'static str; 3] {
        macro_rules! marked {
            ($title:literal) => {
                [$title, concat!($title, "▼"), concat!($title, "▲")]
            };
        }
        match self {
            Self::Client => marked!("CLIENT"),
            Self::Backend => marked!("BACKEND"),
            Self::Age => marked!("AGE"),
            Self::Idle => marked!("IDLE"),
            Self::Rate => marked!("BYTES/S"),
            Self::ToBackend => marked!("TO BACKEND"),
            Self::ToClient => marked!("TO CLIENT"),
            Self::Connect => marked!("CONNECT"),
            Self::Flow => marked!("FLOW"),
            Self::State => marked!("STATE"),
        }
    }

    /// Figures begin with the highest, words with the first.
    fn begins_with_the_highest(self) -> bool {
        !matches!(self, Self::Client | Self::Backend | Self::Flow | Self::State)
    }

    fn compare(self, one: &Row, other: &Row) -> Ordering {
        let (a, b) = (&one.flow, &other.flow);
        match self {
            Self::Client => (&a.node, a.client).cmp(&(&b.node, b.client)),
            Self::Backend => (&a.frontend, &a.backend).cmp(&(&b.frontend, &b.backend)),
            Self::Age => a.age_ms.cmp(&b.age_ms),
            Self::Idle => a.idle_ms.cmp(&b.idle_ms),
            Self::Rate => one.bytes_per_s.total_cmp(&other.bytes_per_s),
            Self::ToBackend => a.bytes_to_backend.cmp(&b.bytes_to_backend),
            Self::ToClient => a.bytes_to_client.cmp(&b.bytes_to_client),
            Self::Connect => a.connect_us.cmp(&b.connect_us),
            Self::Flow => a.id.cmp(&b.id),
            Self::State => (a.ending, a.state.label()).cmp(&(b.ending, b.state.label())),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Row {
    pub flow: FlowRow,
    /// In both directions, since the look before. 0 at first.
    pub bytes_per_s: f64,
}

impl Row {
    fn bytes(&self) -> u64 {
        self.flow.bytes_to_backend + self.flow.bytes_to_client
    }

    /// Whether each word is found in it.
    fn has(&self, words: &[String]) -> bool {
        let it = &self.flow;
        if words.is_empty() {
            return true;
        }
        let text = format!(
            "{} {} {} {} {}/{} {} {} {}",
            it.id,
            it.client,
            it.node.as_deref().unwrap_or(""),
            it.vip,
            it.frontend,
            it.backend.as_deref().unwrap_or("-"),
            it.state.label(),
            if it.ending { "ending" } else { "" },
            it.stays.as_deref().unwrap_or(""),
        );
        let text = text.to_lowercase();
        words.iter().all(|word| text.contains(word))
    }
}

/// All flows of the last look, those of them that are shown, in their order, and the one that keys act on.
#[derive(Debug)]
pub(super) struct Rows {
    all: Vec<Row>,
    /// Places in `all`.
    shown: Vec<usize>,
    at_ns: u64,
    filter: String,
    /// FRONTEND and backend: only its flows.
    of_backend: Option<(String, String)>,
    by: Column,
    reversed: bool,
    selected: Option<FlowId>,
    /// Where the selected flow is in `shown`; where it was, if it is gone.
    place: usize,
    /// The first that is on the screen, and the number of those that are.
    top: usize,
    page: usize,
}

impl Rows {
    pub(super) fn new(flows: Vec<FlowRow>, at_ns: u64) -> Self {
        let all = flows.into_iter().map(|flow| Row { flow, bytes_per_s: 0.0 }).collect();
        let mut rows = Self {
            all,
            shown: Vec::new(),
            at_ns,
            filter: String::new(),
            of_backend: None,
            by: Column::Rate,
            reversed: false,
            selected: None,
            place: 0,
            top: 0,
            page: 1,
        };
        rows.arrange();
        rows
    }

    /// The next look.
    pub(super) fn renew(&mut self, flows: Vec<FlowRow>, at_ns: u64) {
        let before: HashMap<FlowId, u64> = self.all.iter().map(|row| (row.flow.id, row.bytes())).collect();
        let seconds = at_ns.saturating_sub(self.at_ns).max(1) as f64 / 1e9;
        let row = |flow: FlowRow| {
            let mut row = Row { flow, bytes_per_s: 0.0 };
            if let Some(before) = before.get(&row.flow.id) {
                row.bytes_per_s = row.bytes().saturating_sub(*before) as f64 / seconds;
            }
            row
        };
        self.all = flows.into_iter().map(row).collect();
        self.at_ns = at_ns;
        self.arrange();
    }

    /// How many nodes have the shown flows. `None`: a client has no name.
    pub(super) fn nodes(&self) -> Option<usize> {
        let names = self.shown.iter().map(|place| self.all[*place].flow.node.as_deref());
        names.collect::<Option<HashSet<_>>>().map(|names| names.len()).filter(|nodes| *nodes > 0)
    }

    pub(super) fn len(&self) -> usize {
        self.shown.len()
    }

    /// Those that the screen has room for, the selected one among them, and the place of that one among these.
    pub(super) fn window(&mut self, room: usize) -> (impl Iterator<Item = &Row>, usize, Option<usize>) {
        self.page = room.max(1);
        let last = self.shown.len().saturating_sub(self.page);
        let lowest = (self.place + 1).saturating_sub(self.page);
        self.top = self.top.clamp(lowest, self.place.max(lowest)).min(last.max(lowest));
        let marked = (!self.shown.is_empty() && room > 0).then(|| self.place - self.top);
        let rows = self.shown.iter().skip(self.top).take(room).map(|place| &self.all[*place]);
        (rows, self.top, marked)
    }

    pub(super) fn selected(&self) -> Option<&Row> {
        self.shown.get(self.place).map(|place| &self.all[*place])
    }

    pub(super) fn filter(&self) -> &str {
        &self.filter
    }

    pub(super) fn set_filter(&mut self, filter: String) {
        self.filter = filter;
        self.arrange();
    }

    pub(super) fn of_backend(&self) -> Option<String> {
        self.of_backend.as_ref().map(|(frontend, backend)| format!("{frontend}/{backend}"))
    }

    pub(super) fn set_of_backend(&mut self, of_backend: Option<(String, String)>) {
        self.of_backend = of_backend;
        self.arrange();
    }

    /// The column of the order, and whether it begins with the highest.
    pub(super) fn order(&self) -> (Column, bool) {
        (self.by, self.by.begins_with_the_highest() != self.reversed)
    }

    /// Orders by the next column, or by the one before.
    pub(super) fn turn_order(&mut self, forward: bool) {
        let columns = Column::ALL.len();
        let at = Column::ALL.iter().position(|column| *column == self.by).unwrap_or(0);
        self.by = Column::ALL[(at + if forward { 1 } else { columns - 1 }) % columns];
        self.reversed = false;
        self.arrange();
    }

    pub(super) fn reverse(&mut self) {
        self.reversed = !self.reversed;
        self.arrange();
    }

    /// Selects the flow so many places below; above, if negative.
    pub(super) fn go(&mut self, places: isize) {
        let last = self.shown.len().saturating_sub(1);
        self.place = self.place.saturating_add_signed(places).min(last);
        self.selected = self.selected().map(|row| row.flow.id);
    }

    pub(super) fn go_pages(&mut self, pages: isize) {
        self.go(pages.saturating_mul(self.page.try_into().unwrap_or(isize::MAX)));
    }

    fn arrange(&mut self) {
        let words: Vec<_> = self.filter.to_lowercase().split_whitespace().map(str::to_owned).collect();
        let is_of_backend = |row: &Row| {
            let is = |(frontend, backend): &(String, String)| {
                row.flow.frontend == *frontend && row.flow.backend.as_ref() == Some(backend)
            };
            self.of_backend.as_ref().is_none_or(is)
        };
        let is_shown = |place: &usize| is_of_backend(&self.all[*place]) && self.all[*place].has(&words);
        let mut shown: Vec<_> = (0..self.all.len()).filter(is_shown).collect();
        let (by, from_the_highest) = self.order();
        // The same for equal ones at each look, so that they do not change their places.
        shown.sort_unstable_by(|one, other| {
            let (one, other) = (&self.all[*one], &self.all[*other]);
            let order = by.compare(one, other);
            let order = if from_the_highest { order.reverse() } else { order };
            order.then_with(|| one.flow.id.cmp(&other.flow.id))
        });
        self.shown = shown;
        let found = self.selected.and_then(|id| self.shown.iter().position(|place| self.all[*place].flow.id == id));
        self.place = found.unwrap_or(self.place).min(self.shown.len().saturating_sub(1));
        // Of a flow that is gone, the place is kept, and the next look keeps the flow that came there.
        if self.selected.is_some() && found.is_none() {
            self.selected = self.selected().map(|row| row.flow.id);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::table::flows::FlowState;

    pub(in crate::cli::top) fn flow(number: u64, backend: &str, bytes: u64) -> FlowRow {
        FlowRow {
            id: FlowId(number),
            frontend: "apiserver".to_owned(),
            backend: Some(backend.to_owned()),
            client: format!("10.0.{}.{}:40000", number / 200, 1 + number % 200).parse().unwrap(),
            node: None,
            vip: "10.0.0.100:6443".parse().unwrap(),
            source: None,
            state: FlowState::Offloaded,
            ending: false,
            age_ms: 1000 * number,
            idle_ms: 10,
            bytes_to_backend: bytes,
            bytes_to_client: 0,
            came: false,
            connect_us: 420,
            stays: None,
            worker: 0,
        }
    }

    fn ids(rows: &mut Rows, room: usize) -> Vec<u64> {
        rows.window(room).0.map(|row| row.flow.id.0).collect()
    }

    #[test]
    fn the_flow_that_moves_most_bytes_between_two_looks_comes_first() {
        let mut rows = Rows::new(vec![flow(1, "cp1", 9_000_000), flow(2, "cp1", 0)], 1);
        assert_eq!(ids(&mut rows, 9), [1, 2]);
        rows.renew(vec![flow(1, "cp1", 9_000_000), flow(2, "cp1", 500), flow(3, "cp2", 70_000)], 2_000_000_001);
        assert_eq!(ids(&mut rows, 9), [2, 1, 3], "a new flow has no rate yet");
        let rates: Vec<_> = rows.window(9).0.map(|row| row.bytes_per_s).collect();
        assert_eq!(rates, [250.0, 0.0, 0.0]);
        rows.reverse();
        assert_eq!(ids(&mut rows, 9), [1, 3, 2]);
    }

    #[test]
    fn the_selected_flow_stays_selected_wherever_it_goes_and_the_next_is_if_it_ends() {
        let mut rows = Rows::new((1..=9).map(|number| flow(number, "cp1", 0)).collect(), 1);
        rows.go(2);
        assert_eq!(rows.selected().unwrap().flow.id, FlowId(3));
        // It moves bytes now, and comes first.
        rows.renew((1..=9).map(|number| flow(number, "cp1", if number == 3 { 9 } else { 0 })).collect(), 2);
        assert_eq!((rows.selected().unwrap().flow.id, ids(&mut rows, 1)), (FlowId(3), vec![3]));
        rows.renew((4..=9).map(|number| flow(number, "cp1", 0)).collect(), 3);
        assert_eq!(rows.selected().unwrap().flow.id, FlowId(4));
        rows.renew(Vec::new(), 4);
        assert!(rows.selected().is_none());
        rows.go(5);
        assert_eq!(ids(&mut rows, 3), [0; 0]);
    }

    #[test]
    fn the_window_follows_the_selected_flow_and_never_goes_beyond_the_last() {
        let mut rows = Rows::new((1..=10_000).map(|number| flow(number, "cp1", 0)).collect(), 1);
        assert_eq!(ids(&mut rows, 3), [1, 2, 3]);
        rows.go_pages(1);
        assert_eq!((ids(&mut rows, 3), rows.window(3).2), (vec![2, 3, 4], Some(2)));
        rows.go(isize::MAX);
        assert_eq!((ids(&mut rows, 3), rows.window(3).2), (vec![9998, 9999, 10_000], Some(2)));
        rows.go(isize::MIN);
        assert_eq!((ids(&mut rows, 3), rows.window(3).2), (vec![1, 2, 3], Some(0)));
        rows.go(isize::MAX);
        rows.set_filter("10.0.1.1:".to_owned());
        assert_eq!((ids(&mut rows, 3), rows.len()), (vec![200], 1), "10.0.11.1 is another client");
        assert_eq!(ids(&mut rows, 0), [0; 0]);
    }

    #[test]
    fn a_filter_wants_each_word_and_a_backend_is_no_part_of_a_longer_name() {
        let mut rows = Rows::new(vec![flow(1, "cp1", 0), flow(2, "cp10", 0), flow(3, "cp2", 0)], 1);
        rows.set_filter("OFFLOADED cp1".to_owned());
        assert_eq!(ids(&mut rows, 9), [1, 2]);
        rows.set_filter(String::new());
        rows.set_of_backend(Some(("apiserver".to_owned(), "cp1".to_owned())));
        assert_eq!(ids(&mut rows, 9), [1]);
    }

    #[test]
    fn a_flow_is_found_by_the_name_of_its_node_and_nodes_are_counted_if_each_client_has_a_name() {
        let named = |number, node: &str| FlowRow { node: Some(node.to_owned()), ..flow(number, "cp1", 0) };
        let mut rows = Rows::new(vec![named(1, "worker-7"), named(2, "worker-8"), named(3, "worker-7")], 1);
        assert_eq!(rows.nodes(), Some(2));
        rows.set_filter("WORKER-7".to_owned());
        assert_eq!((ids(&mut rows, 9), rows.nodes()), (vec![1, 3], Some(1)));
        rows.set_filter(String::new());
        rows.renew(vec![named(1, "worker-7"), flow(4, "cp1", 0)], 2);
        assert_eq!(rows.nodes(), None);
    }

    #[test]
    fn each_column_orders() {
        let mut flows = vec![flow(1, "cp2", 7), flow(2, "cp1", 8)];
        flows[1].client = "9.0.0.1:1".parse().unwrap();
        flows[1].state = FlowState::Accepted;
        (flows[1].idle_ms, flows[1].connect_us, flows[1].bytes_to_client) = (11, 421, 1);
        let mut rows = Rows::new(flows, 1);
        let mut firsts = Vec::new();
        for _ in Column::ALL {
            rows.turn_order(true);
            firsts.push((rows.order().0, ids(&mut rows, 1)[0]));
        }
        for (column, first) in firsts {
            let expected = if matches!(column, Column::Flow | Column::Rate) { 1 } else { 2 };
            assert_eq!(first, expected, "{column:?}");
        }
    }
}
