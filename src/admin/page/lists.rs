//! The nodes and the flows, each with a field to search them.

use std::fmt;

use super::html::{Escaped, Pill, tone, write};
use crate::admin::nodes::{NodeRow, NodesReport};
use crate::admin::protocol::FlowRow;
use crate::admin::search::{FlowOrder, PageLists};
use crate::admin::words;
use crate::model::humane::{bytes, count, duration_ms, duration_us, plural};
use crate::model::weight::Weight;
use crate::table::flows::FlowState;

pub(super) fn render(page: &mut String, lists: &PageLists) {
    // Without a script, one button sends all of its fields.
    page.push_str("<form id=\"find\" role=\"search\" method=\"get\" action=\"/\"></form>\n");
    nodes(page, lists);
    flows(page, lists);
}

/// The parts that change: the id of each element, and the element.
pub(crate) fn parts(lists: &PageLists) -> [(&'static str, String); 4] {
    [
        ("nodes-facts", nodes_facts(lists)),
        ("nodes-rows", nodes_rows(&lists.nodes)),
        ("flows-facts", flows_facts(lists)),
        ("flows-rows", flows_rows(lists)),
    ]
}

fn nodes(page: &mut String, lists: &PageLists) {
    let hidden = if lists.has_nodes() { "" } else { " hidden" };
    write(page, format_args!("<section id=\"nodes\"{hidden}>\n<h2>Nodes{}", nodes_facts(lists)));
    page.push_str("</h2>\n<p class=\"find\">");
    let text = Escaped(&lists.search.nodes.text);
    field(
        page,
        format_args!(
            "name=\"nodes\" value=\"{text}\" placeholder=\"name, backend or state\" aria-label=\"Search the nodes\""
        ),
    );
    write(page, format_args!("</p>\n{}</section>\n", nodes_rows(&lists.nodes)));
}

fn nodes_facts(lists: &PageLists) -> String {
    let source = lists.nodes.source.map(|source| format!(" by {}", source.in_words())).unwrap_or_default();
    let of = of(lists.nodes_found, lists.nodes_all, lists.nodes.nodes.len(), "node", &source);
    HeadlineFacts("nodes-facts", &of).to_string()
}

fn nodes_rows(report: &NodesReport) -> String {
    let mut rows = String::from("<div class=\"live\" id=\"nodes-rows\">\n");
    if let Some(why) = &report.sees_not_all {
        write(&mut rows, format_args!("<p class=\"blind\">{}</p>\n", Escaped(words::sees_not_all(why))));
    }
    if report.nodes.is_empty() {
        return rows + "<p class=\"none\">No node is found.</p>\n</div>\n";
    }
    rows.push_str(
        "<div class=\"scroll\"><table>\n<thead><tr><th>State</th><th>Node</th><th>Backend</th><th class=\"r\">Flows</th>\
         <th class=\"r\">Age</th><th class=\"r\">Last byte</th><th class=\"r\">Budget left</th></tr></thead>\n<tbody>\n",
    );
    report.nodes.iter().for_each(|it| node(&mut rows, it, report));
    rows + "</tbody></table></div>\n</div>\n"
}

fn node(page: &mut String, it: &NodeRow, report: &NodesReport) {
    let (weight, state) = words::of_node(it);
    let time = |ms: Option<u64>| ms.map_or_else(|| "–".to_owned(), duration_ms);
    let budget = match it.budget_ms {
        None => "–".to_owned(),
        Some(left_ms) => {
            let percent = (left_ms * 100 / report.grace_period_ms.max(1)).min(100);
            let weight = match words::of_budget(left_ms, report.lease_renew_ms) {
                Weight::Plain => Weight::Good,
                low => low,
            };
            let title = format!("until its node is NotReady, of {}", duration_ms(report.grace_period_ms));
            format!(
                "<span class=\"bar\" title=\"{title}\"><i class=\"{}\" style=\"width:{percent}%\"></i></span> <span class=\"left\">{}</span>",
                tone(weight),
                duration_ms(left_ms),
            )
        }
    };
    write(
        page,
        format_args!(
            "<tr><td>{}</td><td><b>{}</b></td><td data-of=\"Backend\">{}</td><td class=\"r\" data-of=\"Flows\">{}</td>\
             <td class=\"r\" data-of=\"Age\">{}</td><td class=\"r\" data-of=\"Last byte\">{}</td>\
             <td class=\"r\" data-of=\"Budget left\">{budget}</td></tr>\n",
            Pill(tone(weight), &state),
            Escaped(&it.node),
            Escaped(it.backend.as_deref().unwrap_or("–")),
            count(it.connections.into()),
            time(it.age_ms),
            time(it.last_byte_ms),
        ),
    );
}

fn flows(page: &mut String, lists: &PageLists) {
    write(page, format_args!("<section id=\"flows\">\n<h2>Flows{}</h2>\n", flows_facts(lists)));
    page.push_str("<p class=\"find\">");
    let text = Escaped(&lists.search.flows.text);
    field(
        page,
        format_args!(
            "name=\"flows\" value=\"{text}\" placeholder=\"client, node, backend or state\" aria-label=\"Search the flows\""
        ),
    );
    page.push_str("<select form=\"find\" name=\"by\" aria-label=\"Order of the flows\">");
    for by in FlowOrder::ALL {
        let selected = if by == lists.search.by { " selected" } else { "" };
        write(page, format_args!("<option value=\"{}\"{selected}>{}</option>", by.key(), by.in_words()));
    }
    page.push_str("</select><noscript><button form=\"find\">Search</button></noscript></p>\n");
    write(page, format_args!("{}</section>\n", flows_rows(lists)));
}

fn flows_facts(lists: &PageLists) -> String {
    let of = of(lists.flows_found, lists.flows_all, lists.flows.len(), "flow", "");
    HeadlineFacts("flows-facts", &of).to_string()
}

fn flows_rows(lists: &PageLists) -> String {
    let mut rows = String::from("<div class=\"live\" id=\"flows-rows\">\n");
    if lists.flows.is_empty() {
        return rows + "<p class=\"none\">No flow is found.</p>\n</div>\n";
    }
    rows.push_str(
        "<div class=\"scroll\"><table>\n<thead><tr><th>State</th><th>Client</th><th>Backend</th><th class=\"r\">Age</th>\
         <th class=\"r\">Idle</th><th class=\"r\">To backend</th><th class=\"r\">To client</th><th class=\"r\">Connect</th>\
         <th class=\"r\">Flow</th></tr></thead>\n<tbody>\n",
    );
    lists.flows.iter().for_each(|it| flow(&mut rows, it));
    rows + "</tbody></table></div>\n</div>\n"
}

fn flow(page: &mut String, it: &FlowRow) {
    let (tone, state) = match it.state {
        _ if it.ending => ("bad", "ending"),
        FlowState::Proxied | FlowState::Offloaded => ("plain", it.state.label()),
        FlowState::Accepted | FlowState::Connecting => ("notice", it.state.label()),
    };
    let node = it.node.as_ref().map(|node| format!("<b>{}</b> ", Escaped(node))).unwrap_or_default();
    write(
        page,
        format_args!(
            "<tr><td>{}</td><td>{node}<span class=\"mono\">{}</span></td><td data-of=\"Backend\">{}</td>\
             <td class=\"r\" data-of=\"Age\">{}</td><td class=\"r\" data-of=\"Idle\">{}</td>\
             <td class=\"r\" data-of=\"To backend\">{}</td><td class=\"r\" data-of=\"To client\">{}</td>\
             <td class=\"r\" data-of=\"Connect\">{}</td><td class=\"r\" data-of=\"Flow\">{}</td></tr>\n",
            Pill(tone, state),
            it.client,
            Escaped(format!("{}/{}", it.frontend, it.backend.as_deref().unwrap_or("–"))),
            duration_ms(it.age_ms),
            duration_ms(it.idle_ms),
            bytes(it.bytes_to_backend as f64),
            bytes(it.bytes_to_client as f64),
            if it.connect_us > 0 { duration_us(it.connect_us) } else { "–".to_owned() },
            it.id,
        ),
    );
}

fn field(page: &mut String, attributes: fmt::Arguments<'_>) {
    write(
        page,
        format_args!("<input form=\"find\" type=\"search\" autocomplete=\"off\" spellcheck=\"false\" {attributes}>"),
    );
}

/// `112 of 5,000 nodes by the cluster's list, the first 15`.
fn of(found: u64, all: u64, listed: usize, thing: &str, source: &str) -> String {
    let of = if found == all { plural(all, thing) } else { format!("{} of {}", count(found), plural(all, thing)) };
    if found == listed as u64 { of + source } else { format!("{of}{source}, the first {listed}") }
}

/// The text at the right of a headline.
struct HeadlineFacts<'a>(&'a str, &'a str);

impl fmt::Display for HeadlineFacts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<span class=\"facts live\" id=\"{}\">{}</span>", self.0, Escaped(self.1))
    }
}
