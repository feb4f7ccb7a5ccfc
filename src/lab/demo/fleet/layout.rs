//! The two layouts of a control plane's balancers, and their hosts.

use std::net::Ipv4Addr;

/// Where the balancers run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FleetLayout {
    /// Three control-plane nodes, each with an apiserver and Baton.
    #[default]
    Stacked,
    /// Two hosts with Baton before three with an apiserver.
    Dedicated,
}

/// A host of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostPlan {
    pub name: &'static str,
    pub address: Ipv4Addr,
    pub balances: bool,
    pub has_apiserver: bool,
}

/// The program before the apiservers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BalancerKind {
    Baton,
    /// With keepalived.
    Haproxy,
}

/// The program that `--compare` runs beside Baton.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Rival {
    /// haproxy and keepalived, with the files of kubeadm's guide.
    Haproxy,
}

impl BalancerKind {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Baton => "Baton",
            Self::Haproxy => "haproxy",
        }
    }

    /// Appended to the name of the demo's directory.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Baton => "",
            Self::Haproxy => "-haproxy",
        }
    }

    /// The port of the VIP. Beside an apiserver haproxy cannot have its port.
    pub(super) fn port(self, layout: FleetLayout) -> u16 {
        match (self, layout) {
            (Self::Haproxy, FleetLayout::Stacked) => 8443,
            _ => PORT,
        }
    }
}

impl FleetLayout {
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Self::Stacked => "3 stacked hosts",
            Self::Dedicated => "2 balancers, 3 apiservers",
        }
    }

    /// All hosts, those with Baton first.
    pub(super) fn hosts(self) -> Vec<HostPlan> {
        let host = |name, number, balances, has_apiserver| HostPlan {
            name,
            address: Ipv4Addr::new(10, 0, 0, number),
            balances,
            has_apiserver,
        };
        match self {
            Self::Stacked => {
                vec![host("cp1", 11, true, true), host("cp2", 12, true, true), host("cp3", 13, true, true)]
            }
            Self::Dedicated => vec![
                host("lb-a", 21, true, false),
                host("lb-b", 22, true, false),
                host("cp1", 11, false, true),
                host("cp2", 12, false, true),
                host("cp3", 13, false, true),
            ],
        }
    }
}

/// The VIP.
pub(super) const VIP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 100);
/// Of the host with the kubelets.
pub(super) const KUBELETS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 50);
/// Of the VIP and of each apiserver.
pub(super) const PORT: u16 = 6443;
