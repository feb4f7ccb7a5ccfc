//! The measured time, the same for all threads: they meet once all are connected, and what ends within counts.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::Duration;

use baton::sys::clock::now_ns;
use serde_json::{Value, json};

use crate::usage::{self, Usage};

pub struct Window {
    warmup_ns: u64,
    length_ns: u64,
    pids: Vec<u32>,
    begins_ns: OnceLock<u64>,
}

/// Begin and end, in monotonic ns.
pub type Bounds = (u64, u64);

/// The proxy's use of resources in the window.
pub struct Spent {
    pub cpu_ns: u64,
    /// CPU time of everything on this machine, interrupts too.
    pub machine_ns: u64,
    pub end: Usage,
}

impl Window {
    pub fn new(warmup_s: f64, seconds: f64, pids: Vec<u32>) -> Self {
        let nanos = |seconds: f64| (seconds * 1e9) as u64;
        Self { warmup_ns: nanos(warmup_s), length_ns: nanos(seconds), pids, begins_ns: OnceLock::new() }
    }

    /// On each of `threads` threads, `prepare` connects and `work` gets its result, with the begin and the end of the
    /// window in monotonic ns. If one thread cannot prepare, none works.
    pub fn run<P, T: Send>(
        &self,
        threads: usize,
        prepare: impl Fn(usize) -> io::Result<P> + Sync,
        work: impl Fn(P, Bounds) -> io::Result<T> + Sync,
    ) -> io::Result<(Vec<T>, Spent)> {
        let all_ready = Barrier::new(threads + 1);
        let failed = AtomicBool::new(false);
        let one = |number: usize| {
            let prepared = prepare(number).inspect_err(|_| failed.store(true, Relaxed));
            all_ready.wait();
            let prepared = prepared?;
            match failed.load(Relaxed) {
                true => Err(io::ErrorKind::Interrupted.into()),
                false => work(prepared, self.bounds()),
            }
        };
        thread::scope(|scope| {
            let one = &one;
            let running: Vec<_> = (0..threads).map(|number| scope.spawn(move || one(number))).collect();
            all_ready.wait();
            let (begins_ns, ends_ns) = self.bounds();
            let mut before = Usage::default();
            if !failed.load(Relaxed) {
                sleep_until(begins_ns);
                before = usage::of(&self.pids);
                sleep_until(ends_ns);
            }
            let end = usage::of(&self.pids);
            let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
            let rest_ns = end.rest_ns.saturating_sub(before.rest_ns);
            let spent = Spent {
                cpu_ns: end.cpu_ns.saturating_sub(before.cpu_ns),
                machine_ns: (cores * self.length_ns).saturating_sub(rest_ns),
                end,
            };
            let done = running.into_iter().map(|thread| thread.join().expect("a thread of the load panicked"));
            Ok((done.collect::<io::Result<_>>()?, spent))
        })
    }

    pub fn seconds(&self) -> f64 {
        self.length_ns as f64 / 1e9
    }

    /// In monotonic ns; 0 before all threads were ready.
    pub fn begins_ns(&self) -> u64 {
        self.begins_ns.get().copied().unwrap_or(0)
    }

    fn bounds(&self) -> Bounds {
        let begins_ns = *self.begins_ns.get_or_init(|| now_ns() + self.warmup_ns);
        (begins_ns, begins_ns + self.length_ns)
    }
}

impl Spent {
    /// Adds the use in all, and for each of `units`, to a report.
    pub fn describe(&self, report: &mut Value, units: f64) {
        report["cpu_ns"] = json!(self.cpu_ns);
        report["machine_ns"] = json!(self.machine_ns);
        report["units"] = json!(units);
        report["cpu_us_each"] = json!(if units > 0.0 { self.cpu_ns as f64 / 1e3 / units } else { 0.0 });
        report["rss_bytes"] = json!(self.end.rss_bytes);
    }
}

pub fn sleep_until(at_ns: u64) {
    thread::sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns())));
}
