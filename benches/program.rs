//! The BPF program: its cost per packet, and the cost to enter and to scan a million entries.
//!
//! Needs root. Pins in a directory of its own, which it takes away again.

use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use baton::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
use baton::model::ids::FlowId;
use baton::model::splice::{FlowDirection, Terms};
use baton::offload::entry::{Egress, Ends, Identity, Key, Splice, Start};
use baton::offload::program::{self, Cursor, Program};
use baton::offload::settings::OffloadSettings;
use baton::sys::bpf::{self, Context};
use baton::sys::clock::now_ns;

const FLOWS: u32 = 500_000;
/// Of `lo`, in each network namespace.
const LOOPBACK: u32 = 1;
const REPEAT: u32 = 1_000_000;

fn main() {
    let directory = PathBuf::from(format!("/sys/fs/bpf/baton-bench-{}", std::process::id()));
    let settings = OffloadSettings { directory: directory.clone(), interfaces: Vec::new(), flows_max: FLOWS };
    let program = match Program::open(&settings) {
        Ok(program) => program,
        Err(error) => return println!("skipped: {error}"),
    };
    // A panic must not leave a million entries behind.
    let measured = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| measure(&program, &directory)));
    drop(program);
    program::remove(&directory).expect("it is ours");
    if let Err(panic) = measured {
        std::panic::resume_unwind(panic);
    }
}

fn measure(program: &Program, directory: &std::path::Path) {
    let fd = bpf::open_pinned(&directory.join("program")).expect("it is pinned");
    let run_by = |ingress_ifindex: u32, what: &str, frame: &[u8]| {
        let (mut out, context) = (vec![0; 4096], Context { ingress_ifindex, ..Context::default() });
        // The packet is the program's own from run to run: its hops would run out, were they not many runs each.
        let runs = REPEAT / 200;
        let spent: u32 =
            (0..runs).map(|_| bpf::test_run(&fd, frame, &mut out, context, 200).expect("a run").duration_ns).sum();
        println!("{what:<44} {:>6.0} ns a packet", f64::from(spent) / f64::from(runs));
    };
    let run = |what: &str, frame: &[u8]| run_by(0, what, frame);
    for ipv6 in [false, true] {
        let family = if ipv6 { "IPv6" } else { "IPv4" };
        run(&format!("{family}: no entry"), &frame(FlowDirection::ToBackend, ipv6, u32::MAX, &TIMESTAMPS));
        let other = frame(FlowDirection::ToBackend, ipv6, u32::MAX, &TIMESTAMPS);
        run_by(LOOPBACK, &format!("{family}: no entry, on lo"), &other);
        program.install(&flow(1, ipv6)).expect("room");
        // With seq_delta 0 and two equal ends, the resulting packet matches the same entry again.
        run(&format!("{family}: spliced, timestamps"), &frame(FlowDirection::ToBackend, ipv6, 1, &TIMESTAMPS));
        run(&format!("{family}: spliced, no options"), &frame(FlowDirection::ToBackend, ipv6, 1, &[]));
        run(&format!("{family}: spliced, timestamps and SACK"), &frame(FlowDirection::ToBackend, ipv6, 1, &SACK));
        program.remove(&flow(1, ipv6).ends).expect("removed");
    }

    let before = memory();
    let began = now_ns();
    for number in 0..FLOWS {
        program.install(&flow(number, false)).expect("room");
    }
    let spent = Duration::from_nanos(now_ns() - began);
    println!("{} entries entered in {spent:?}: {:?} a flow", 2 * FLOWS, spent / FLOWS);
    println!("memory of the kernel: {} bytes an entry", (memory() - before) / u64::from(2 * FLOWS));
    run("IPv4: spliced among them", &frame(FlowDirection::ToBackend, false, 1, &TIMESTAMPS));

    let (mut cursor, mut entries, mut seen, mut longest) = (Cursor::default(), Vec::new(), 0, Duration::ZERO);
    let began = now_ns();
    loop {
        let batch = now_ns();
        entries.clear();
        let more = program.scan(&mut cursor, 4096, &mut entries).expect("a scan");
        longest = longest.max(Duration::from_nanos(now_ns() - batch));
        seen += black_box(&entries).len();
        if !more {
            break;
        }
    }
    println!(
        "{seen} entries scanned in {:?}, a batch of 4096 in {longest:?} at most",
        Duration::from_nanos(now_ns() - began)
    );

    let began = now_ns();
    for number in 0..FLOWS {
        black_box(program.remove(&flow(number, false).ends).expect("removed"));
    }
    let spent = Duration::from_nanos(now_ns() - began);
    println!("{} entries taken out in {spent:?}: {:?} a flow", 2 * FLOWS, spent / FLOWS);
}

/// Bytes that the kernel holds in small pieces, which is what entries are.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
    let line = text.lines().find_map(|line| line.strip_prefix("Slab:")).expect("Slab");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// A packet of the flow becomes a packet of the flow again: it can circulate.
fn ends(number: u32, ipv6: bool) -> [SocketAddr; 2] {
    let address = |part: u32, port| match ipv6 {
        true => SocketAddr::new(Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(part)).into(), port),
        false => SocketAddr::new(Ipv4Addr::from_bits(0x0a00_0000 | part).into(), port),
    };
    [address(number >> 8, 1024 + (number & 0xff) as u16), address(0xff_ff00, 6443)]
}

fn flow(number: u32, ipv6: bool) -> Splice {
    let [client, vip] = ends(number, ipv6);
    let start = Start { egress: Egress::Interface(1), bytes_before: 0, position: 1 };
    Splice {
        ends: Ends {
            client: ClientAddr::new(client),
            vip: VipAddr::new(vip),
            local: LocalAddr::new(client),
            backend: BackendAddr::new(vip),
        },
        // The packet is sent again in each run: it must lie in the windows to count.
        terms: Terms { client_window: 23, backend_window: 23, ..Terms::default() },
        identity: Identity { id: FlowId(number.into()), accepted_at_ns: 1, connect_us: 1, backend_key: 1 },
        up: start,
        down: start,
        backend_slot: 0,
    }
}

const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 9];
const SACK: [u8; 24] = [1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 9, 1, 1, 5, 10, 0, 0, 1, 0, 0, 0, 2, 0];

/// A segment with 100 bytes of payload. Checksums are carried on as they are, right or wrong.
fn frame(direction: FlowDirection, ipv6: bool, number: u32, options: &[u8]) -> Vec<u8> {
    let [client, vip] = ends(number, ipv6);
    let Key { from, to } = match direction {
        FlowDirection::ToBackend => Key { from: client, to: vip },
        FlowDirection::ToClient => Key { from: vip, to: client },
    };
    let mut tcp = Vec::new();
    tcp.extend(from.port().to_be_bytes());
    tcp.extend(to.port().to_be_bytes());
    tcp.extend([0, 0, 0, 1, 0, 0, 0, 1, ((20 + options.len()) << 2) as u8, 16, 1, 0, 0, 0, 0, 0]);
    tcp.extend(options);
    tcp.extend([7; 100]);
    let mut frame = vec![0; 12];
    match (from.ip(), to.ip()) {
        (std::net::IpAddr::V4(from), std::net::IpAddr::V4(to)) => {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + tcp.len() as u16).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 255, 6, 0, 0]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        (std::net::IpAddr::V6(from), std::net::IpAddr::V6(to)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((tcp.len() as u16).to_be_bytes());
            frame.extend([6, 255]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        _ => unreachable!("one family"),
    }
    frame.extend(tcp);
    frame
}
