//! `baton drain`, `undrain` and `eject`.

use std::process::ExitCode;
use std::time::Duration;

use super::output::{CliError, Output};
use crate::admin::client::{Client, ClientError};
use crate::admin::protocol::{BackendName, Command, Ordered, Refusal};
use crate::admin::status::BackendStatus;
use crate::model::humane::{duration_ms, plural};
use crate::sys::clock::now_ns;

pub(super) fn drain(
    client: &mut Client,
    backend: BackendName,
    wait: bool,
    output: &Output,
) -> Result<ExitCode, CliError> {
    let ordered: Ordered = client.ask(&Command::Drain { backend: backend.clone() })?;
    if output.json && !wait {
        output.document(&ordered)?;
    }
    if !output.json {
        let deadline = ordered.drain_timeout_ms.map_or(String::new(), |ms| {
            format!(", which Baton resets after {} if they have not ended", duration_ms(ms))
        });
        output.line(format!("{} takes no new flows; it has {}{deadline}", full(&ordered), flows(&ordered)))?;
    }
    if wait { watch_going(client, &ordered, output) } else { Ok(ExitCode::SUCCESS) }
}

pub(super) fn undrain(client: &mut Client, backend: BackendName, output: &Output) -> Result<ExitCode, CliError> {
    let before = look(client, &backend)?;
    let ordered: Ordered = client.ask(&Command::Undrain { backend })?;
    if output.json {
        output.document(&ordered)?;
    } else if before.is_some_and(|before| before.order.is_none()) {
        output.line(format!(
            "no operator has drained or ejected {}: it is {}",
            full(&ordered),
            ordered.backend.health_state.label()
        ))?;
    } else {
        output.line(format!("{}: the drain or eject has ended, and the probes decide again", full(&ordered)))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn eject(client: &mut Client, backend: BackendName, output: &Output) -> Result<ExitCode, CliError> {
    // After the order, part of the flows may be gone already.
    let before = look(client, &backend)?.map_or(0, |before| before.flows);
    let ordered: Ordered = client.ask(&Command::Eject { backend })?;
    if output.json {
        output.document(&ordered)?;
    } else {
        let full = full(&ordered);
        output.line(format!("{full} is ejected; {} reset; `baton undrain {full}` ends the eject", are(before)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn look(client: &mut Client, backend: &BackendName) -> Result<Option<BackendStatus>, CliError> {
    let backends: Vec<BackendStatus> = client.ask(&Command::Backends { backend: Some(backend.clone()) })?;
    Ok(backends.into_iter().next())
}

fn are(flows: u32) -> String {
    match flows {
        0 => "no flow had to be".to_owned(),
        1 => "1 flow is".to_owned(),
        flows => format!("{} are", plural(flows.into(), "flow")),
    }
}

/// Shows the number of flows until none is left. With JSON a line for each look at the backend.
fn watch_going(client: &mut Client, ordered: &Ordered, output: &Output) -> Result<ExitCode, CliError> {
    let full = full(ordered);
    let command = Command::Backends { backend: Some(BackendName(full.clone())) };
    let (mut order_seen, mut shown, mut shown_at_ns) = (false, None, 0);
    loop {
        let backend = match client.ask::<Vec<BackendStatus>>(&command) {
            Ok(mut backends) => backends.pop(),
            // A removed backend is forgotten once its flows are gone.
            Err(ClientError::Refused(Refusal::UnknownBackend { .. })) => None,
            Err(error) => return Err(error.into()),
        };
        let left = backend.as_ref().map_or(0, |backend| backend.flows);
        if output.json {
            output.json_line(&backend)?;
        } else if output.terminal && left > 0 {
            let deadline = backend.as_ref().and_then(|backend| backend.drain_deadline_in_ms);
            let deadline = deadline.map_or(String::new(), |ms| format!(", {} until they are reset", duration_ms(ms)));
            output.text(&format!("\r\x1b[K{full}: {} left{deadline}", plural(left.into(), "flow")))?;
        } else if left > 0 && shown != Some(left) && now_ns() >= shown_at_ns + SHOW_EVERY_NS {
            // In a log, a line for each change is enough.
            output.line(format!("{full}: {} left", plural(left.into(), "flow")))?;
            (shown, shown_at_ns) = (Some(left), now_ns());
        }
        let ordered_now = backend.as_ref().is_some_and(|backend| backend.order.is_some());
        let taken_back = order_seen && !ordered_now;
        if output.terminal && !output.json && (left == 0 || taken_back) {
            output.text("\r\x1b[K")?;
        }
        if left == 0 {
            let way_back =
                if backend.is_some() { format!("; `baton undrain {full}` ends the drain") } else { String::new() };
            if !output.json {
                output.line(format!("{full}: no flow is left{way_back}"))?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        if taken_back {
            return Err(CliError::OrderGone(full));
        }
        order_seen |= ordered_now;
        std::thread::sleep(LOOK_EVERY);
    }
}

fn full(ordered: &Ordered) -> String {
    format!("{}/{}", ordered.backend.frontend, ordered.backend.name)
}

fn flows(ordered: &Ordered) -> String {
    match ordered.backend.flows {
        0 => "no flows".to_owned(),
        flows => plural(flows.into(), "flow"),
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(500);
const SHOW_EVERY_NS: u64 = 2_000_000_000;
