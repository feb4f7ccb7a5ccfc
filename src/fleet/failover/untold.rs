//! Clients that may not know that their flows have ended. All instances keep a list of them, and the instance that gets
//! a client's VIP sends the resets again.

use std::net::IpAddr;

use super::addresses::is_local;
use crate::model::fleet::{Abandoned, Remembered};
use crate::ports::late_resets::{LateResets, ShareWhen};

/// Own clients that this instance reports to peers at a time.
const AT_ONCE: usize = 200;

#[derive(Debug, Default)]
pub(super) struct UntoldQueue(Remembered);

impl UntoldQueue {
    /// Returns this instance's own clients of `vips`, for the peers. `hears_all`: this host hears each of its peers.
    pub(super) fn take_own(
        &mut self,
        late_resets: &LateResets,
        vips: &[IpAddr],
        hears_all: bool,
        now_ns: u64,
    ) -> Vec<Abandoned> {
        let all = std::iter::from_fn(|| late_resets.take_to_share());
        let due = all.filter(|(one, share)| {
            vips.contains(&one.from.ip()) && !(hears_all && *share == ShareWhen::WhileOneIsAway)
        });
        let own: Vec<_> = due.map(|(one, _)| one).take(AT_ONCE).collect();
        own.iter().for_each(|one| {
            self.0.remember(*one, now_ns);
        });
        own
    }

    /// Takes in the clients that a peer reports.
    pub(super) fn hear(&mut self, late_resets: &LateResets, all: &[Abandoned], now_ns: u64) {
        for one in all {
            // A peer reports all of them again when its link is back.
            if self.0.remember(*one, now_ns) && is_local(one.from.ip()) {
                late_resets.repeat_for_peer(*one);
            }
        }
    }

    /// The address `vip` has come to this host.
    pub(super) fn came(&mut self, late_resets: &LateResets, vip: IpAddr, now_ns: u64) {
        self.0.all(now_ns).filter(|one| one.from.ip() == vip).for_each(|one| late_resets.repeat_for_peer(one));
    }
}
