//! The request of an HTTP/1.1 probe.

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::fault;
use crate::addr::BackendAddr;
use crate::model::health::machine::ProbeOutcome;

pub(super) const ALPN: &[&[u8]] = &[b"http/1.1"];

/// hyper's minimum; a status line and its headers fit many times.
const BUFFER_BYTES: usize = 8192;

#[derive(Debug)]
pub(super) struct Question {
    /// `None`: the probed address.
    pub host: Option<String>,
    pub path: String,
}

impl Question {
    /// A status of 2xx passes; any other status shows a live process that is not ready. The probe never reads the body.
    pub(super) async fn ask<S>(&self, to: BackendAddr, stream: S) -> ProbeOutcome
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let request = Request::get(self.path.as_str())
            .header(HOST, self.host.clone().unwrap_or_else(|| to.to_string()))
            .header(USER_AGENT, concat!("baton/", env!("CARGO_PKG_VERSION")))
            .header(CONNECTION, "close")
            .body(Empty::new());
        let request = match request {
            Ok(request) => request,
            Err(error) => return ProbeOutcome::Inconclusive { error: error.to_string() },
        };
        match status(request, stream).await {
            Ok(status) if status.is_success() => ProbeOutcome::Passed,
            Ok(status) => ProbeOutcome::NotReady { status: status.as_u16() },
            Err(error) => fault::of_hyper(&error),
        }
    }
}

async fn status<S>(request: Request<Empty<Bytes>>, stream: S) -> hyper::Result<StatusCode>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut builder = http1::Builder::new();
    builder.max_buf_size(BUFFER_BYTES);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let answer = sender.send_request(request);
    tokio::pin!(answer, connection);
    tokio::select! {
        biased;
        answer = &mut answer => answer.map(|answer| answer.status()),
        // If no answer can come any more, the connection ends first; the request then holds the reason.
        ended = &mut connection => match answer.await {
            Err(error) if error.is_canceled() => Err(ended.err().unwrap_or(error)),
            answer => answer.map(|answer| answer.status()),
        },
    }
}
