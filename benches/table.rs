//! The flow table at 10,000 and at 1,000,000 live flows: what entering and leaving cost, what a full listing costs, and
//! how long a flow may have to wait to be entered while listings run.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
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

/// The same as `insert_and_remove` with a reader that lists without a pause; also prints the slowest single one,
/// which on a busy machine is the scheduler's doing.
fn insert_and_remove_while_listing(c: &mut Criterion) {
    let mut group = c.benchmark_group("insert_and_remove_while_listing");
    for size in SIZES {
        let (table, mut writer) = filled(size);
        let origin = origin(size);
        let done = AtomicBool::new(false);
        let mut waits_ns = Histogram::<u64>::new(3).expect("three digits are allowed");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    black_box(table.iter().count());
                }
            });
            group.bench_function(BenchmarkId::from_parameter(size), |b| {
                b.iter(|| {
                    let began_ns = now_ns();
                    enter_and_leave(&mut writer, &table, &origin);
                    waits_ns.saturating_record(now_ns() - began_ns);
                })
            });
            done.store(true, Relaxed);
        });
        println!(
            "  {size} live, listing all the while: p50 {} ns, p99.99 {} ns, slowest {} µs",
            waits_ns.value_at_quantile(0.5),
            waits_ns.value_at_quantile(0.9999),
            waits_ns.max() / 1000
        );
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
