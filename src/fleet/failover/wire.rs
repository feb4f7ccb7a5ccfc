//! Packets that the failover sends without a TCP socket: announcements, challenges of idle ends, and RSTs.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::addresses::Addresses;
use crate::essential;
use crate::model::fleet::UnknownPacket;
use crate::model::fleet::failover::Challenge;
use crate::model::neighbour::{ANNOUNCE_AFTER_NS, announcement};
use crate::model::segment::Segment;
use crate::sys::frame::FrameSender;
use crate::sys::raw::RawSender;
use crate::table::Part;
use crate::table::fleet::FleetCensus;

/// The pace: segments leave in steps of this length, or one at a time if that is slower.
const STEP: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Wire {
    /// `None`: this process may not send frames.
    frames: Option<Arc<FrameSender>>,
    raw: RawSender,
    batches: mpsc::UnboundedSender<(ChallengeBatch, u32)>,
    /// The rate of the batches that begin from now on.
    per_second: u32,
}

/// Ends that the sender challenges one after the other.
#[derive(Debug)]
pub(super) struct ChallengeBatch {
    pub round: u64,
    pub ends: Vec<Challenge>,
}

impl Wire {
    /// `mark`: of each packet, for this host's firewall. The numbers of completed rounds come out of `done`.
    pub(super) fn open(
        census: Part<FleetCensus>,
        per_second: u32,
        mark: u32,
        done: mpsc::UnboundedSender<u64>,
    ) -> io::Result<Self> {
        let (batches, waiting) = mpsc::unbounded_channel();
        let sender = RawSender::marked(mark)?;
        tokio::spawn(essential::task("challenges", challenge(census, sender, waiting, done)));
        let frames = FrameSender::open().inspect_err(|error| {
            tracing::warn!(%error, "cannot announce addresses to neighbours (gratuitous ARP, neighbour advertisements); keepalived has to do it");
        });
        Ok(Self { frames: frames.ok().map(Arc::new), raw: RawSender::marked(mark)?, batches, per_second })
    }

    /// Announces `ip` to all neighbours, now and some times more as long as it is here. Does nothing for an address that is on `lo` only.
    pub(super) fn announce(&self, ip: IpAddr) {
        let Some(frames) = self.frames.clone() else { return };
        announce(&frames, ip);
        let began = Instant::now();
        tokio::spawn(essential::task("announcements", async move {
            for after_ns in &ANNOUNCE_AFTER_NS[1..] {
                tokio::time::sleep_until(began + Duration::from_nanos(*after_ns)).await;
                announce(&frames, ip);
            }
        }));
    }

    /// Answers a packet with RST. False: the RST could not be sent.
    pub(super) fn answer(&self, packet: &UnknownPacket) -> bool {
        let reset = packet.reset();
        reset.packet().is_some_and(|packet| self.raw.send(&packet, reset.to.ip()).is_ok())
    }

    pub(super) fn challenge(&self, batch: ChallengeBatch) {
        let _ = self.batches.send((batch, self.per_second));
    }

    pub(super) fn set_pace(&mut self, per_second: u32) {
        self.per_second = per_second;
    }
}

fn announce(frames: &FrameSender, ip: IpAddr) {
    let sent = Addresses::places(ip).and_then(|places| {
        places.iter().try_for_each(|(interface, mac)| {
            announcement(ip, *mac).iter().try_for_each(|frame| frames.send(*interface, frame))
        })
    });
    if let Err(error) = sent {
        tracing::warn!(%ip, %error, "cannot announce the address to neighbours");
    }
}

async fn challenge(
    census: Part<FleetCensus>,
    raw: RawSender,
    mut waiting: mpsc::UnboundedReceiver<(ChallengeBatch, u32)>,
    done: mpsc::UnboundedSender<u64>,
) {
    while let Some((ChallengeBatch { round, ends }, per_second)) = waiting.recv().await {
        let (every, step) = pace(per_second);
        let mut ticks = tokio::time::interval(every);
        for some in ends.chunks(step) {
            ticks.tick().await;
            for Challenge { from, to, with } in some {
                let segment = Segment {
                    from: *from,
                    to: *to,
                    seq: fastrand::u32(..),
                    ack: fastrand::u32(..),
                    flags: *with,
                    window: 0,
                };
                if let Some(packet) = segment.packet() {
                    let _ = raw.send(&packet, to.ip());
                }
            }
            census.challenged.add(some.len() as u64);
        }
        let _ = done.send(round);
    }
}

/// Length of a step, and segments in each. `per_second`: at least 1.
fn pace(per_second: u32) -> (Duration, usize) {
    let every = STEP.max(Duration::from_secs(1) / per_second.max(1));
    (every, (every.as_secs_f64() * f64::from(per_second)).round().max(1.0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the pace was 500 a second, even if the file asked for less.
    #[test]
    fn as_many_segments_are_sent_in_a_second_as_the_file_says() {
        for per_second in [1, 4, 499, 500, 750, 20_000, 1_000_000] {
            let (every, step) = pace(per_second);
            let sent = step as f64 / every.as_secs_f64();
            assert!((sent / f64::from(per_second) - 1.0).abs() < 0.5, "{per_second}: {sent}");
            assert!(sent <= f64::from(per_second) * 1.34, "{per_second}: {sent}");
        }
    }
}
