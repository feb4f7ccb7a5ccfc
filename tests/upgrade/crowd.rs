//! Thousands of clients as one process, with three threads: those whose round trips are measured, the storm of
//! new clients, and all the others.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::instance::wait_for;
use super::part::Part;
use super::scene::{self, Outcome, Shared};

/// Clients of the storm.
const STORM: usize = 4;

/// Clients that open their connection at a time.
const AT_ONCE: u64 = 32;

/// A slow reader's download: more than it can read in a test.
const DOWNLOAD: u64 = 6 << 20;

/// Only clients below this number read slowly, one in ten: more than 2 MB wait in the kernel for each, and once all TCP sockets of a
/// machine have more than the middle one of net.ipv4.tcp_mem, the kernel drops segments (docs/limits.md).
const SLOW_BELOW: usize = 2000;

/// Bytes that a half-closed flow gets.
const DRIPS: u64 = 3000;

/// The clients of one test.
pub struct Crowd(Part);

#[derive(Serialize, Deserialize)]
enum Ask {
    Open { frontend: SocketAddr, flows: usize },
    Storm,
    Look,
    Finish,
}

/// Round trips since the last look, in µs.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    pub count: u64,
    pub median: u64,
    pub p999: u64,
    pub longest: u64,
}

/// How it ended.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    pub failures: Vec<String>,
    /// Connections of the storm.
    pub served: u64,
    pub compared_up: u64,
    pub compared_down: u64,
}

impl Crowd {
    /// Opens `flows` flows of all kinds; returns when each has done its first round.
    pub fn open(frontend: SocketAddr, flows: usize) -> Self {
        let mut part = Part::start("crowd");
        let opened: usize = part.ask(Ask::Open { frontend, flows });
        assert_eq!(opened, flows);
        Self(part)
    }

    /// Lets new clients come, one after the other, from now on.
    pub fn storm(&mut self) {
        self.0.ask::<Value>(Ask::Storm);
    }

    pub fn look(&mut self) -> Seen {
        self.0.ask(Ask::Look)
    }

    /// Has everyone finish.
    pub fn finish(mut self) -> Report {
        self.0.ask(Ask::Finish)
    }
}

/// The crowd's process.
pub fn answers() -> impl FnMut(Value) -> Value {
    let mut gathering: Option<Gathering> = None;
    move |asked| match (serde_json::from_value(asked).unwrap(), &mut gathering) {
        (Ask::Open { frontend, flows }, none) => {
            *none = Some(Gathering::open(frontend, flows));
            json!(flows)
        }
        (Ask::Storm, Some(gathering)) => {
            gathering.storm();
            Value::Null
        }
        (Ask::Look, Some(gathering)) => json!(gathering.look()),
        (Ask::Finish, some) => json!(some.take().unwrap().finish()),
        _ => panic!("nobody is there yet"),
    }
}

struct Gathering {
    frontend: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Gathering {
    fn open(frontend: SocketAddr, flows: usize) -> Self {
        let shared = Shared::new(flows);
        let talkers = talkers(flows);
        let (measured, others) = (shared.clone(), shared.clone());
        let mut gathering = Self { frontend, shared, threads: Vec::new() };
        gathering.gather("crowd", async move |clients| {
            for number in 0..flows - talkers {
                clients.spawn(told(client(frontend, number, others.clone())));
                // Not all at once: this is not a test of opening connections.
                while others.begun.load(Relaxed) + AT_ONCE < number as u64 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        });
        gathering.all_have_begun(flows - talkers);
        gathering.gather("talkers", async move |clients| {
            (0..talkers).for_each(|_| drop(clients.spawn(told(scene::talker(frontend, measured.clone())))));
        });
        gathering.all_have_begun(flows);
        gathering
    }

    fn storm(&mut self) {
        let (frontend, shared) = (self.frontend, self.shared.clone());
        self.gather("storm", async move |clients| {
            (0..STORM).for_each(|_| drop(clients.spawn(told(scene::storm(frontend, shared.clone())))));
        });
    }

    fn look(&self) -> Seen {
        let mut trips = self.shared.round_trips.lock().unwrap();
        let seen = Seen {
            count: trips.len(),
            median: trips.value_at_quantile(0.5),
            p999: trips.value_at_quantile(0.999),
            longest: trips.max(),
        };
        trips.reset();
        seen
    }

    fn finish(self) -> Report {
        self.shared.over.send_replace(true);
        let failures = self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        let compared = |way: usize| self.shared.compared[way].load(Relaxed);
        Report {
            failures,
            served: self.shared.served.load(Relaxed),
            compared_up: compared(0),
            compared_down: compared(1),
        }
    }

    /// Runs clients on a thread of their own.
    fn gather(&mut self, name: &str, clients: impl AsyncFnOnce(&mut JoinSet<Outcome>) + Send + 'static) {
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut all = JoinSet::new();
                clients(&mut all).await;
                all.join_all().await.into_iter().filter_map(Result::err).collect()
            })
        };
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(run).unwrap());
    }

    fn all_have_begun(&self, count: usize) {
        let mut begun = 0;
        // On a busy machine thousands take their time: what must not be is that none begins.
        while begun < count as u64 {
            wait_for("another flow to begin", || self.shared.begun.load(Relaxed) > begun);
            begun = self.shared.begun.load(Relaxed);
        }
    }
}

async fn client(frontend: SocketAddr, number: usize, shared: Arc<Shared>) -> Outcome {
    let seed = number as u32;
    match number % 20 {
        13 | 14 if number < SLOW_BELOW => scene::slow_reader(frontend, shared, seed, DOWNLOAD).await,
        0..15 => scene::idle(frontend, shared).await,
        15 | 16 => scene::half_closed(frontend, shared, seed, DRIPS).await,
        17 => scene::uploader(frontend, shared, seed).await,
        _ => scene::both_ways(frontend, shared, seed).await,
    }
}

/// A failure is told at once, for the others may never finish.
async fn told(client: impl Future<Output = Outcome>) -> Outcome {
    client.await.inspect_err(|error| eprintln!("a client failed: {error}"))
}

/// Of `flows`, how many are measured: few enough that the machine has time for all of them.
fn talkers(flows: usize) -> usize {
    (flows / 50).clamp(4, 50)
}
