//! Logs to standard error, for people or as JSON; a reload may change both format and level.
//!
//! Only control threads log, and they pass each line to a writer thread, so a stalled reader of the log delays nothing.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Format, Full, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;

use crate::config::{Log, LogFormat, LogLevel};
use crate::essential;

/// The running log. Dropping it writes the remaining lines.
#[derive(Debug)]
pub(crate) struct Logging {
    level: reload::Handle<Targets, tracing_subscriber::Registry>,
    json: Arc<AtomicBool>,
    lines: LogLines,
    writer: JoinHandle<()>,
}

/// Starts logging to standard error. Call it once in a process; a second call has no effect.
pub(crate) fn start(log: &Log) -> io::Result<Logging> {
    let (logging, subscriber) = build(log, io::stderr())?;
    let _ = tracing::subscriber::set_global_default(subscriber);
    let lines = logging.lines.clone();
    essential::before_abort(move || lines.wait_written());
    Ok(logging)
}

impl Logging {
    /// Applies format and level.
    pub(crate) fn apply(&self, log: &Log) {
        self.json.store(log.format == LogFormat::Json, Relaxed);
        // It fails only when the subscriber is gone, and then nothing logs.
        let _ = self.level.reload(targets(log.level));
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        // A log that nobody reads must not keep the process from ending, so every wait here is limited.
        let mut said = false;
        for _ in 0..END_TRIES {
            // The subscriber still exists and holds a sender, so the end needs a message.
            said = said || self.lines.sender.try_send(LogLine::End).is_ok();
            if self.writer.is_finished() {
                return;
            }
            std::thread::sleep(END_PAUSE);
        }
    }
}

fn build(log: &Log, to: impl Write + Send + 'static) -> io::Result<(Logging, impl Subscriber + Send + Sync)> {
    let json = Arc::new(AtomicBool::new(log.format == LogFormat::Json));
    let (sender, receiver) = sync_channel(LINES_WAITING);
    let lines = LogLines { sender, lost: Arc::default() };
    let lost = lines.lost.clone();
    let writer = essential::thread("log", {
        let json = json.clone();
        move || write(&receiver, &lost, &json, to)
    })?;
    let (level, handle) = reload::Layer::new(targets(log.level));
    let format = Either {
        json: json.clone(),
        for_people: Format::default().with_target(false),
        for_machines: Format::default().json().flatten_event(true).with_current_span(false).with_span_list(false),
    };
    let layer = tracing_subscriber::fmt::layer().with_ansi(false).event_format(format).with_writer(lines.clone());
    let subscriber = tracing_subscriber::registry().with(level).with(layer);
    Ok((Logging { level: handle, json, lines, writer }, subscriber))
}

/// Our own lines at `level`; from libraries only warnings and errors.
fn targets(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    Targets::new().with_default(level.min(LevelFilter::WARN)).with_target("baton", level)
}

enum LogLine {
    Text(Vec<u8>),
    /// Asks for an answer once all lines before this one are written.
    Written(SyncSender<()>),
    End,
}

/// The queue of lines from the threads that log; never waits.
#[derive(Clone, Debug)]
struct LogLines {
    sender: SyncSender<LogLine>,
    lost: Arc<AtomicU64>,
}

impl LogLines {
    /// Returns once the lines so far are written, or after a second: a log that nobody reads must not keep the process from ending.
    fn wait_written(&self) {
        let (sender, written) = sync_channel(1);
        if self.sender.try_send(LogLine::Written(sender)).is_ok() {
            let _ = written.recv_timeout(WRITTEN_MAX);
        }
    }
}

impl<'a> MakeWriter<'a> for LogLines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for LogLines {
    /// The subscriber writes each line in one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Err(TrySendError::Full(_)) = self.sender.try_send(LogLine::Text(line.to_vec())) {
            self.lost.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write(lines: &Receiver<LogLine>, lost: &AtomicU64, json: &AtomicBool, mut to: impl Write) {
    while let Ok(line) = lines.recv() {
        let line = match line {
            LogLine::Text(line) => line,
            LogLine::Written(answer) => {
                let _ = to.flush();
                let _ = answer.send(());
                continue;
            }
            LogLine::End => break,
        };
        // If the log cannot be written, that cannot be logged either.
        let _ = to.write_all(&line);
        let lost = lost.swap(0, Relaxed);
        if lost > 0 {
            let what = format!("{lost} log lines were lost because standard error was not read");
            let _ = match json.load(Relaxed) {
                true => writeln!(to, "{}", serde_json::json!({ "level": "WARN", "message": what, "lost": lost })),
                false => writeln!(to, "WARN {what}"),
            };
        }
    }
    let _ = to.flush();
}

/// Formats for people or for programs, as `json` says at that moment.
struct Either {
    json: Arc<AtomicBool>,
    for_people: Format<Full>,
    for_machines: Format<Json>,
}

impl<S, N> FormatEvent<S, N> for Either
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        if self.json.load(Relaxed) {
            self.for_machines.format_event(context, writer, event)
        } else {
            self.for_people.format_event(context, writer, event)
        }
    }
}

const LINES_WAITING: usize = 16 * 1024;
const WRITTEN_MAX: Duration = Duration::from_secs(1);
const END_TRIES: u32 = 200;
const END_PAUSE: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::config::FlowLog;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log(format: LogFormat, level: LogLevel) -> Log {
        Log { format, level, flows: FlowLog::All, flows_per_second: 1 }
    }

    #[test]
    fn format_and_level_change_while_it_runs() {
        let sink = Sink::default();
        let (logging, subscriber) = build(&log(LogFormat::Human, LogLevel::Info), sink.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(backend = "cp1", "for people");
            tracing::debug!("hidden");
            tracing::info!(target: "hyper", "hidden too");
            logging.apply(&log(LogFormat::Json, LogLevel::Debug));
            tracing::debug!(backend = "cp1", "for machines");
            logging.apply(&log(LogFormat::Json, LogLevel::Error));
            tracing::warn!("hidden as well");
        });
        drop(logging);
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        let [human, json] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert!(human.ends_with(" INFO for people backend=\"cp1\""), "{human}");
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!((&json["message"], &json["backend"]), (&"for machines".into(), &"cp1".into()));
    }

    /// A writer that reports when it is called and then waits for a message.
    struct Stalled(Sender<()>, Receiver<()>, Sink);

    impl Write for Stalled {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.send(());
            let _ = self.1.recv();
            self.2.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_nobody_reads_holds_nobody_up_and_says_what_is_missing() {
        let ((called, seen), (release, wait)) = (channel(), channel());
        let sink = Sink::default();
        let settings = log(LogFormat::Human, LogLevel::Info);
        let (logging, subscriber) = build(&settings, Stalled(called, wait, sink.clone())).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("first");
            seen.recv().unwrap();
            // One line more than fits.
            (0..=LINES_WAITING).for_each(|number| tracing::info!(number, "more"));
        });
        drop(release);
        drop(logging);
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().filter(|line| line.contains(" INFO more ")).count(), LINES_WAITING);
        assert!(text.contains("1 log lines were lost"), "{}", &text[..500]);
    }
}
