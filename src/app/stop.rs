//! The stop of an instance.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::Core;
use crate::drain::LifePhase;
use crate::model::end_reason::EndReason;
use crate::ports::orders::{EndOrder, Pace, Selector};
use crate::table::journal::What;

/// Interval of the counts of remaining flows.
const COUNT_EVERY: Duration = Duration::from_millis(20);

/// How long the last resets may take beyond their pace.
const STOP_MARGIN: Duration = Duration::from_secs(1);

/// Limit for the wait until the holder has given up the VIP. After the lease the kernel removes the addresses by itself.
const GIVE_UP_MAX: Duration = Duration::from_secs(1);
/// The same for the operator's program that hears of it.
const HOOKS_MAX: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Takes the instance through all phases of a stop. Each wait ends early when a second signal shortens the stop.
pub(super) async fn run(core: &Core) {
    let process = core.config.load().process.clone();
    let flows = core.table.flows_with_sockets();
    core.table.journal.record(What::Stopping { flows, timeout_ms: process.stop_timeout.as_millis() as u64 });

    core.drain.advance(LifePhase::Leaving);
    let closing = async {
        tokio::time::sleep(process.shutdown_delay).await;
        let _ = tokio::time::timeout(process.stop_timeout, no_vip_is_kept(core)).await;
    };
    let begun = Instant::now();
    tokio::select! {
        () = closing => {}
        () = core.next_phase.notified() => tracing::info!("second signal: Baton closes its listeners now"),
    }
    // What went by beyond the delay counts for the timeout.
    let waited = begun.elapsed().saturating_sub(process.shutdown_delay);

    core.drain.advance(LifePhase::Draining);
    match core.listeners_kept.load(Relaxed) {
        true => core.proxy.turn_away(),
        false => core.proxy.stop_accepting(),
    }
    let deadline = Instant::now() + process.stop_timeout.saturating_sub(waited);
    tokio::select! {
        () = gone(core) => {}
        () = sleep_until(deadline) => {}
        () = core.next_phase.notified() => tracing::info!("second signal: Baton resets the remaining proxied flows now"),
    }

    core.drain.advance(LifePhase::Forced);
    let left = core.table.flows_with_sockets();
    if left > 0 {
        tracing::warn!(flows = left, "Baton resets the remaining proxied flows");
        let pace = Pace { within: process.reset_within, per_second: process.reset_rate };
        let order =
            EndOrder { selector: Selector::WithSockets, reason: EndReason::Shutdown, pace, only_idle_for: None };
        core.ports.orders.end(order);
        let longest = process.reset_within.max(Duration::from_secs_f64(left as f64 / f64::from(process.reset_rate)));
        let _ = tokio::time::timeout(longest + STOP_MARGIN, gone(core)).await;
    }
}

/// Returns when this host keeps no VIP on `lo` that it has nowhere else: until then its own clients reach this instance and no other.
async fn no_vip_is_kept(core: &Core) {
    let mut ticks = tokio::time::interval(COUNT_EVERY);
    loop {
        ticks.tick().await;
        if core.table.fleet.places().kept_alone().next().is_none() {
            return;
        }
    }
}

/// Returns when no flow is left that needs this process, and no listener can bring one.
pub(super) async fn gone(core: &Core) {
    let mut ticks = tokio::time::interval(COUNT_EVERY);
    // The first tick comes at once, when a worker may not have taken its backlog yet.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        // Peers forward the packets of flows to this host's own backends here, and reset these flows once this process has gone.
        let table = &core.table;
        let left = if core.ports.fleet.is_enabled() { table.flows_ending_here() } else { table.flows_with_sockets() };
        if left == 0 {
            return;
        }
    }
}

/// Waits until the holder has given up the VIP and the operator's program that hears of it has ended, but no longer than the limits.
pub(super) async fn vip_is_given_up(core: &Core) {
    while_it_is(|| core.ports.vip.is_held(), GIVE_UP_MAX).await;
    while_it_is(|| core.ports.vip.do_hooks_run(), HOOKS_MAX).await;
}

/// Waits while this is so, but no longer than `limit`.
async fn while_it_is(is_so: impl Fn() -> bool, limit: Duration) {
    let until = Instant::now() + limit;
    while is_so() && Instant::now() < until {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
