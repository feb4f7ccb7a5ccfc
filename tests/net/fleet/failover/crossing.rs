//! Packets that no instance knows while an address moves: each instance could take the other for the owner.

use ::baton::model::segment::{Flags, Segment};
use ::baton::sys::raw::RawSender;

use super::*;

/// Regression: packets went back and forth between two hosts until their time to live was used up. Baton recognizes
/// them by an Ethernet address, which it looked up by the peer's IPv6 address, and the kernel had no entry for that.
#[test]
fn an_unknown_packet_crosses_once_between_hosts_that_have_addresses_of_both_families() {
    let test = "an_unknown_packet_crosses_once";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config).map(Fleet::with_owner) else { return };
    let client = &fleet.scene.lab.client;
    let raw = client.enter(|| RawSender::marked(0)).expect("root");
    eventually(LONG, "nothing else is under way", || fleet.owner().baton.flow_count() == 0);
    fleet.wait_known(0, 0);
    fleet.remove_vip(fleet.owner());
    fleet.take(fleet.heir());
    let ports = 40_000..40_040;
    for port in ports.clone() {
        let from = SocketAddr::new(client.v4.into(), port);
        let segment = Segment { from, to: fleet.vip, seq: 1, ack: 1, flags: Flags::Ack, window: 0 };
        client.enter(|| raw.send(&segment.packet().expect("of one family"), fleet.vip.ip())).unwrap();
        // They come while both learn where the address is.
        std::thread::sleep(ms(50));
    }
    let forwarded =
        || fleet.all.iter().map(|it| it.baton.metric("baton_unknown_packets_total", &["forwarded"])).sum::<f64>();
    eventually(LONG, "the first ones are counted", || forwarded() > 0.0);
    // They are counted once a second.
    wait::throughout(secs(2), "each crosses once", || forwarded() <= ports.len() as f64);
    println!("{} packets, {} forwards", ports.len(), forwarded());
}
