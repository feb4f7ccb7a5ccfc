//! Which backend gets a flow, for each policy, with 3 and with 50 backends.

use std::hint::black_box;

use baton::model::balance::{Balance, Draw, PickCandidate, Preference, Turns, hash_name, pick};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

/// Ready backends with flows, none like the other.
fn candidates(count: usize) -> Vec<PickCandidate> {
    (0..count)
        .map(|number| PickCandidate {
            preference: Preference::Ready,
            weight: 1024,
            active: 100 + (number as u32 * 7) % 13,
            full: false,
            tried: false,
            hash_key: hash_name("apiserver", &format!("cp{number}")),
        })
        .collect()
}

fn picks(c: &mut Criterion) {
    let mut group = c.benchmark_group("pick");
    for policy in [Balance::LeastConn, Balance::RoundRobin, Balance::RandomTwo, Balance::SourceHash] {
        for count in [3, 50] {
            let candidates = candidates(count);
            let mut turns = Turns::default();
            let mut random = fastrand::Rng::with_seed(1);
            group.bench_function(BenchmarkId::new(format!("{policy:?}"), count), |b| {
                b.iter(|| {
                    let draw = Draw { random: random.u64(..), source_hash: random.u64(..) };
                    pick(policy, black_box(&candidates), &mut turns, draw)
                });
            });
        }
    }
}

criterion_group!(benches, picks);
criterion_main!(benches);
