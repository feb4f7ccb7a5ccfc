//! Ports of own flows that are none of this host's.

use super::Own;
use crate::model::fleet::session::Session;
use crate::model::fleet::{Local, Message, PortRange};

/// The ports of own backend legs that are not of the range from which this host chooses them now. They are of flows that began when
/// the range was another, or on a host with another one; peers take only flows from ports that some instance has told.
#[derive(Debug, Default)]
pub(super) struct PortsBeyond {
    ports: Option<PortRange>,
    is_news: bool,
}

impl PortsBeyond {
    pub(super) fn see(&mut self, own: &Own, local: &Local) {
        let (Local::Begun(record), Some(part)) = (local, own.ports) else { return };
        let port = record.ends.local.port();
        let is_known = |range: PortRange| range.contains(port);
        if !is_known(part.whole_of(own.slot)) && !self.ports.is_some_and(is_known) {
            (self.ports, self.is_news) = (Some(PortRange::widened(self.ports, port)), true);
        }
    }

    /// Tells all ports by a link that has just come up, and whose version has them.
    pub(super) fn tell_all(&self, own: &Own, session: &mut Session) {
        session.link.iter_mut().for_each(|link| link.has_ports = true);
        for ports in own.ports.into_iter().chain(self.ports) {
            session.say(Message::Ports(ports));
        }
    }

    /// Tells ports that were not told before.
    pub(super) fn tell_news<'a>(&mut self, sessions: impl Iterator<Item = &'a mut Session>) {
        let Some(ports) = self.ports.filter(|_| std::mem::take(&mut self.is_news)) else { return };
        for session in sessions.filter(|session| session.link.as_ref().is_some_and(|link| link.has_ports)) {
            session.say(Message::Ports(ports));
        }
    }
}
