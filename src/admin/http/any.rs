//! The server on a connection in memory, for the fuzz target.

use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::live::LiveHub;
use super::{Admin, HttpLimits, HttpPages, Visit, reader, respond};

/// A client that has sent all it has, and reads everything.
#[derive(Default)]
struct GoneClient {
    unread: Vec<u8>,
    answers: Vec<u8>,
    /// A request is being answered. Its client has not gone: that would end the answer.
    answering: Arc<Answering>,
}

#[derive(Default)]
struct Answering {
    now: AtomicBool,
    /// Whoever waits for the end of the client's bytes meanwhile.
    reader: Mutex<Option<Waker>>,
}

impl Answering {
    fn end(&self) {
        self.now.store(false, Relaxed);
        if let Some(reader) = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take() {
            reader.wake();
        }
    }
}

/// Answers a client that sends `bytes` and then closes. `further`: also the requests after its first.
pub(crate) async fn answers(admin: &Arc<Admin>, bytes: &[u8], further: bool) -> Vec<u8> {
    // A stream ends by this time alone if unread bytes hide from the server that its client has gone.
    let limits = HttpLimits { connection: Duration::from_millis(50), ..HttpLimits::default() };
    let live = LiveHub::new(&limits);
    let _ended = live.end_with_this();
    let from = Ipv4Addr::LOCALHOST.into();
    let visit = Visit { live, from, limits, begun: Instant::now(), cut_off: CancellationToken::new() };
    let mut client = GoneClient { unread: bytes.to_vec(), ..GoneClient::default() };
    let answering = client.answering.clone();
    let service = service_fn(move |request| {
        answering.now.store(true, Relaxed);
        let (admin, visit, answering) = (admin.clone(), visit.clone(), answering.clone());
        async move {
            let answer = respond(&admin, HttpPages::All, &visit, &request).await;
            answering.end();
            Ok::<_, Infallible>(answer)
        }
    });
    // Its error is the client's: what was answered tells.
    let _ = reader(limits).keep_alive(further).serve_connection(TokioIo::new(&mut client), service).await;
    client.answers
}

impl AsyncRead for GoneClient {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let count = room.remaining().min(self.unread.len());
        if count == 0 && self.answering.now.load(Relaxed) {
            *self.answering.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
            return Poll::Pending;
        }
        room.put_slice(&self.unread[..count]);
        self.unread.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for GoneClient {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.answers.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
