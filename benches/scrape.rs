//! The cost of a scrape of the metrics with 10,000 flows. The walk that counts flows is limited in rate, so it is also
//! measured by itself.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use baton::addr::{ClientAddr, VipAddr};
use baton::admin::census::Census;
use baton::admin::collect::{self, CollectorParts};
use baton::metrics::{Exposition, Metrics};
use baton::ports::AllPorts;
use baton::table::Table;
use baton::table::flows::{FlowOrigin, ShardWriter};
use criterion::{Criterion, criterion_group, criterion_main};

const FLOWS: u32 = 10_000;
const BACKENDS: usize = 3;

/// A table of one worker with its flows, and with one frontend.
fn filled() -> (Arc<Table>, ShardWriter) {
    let table = Table::new(1);
    let frontend = table.registry.frontend(&"apiserver".into());
    for number in 0..BACKENDS {
        table.registry.backend(&frontend, &format!("cp{number}").into());
    }
    let mut writer = table.flows.writer(0);
    for number in 0..FLOWS {
        let origin = FlowOrigin {
            accepted_at_ns: u64::from(number),
            client: ClientAddr::new(SocketAddr::new(IpAddr::V4(Ipv4Addr::from_bits(number)), number as u16)),
            vip: VipAddr::new(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6443)),
            frontend: frontend.id,
        };
        writer.insert(&table.flows, &origin).expect("the shard holds four million");
    }
    (table, writer)
}

const CONFIG: &str = r#"
[[frontend]]
name = "f"
listen = ["127.0.0.1:6443"]
[[frontend.backend]]
name = "b"
address = "127.0.0.1:6444"
"#;

fn scrape(c: &mut Criterion) {
    let (table, _writer) = filled();
    let metrics = Metrics::default();
    let config = baton::config::parse(CONFIG, "bench.toml".as_ref()).expect("it is valid").config;
    let config = Arc::new(ArcSwap::from_pointee(config));
    let ports = AllPorts::new(1).expect("an eventfd can be made");
    let parts = CollectorParts {
        registry: table.part(),
        flows: table.part(),
        offload: table.part(),
        fleet: ports.part(),
        fleet_view: table.part(),
        workers: table.part(),
        flow_log: table.part(),
        recorder: table.part(),
        nodes: table.part(),
        probes: table.part(),
        beats: table.part(),
    };
    collect::register(&metrics, parts, config, Arc::default());
    let mut group = c.benchmark_group("scrape_at_10000_flows");
    for exposition in [Exposition::OpenMetrics, Exposition::Text, Exposition::Protobuf] {
        group.bench_function(format!("{exposition:?}"), |b| b.iter(|| metrics.encode(black_box(exposition))));
    }
    group.bench_function("walk", |b| b.iter(|| Census::default().counts(black_box(&table.flows))));
}

criterion_group!(benches, scrape);
criterion_main!(benches);
