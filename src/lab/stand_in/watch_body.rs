//! The body of a watch: one JSON event per line, as long as both sides are connected.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame};
use tokio::sync::{mpsc, watch};

use super::api::stop_ordered;

/// A body that a task of its own feeds.
#[derive(Debug)]
pub(crate) struct WatchBody {
    events: mpsc::Receiver<Bytes>,
}

impl WatchBody {
    /// Sends an event at once and then every `period`, until the body is dropped or `stopping` is true. With a period
    /// of zero it sends nothing.
    pub(crate) fn start(period: Duration, stopping: watch::Receiver<bool>) -> Self {
        let (sender, events) = mpsc::channel(1);
        tokio::spawn(feed(period, stopping, sender));
        Self { events }
    }
}

impl Body for WatchBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let event = ready!(self.get_mut().events.poll_recv(cx));
        Poll::Ready(event.map(|line| Ok(Frame::data(line))))
    }
}

async fn feed(period: Duration, mut stopping: watch::Receiver<bool>, sender: mpsc::Sender<Bytes>) {
    let send_all = async {
        if period.is_zero() {
            return sender.closed().await;
        }
        let mut ticks = tokio::time::interval(period);
        for number in 1u64.. {
            ticks.tick().await;
            if sender.send(event(number)).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = send_all => {}
        () = stop_ordered(&mut stopping) => {}
    }
}

fn event(number: u64) -> Bytes {
    let line = serde_json::json!({
        "type": "BOOKMARK",
        "object": { "apiVersion": "v1", "kind": "Node", "metadata": { "resourceVersion": number.to_string() } },
    });
    Bytes::from(format!("{line}\n"))
}
