//! The nodes and flows that a reader of the page looks for: those with certain words, the first ones of an order.

use std::fmt::Write;
use std::time::Duration;

use super::Admin;
use super::flow_names::FlowNames;
use super::nodes::{self, NodeRow, NodesReport};
use super::protocol::FlowRow;
use super::words;
use crate::model::humane::list;
use crate::model::ids::FlowId;
use crate::sys::clock::now_ns;
use crate::table::flows::FlowView;

/// Nodes and flows on the page.
const NODES: usize = 15;
const FLOWS: usize = 25;

/// Pause until the next search, as a multiple of the duration of this one: however many flows there are, a page that is left open
/// must not use a noticeable part of a core.
const PAUSE: u32 = 20;
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The query of the page's address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageSearch {
    pub nodes: SearchWords,
    pub flows: SearchWords,
    pub by: FlowOrder,
}

/// Words that have to be found, whatever the case of their ASCII letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SearchWords {
    /// As typed.
    pub text: String,
    words: Vec<String>,
}

/// Which flows come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FlowOrder {
    #[default]
    ToClient,
    ToBackend,
    LastByte,
    Idle,
    Oldest,
    Youngest,
    Connect,
}

/// The answer.
#[derive(Debug)]
pub(crate) struct PageLists {
    pub search: PageSearch,
    /// With the first nodes that were found.
    pub nodes: NodesReport,
    pub nodes_found: u64,
    pub nodes_all: u64,
    pub flows: Vec<FlowRow>,
    pub flows_found: u64,
    pub flows_all: u64,
}

impl PageSearch {
    /// Reads `nodes=WORDS&flows=WORDS&by=ORDER`; anything else counts for nothing.
    pub(crate) fn of_query(query: &str) -> Self {
        let mut search = Self::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*key {
                "nodes" => search.nodes = SearchWords::new(&value),
                "flows" => search.flows = SearchWords::new(&value),
                "by" => search.by = FlowOrder::ALL.into_iter().find(|by| by.key() == value).unwrap_or_default(),
                _ => {}
            }
        }
        search
    }
}

impl SearchWords {
    pub(crate) fn new(text: &str) -> Self {
        let words = text.split_whitespace().map(str::to_ascii_lowercase).collect();
        Self { text: text.trim().to_owned(), words }
    }

    fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether each of them is found in a node's columns.
    pub(crate) fn find_node(&self, node: &NodeRow) -> bool {
        self.is_empty() || self.are_in(&mut text_of(node))
    }

    fn are_in(&self, text: &mut str) -> bool {
        text.make_ascii_lowercase();
        self.words.iter().all(|word| text.contains(word))
    }
}

impl FlowOrder {
    pub(crate) const ALL: [FlowOrder; 7] =
        [Self::ToClient, Self::ToBackend, Self::LastByte, Self::Idle, Self::Oldest, Self::Youngest, Self::Connect];

    /// In the page's address.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::ToClient => "to_client",
            Self::ToBackend => "to_backend",
            Self::LastByte => "last_byte",
            Self::Idle => "idle",
            Self::Oldest => "oldest",
            Self::Youngest => "youngest",
            Self::Connect => "connect",
        }
    }

    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::ToClient => "most bytes to the client first",
            Self::ToBackend => "most bytes to the backend first",
            Self::LastByte => "latest byte first",
            Self::Idle => "longest idle first",
            Self::Oldest => "oldest first",
            Self::Youngest => "youngest first",
            Self::Connect => "slowest connect first",
        }
    }

    /// The lower, the earlier in the list.
    fn rank(self, flow: &FlowView) -> u64 {
        match self {
            Self::ToClient => u64::MAX - flow.bytes_to_client,
            Self::ToBackend => u64::MAX - flow.bytes_to_backend,
            Self::LastByte => u64::MAX - flow.last_byte_ns(),
            Self::Idle => flow.last_byte_ns(),
            Self::Oldest => flow.origin.accepted_at_ns,
            Self::Youngest => u64::MAX - flow.origin.accepted_at_ns,
            Self::Connect => u64::MAX - flow.connect_us,
        }
    }
}

impl PageLists {
    /// Walks through all flows: call it on a blocking thread.
    pub(crate) fn find(admin: &Admin, search: PageSearch) -> Self {
        let mut nodes = nodes::last_report(admin);
        let nodes_all = nodes.nodes.len() as u64;
        nodes.nodes.retain(|node| search.nodes.find_node(node));
        let nodes_found = nodes.nodes.len() as u64;
        nodes.nodes.truncate(NODES);
        let mut lists = Self {
            search,
            nodes,
            nodes_found,
            nodes_all,
            flows: Vec::with_capacity(FLOWS),
            flows_found: 0,
            flows_all: 0,
        };
        lists.find_flows(admin);
        lists
    }

    /// Whether a source lists nodes.
    pub(crate) fn has_nodes(&self) -> bool {
        self.nodes.source.is_some()
    }

    fn find_flows(&mut self, admin: &Admin) {
        // Several readers use one core together.
        let _alone = admin.searching();
        let names = FlowNames::of(&admin.table.registry, &admin.table.names, admin.table.flows.tag());
        let mut found = Vec::with_capacity(2 * FLOWS);
        // The last place of the list, once it is full: most flows come after it.
        let mut last = None;
        let mut text = String::new();
        for flow in admin.table.flows.iter() {
            self.flows_all += 1;
            if !self.search.flows.is_empty() {
                text.clear();
                names.write(&flow, &mut text);
                if !self.search.flows.are_in(&mut text) {
                    continue;
                }
            }
            self.flows_found += 1;
            let place = (self.search.by.rank(&flow), flow.id);
            if last.is_some_and(|last| place > last) {
                continue;
            }
            found.push((place, flow));
            if found.len() == 2 * FLOWS {
                keep_first(&mut found);
                last = found.last().map(|(place, _)| *place);
            }
        }
        keep_first(&mut found);
        let now_ns = now_ns();
        self.flows.extend(found.iter().map(|(_, flow)| names.row(flow, now_ns)));
    }
}

/// The pause after a search that took `took`.
pub(crate) fn pause(took: Duration) -> Duration {
    (took * PAUSE).clamp(PAUSE_MIN, PAUSE_MAX)
}

fn keep_first(found: &mut Vec<((u64, FlowId), FlowView)>) {
    found.sort_unstable_by_key(|(place, _)| *place);
    found.truncate(FLOWS);
}

fn text_of(node: &NodeRow) -> String {
    let (_, state) = words::of_node(node);
    let mut text = format!("{} {state} {}", node.node, list(&node.peers));
    if let Some(backend) = &node.backend {
        write!(text, " {backend}").expect("a string takes everything");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_words_and_an_order_and_nothing_else_counts() {
        let read = PageSearch::of_query("flows=Worker-7+offloaded&by=oldest&nodes=a%26b&x=y&%ff=%zz&=");
        assert_eq!(read.flows.words, ["worker-7", "offloaded"]);
        assert_eq!((&*read.flows.text, &*read.nodes.text, read.by), ("Worker-7 offloaded", "a&b", FlowOrder::Oldest));
        assert_eq!(PageSearch::of_query("by=nonsense"), PageSearch::default());
        assert_eq!(PageSearch::of_query(""), PageSearch::default());
        let all = FlowOrder::ALL.map(|by| PageSearch::of_query(&format!("by={}", by.key())).by);
        assert_eq!(all, FlowOrder::ALL);
    }
}
