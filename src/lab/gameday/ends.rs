//! Why the kubelets' connections ended, as the instances have recorded it.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use super::order::{GOOD, run};
use super::plan::PlanInstance;
use crate::model::end_reason::EndReason;
use crate::model::humane::date_and_time;
use crate::table::journal::{Event, What};

/// Limit for one instance: its host may be gone, on purpose.
const LIMIT: Duration = Duration::from_secs(5);

/// The ends from `began_unix_ms` on of connections from `locals`, by reason; those that the kubelets ended themselves and those that another
/// instance carried on are left out. Behind an address translation no instance knows these addresses: then it is empty.
pub(super) async fn ask(
    instances: &[PlanInstance],
    began_unix_ms: u64,
    lasted: Duration,
    locals: &HashSet<SocketAddr>,
) -> BTreeMap<String, u64> {
    let (date, time) = date_and_time(began_unix_ms);
    let (at, span) = (format!("{date}T{time}Z"), format!("{}s", lasted.as_secs() + 2));
    let mut ends = BTreeMap::new();
    for instance in instances {
        let asked = |more: &[&str]| {
            let words = ["--json", "events", "--flows"].into_iter().chain(more.iter().copied()).map(str::to_owned);
            instance.command.iter().cloned().chain(words).collect::<Vec<_>>()
        };
        let mut ran = run(&asked(&["--at", &at, "--for", &span]), GOOD, LIMIT).await;
        if ran.failed.is_some() {
            // It has no recorder: what it still has in its memory.
            ran = run(&asked(&[]), GOOD, LIMIT).await;
        }
        count(&ran.out, began_unix_ms, locals, &mut ends);
    }
    ends
}

fn count(lines: &[u8], began_unix_ms: u64, locals: &HashSet<SocketAddr>, ends: &mut BTreeMap<String, u64>) {
    let events = serde_json::Deserializer::from_slice(lines).into_iter::<Event>().map_while(Result::ok);
    for event in events.filter(|event| event.at_unix_ms >= began_unix_ms) {
        let What::FlowEnded { client, reason, .. } = event.what else { continue };
        if locals.contains(&client) && !matches!(reason, EndReason::ClientClosed | EndReason::Moved) {
            *ends.entry(reason.label().to_owned()).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::FlowId;

    #[test]
    fn the_ends_of_the_kubelets_own_connections_are_counted_by_reason() {
        let end = |client: &str, at_unix_ms, reason| {
            let what = What::FlowEnded {
                flow: FlowId(1),
                frontend: "apiserver".to_owned(),
                backend: None,
                backend_address: None,
                source: None,
                client: client.parse().unwrap(),
                node: None,
                reason,
                duration_ms: 1,
                connect_us: 1,
                bytes_to_backend: 0,
                bytes_to_client: 0,
                error: None,
            };
            serde_json::to_string(&Event { number: 1, at_unix_ms, what }).unwrap()
        };
        let all = [
            end("10.0.0.9:1", 100, EndReason::Rebalanced),
            end("10.0.0.9:2", 200, EndReason::Rebalanced),
            end("10.0.0.9:3", 200, EndReason::ClientClosed),
            end("10.0.0.9:2", 50, EndReason::BackendEjected),
            end("10.0.0.8:2", 200, EndReason::BackendEjected),
            serde_json::to_string(&Event {
                number: 2,
                at_unix_ms: 200,
                what: What::Started { version: "1".to_owned() },
            })
            .unwrap(),
        ];
        let locals = ["10.0.0.9:1", "10.0.0.9:2", "10.0.0.9:3"].map(|it| it.parse().unwrap()).into();
        let mut ends = BTreeMap::new();
        count(all.join("\n").as_bytes(), 100, &locals, &mut ends);
        assert_eq!(ends, BTreeMap::from([("rebalanced".to_owned(), 2)]));
    }
}
