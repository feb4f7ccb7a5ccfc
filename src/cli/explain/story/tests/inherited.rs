//! Faults within a second of a failover: the last sample does not know the flows that have come.

use super::*;

/// Regression: "it had 0 flows ... no client felt it here", of a backend that died 0.2 s after this host had carried on its flows and reset them.
#[test]
fn a_backend_that_dies_as_flows_come_from_a_peer_has_cost_clients() {
    let over = What::FailedOver { instance: InstanceName("lb-b".into()), inherited: 12, reset: 0 };
    let held = What::VipHeld { vip: "10.0.0.100".to_owned(), by: "lb-b".to_owned() };
    let lost = changed(HealthState::Ready, HealthState::Ejected, Cause::Refused);
    let said = |inherited: bool| {
        let mut events = vec![(0, held.clone()), (370, lost.clone()), (380, ended(1, EndReason::BackendEjected))];
        if inherited {
            events.insert(1, (200, over.clone()));
        }
        let mut idle = recording(events);
        let Recorded::Sample(sample) = &mut idle.records[0].what else { unreachable!() };
        sample.frontends[0].flows = 0;
        sample.backends.iter_mut().for_each(|backend| backend.flows = 0);
        told(&idle, Subject::Backend("cp2".to_owned())).unwrap().join(" ")
    };
    assert!(said(false).contains("no client felt it here"), "{}", said(false));
    let taken = said(true);
    assert!(!taken.contains("no client felt it here"), "{taken}");
    assert!(taken.contains("this instance had carried on 12 flows of lb-b"), "{taken}");
    assert!(taken.contains("longest gap"), "{taken}");
}
