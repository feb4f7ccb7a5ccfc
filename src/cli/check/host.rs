//! `baton check --host`: whether this host can carry offloaded flows and a VIP.

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use super::CheckArguments;
use crate::admin::client::Client;
use crate::admin::protocol::Command;
use crate::admin::status::Status;
use crate::config::{self, Config, OffloadMode, Target};
use crate::model::finding::{Finding, Verdict};
use crate::offload;
use crate::preflight::{self, Report, sysctl_file};

/// Writes the findings, a line each, and below each the reason and the fix; returns whether no fault is left that may
/// leave clients waiting. `config`: `None` if the file has errors; the host is looked at all the same, without what depends on the file.
pub(super) fn report(
    config: Option<&Config>,
    arguments: &CheckArguments,
    json: bool,
    out: &mut impl Write,
    errors: &mut impl Write,
) -> io::Result<bool> {
    let is_known = config.is_some();
    let config = config.map_or_else(|| Cow::Owned(config::by_default(Vec::new())), Cow::Borrowed);
    let Report { findings: of_host, settings } = preflight::look(&config, arguments.keepalived.as_deref());
    let mut findings = offload(&config);
    let hindered = findings.iter().any(|finding| finding.verdict == Verdict::Hindrance);
    findings.extend(of_host);
    findings.extend(room(&config));
    findings.retain(|finding| is_known || !OF_FRONTENDS.contains(&&*finding.topic));
    let faults = findings.iter().filter(|finding| finding.verdict == Verdict::Fault).count();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&findings)?)?;
    } else {
        findings.iter().try_for_each(|finding| tell(finding, out))?;
        let proxied = hindered || config.offload.mode == OffloadMode::Off;
        let offload =
            if proxied { "Baton does not offload flows on this host" } else { "Baton can offload flows on this host" };
        writeln!(out, "{offload}")?;
        match faults {
            0 => {}
            1 => writeln!(out, "1 fault: clients may be left waiting")?,
            _ => writeln!(out, "{faults} faults: clients may be left waiting")?,
        }
    }
    let written = match &arguments.fix {
        // stdout must stay one JSON document.
        Some(path) if json => fix(path, &settings, errors, &mut io::sink())?,
        Some(path) => fix(path, &settings, errors, out)?,
        None => true,
    };
    Ok(faults == 0 && written)
}

/// Topics of which a host without frontends and VIPs has nothing to fear.
const OF_FRONTENDS: [&str; 3] = ["firewall", "interfaces", "keepalived"];

fn tell(finding: &Finding, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{:8} {}: {}", finding.verdict.label(), finding.topic, finding.read)?;
    if !finding.why.is_empty() {
        writeln!(out, "         why: {}\n         fix: {}", finding.why, finding.fix)?;
    }
    Ok(())
}

fn fix(
    path: &Path,
    settings: &[preflight::Setting],
    errors: &mut impl Write,
    out: &mut impl Write,
) -> io::Result<bool> {
    use sysctl_file::Written;
    match sysctl_file::write(path, settings) {
        Ok(Written::Nothing) => writeln!(out, "no kernel setting needs a change: Baton has written no file")?,
        Ok(written) => {
            let state = if written == Written::Same { "needs no change" } else { "written" };
            let path = path.display();
            writeln!(
                out,
                "{path} {state}; the kernel applies it at the next boot, or now if you run: sysctl -p {path}"
            )?;
        }
        Err(error) => {
            writeln!(errors, "baton: {error}")?;
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the map of the running instance has room for the fleet's present flows. `None`: none runs, or it has no
/// peers.
fn room(config: &Config) -> Option<Finding> {
    config.peers.as_ref()?;
    let client = Client::connect(&config.admin.socket).and_then(|client| client.with_limit(ANSWER_MAX));
    let status: Status = client.ok()?.ask(&Command::Status {}).ok()?;
    if status.offload.flows_max == 0 {
        return None;
    }
    let own = status.totals.flows.sum();
    let others = status.fleet.peers.iter().map(|peer| peer.flows as u64).sum::<u64>();
    Some(room_for(own + others, status.offload.flows_max))
}

fn room_for(flows: u64, room: u64) -> Finding {
    let read = format!("the fleet has {flows} flows now, and the map of this host has room for {room}");
    let fix = format!(
        "offload.max_flows = {}, on all hosts; it needs an empty map: `baton evacuate`, stop Baton, `baton offload remove`, start it",
        (2 * flows).next_power_of_two()
    );
    match flows {
        flows if flows > room => Finding::fault("offload.max_flows", read, ROOM, fix),
        flows if flows > room / 4 * 3 => Finding::advice("offload.max_flows", read, ROOM, fix),
        _ => Finding::good("offload.max_flows", read),
    }
}

const ROOM: &str = "Baton resets flows of other instances that have no room in the map when their host dies";
/// Limit for the answer of an instance, which may hang.
const ANSWER_MAX: Duration = Duration::from_secs(2);

fn offload(config: &Config) -> Vec<Finding> {
    let frontends = || config.frontends.iter();
    let addresses: Vec<_> = frontends().flat_map(|frontend| &frontend.listen).map(|vip| vip.socket_addr()).collect();
    let backends = frontends().flat_map(|frontend| &frontend.backends);
    let backends: Vec<_> = backends
        .filter_map(|backend| match backend.address {
            Target::Address(address) => Some(address.socket_addr()),
            Target::Name { .. } => None,
        })
        .collect();
    let interfaces: Vec<_> = config.offload.interfaces.iter().map(|name| name.to_string()).collect();
    offload::preflight::look(&config.offload.pins, &addresses, &backends, &interfaces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_that_is_too_small_for_the_fleet_is_a_fault_and_one_that_soon_will_be_is_told() {
        for (flows, verdict) in
            [(74, Verdict::Good), (76, Verdict::Advice), (100, Verdict::Advice), (101, Verdict::Fault)]
        {
            assert_eq!(room_for(flows, 100).verdict, verdict, "{flows}");
        }
    }
}
