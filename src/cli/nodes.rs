//! `baton nodes`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::bundle::NODES;
use super::grid::{Align::*, Cell, Grid};
use super::output::{CliError, Output};
use super::recording::{self, RecordingFrom};
use super::socket;
use crate::admin::nodes::{NodeRow, NodeRowState, NodesReport};
use crate::admin::protocol::Command;
use crate::admin::words;
use crate::model::humane::{count, duration_ms, plural};
use crate::model::weight::Weight;

/// Between two looks.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Default limit for lines in the human-readable list.
const LIMIT: usize = 100;

/// Limit for lines about nodes that Baton itself refuses.
const REFUSED_MAX: usize = 5;

/// How an instance gets to know the nodes.
const HOW: &str = "this instance knows no nodes. Have it list the cluster's nodes:

[frontend.discover]
kind = \"kubernetes\"
token_file = \"/etc/baton/discovery.token\"

(docs/discovery.md has the rights that it needs), or name them in a file, an address and a name on each line:

[names]
file = \"/etc/baton/nodes\"
";

#[derive(clap::Args, Clone, Debug)]
pub(super) struct NodesArguments {
    /// Only nodes that are silent: they had a connection, and have had none, or have sent nothing, for too long.
    #[arg(long)]
    silent: bool,
    /// Maximum number of nodes in the list, those with the least time left first; 0: all [default: 100, all with --json].
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Shows the list again every second.
    #[arg(long, short)]
    watch: bool,
    /// As they were when this bundle of `baton bundle` was made.
    #[arg(long, value_name = "FILE", conflicts_with = "watch")]
    from: Option<PathBuf>,
}

impl NodesArguments {
    pub(super) fn is_of_bundle(&self) -> bool {
        self.from.is_some()
    }

    fn show(&self, mut report: NodesReport, output: &Output) -> Result<(), CliError> {
        let limit = match self.limit {
            Some(0) => usize::MAX,
            None if output.json => usize::MAX,
            limit => limit.unwrap_or(LIMIT),
        };
        let all = report.nodes.len();
        if self.silent {
            report.nodes.retain(|row| matches!(row.state, NodeRowState::Silent { .. }));
        }
        let more = report.nodes.len().saturating_sub(limit);
        report.nodes.truncate(limit);
        match output.json {
            true if self.watch => output.json_line(&report),
            true => output.document(&report),
            false => output.wrapped(&in_words(&report, all, more, output)),
        }
    }
}

/// The nodes of a bundle.
pub(super) fn of_bundle(arguments: &NodesArguments, output: &Output) -> Result<ExitCode, CliError> {
    let path = arguments.from.clone().unwrap_or_default();
    std::fs::metadata(&path).map_err(|error| CliError::path(&path, error))?;
    let part = RecordingFrom::named(path.clone()).part::<NodesReport>(NODES)?;
    let (report, at_ms) = part.ok_or(CliError::NoPart { path, part: NODES })?;
    if !output.json {
        output.line(output.faint(&format!("at {}", recording::shown(at_ms))))?;
    }
    arguments.show(report, output)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn nodes(socket: &Path, arguments: &NodesArguments, output: &Output) -> Result<ExitCode, CliError> {
    let mut client = socket::connect_to_read(socket)?;
    loop {
        let report: NodesReport = match client.ask(&Command::Nodes {}) {
            Err(lost) if arguments.watch => {
                client = socket::connect_again(socket, lost)?.0;
                continue;
            }
            answered => answered?,
        };
        arguments.show(report, output)?;
        if !arguments.watch {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(WATCH_EVERY);
    }
}

fn in_words(report: &NodesReport, all: usize, more: usize, output: &Output) -> String {
    let Some(source) = report.source else { return HOW.to_owned() };
    let mut text = String::new();
    if !report.nodes.is_empty() {
        text += &grid(&report.nodes, report.lease_renew_ms).render(output);
    }
    if more > 0 {
        text += &output.faint(&format!("… and {} more; --limit 0 lists all\n", count(more as u64)));
    }
    let source = source.in_words();
    let weight = if report.silent > 0 { Weight::Bad } else { Weight::Plain };
    let silent = output.paint(weight, &format!("{} silent", count(report.silent)));
    text += &format!("{} by {source}, {silent}\n", plural(all as u64, "node"));
    for row in report.nodes.iter().filter(|row| row.refused.is_some()).take(REFUSED_MAX) {
        let refused = row.refused.map_or_else(String::new, |it| it.in_words(true));
        text += &output.paint(Weight::Bad, &format!("{}: {refused}\n", row.node));
    }
    if let Some(why) = &report.sees_not_all {
        text += &format!("{}\n", output.paint(Weight::Notice, &words::sees_not_all(why)));
    }
    text
}

pub(super) fn grid<'a>(nodes: impl IntoIterator<Item = &'a NodeRow>, lease_renew_ms: u64) -> Grid {
    let mut grid = Grid::new(&[
        ("NODE", Left),
        ("STATE", Left),
        ("CONNS", Right),
        ("BACKEND", Left),
        ("AGE", Right),
        ("LAST BYTE", Right),
        ("BUDGET", Right),
    ])
    .spare(&["AGE", "BACKEND", "CONNS"]);
    nodes.into_iter().for_each(|node| grid.row(row(node, lease_renew_ms)));
    grid
}

fn row(node: &NodeRow, lease_renew_ms: u64) -> [Cell; 7] {
    let (weight, state) = words::of_node(node);
    let time = |ms: Option<u64>| ms.map_or_else(|| "-".to_owned(), duration_ms);
    let budget = node.budget_ms.map_or(Weight::Plain, |left_ms| words::of_budget(left_ms, lease_renew_ms));
    [
        node.node.as_str().into(),
        Cell::painted(weight, state),
        count(node.connections.into()).into(),
        node.backend.as_deref().unwrap_or("-").into(),
        time(node.age_ms).into(),
        time(node.last_byte_ms).into(),
        Cell::painted(budget, time(node.budget_ms)),
    ]
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::admin::protocol::Refusal;
    use crate::cli::samples;
    use crate::model::end_reason::EndReason;
    use crate::model::fleet::InstanceName;
    use crate::table::names::NodeListSource;
    use crate::table::nodes::{NodeRefusal, SilenceKind};

    fn node(name: &str, state: NodeRowState) -> NodeRow {
        NodeRow {
            node: name.to_owned(),
            state,
            connections: 0,
            peers: Vec::new(),
            backend: None,
            age_ms: None,
            last_byte_ms: None,
            budget_ms: None,
            refused: None,
        }
    }

    fn report() -> NodesReport {
        let lost = NodeRowState::Silent { why: SilenceKind::NoConnection, for_ms: 38_000 };
        let connected = NodeRow {
            connections: 3,
            backend: Some("cp2".to_owned()),
            age_ms: Some(273_600_000),
            last_byte_ms: Some(4_100),
            budget_ms: Some(35_900),
            ..node("worker-16", NodeRowState::Connected)
        };
        let at_peer =
            NodeRow { connections: 2, peers: vec![InstanceName("lb-b".into())], ..node("worker-18", connected.state) };
        NodesReport {
            source: Some(NodeListSource::Cluster),
            sees_not_all: None,
            lease_renew_ms: 10_000,
            grace_period_ms: 40_000,
            silent: 1,
            nodes: vec![
                NodeRow { last_byte_ms: Some(39_200), budget_ms: Some(800), ..node("worker-17", lost) },
                connected,
                at_peer,
                node("cp1", NodeRowState::NeverSeen),
            ],
        }
    }

    #[test]
    fn the_documents_show_what_is_printed_of_nodes_and_it_fits_a_terminal() {
        let shown = in_words(&report(), 4, 0, &Output::new(false));
        assert_eq!(samples::shown("docs/operate.md", "baton nodes"), shown);
        let widest = shown.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{widest:?}:\n{shown}");
    }

    /// Regression: `--watch` ended with exit code 1 at each upgrade of the instance.
    #[test]
    fn an_upgrade_does_not_end_the_watching() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let report = format!("{{\"ok\":{}}}\n", serde_json::to_string(&report()).unwrap());
        let about = "{\"ok\":{\"version\":\"1\",\"protocol\":1,\"pid\":8}}\n".to_owned();
        let refusal = Refusal::BadRequest { reason: "it is the new process".to_owned() };
        let refusal = format!("{}\n", serde_json::json!({ "error": refusal }));
        let processes = std::thread::spawn(move || {
            for answers in [vec![report], vec![about, refusal]] {
                let (stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(&stream);
                for answer in answers {
                    reader.read_line(&mut String::new()).unwrap();
                    (&stream).write_all(answer.as_bytes()).unwrap();
                }
            }
        });
        let arguments = NodesArguments { silent: false, limit: None, watch: true, from: None };
        let ended = nodes(&path, &arguments, &Output::new(true)).unwrap_err().to_string();
        assert!(ended.contains("it is the new process"), "{ended}");
        processes.join().unwrap();
    }

    /// Regression: a node that `deny` keeps out was told as one that does not connect.
    #[test]
    fn a_node_that_baton_refuses_is_told_as_refused_and_by_what() {
        let refused = Some(NodeRefusal { reason: EndReason::Denied, times: 30 });
        let silent = NodeRowState::Silent { why: SilenceKind::NoConnection, for_ms: 13_000 };
        let nodes = vec![
            NodeRow { refused, ..node("worker-3", silent) },
            NodeRow { refused, ..node("worker-4", NodeRowState::NeverSeen) },
        ];
        let said = in_words(&NodesReport { nodes, ..report() }, 2, 0, &Output::new(false));
        assert!(said.contains("\nworker-3  refused for 13 s: denied") && said.contains("refused: denied"), "{said}");
        assert!(said.contains("\nworker-3: Baton refuses it (denied: allow, deny), 30 times since\n"), "{said}");
        assert!(!said.contains("no connection"), "{said}");
    }

    #[test]
    fn what_is_missing_is_said_and_how_to_get_it() {
        let output = Output::new(false);
        let without = NodesReport { source: None, nodes: Vec::new(), ..report() };
        let how = in_words(&without, 0, 0, &output);
        assert!(
            how.contains("[frontend.discover]\nkind = \"kubernetes\"") && how.contains("[names]\nfile = "),
            "{how}"
        );
        let blind = NodesReport { sees_not_all: Some("lb-b is silent".to_owned()), ..report() };
        let said = in_words(&blind, 4, 0, &output);
        assert!(said.ends_with("no node without a connection counts as silent: lb-b is silent\n"), "{said}");
        let few = in_words(&report(), 1_204, 1_200, &output);
        assert!(few.contains("… and 1,200 more; --limit 0 lists all\n1,204 nodes by the cluster's list, 1 silent\n"));
    }
}
