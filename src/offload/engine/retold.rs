//! Converts an entry to the rewrite state for other instances, and a received rewrite state to an entry.

use crate::model::fleet::{FlowRecord, RewriteState};
use crate::model::splice::FlowDirection;
use crate::offload::entry::{Action, Egress, Entry, Seen, Share, Windows};
use crate::sys::clock::{now_ns, ns_of_unix_ms};

/// The rewrite state of the direction that `entry` carries.
pub(super) fn way(entry: &Entry) -> RewriteState {
    let Seen { sent, acked, .. } = entry.seen;
    RewriteState { rewrite: entry.rewrite, window: entry.windows.own, sent, acked, bytes: entry.bytes() }
}

/// The entry for one direction of a flow, from its owner's record.
pub(super) fn entry(
    record: &FlowRecord,
    direction: FlowDirection,
    way: &RewriteState,
    egress: Egress,
    by_lo: bool,
    backend_slot: u16,
) -> Entry {
    // The high half of a position only counts bytes, and this entry starts to count here.
    let [sent, acked] = [way.sent, way.acked].map(|position| position & u64::from(u32::MAX));
    Entry {
        action: Action::Splice,
        direction,
        onward: record.ends.onward(direction),
        rewrite: way.rewrite,
        egress,
        by_lo,
        stays_here: false,
        committed: true,
        held: true,
        backend_slot,
        windows: Windows { own: way.window, far: way.window },
        id: record.id,
        share: match direction {
            FlowDirection::ToBackend => Share::Up {
                accepted_at_ns: ns_of_unix_ms(record.accepted_unix_ms).min(now_ns()),
                connect_us: record.connect_us,
            },
            FlowDirection::ToClient => Share::Down { backend_key: record.backend_key },
        },
        start_position: sent as u32,
        bytes_before: way.bytes,
        seen: Seen { sent, acked, ..Seen::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
    use crate::model::ends::Ends;
    use crate::model::fleet::Keeping;
    use crate::model::ids::FlowId;
    use crate::model::splice::Rewrite;

    #[test]
    fn a_busy_flow_goes_on_counting_where_its_owner_was() {
        let rewrite = Rewrite { seq: 1, ack: 2, tsval: 3, tsecr: 4, window_shift: -2, clear_ecn: true };
        let way = RewriteState { rewrite, window: 20, sent: 5 << 32 | 1000, acked: 1 << 32 | 7, bytes: 5 << 32 };
        let record = FlowRecord {
            id: FlowId::of(7, 1),
            ends: Ends {
                client: ClientAddr::new("10.0.0.7:40000".parse().unwrap()),
                vip: VipAddr::new("10.0.0.100:6443".parse().unwrap()),
                local: LocalAddr::new("10.0.0.100:33333".parse().unwrap()),
                backend: BackendAddr::new("10.0.0.11:6443".parse().unwrap()),
            },
            client: ClientAddr::new("10.0.0.7:40000".parse().unwrap()),
            backend_key: 77,
            accepted_unix_ms: 1,
            connect_us: 250,
            keeping: Keeping::Sockets,
        };
        let mut entry = entry(&record, FlowDirection::ToBackend, &way, Egress::Local, false, 3);
        assert_eq!((entry.seen.sent, entry.start_position, entry.bytes()), (1000, 1000, 5 << 32));
        entry.seen.sent += 10;
        assert_eq!(super::way(&entry), RewriteState { sent: 1010, acked: 7, bytes: (5 << 32) + 10, ..way });
        assert!(entry.held && entry.committed);
    }
}
