//! The process metrics of every Prometheus client library, with their usual names and without Baton's prefix
//! (prometheus.io, "Writing client libraries", process metrics).

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// Reads /proc/self at each scrape.
#[derive(Debug)]
pub(super) struct ProcessCollector {
    /// Unix seconds.
    started_at_s: f64,
}

impl Default for ProcessCollector {
    /// The present time counts as the start of the process.
    fn default() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started_at_s: now.as_secs_f64() }
    }
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // A value that /proc does not have is left out instead of shown as 0.
        if let Some(cpu_s) = cpu_seconds() {
            let counter = ConstCounter::new(cpu_s);
            let help = "CPU time spent, user and system";
            counter.encode(encoder.encode_descriptor(
                "process_cpu",
                help,
                Some(&Unit::Seconds),
                counter.metric_type(),
            )?)?;
        }
        if let Some((virtual_bytes, resident_bytes)) = memory_bytes() {
            gauge_bytes(&mut encoder, "process_virtual_memory", "Virtual memory size", virtual_bytes)?;
            gauge_bytes(&mut encoder, "process_resident_memory", "Resident memory size", resident_bytes)?;
        }
        if let Some(open) = open_fds() {
            gauge(&mut encoder, "process_open_fds", "Open file descriptors", open as f64)?;
        }
        if let Some(max) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
            gauge(&mut encoder, "process_max_fds", "File descriptors that may be open", max as f64)?;
        }
        let started = ConstGauge::new(self.started_at_s);
        let help = "Start of the process, in seconds since 1970";
        let unit = Some(&Unit::Seconds);
        started.encode(encoder.encode_descriptor("process_start_time", help, unit, started.metric_type())?)
    }
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    let gauge = ConstGauge::new(value);
    gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
}

fn gauge_bytes(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, bytes: u64) -> fmt::Result {
    let gauge = ConstGauge::new(bytes as f64);
    gauge.encode(encoder.encode_descriptor(name, help, Some(&Unit::Bytes), gauge.metric_type())?)
}

fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The command's name may contain spaces and brackets; utime and stime are fields 14 and 15 (proc(5)).
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Virtual and resident.
fn memory_bytes() -> Option<(u64, u64)> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = statm.split_ascii_whitespace().map_while(|field| field.parse::<u64>().ok());
    let page = rustix::param::page_size() as u64;
    Some((pages.next()? * page, pages.next()? * page))
}

fn open_fds() -> Option<usize> {
    // The walk itself holds one descriptor.
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_memory_and_descriptors() {
        let (virtual_bytes, resident_bytes) = memory_bytes().unwrap();
        assert!(virtual_bytes >= resident_bytes && resident_bytes > 100_000);
        assert!(open_fds().unwrap() >= 3);
        assert!(cpu_seconds().unwrap() >= 0.0);
    }
}
