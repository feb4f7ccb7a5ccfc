//! For tests: the log, and an event.

use std::io;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::What;
use crate::model::end_reason::EndReason;
use crate::model::ids::FlowId;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The JSON lines that `work` logs.
pub(crate) fn logged(work: impl FnOnce()) -> Vec<Value> {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, work);
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The end of a flow with this number, which lived for 5 ms.
pub(crate) fn ended(flow: u64) -> What {
    What::FlowEnded {
        flow: FlowId(flow),
        frontend: "apiserver".to_owned(),
        backend: Some("cp1".to_owned()),
        backend_address: Some("10.0.0.11:6443".parse().unwrap()),
        source: Some("10.0.0.100:51234".parse().unwrap()),
        client: "[2001:db8::7]:1234".parse().unwrap(),
        node: Some("worker-7".to_owned()),
        reason: EndReason::BackendEjected,
        duration_ms: 5,
        connect_us: 300,
        bytes_to_backend: 10,
        bytes_to_client: u64::MAX,
        error: Some("reset".to_owned()),
    }
}
