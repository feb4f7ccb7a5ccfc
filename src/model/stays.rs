//! Why a flow is proxied and not offloaded.

use super::splice::Obstacle;

macro_rules! reasons {
    ($($variant:ident $label:literal $for_good:literal $about:literal;)*) => {
        /// Why a flow stays proxied, for now or for good.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Stays {
            $(#[doc = $about] $variant,)*
        }

        impl Stays {
            pub(crate) const ALL: &'static [Stays] = &[$(Stays::$variant,)*];

            /// The name in lists and metrics.
            pub(crate) fn label(self) -> &'static str {
                match self { $(Stays::$variant => $label,)* }
            }

            /// The meaning of the reason, as the documentation has it.
            #[cfg(test)]
            fn about(self) -> &'static str {
                match self { $(Stays::$variant => $about,)* }
            }

            /// Whether no further try follows.
            pub(crate) fn for_good(self) -> bool {
                match self { $(Stays::$variant => $for_good,)* }
            }
        }
    };
}

reasons! {
    Busy "busy" false "Bytes were in flight at every moment that Baton tried.";
    Timestamps "timestamps" true "Only one of its ends uses TCP timestamps.";
    Sack "sack" true "Only one of its ends uses SACK.";
    Mss "mss" true "One end may send segments that are too large for the other, or for the path there.";
    Ecn "ecn" true "One of its ends uses accurate ECN.";
    Families "families" true "One leg is IPv4 and the other IPv6.";
    HalfClosed "half_closed" true "One of its ends has closed already.";
    Local "local" true "Its client is on this host: it may send segments of 64 KiB, which fit no other interface, and it ends with this host.";
    Interface "interface" true "Its packets come in by an interface that is not in `offload.interfaces`.";
    Lro "lro" true "Its packets come in by a network card that merges them (large receive offload), or by a bond, VLAN or bridge on such a card.";
    Ipsec "ipsec" true "An IPsec policy covers one of its legs.";
    Nat "nat" true "Its packets have other addresses or sequence numbers on the wire than in its sockets: this host translates them (masquerade, DNAT, redirect, SYNPROXY).";
    Unseen "unseen" false "Baton has not yet seen a packet of one of its ends on the wire.";
    Resets "resets" false "Flows were reset right after their offload: Baton offloads none until this has stopped.";
    MapFull "map_full" false "`max_flows` flows are offloaded already.";
    AddressInUse "address_in_use" false "The BPF map still has an earlier flow between the same addresses.";
    Failed "failed" false "The kernel refused a call that offload needs; the log has the error.";
}

impl Stays {
    /// The word in a flow's table entry; 0 is none.
    pub(crate) fn pack(why: Option<Self>) -> u64 {
        why.map_or(0, |why| why as u64 + 1)
    }

    /// The inverse of [`Stays::pack`].
    pub(crate) fn unpack(word: u64) -> Option<Self> {
        Self::ALL.get(word.checked_sub(1)? as usize).copied()
    }
}

impl From<Obstacle> for Stays {
    fn from(obstacle: Obstacle) -> Self {
        match obstacle {
            Obstacle::NotEstablished(_) => Self::HalfClosed,
            Obstacle::Families => Self::Families,
            Obstacle::Timestamps(_) => Self::Timestamps,
            Obstacle::Sack(_) => Self::Sack,
            Obstacle::Mss { .. } => Self::Mss,
            Obstacle::AccurateEcn(_) => Self::Ecn,
            Obstacle::Unacknowledged { .. }
            | Obstacle::OutOfOrder(_)
            | Obstacle::Urgent(_)
            | Obstacle::InFlight { .. } => Self::Busy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docs_offload_md_lists_every_reason_and_its_meaning() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/offload.md")).unwrap();
        let (_, table) = page.split_once("| reason | meaning |\n|---|---|\n").expect("the table");
        let listed = table.split("\n\n").next().unwrap();
        let again = |why: &Stays| if why.for_good() { "" } else { " Baton tries again." };
        let row = |why: &Stays| format!("| `{}` | {}{} |", why.label(), why.about(), again(why));
        assert_eq!(listed, Stays::ALL.iter().map(row).collect::<Vec<_>>().join("\n"));
    }

    #[test]
    fn a_reason_survives_its_word() {
        for (place, why) in Stays::ALL.iter().enumerate() {
            assert_eq!(*why as usize, place);
            assert_eq!(Stays::unpack(Stays::pack(Some(*why))), Some(*why));
        }
        assert_eq!((Stays::unpack(0), Stays::unpack(99)), (None, None));
    }
}
