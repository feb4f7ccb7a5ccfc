//! Packets whose sum was taken over the whole of them on arrival (CHECKSUM_COMPLETE), as network cards do, and here a
//! tunnel whose outer packets have a checksum of their own. The program says for certain which these are.

use std::net::{IpAddr, SocketAddr};

use aya::maps::Array;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use aya::{Ebpf, include_bytes_aligned};

use super::Scene;
use crate::lab::*;

static OBJECT: &[u8] = include_bytes_aligned!("../../../src/offload/bpf/sums.o");

/// Looks at packets that arrive on an interface.
struct Sums {
    object: Ebpf,
}

/// Packets short enough to be summed again, and those of them whose sum is another.
#[derive(Clone, Copy, Debug)]
struct Counted {
    summed: u64,
    wrong: u64,
}

impl Sums {
    fn look_at(host: &Host, interface: &str) -> Self {
        let mut object = Ebpf::load(OBJECT).unwrap();
        let program: &mut SchedClassifier = object.program_mut("sums").unwrap().try_into().unwrap();
        program.load().unwrap();
        let options = TcAttachOptions::TcxOrder(LinkOrder::first());
        host.enter(|| program.attach_with_options(interface, TcAttachType::Ingress, options)).unwrap();
        Self { object }
    }

    /// Has so much added to each sum before it is compared.
    fn add(&mut self, sum: u32) {
        let mut shift: Array<_, u32> = self.object.map_mut("shift").unwrap().try_into().unwrap();
        shift.set(0, sum, 0).unwrap();
    }

    fn counted(&self) -> Counted {
        let counted: Array<_, u64> = self.object.map("counted").unwrap().try_into().unwrap();
        let count = |index| counted.get(&index, 0).unwrap();
        Counted { summed: count(1), wrong: count(2) }
    }
}

/// The sum of an interface's Ethernet address, as the kernel would sum it.
fn sum_of_mac(host: &Host, interface: &str) -> u32 {
    let link = host.run(&format!("ip -o link show {interface}"));
    let mac = link.split_whitespace().find(|word| word.matches(':').count() == 5).expect("an Ethernet address");
    let bytes: Vec<u8> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.chunks(2).map(|pair| u32::from(u16::from_le_bytes([pair[0], pair[1]]))).sum()
}

fn folded(sum: u32) -> u32 {
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

#[test]
fn sums_over_whole_packets_stay_right_while_packets_are_rewritten() {
    let Some(scene) = Scene::new("sums") else { return };
    let lab = &scene.lab;
    let (lb, client, backend) = (&lab.lb, &lab.client, &lab.b1);
    if !super::interfaces::knows("sums", lb, "vxlan id 9 dstport 4790") {
        return;
    }
    // The client is behind a tunnel, without offloads: the outer packets' sums are taken in software.
    for (host, other, last) in [(client, lb, 10), (lb, client, 2)] {
        host.run(&format!(
            "ethtool -K eth0 tso off gso off tx off\n\
             ip link add tunnel mtu 1450 type vxlan id 7 dstport 4789 local {} remote {} udpcsum\n\
             ethtool -K tunnel tso off gso off tx off gro off\nip link set tunnel up\n\
             ip address add 10.55.0.{last}/24 dev tunnel\nip address add 2001:db8:55::{last}/64 dev tunnel nodad",
            host.v4, other.v4
        ));
    }
    // The backend is at the other end of a wire: a bridge would forget the sums.
    lb.run(&format!("ip link add direct type veth peer name wire netns {}", backend.namespace()));
    for (host, interface, last) in [(lb, "direct", 2), (backend, "wire", 21)] {
        host.run(&format!(
            "ip link set {interface} up\nip address add 10.66.0.{last}/24 dev {interface}\n\
             ip address add 2001:db8:66::{last}/64 dev {interface} nodad"
        ));
    }
    backend.run("ip route add 10.55.0.2/32 via 10.66.0.2\nip route add 2001:db8:55::2/128 via 2001:db8:66::2");
    let (arriving, mut leaving) = (Sums::look_at(lb, "tunnel"), Sums::look_at(backend, "wire"));
    // The kernel adds the Ethernet header that a redirected packet came with, and the receiver subtracts the one that
    // it left with (net/core/filter.c, bpf_push_mac_rcsum).
    let before = sum_of_mac(lb, "tunnel") + sum_of_mac(client, "tunnel");
    let after = sum_of_mac(backend, "wire") + sum_of_mac(lb, "direct");
    leaving.add(folded((!folded(before) & 0xffff) + after));
    for [vip, to] in [["10.55.0.2", "10.66.0.21"], ["2001:db8:55::2", "2001:db8:66::21"]] {
        let [vip, to] = [vip, to].map(|ip| SocketAddr::new(ip.parse::<IpAddr>().unwrap(), 6443));
        let _server = backend.serve_on(to, Behaviour::Echo);
        let config = scene.config().only(&[]).backend("b1", to).frontend("listen", vec![vip.to_string()]);
        let baton = lab.start(&config);
        let mut conn = client.connect(vip);
        conn.echo(1, 50_000);
        (0..10).for_each(|seed| conn.echo(seed, 100));
        baton.wait_offloaded(1);
        // Those of offloaded flows never come as far as this program.
        let came = arriving.counted();
        // How many depends on when it is offloaded.
        assert!(came.summed > 0 && came.wrong == 0, "such packets come: {came:?}");
        let before = leaving.counted();
        (0..100).for_each(|seed| conn.echo(seed, 1 + seed * 3));
        let after = leaving.counted();
        println!("{vip}: as they left, before {before:?} and after {after:?}");
        assert!(after.summed >= before.summed + 100, "{vip}: they leave as such: {before:?} {after:?}");
        assert_eq!(after.wrong, before.wrong, "{vip}: their sums are those of the packets as they left");
        conn.echo(7, 500_000);
        drop(conn);
        eventually(LONG, "no flow is left", || baton.flow_count() == 0);
        baton.rests();
    }
}
