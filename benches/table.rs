//! The flow table with 10,000 and with 1,000,000 flows: the cost to enter and to remove one, the cost of a full
//! listing, and how long a flow may have to wait for its entry while listings run.

use std::fs::File;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use baton::addr::{ClientAddr, VipAddr};
use baton::model::ids::FrontendId;
use baton::sys::clock::now_ns;
use baton::table::flows::{FlowOrigin, FlowTable, ShardWriter};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hdrhistogram::Histogram;

const SIZES: [u32; 2] = [10_000, 1_000_000];

fn origin(number: u32) -> FlowOrigin {
    FlowOrigin {
        accepted_at_ns: u64::from(number),
        client: ClientAddr::new(SocketAddr::new(IpAddr::V4(Ipv4Addr::from_bits(number)), number as u16)),
        vip: VipAddr::new(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6443)),
        frontend: FrontendId(0),
    }
}

/// A table of one worker with `size` live flows.
fn filled(size: u32) -> (FlowTable, ShardWriter) {
    let table = FlowTable::new(1);
    let mut writer = table.writer(0);
    for number in 0..size {
        writer.insert(&table, &origin(number)).expect("the shard holds four million");
    }
    (table, writer)
}

fn enter_and_leave(writer: &mut ShardWriter, table: &FlowTable, origin: &FlowOrigin) {
    let (_, key) = writer.insert(table, black_box(origin)).expect("the shard holds four million");
    writer.remove(table, black_box(key));
}

fn insert_and_remove(c: &mut Criterion) {
    let mut group = c.benchmark_group("insert_and_remove");
    for size in SIZES {
        let (table, mut writer) = filled(size);
        let origin = origin(size);
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| enter_and_leave(&mut writer, &table, &origin))
        });
    }
}

fn listing(c: &mut Criterion) {
    let mut group = c.benchmark_group("listing");
    group.sample_size(10);
    for size in SIZES {
        let (table, _writer) = filled(size);
        group.throughput(Throughput::Elements(u64::from(size)));
        group.bench_function(BenchmarkId::from_parameter(size), |b| b.iter(|| black_box(table.iter()).count()));
    }
}

/// The same as `insert_and_remove` with a reader that lists without a pause; also prints the time of single ones. Those
/// during which the kernel gave the core to another program are left out.
fn insert_and_remove_while_listing(c: &mut Criterion) {
    let mut group = c.benchmark_group("insert_and_remove_while_listing");
    for size in SIZES {
        let (table, mut writer) = filled(size);
        let origin = origin(size);
        let done = AtomicBool::new(false);
        let mut waits_ns = Histogram::<u64>::new(3).expect("three digits are allowed");
        let mut interrupted = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    black_box(table.iter().count());
                }
            });
            let turns = Turns::of_this_thread();
            group.bench_function(BenchmarkId::from_parameter(size), |b| {
                b.iter(|| {
                    let turns_before = turns.count();
                    let began_ns = now_ns();
                    enter_and_leave(&mut writer, &table, &origin);
                    let waited_ns = now_ns() - began_ns;
                    match turns.count() == turns_before {
                        true => waits_ns.saturating_record(waited_ns),
                        false => interrupted += 1,
                    }
                })
            });
            done.store(true, Relaxed);
        });
        println!(
            "  {size} live, listing all the while: p50 {} ns, p99.99 {} ns, slowest {} ns of {}; {interrupted} interrupted",
            waits_ns.value_at_quantile(0.5),
            waits_ns.value_at_quantile(0.9999),
            waits_ns.max(),
            waits_ns.len(),
        );
    }
}

/// How often the kernel put a thread on a core: the third field of /proc/PID/task/TID/schedstat.
struct Turns(File);

impl Turns {
    fn of_this_thread() -> Self {
        Self(File::open("/proc/thread-self/schedstat").expect("/proc is there"))
    }

    fn count(&self) -> u64 {
        let mut text = [0; 96];
        let length = self.0.read_at(&mut text, 0).expect("a thread can read its own schedstat");
        let text = str::from_utf8(&text[..length]).expect("schedstat is ASCII");
        text.split_ascii_whitespace().nth(2).and_then(|count| count.parse().ok()).expect("schedstat has three fields")
    }
}

criterion_group! {
    name = table;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(30);
    targets = insert_and_remove, listing, insert_and_remove_while_listing
}
criterion_main!(table);
