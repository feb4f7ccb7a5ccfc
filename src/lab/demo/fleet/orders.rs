//! Orders to the instances of Baton, and what they came to.

use super::host::{Balancer, Duty, FleetHost};
use crate::admin::client::ClientError;
use crate::admin::evacuate::{EvacuationOutcome, EvacuationReport};
use crate::admin::upgrade::Upgraded;

/// An order to an instance is over.
#[derive(Debug)]
pub(super) struct OrderOver {
    pub host: usize,
    pub at_ns: u64,
    pub outcome: OrderOutcome,
}

#[derive(Debug)]
pub(super) enum OrderOutcome {
    Upgraded(Box<Upgraded>),
    Evacuated(Box<EvacuationReport>),
    Cancelled,
    Failed(&'static str, ClientError),
}

/// Notes the outcome of an order and tells it in a sentence.
pub(super) fn over(host: &mut FleetHost, outcome: OrderOutcome) -> String {
    match outcome {
        OrderOutcome::Upgraded(upgraded) => {
            if let Some(Balancer::Baton(baton)) = &mut host.balancer {
                baton.replaced_by(upgraded.new_pid);
            }
            host.set_duty(Duty::Serves);
            format!("upgraded: process {} has replaced process {}", upgraded.new_pid, upgraded.old_pid)
        }
        OrderOutcome::Evacuated(report) => match report.outcome {
            EvacuationOutcome::Away => {
                host.set_duty(Duty::Evacuated);
                format!("evacuated: {} may be switched off", host.plan.name)
            }
            EvacuationOutcome::Failed(why) => {
                host.set_duty(Duty::Serves);
                format!("the evacuation failed: {why}")
            }
            EvacuationOutcome::Cancelled => {
                host.set_duty(Duty::Serves);
                "the evacuation was cancelled".to_owned()
            }
        },
        OrderOutcome::Cancelled => {
            host.set_duty(Duty::Serves);
            "baton evacuate --cancel".to_owned()
        }
        OrderOutcome::Failed(verb, error) => {
            if !matches!(host.duty(), Some(Duty::Killed { .. })) {
                host.set_duty(Duty::Serves);
            }
            format!("baton {verb}: {error}")
        }
    }
}
