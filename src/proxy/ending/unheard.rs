//! Clients that a reset does not reach, for the address that it comes from has left this host: the kernel has no route from
//! there (net/ipv4/route.c, ip_route_output_key_hash_rcu) and drops it. A process that hung finds such connections when it
//! goes on: what their clients sent is acknowledged, so that they would say nothing more, and wait for ever.
//!
//! Whether the address is here is asked when the resets are out, once for all of a turn: asked before, it could leave meanwhile.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use crate::addr::{ClientAddr, VipAddr};
use crate::ports::late_resets::{Abandoned, LateResets};
use crate::sys::sequence::beginning;
use crate::sys::socket;

/// Clients that were reset in this turn.
#[derive(Debug, Default)]
pub(crate) struct Unheard(Vec<(Abandoned, Otherwise)>);

/// What is done if the address is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Otherwise {
    /// One RST is enough for who has not been served.
    Nothing,
    Repeat,
}

impl Unheard {
    /// The kernel resets it within this turn.
    pub(in crate::proxy) fn note(&mut self, abandoned: Abandoned, otherwise: Otherwise) {
        self.0.push((abandoned, otherwise));
    }

    /// This client is about to be refused.
    pub(in crate::proxy) fn note_refused(&mut self, client: impl AsFd, vip: VipAddr, from: ClientAddr) {
        self.note_beginning(client, vip.socket_addr(), from.socket_addr());
    }

    /// This client is about to be reset before it has a backend. What it says of its ends need not be those of the connection.
    pub(in crate::proxy) fn note_unserved(&mut self, client: impl AsFd) {
        // It has none any more if the client has reset it.
        if let (Ok(local), Ok(remote)) = (socket::local_addr(&client), socket::peer_addr(&client)) {
            self.note_beginning(client, local.socket_addr(), remote);
        }
    }

    fn note_beginning(&mut self, client: impl AsFd, local: SocketAddr, remote: SocketAddr) {
        // Without the right to ask, the kernel's RST is all there is.
        if let Ok(numbers) = beginning(client, local, remote) {
            self.note(numbers.into(), Otherwise::Nothing);
        }
    }

    /// Has those told whose address was gone.
    pub(in crate::proxy) fn tell(&mut self, late_resets: &LateResets, is_here: impl Fn(IpAddr) -> bool) {
        let mut asked: Vec<(IpAddr, bool)> = Vec::new();
        for (abandoned, otherwise) in self.0.drain(..) {
            let ip = abandoned.from.ip();
            let known = asked.iter().find(|(of, _)| *of == ip).map(|(_, here)| *here);
            let here = known.unwrap_or_else(|| {
                let here = is_here(ip);
                asked.push((ip, here));
                here
            });
            match otherwise {
                _ if !here => late_resets.tell(abandoned),
                Otherwise::Repeat => late_resets.repeat(abandoned),
                Otherwise::Nothing => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::late_resets::ToldBefore;
    use std::cell::Cell;

    #[test]
    fn who_was_reset_from_an_address_that_is_gone_is_told_and_each_address_is_asked_for_once() {
        let of = |ip: [u8; 4], port| Abandoned {
            from: (ip, 6443).into(),
            to: ([10, 0, 0, 1], port).into(),
            seqs: [1; 2],
            ack: 2,
        };
        let (here, gone) = ([10, 0, 0, 2], [10, 0, 0, 3]);
        let (mut unheard, late_resets, asked) = (Unheard::default(), LateResets::default(), Cell::new(0));
        for (port, otherwise) in [(1, Otherwise::Nothing), (2, Otherwise::Repeat)] {
            [here, gone].into_iter().for_each(|ip| unheard.note(of(ip, port), otherwise));
        }
        unheard.tell(&late_resets, |ip| {
            asked.set(asked.get() + 1);
            ip == IpAddr::from(here)
        });
        let told = std::iter::from_fn(|| late_resets.take())
            .map(|(word, told)| (word.ends().0.ip(), word.ends().1.port(), told));
        let told: Vec<_> = told.collect();
        let (here, gone) = (IpAddr::from(here), IpAddr::from(gone));
        assert_eq!(told, [(gone, 1, ToldBefore::Never), (here, 2, ToldBefore::Once), (gone, 2, ToldBefore::Never)]);
        assert_eq!(asked.get(), 2);
    }
}
