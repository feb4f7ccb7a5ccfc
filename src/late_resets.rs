//! Sends RSTs for connections that are over, with exactly the sequence number that the far end expects, and repeats
//! them for a while: its host may still be cut off, or the first RST was lost. A far end that has begun a new
//! connection from the same port is left alone.
//!
//! If more than one number may be expected, Baton sends the first and the last of them. The latter makes a live end
//! that expects another number answer, and this host's kernel answers that with the exact one (RFC 5961 section 3.2).
//!
//! If no instance knows the numbers, because the owner has died with them, Baton challenges the far end instead, with
//! both kinds of segment that firewalls let pass (`model::fleet::failover::rounds`), until another connection here has
//! the same ends. For a far end that has answered since, the challenge has no effect. It harms no live connection: its
//! end only repeats its last acknowledgement.
//!
//! All ends in one line wait equally long, so the next one due is always at the front, however many there are.

use std::collections::VecDeque;
use std::time::Duration;

use crate::model::ends::Key;
use crate::model::pacing::TokenBucket;
use crate::model::segment::{Flags, Segment};
use crate::ports::late_resets::{Abandoned, LateResets, ToldBefore, Word};
use crate::ports::offload::StandbyQueues;
use crate::sys::clock::now_ns;
use crate::sys::raw::RawSender;
use crate::sys::{netlink, sock_diag};
use crate::table::Part;

/// Interval of the resets in the first minute, and after it.
const OFTEN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_secs(60);

/// Time after which the far end's own TCP gives up (tcp_retries2).
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// Limit for the far ends in the list; beyond it the oldest are forgotten.
const REMEMBERED_MAX: usize = 65_536;

/// The same for clients that had no backend. While no backend is alive their number rises each second, and they must
/// not displace others.
const UNSERVED_MAX: usize = 8_192;

/// Repeated resets per second: all far ends in the list within little more than a minute, at some µs each.
const AGAIN_PER_SECOND: u32 = 1_000;

/// Far ends that are due within this time are reset in one wake: a shorter time means more wakes.
const TOGETHER: Duration = Duration::from_millis(100);

/// Far ends before other tasks have their turn: the kernel takes 20 µs to say who must reset one (medians: 9 µs for the
/// route, 10 µs for the connection).
const TURN: u32 = 32;

#[derive(Debug)]
struct WaitingEnd {
    word: Word,
    since_ns: u64,
    due_ns: u64,
}

/// Far ends with the same interval, earliest first.
#[derive(Debug)]
struct WaitingLines {
    often: VecDeque<WaitingEnd>,
    seldom: VecDeque<WaitingEnd>,
    most: usize,
}

impl WaitingLines {
    fn new(most: usize) -> Self {
        Self { often: VecDeque::new(), seldom: VecDeque::new(), most }
    }

    /// Adds one that was reset just now.
    fn remember(&mut self, word: Word, since_ns: u64, now_ns: u64) {
        if self.often.len() + self.seldom.len() >= self.most && self.seldom.pop_front().is_none() {
            self.often.pop_front();
        }
        let is_early = now_ns.saturating_sub(since_ns) < MINUTE.as_nanos() as u64;
        let (line, pause) = if is_early { (&mut self.often, OFTEN) } else { (&mut self.seldom, SELDOM) };
        line.push_back(WaitingEnd { word, since_ns, due_ns: now_ns + pause.as_nanos() as u64 });
    }

    /// Takes one that is due.
    fn take_due(&mut self, now_ns: u64) -> Option<WaitingEnd> {
        let lines = [&mut self.often, &mut self.seldom];
        let due = |line: &&mut VecDeque<WaitingEnd>| line.front().is_some_and(|next| next.due_ns <= now_ns);
        let soonest = lines.into_iter().filter(due).min_by_key(|line| line.front().map(|next| next.due_ns));
        soonest.and_then(VecDeque::pop_front)
    }

    fn next_ns(&self) -> Option<u64> {
        [&self.often, &self.seldom].into_iter().filter_map(|line| line.front()).map(|next| next.due_ns).min()
    }
}

/// Runs until it is dropped. `standby` says which packets the offload engine carries.
pub(crate) async fn run(queue: Part<LateResets>, standby: Part<StandbyQueues>) {
    let raw = RawSender::open();
    let (mut served, mut unserved) = (WaitingLines::new(REMEMBERED_MAX), WaitingLines::new(UNSERVED_MAX));
    let mut pace = TokenBucket::new(AGAIN_PER_SECOND, AGAIN_PER_SECOND, now_ns());
    loop {
        match [&served, &unserved].into_iter().filter_map(WaitingLines::next_ns).min() {
            None => queue.told().await,
            Some(at_ns) => {
                let pause = Duration::from_nanos(at_ns.saturating_sub(now_ns())).max(TOGETHER);
                let _ = tokio::time::timeout(pause, queue.told()).await;
            }
        }
        let now_ns = now_ns();
        while let Some((word, before)) = queue.take() {
            match &raw {
                Ok(raw) if before == ToldBefore::Never => send(raw, &word),
                Ok(_) => {}
                Err(error) => {
                    queue.complain(error);
                    continue;
                }
            }
            let lines = if before == ToldBefore::OnceUnserved { &mut unserved } else { &mut served };
            lines.remember(word, now_ns, now_ns);
        }
        let Ok(raw) = &raw else { continue };
        for lines in [&mut served, &mut unserved] {
            tell_due(lines, raw, &mut pace, &standby, now_ns).await;
        }
    }
}

/// Resets those that are due, as far as the pace allows.
async fn tell_due(
    lines: &mut WaitingLines,
    raw: &RawSender,
    pace: &mut TokenBucket,
    standby: &StandbyQueues,
    now_ns: u64,
) {
    let mut asked = 0;
    while lines.next_ns().is_some_and(|due_ns| due_ns <= now_ns)
        && pace.take(now_ns)
        && let Some(WaitingEnd { word, since_ns, .. }) = lines.take_due(now_ns)
    {
        if now_ns - since_ns > LONGEST.as_nanos() as u64 {
            continue;
        }
        asked += 1;
        if asked % TURN == 0 {
            tokio::task::yield_now().await;
        }
        match place(standby, &word) {
            Speaker::Here => send(raw, &word),
            // Challenges after an owner's death stay: no other list has them sent again when the address comes back.
            Speaker::OtherProcess if matches!(word, Word::Wake(_)) => {}
            Speaker::OtherProcess | Speaker::Another => continue,
            Speaker::Unknown => {}
        }
        lines.remember(word, since_ns, now_ns);
    }
}

/// The part that must send the reset of an ended connection.
enum Speaker {
    Here,
    /// The host that has the address: its next owner, which sends the reset if it is a peer.
    OtherProcess,
    /// Nobody: another connection has the same ends.
    Another,
    /// It is not known whether another connection has the same ends.
    Unknown,
}

fn place(standby: &StandbyQueues, word: &Word) -> Speaker {
    let (from, to) = word.ends();
    if !netlink::is_local(from.ip()).unwrap_or(false) {
        return Speaker::OtherProcess;
    }
    match standby.carries(&Key { from: to, to: from }) {
        Ok(false) if sock_diag::has_connection(from, to).is_ok_and(|has| !has) => Speaker::Here,
        Ok(_) => Speaker::Another,
        Err(_) => Speaker::Unknown,
    }
}

fn send(raw: &RawSender, word: &Word) {
    let (from, to) = word.ends();
    let any = Segment { from, to, seq: fastrand::u32(..), ack: fastrand::u32(..), flags: Flags::SynAck, window: 0 };
    let segments = match *word {
        Word::Reset(Abandoned { seqs: [first, last], ack, .. }) => {
            let reset = |seq| Segment { seq, ack, flags: Flags::RstAck, ..any };
            [Some(reset(first)), (last != first).then(|| reset(last))]
        }
        Word::Wake(_) => [Some(any), Some(Segment { flags: Flags::Ack, ..any })],
    };
    for packet in segments.iter().flatten().filter_map(Segment::packet) {
        // Its host may be gone for good: that is no error.
        let _ = raw.send(&packet, to.ip());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn abandoned(port: u16) -> Word {
        let [from, to] = [1, port].map(|port| std::net::SocketAddr::from(([10, 0, 0, 1], port)));
        Word::Reset(Abandoned { from, to, seqs: [7; 2], ack: 7 })
    }

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn all_have_their_turn_before_one_has_its_second_and_the_old_ones_wait_longer() {
        let mut lines = WaitingLines::new(REMEMBERED_MAX);
        for port in 0..1000 {
            lines.remember(abandoned(port), u64::from(port), u64::from(port));
        }
        let now_ns = 2 * SECOND_NS;
        for port in 0..1000 {
            let next = lines.take_due(now_ns).expect("it is due");
            assert_eq!(next.word, abandoned(port));
            lines.remember(next.word, next.since_ns, now_ns);
        }
        assert!(lines.take_due(now_ns).is_none());
        assert_eq!(lines.next_ns(), Some(3 * SECOND_NS));
        let now_ns = 70 * SECOND_NS;
        let old = lines.take_due(now_ns).expect("it is due");
        lines.remember(old.word, old.since_ns, now_ns);
        assert_eq!((lines.seldom.len(), lines.seldom[0].due_ns), (1, 80 * SECOND_NS));
    }

    #[test]
    fn of_too_many_the_oldest_are_forgotten() {
        let mut lines = WaitingLines::new(REMEMBERED_MAX);
        lines.remember(abandoned(1), 0, 61 * SECOND_NS);
        for _ in 0..REMEMBERED_MAX {
            lines.remember(abandoned(2), 61 * SECOND_NS, 61 * SECOND_NS);
        }
        assert_eq!((lines.seldom.len(), lines.often.len()), (0, REMEMBERED_MAX));
        lines.remember(abandoned(3), 62 * SECOND_NS, 62 * SECOND_NS);
        assert_eq!(lines.often.len(), REMEMBERED_MAX);
        assert_eq!(lines.often.back().map(|last| last.word), Some(abandoned(3)));
    }
}
