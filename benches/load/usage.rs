//! The resources that the proxy's processes use, from /proc.

use std::fs;

/// CPU time of all threads, in ns (schedstat: time on the CPU), and resident memory, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub cpu_ns: u64,
    pub rss_bytes: u64,
    /// Time in which a core of the machine was idle, or another guest had it, summed over the cores, in ns.
    pub rest_ns: u64,
}

pub fn of(pids: &[u32]) -> Usage {
    let mut usage = Usage { rest_ns: rest_ns(), ..Usage::default() };
    for pid in pids {
        usage.cpu_ns += threads_cpu_ns(*pid);
        usage.rss_bytes += rss_bytes(*pid);
    }
    usage
}

fn threads_cpu_ns(pid: u32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let on_cpu = |task: fs::DirEntry| {
        let line = fs::read_to_string(task.path().join("schedstat")).ok()?;
        line.split(' ').next()?.parse::<u64>().ok()
    };
    tasks.flatten().filter_map(on_cpu).sum()
}

/// From /proc/stat: the kernel measures idle time and waits for I/O, and only samples busy time. Interrupts, in which
/// packets are forwarded, belong to no process and are in neither.
fn rest_ns() -> u64 {
    /// USER_HZ is 100 wherever Linux shows it.
    const TICK_NS: u64 = 10_000_000;
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<u64> = text
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal
    [3, 4, 7].into_iter().filter_map(|field| fields.get(field)).sum::<u64>() * TICK_NS
}

fn rss_bytes(pid: u32) -> u64 {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return 0 };
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}
