//! Clients that may not have heard that their flows are over: all instances know of them, and whoever gets their address tells
//! them again.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use crate::model::fleet::Abandoned;
use crate::sys::netlink;
use crate::table::Table;

/// As long as a client's own TCP would go on (tcp_retries2).
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// Clients that are remembered; of more the oldest are forgotten.
const REMEMBERED_MAX: usize = 16_384;

/// Own ones of which peers are told at a time.
const AT_ONCE: usize = 200;

/// With when each was heard of, the oldest first.
#[derive(Debug, Default)]
pub struct Untold(VecDeque<(Abandoned, u64)>);

impl Untold {
    /// Of this instance, for the peers: those of `vips`.
    pub fn take_own(&mut self, table: &Table, vips: &[IpAddr], now_ns: u64) -> Vec<Abandoned> {
        let all = std::iter::from_fn(|| table.late_resets.take_to_share()).take(AT_ONCE);
        let own: Vec<_> = all.filter(|one| vips.contains(&one.from.ip())).collect();
        own.iter().for_each(|one| self.remember(*one, now_ns));
        own
    }

    /// Of a peer.
    pub fn hear(&mut self, table: &Table, all: &[Abandoned], now_ns: u64) {
        for one in all {
            self.remember(*one, now_ns);
            if is_here(one.from.ip()) {
                table.late_resets.repeat(*one);
            }
        }
    }

    /// The address is here now.
    pub fn came(&mut self, table: &Table, vip: IpAddr, now_ns: u64) {
        self.0.retain(|(_, since_ns)| now_ns.saturating_sub(*since_ns) < LONGEST.as_nanos() as u64);
        self.0.iter().filter(|(one, _)| one.from.ip() == vip).for_each(|(one, _)| table.late_resets.repeat(*one));
    }

    fn remember(&mut self, one: Abandoned, now_ns: u64) {
        if self.0.len() == REMEMBERED_MAX {
            self.0.pop_front();
        }
        self.0.push_back((one, now_ns));
    }
}

fn is_here(ip: IpAddr) -> bool {
    netlink::route(ip).is_ok_and(|route| route.is_local)
}
