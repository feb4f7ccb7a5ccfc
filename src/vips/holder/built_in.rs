//! A VIP of this host.

use std::net::IpAddr;

use ipnet::IpNet;

use super::addresses;
use super::reachability::VipReachability;
use crate::config::VipSettings;
use crate::model::fleet::vip::{InterfaceState, VipMachine, VipPresence};
use crate::model::humane::list;
use crate::sys::netdev;
use crate::vips::ears::Ears;

/// A VIP with its settings and its state on this host.
pub(super) struct BuiltInVip {
    pub settings: VipSettings,
    pub has_peers: bool,
    pub machine: VipMachine,
    pub ears: Ears,
    pub reachability: VipReachability,
    /// The entries of its addresses on the interface.
    pub here: Vec<IpNet>,
    pub interface: InterfaceState,
    /// Whether the interface has had other addresses than the VIP's, by family, IPv4 first.
    pub had_others: [bool; 2],
    /// It has lost all other addresses, or those of IPv4 if the VIP has any.
    pub is_bare: bool,
    pub renewed_ns: u64,
    /// Why this host could not have the addresses at the last attempt.
    pub refused: Option<String>,
    /// When the holder tries again to remove entries with another mask.
    pub tidy_at_ns: u64,
    /// The latest failure to remove an entry, until the entry has gone.
    pub stuck: Option<(IpNet, String)>,
}

impl BuiltInVip {
    pub(super) fn presence(&self) -> VipPresence {
        let count = self.settings.addresses.iter().filter(|ip| self.here.iter().any(|it| it.addr() == **ip)).count();
        match count {
            0 => VipPresence::Absent,
            count if count == self.settings.addresses.len() => VipPresence::Whole,
            _ => VipPresence::Partial,
        }
    }

    pub(super) fn here(&self) -> Vec<IpAddr> {
        self.here.iter().map(IpNet::addr).collect()
    }

    pub(super) fn label(&self) -> String {
        list(&self.settings.addresses)
    }

    /// Reads the state and the addresses of the interface.
    pub(super) fn see(&mut self) {
        let interface = &*self.settings.interface;
        self.interface = match netdev::has_carrier(interface) {
            Ok(true) => InterfaceState::Running,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => InterfaceState::Absent,
            Ok(false) | Err(_) => InterfaceState::NoCarrier,
        };
        // After an error the last known addresses count.
        if let Ok((here, has_others)) = addresses::on(interface, &self.settings.addresses) {
            self.here = here;
            let has_ipv4 = self.settings.addresses.iter().any(IpAddr::is_ipv4);
            let has_lost_all = self.had_others.contains(&true) && !has_others.contains(&true);
            // An address of IPv6 may be missing for long without harm: neighbours use the link-local ones.
            self.is_bare = has_lost_all || has_ipv4 && self.had_others[0] && !has_others[0];
            (0..2).for_each(|family| self.had_others[family] |= has_others[family]);
        }
    }
}
