//! Lists events, and continues with new ones if requested.

use std::io;
use std::time::Duration;

use serde_json::Value;

use super::json;
use crate::admin::Admin;
use crate::admin::protocol::{EventFilter, Listed};
use crate::admin::session::Replies;

/// The journal wakes nobody, so that recording stays cheap; a reader does not notice this delay.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) async fn list(admin: &Admin, filter: &EventFilter, replies: &mut Replies) -> io::Result<Value> {
    let mut next = filter.since;
    let mut listed = 0;
    loop {
        for event in admin.table.journal.since(next, filter.flows) {
            next = event.number + 1;
            listed += 1;
            replies.item(&event);
            if replies.is_full() {
                replies.flush().await?;
            }
        }
        replies.flush().await?;
        if !filter.follow {
            break;
        }
        // A client that follows events is dropped as soon as it hangs up, not at the next event.
        if tokio::time::timeout(LOOK_EVERY, replies.interrupted()).await.is_ok() {
            break;
        }
    }
    Ok(json(&Listed { listed, more: 0 }))
}
