//! Clients that a reset does not reach, because its source address has left this host: the kernel has no route from
//! there (net/ipv4/route.c, ip_route_output_key_hash_rcu) and drops it. A process that hung finds such connections when
//! it continues: their clients' bytes were acknowledged, so they send nothing more, and would wait for ever.
//!
//! Baton asks whether the address is here before and after the resets, once for all resets of a turn. The address could
//! leave meanwhile; it could also come, because Baton keeps it on `lo` when it notices the leave.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use crate::addr::{ClientAddr, VipAddr};
use crate::ports::late_resets::{Abandoned, LateResets};
use crate::sys::sequence::beginning;
use crate::sys::{socket, tcp_info};

/// Clients that were reset in this turn.
#[derive(Debug)]
pub(crate) struct Unheard {
    is_here: fn(IpAddr) -> Option<bool>,
    all: Vec<(Abandoned, Otherwise)>,
    /// Whether each address was here before the first reset.
    before: Vec<(IpAddr, bool)>,
}

/// The action if the address is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Otherwise {
    /// The client has sent no acknowledged bytes: it will send, and gets another RST.
    Nothing,
    Repeat,
    /// The client has sent bytes and had no backend yet.
    RepeatUnserved,
}

impl Unheard {
    /// `is_here`: whether packets to an address are delivered on this host; `None`: unknown.
    pub(in crate::proxy) fn new(is_here: fn(IpAddr) -> Option<bool>) -> Self {
        Self { is_here, all: Vec::new(), before: Vec::new() }
    }

    /// The kernel resets the client within this turn.
    pub(in crate::proxy) fn note(&mut self, abandoned: Abandoned, otherwise: Otherwise) {
        let ip = abandoned.from.ip();
        if !self.before.iter().any(|(of, _)| *of == ip) {
            // The query needs a descriptor, and before the first reset there may be none.
            self.before.push((ip, (self.is_here)(ip).unwrap_or(true)));
        }
        self.all.push((abandoned, otherwise));
    }

    /// This client is about to be refused.
    pub(in crate::proxy) fn note_refused(&mut self, client: impl AsFd, vip: VipAddr, from: ClientAddr) {
        self.note_beginning(client, vip.socket_addr(), from.socket_addr());
    }

    /// This client is about to be reset before it has a backend. The ends in its PROXY header need not be those of the
    /// connection.
    pub(in crate::proxy) fn note_unserved(&mut self, client: impl AsFd) {
        // The socket has no peer any more if the client has reset it.
        if let (Ok(local), Ok(remote)) = (socket::local_addr(&client), socket::peer_addr(&client)) {
            self.note_beginning(client, local.socket_addr(), remote);
        }
    }

    fn note_beginning(&mut self, client: impl AsFd, local: SocketAddr, remote: SocketAddr) {
        // Without the right to query it, the kernel's RST is the only one.
        let has_spoken = tcp_info::bytes_received(&client).is_ok_and(|bytes| bytes > 0);
        if let Ok(numbers) = beginning(client, local, remote) {
            self.note(numbers.into(), if has_spoken { Otherwise::RepeatUnserved } else { Otherwise::Nothing });
        }
    }

    /// Reports the clients whose address was gone.
    pub(in crate::proxy) fn tell(&mut self, late_resets: &LateResets) {
        let is_here = self.is_here;
        let here: Vec<_> = self.before.drain(..).map(|(ip, here)| (ip, here && is_here(ip).unwrap_or(false))).collect();
        for (abandoned, otherwise) in self.all.drain(..) {
            match otherwise {
                _ if !here.contains(&(abandoned.from.ip(), true)) => late_resets.tell(abandoned),
                Otherwise::Repeat => late_resets.repeat(abandoned),
                Otherwise::RepeatUnserved => late_resets.repeat_unserved(abandoned),
                Otherwise::Nothing => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::late_resets::ToldBefore;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    const STAYS: [u8; 4] = [10, 0, 0, 2];
    const GONE: [u8; 4] = [10, 0, 0, 3];
    const COMES: [u8; 4] = [10, 0, 0, 4];
    const LEAVES: [u8; 4] = [10, 0, 0, 5];

    #[test]
    fn who_was_reset_from_an_address_that_is_not_here_before_and_after_is_told() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let is_here = |ip| {
            let is_before = ASKED.fetch_add(1, Relaxed) < 4;
            Some(ip == IpAddr::from(STAYS) || ip == IpAddr::from(if is_before { LEAVES } else { COMES }))
        };
        let of = |ip: [u8; 4], port| Abandoned {
            from: (ip, 6443).into(),
            to: ([10, 0, 0, 1], port).into(),
            seqs: [1; 2],
            ack: 2,
        };
        let (mut unheard, late_resets) = (Unheard::new(is_here), LateResets::default());
        for (port, otherwise) in [(1, Otherwise::Nothing), (2, Otherwise::Repeat), (3, Otherwise::RepeatUnserved)] {
            [STAYS, GONE, COMES, LEAVES].into_iter().for_each(|ip| unheard.note(of(ip, port), otherwise));
        }
        unheard.tell(&late_resets);
        let told = std::iter::from_fn(|| late_resets.take())
            .map(|(word, told)| (word.ends().0.ip(), word.ends().1.port(), told));
        let expected = [
            (GONE, 1, ToldBefore::Never),
            (COMES, 1, ToldBefore::Never),
            (LEAVES, 1, ToldBefore::Never),
            (STAYS, 2, ToldBefore::Once),
            (GONE, 2, ToldBefore::Never),
            (COMES, 2, ToldBefore::Never),
            (LEAVES, 2, ToldBefore::Never),
            (STAYS, 3, ToldBefore::OnceUnserved),
            (GONE, 3, ToldBefore::Never),
            (COMES, 3, ToldBefore::Never),
            (LEAVES, 3, ToldBefore::Never),
        ];
        assert_eq!(told.collect::<Vec<_>>(), expected.map(|(ip, port, told)| (IpAddr::from(ip), port, told)));
        assert_eq!(ASKED.load(Relaxed), 6, "each address is asked for once, and those that are here once more");
    }
}
