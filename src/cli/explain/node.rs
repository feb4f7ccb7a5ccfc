//! The connections of a node that go on, as the running instance has them.

use std::collections::BTreeMap;

use crate::admin::protocol::{FlowFilter, FlowRow};
use crate::cli::living::LivingPlace;
use crate::model::humane::{duration_ms, list, plural};

/// A sentence. `None`: no instance answers at `place`, or it has no flow of a node with this name or address.
pub(super) fn living_of_node(name: &str, place: LivingPlace<'_>) -> Option<String> {
    let is_its =
        |row: &FlowRow| row.node.as_deref() == Some(name) || row.client.ip().to_canonical().to_string() == name;
    let living = place.flows(FlowFilter::default(), is_its).ok()??;
    in_words(name, &living.rows, &living.as_of())
}

fn in_words(name: &str, rows: &[FlowRow], as_of: &str) -> Option<String> {
    let mut backends = BTreeMap::<String, u64>::new();
    for row in rows {
        let backend = row.backend.as_deref().unwrap_or("no backend yet");
        *backends.entry(format!("{}/{backend}", row.frontend)).or_default() += 1;
    }
    let oldest_ms = rows.iter().map(|row| row.age_ms).max()?;
    let idle_ms = rows.iter().map(|row| row.idle_ms).min()?;
    let backends: Vec<_> = backends.iter().map(|(backend, flows)| format!("{backend} {flows}")).collect();
    Some(format!(
        "{name} has {} here now ({}): the oldest began {} ago, and the last byte moved {} ago{as_of}.",
        plural(rows.len() as u64, "flow"),
        list(&backends),
        duration_ms(oldest_ms),
        duration_ms(idle_ms)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::FlowId;
    use crate::table::flows::FlowState;

    /// Regression: a node whose connections had lived for days was in no record, and could not be explained.
    #[test]
    fn a_node_whose_connections_go_on_is_told_with_their_backends_and_ages() {
        let row = |id, backend: &str, age_ms, idle_ms| FlowRow {
            id: FlowId(id),
            frontend: "apiserver".to_owned(),
            backend: Some(backend.to_owned()),
            client: "10.0.0.31:51234".parse().unwrap(),
            node: Some("worker-7".to_owned()),
            vip: "10.0.0.100:6443".parse().unwrap(),
            source: None,
            state: FlowState::Offloaded,
            ending: false,
            age_ms,
            idle_ms,
            bytes_to_backend: 0,
            bytes_to_client: 0,
            came: false,
            connect_us: 0,
            stays: None,
            worker: 0,
        };
        let rows = [row(1, "cp1", 7_200_000, 900), row(2, "cp1", 5_000, 2_000), row(3, "cp2", 100, 100)];
        assert_eq!(
            in_words("worker-7", &rows, "").unwrap(),
            "worker-7 has 3 flows here now (apiserver/cp1 2, apiserver/cp2 1): the oldest began 2 h 00 m ago, and the last byte moved 100 ms ago."
        );
        assert_eq!(in_words("worker-8", &[], ""), None);
    }
}
