//! `evacuation`: reports its progress until it is done.

use std::io;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;

use super::json;
use crate::admin::Admin;
use crate::admin::evacuate::{Evacuating, EvacuationOutcome, EvacuationReport, EvacuationRequest};
use crate::admin::protocol::Refusal;
use crate::admin::session::Replies;

/// Runs the evacuation. An error means that the client is gone; the evacuation goes on without it.
pub(super) async fn evacuate(
    admin: &Arc<Admin>,
    asked: EvacuationRequest,
    replies: &mut Replies,
) -> io::Result<Result<Value, Refusal>> {
    let Evacuating { mut progress, mut report } = match admin.control.evacuate(asked) {
        Ok(handing) => handing,
        Err(refused) => return Ok(Err(Refusal::Evacuate(refused))),
    };
    progress.mark_changed();
    loop {
        tokio::select! {
            biased;
            Ok(()) = progress.changed() => {
                replies.item(&*progress.borrow_and_update());
                replies.flush().await?;
            }
            report = over(&mut report, |_| true) => return Ok(Ok(json(&report))),
        }
    }
}

/// Cancels the evacuation; returns its result.
pub(super) async fn take_back(admin: &Arc<Admin>) -> Result<Value, Refusal> {
    let Evacuating { mut report, .. } = admin.control.take_back().map_err(Refusal::Evacuate)?;
    // An earlier result `Away` is not the answer.
    Ok(json(&over(&mut report, |report| report.outcome != EvacuationOutcome::Away).await))
}

async fn over(
    report: &mut watch::Receiver<Option<EvacuationReport>>,
    is_it: impl Fn(&EvacuationReport) -> bool,
) -> EvacuationReport {
    match report.wait_for(|report| report.as_ref().is_some_and(&is_it)).await.ok().and_then(|report| report.clone()) {
        Some(report) => report,
        // The instance is ending.
        None => std::future::pending().await,
    }
}
