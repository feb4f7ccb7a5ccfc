//! `baton flows`.

use std::ops::ControlFlow;
use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use ipnet::IpNet;

use super::grid::{Align::*, Cell, Grid};
use super::network;
use super::output::{CliError, Output};
use crate::admin::client::Client;
use crate::admin::protocol::{BackendName, Command, FlowFilter, FlowRow, Listed};
use crate::model::humane::{bytes, count, duration_ms, duration_us, plural};
use crate::model::weight::Weight;
use crate::table::flows::FlowState;

/// Default limit for lines in the human-readable list.
const LIMIT: u64 = 100;

#[derive(Debug, Args)]
pub(super) struct FlowsArguments {
    /// Only flows of one backend: NAME or FRONTEND/NAME.
    #[arg(long, value_name = "BACKEND", add = super::shell::backend_names())]
    pub backend: Option<String>,
    /// Only flows of one frontend.
    #[arg(long, value_name = "NAME")]
    pub frontend: Option<String>,
    /// Only flows of clients in one network, or of one address.
    #[arg(long, value_name = "CIDR", value_parser = network::parse)]
    pub client: Option<IpNet>,
    /// Only flows in one state.
    #[arg(long, value_parser = known_state())]
    pub state: Option<FlowState>,
    /// Only flows that Baton will reset in their turn, at the configured pace.
    #[arg(long)]
    pub ending: bool,
    /// Maximum number of flows in the list; 0: all [default: 100, all with --json].
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

pub(super) fn list(client: &mut Client, arguments: FlowsArguments, output: &Output) -> Result<ExitCode, CliError> {
    let limit = match arguments.limit {
        Some(0) => None,
        None if !output.json => Some(LIMIT),
        limit => limit,
    };
    let command = Command::Flows(FlowFilter {
        frontend: arguments.frontend,
        backend: arguments.backend.map(BackendName),
        client: arguments.client,
        state: arguments.state,
        ending: arguments.ending,
        source: None,
        limit,
    });
    let mut rows = Vec::new();
    let mut written = Ok(());
    let end: Option<Listed> = client.list(&command, |row: FlowRow| {
        if output.json {
            written = output.json_line(&row);
        } else {
            rows.push(row);
        }
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    written?;
    if !output.json {
        output.text(&in_words(&rows, end.map_or(0, |end| end.more), output))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn in_words(rows: &[FlowRow], more: u64, output: &Output) -> String {
    if rows.is_empty() && more == 0 {
        return "no flows\n".to_owned();
    }
    let mut grid = Grid::new(&[
        ("FLOW", Right),
        ("STATE", Left),
        ("CLIENT", Left),
        ("NODE", Left),
        ("FRONTEND", Left),
        ("VIP", Left),
        ("BACKEND", Left),
        ("AGE", Right),
        ("IDLE", Right),
        ("TO BACKEND", Right),
        ("TO CLIENT", Right),
        ("CONNECT", Right),
        ("STAYS", Left),
    ])
    .spare(&["CONNECT", "FRONTEND", "TO CLIENT", "TO BACKEND", "VIP", "STAYS", "NODE", "AGE"]);
    for row in rows {
        let weight = match row.state {
            _ if row.ending => Weight::Bad,
            FlowState::Proxied | FlowState::Offloaded => Weight::Plain,
            FlowState::Accepted | FlowState::Connecting => Weight::Notice,
        };
        let state = if row.ending { format!("{}, ending", row.state.label()) } else { row.state.label().to_owned() };
        let bytes = |of: u64| if row.came { format!("≥ {}", bytes(of as f64)) } else { bytes(of as f64) };
        grid.row([
            row.id.to_string().into(),
            Cell::painted(weight, state),
            row.client.to_string().into(),
            row.node.as_deref().unwrap_or("-").into(),
            row.frontend.as_str().into(),
            row.vip.to_string().into(),
            row.backend.as_deref().unwrap_or("-").into(),
            duration_ms(row.age_ms).into(),
            duration_ms(row.idle_ms).into(),
            bytes(row.bytes_to_backend).into(),
            bytes(row.bytes_to_client).into(),
            if row.connect_us > 0 { duration_us(row.connect_us) } else { "-".to_owned() }.into(),
            row.stays.as_deref().unwrap_or("").into(),
        ]);
    }
    let mut text = grid.render(output);
    text += &match more {
        0 => output.faint(&plural(rows.len() as u64, "flow")),
        more => output.faint(&format!("… and {} more; --limit 0 lists all", count(more))),
    };
    let came =
        "\n≥: it began at another instance, and its bytes are what that one last told until bytes have passed here";
    text += &rows.iter().find(|row| row.came).map_or_else(String::new, |_| output.faint(came));
    text + "\n"
}

/// Any state of a flow by its name. Help and completion list them.
fn known_state() -> impl TypedValueParser<Value = FlowState> {
    let labels = PossibleValuesParser::new(FlowState::ALL.map(FlowState::label));
    labels.map(|text| FlowState::ALL.into_iter().find(|state| state.label() == text).expect("one of the labels"))
}
