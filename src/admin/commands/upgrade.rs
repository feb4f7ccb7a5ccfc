//! `upgrade`: reports its progress until it is done.

use std::io;
use std::sync::Arc;

use serde_json::Value;

use super::json;
use crate::admin::Admin;
use crate::admin::protocol::Refusal;
use crate::admin::session::Replies;
use crate::admin::upgrade::{UpgradeRequest, Upgrading};

/// Runs the upgrade. An error means that the client is gone; the upgrade goes on without it.
pub(super) async fn upgrade(
    admin: &Arc<Admin>,
    asked: UpgradeRequest,
    replies: &mut Replies,
) -> io::Result<Result<Value, Refusal>> {
    let Upgrading { mut progress, mut outcome } = match admin.control.upgrade(asked) {
        Ok(upgrading) => upgrading,
        Err(refused) => return Ok(Err(Refusal::Upgrade(refused))),
    };
    loop {
        let outcome = tokio::select! {
            biased;
            outcome = outcome.as_mut() => outcome,
            Ok(()) = progress.changed() => {
                replies.item(&*progress.borrow_and_update());
                replies.flush().await?;
                continue;
            }
        };
        return Ok(match outcome {
            Ok((upgraded, told)) => {
                replies.item(&*progress.borrow_and_update());
                replies.tell(told);
                Ok(json(&upgraded))
            }
            Err(failed) => Err(Refusal::Upgrade(failed)),
        });
    }
}
