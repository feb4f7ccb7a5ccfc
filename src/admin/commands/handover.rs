//! `handover`: tells how far it has come until it is done.

use std::io;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;

use super::json;
use crate::admin::Admin;
use crate::admin::handover::{Handing, HandoverOutcome, HandoverReport, HandoverRequest};
use crate::admin::protocol::Refusal;
use crate::admin::session::Replies;

/// Carries it out. An error means that the client is gone; the handover goes on without it.
pub async fn hand_over(
    admin: &Arc<Admin>,
    asked: HandoverRequest,
    replies: &mut Replies,
) -> io::Result<Result<Value, Refusal>> {
    let Handing { mut progress, mut report } = match admin.control.hand_over(asked) {
        Ok(handing) => handing,
        Err(refused) => return Ok(Err(Refusal::Handover(refused))),
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

/// Calls it off; returns how it stands.
pub async fn take_back(admin: &Arc<Admin>) -> Result<Value, Refusal> {
    let Handing { mut report, .. } = admin.control.take_back().map_err(Refusal::Handover)?;
    // That it was away before is no answer.
    Ok(json(&over(&mut report, |report| report.outcome != HandoverOutcome::Away).await))
}

async fn over(
    report: &mut watch::Receiver<Option<HandoverReport>>,
    is_it: impl Fn(&HandoverReport) -> bool,
) -> HandoverReport {
    match report.wait_for(|report| report.as_ref().is_some_and(&is_it)).await.ok().and_then(|report| report.clone()) {
        Some(report) => report,
        // The instance is ending.
        None => std::future::pending().await,
    }
}
