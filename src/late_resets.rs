//! Tells far ends whose connections the kernel has given up, with RST of exactly the number that they expect, and again
//! for a while: their hosts may be cut off still. Who has begun anew by the same ports is left alone.
//!
//! Where more than one number may be expected, the first and the last of them are sent. The latter makes a living end
//! that expects another answer, and this host's kernel answers that with the exact one (RFC 5961 section 3.2).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::model::ends::Key;
use crate::model::segment::{Flags, Segment};
use crate::sys::clock::now_ns;
use crate::sys::raw::RawSender;
use crate::sys::{netlink, sock_diag};
use crate::table::Table;
use crate::table::late_resets::Abandoned;

/// How often they are told in the first minute, and after that.
const OFTEN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_secs(60);

/// As long as the far end's own TCP would go on (tcp_retries2).
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// Far ends that are remembered; of more the oldest are forgotten.
const REMEMBERED_MAX: usize = 16_384;

/// Far ends that are told again in one [`OFTEN`].
const AGAIN_MAX: usize = 200;

#[derive(Debug)]
struct Waiting {
    abandoned: Abandoned,
    since_ns: u64,
    due_ns: u64,
}

/// Runs until it is dropped.
pub async fn run(table: Arc<Table>) {
    let raw = RawSender::open();
    let mut line: VecDeque<Waiting> = VecDeque::new();
    loop {
        let pause = if line.is_empty() { LONGEST } else { OFTEN };
        let _ = tokio::time::timeout(pause, table.late_resets.told()).await;
        let now_ns = now_ns();
        while let Some(abandoned) = table.late_resets.take() {
            match &raw {
                Ok(raw) => send(raw, &abandoned),
                Err(error) => {
                    table.late_resets.complain(error);
                    continue;
                }
            }
            if line.len() == REMEMBERED_MAX {
                line.pop_front();
            }
            line.push_back(Waiting { abandoned, since_ns: now_ns, due_ns: now_ns + OFTEN.as_nanos() as u64 });
        }
        let Ok(raw) = &raw else { continue };
        let mut told = 0;
        for _ in 0..line.len() {
            let Some(mut waiting) = line.pop_front() else { break };
            if waiting.due_ns <= now_ns && told < AGAIN_MAX {
                told += 1;
                if now_ns - waiting.since_ns > LONGEST.as_nanos() as u64 || !is_nobodys(&table, &waiting.abandoned) {
                    continue;
                }
                send(raw, &waiting.abandoned);
                let early = now_ns - waiting.since_ns < MINUTE.as_nanos() as u64;
                waiting.due_ns = now_ns + if early { OFTEN } else { SELDOM }.as_nanos() as u64;
            }
            line.push_back(waiting);
        }
    }
}

/// Whether the connection is still no other one's, and its address here: the next owner answers for it elsewhere.
fn is_nobodys(table: &Table, Abandoned { from, to, .. }: &Abandoned) -> bool {
    let is_here = netlink::route(from.ip()).is_ok_and(|route| route.is_local);
    let is_carried = || table.graduation.held.carries(&Key { from: *to, to: *from });
    is_here && !is_carried() && !sock_diag::has_connection(*from, *to).unwrap_or(true)
}

fn send(raw: &RawSender, abandoned: &Abandoned) {
    let Abandoned { from, to, seqs: [first, last], ack } = *abandoned;
    for seq in [Some(first), (last != first).then_some(last)].into_iter().flatten() {
        let reset = Segment { from, to, seq, ack, flags: Flags::RstAck, window: 0 };
        // Its host may be gone for good: that is no error.
        let _ = reset.packet().map(|packet| raw.send(&packet, to.ip()));
    }
}
