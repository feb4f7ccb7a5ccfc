//! Listening sockets for workers that share one, as they do after an upgrade from a process with fewer workers.

use std::collections::{HashMap, HashSet};
use std::io;

use super::message::Message;
use crate::config::Config;
use crate::proxy::plane::timeouts;
use crate::proxy::workers::Proxy;
use crate::sys::socket;

impl Proxy {
    /// Gives each worker sockets of its own; returns how many are new. The kernel sends new connections there at once,
    /// so call it only when no other process may go on with the sockets that there were.
    pub fn widen_listeners(&self, config: &Config) -> io::Result<usize> {
        let frontends = config.frontends.iter();
        let served: HashMap<_, _> =
            frontends.flat_map(|frontend| frontend.listen.iter().map(move |at| (*at, &frontend.keepalive))).collect();
        let (mut seen, mut widened) = (HashSet::new(), 0);
        for worker in 0..self.workers() {
            let lent = self.ask(worker, |answer| Message::LendListeners { answer }).map_err(io::Error::other)??;
            for (address, shared) in lent {
                let is_shared = !seen.insert(socket::identity(&shared)?);
                if let (true, Some(keepalive)) = (is_shared, served.get(&address)) {
                    let own = socket::listen(address, &timeouts(keepalive))?;
                    self.tell(worker, Message::ExchangeListener { address, own });
                    widened += 1;
                }
            }
        }
        Ok(widened)
    }
}
