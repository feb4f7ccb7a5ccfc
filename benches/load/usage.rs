//! What the proxy's processes use, from /proc.

use std::fs;

/// CPU time of all threads, in ns (schedstat: time on the CPU), and resident memory, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub cpu_ns: u64,
    pub rss_bytes: u64,
}

pub fn of(pids: &[u32]) -> Usage {
    let mut usage = Usage::default();
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

fn rss_bytes(pid: u32) -> u64 {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return 0 };
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}
