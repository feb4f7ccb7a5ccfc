//! One probe: a fresh connection, so that it proves that the backend accepts.

mod connect;
mod fault;
mod http;
mod tls;

use std::time::Duration;

use crate::addr::BackendAddr;
use crate::config::{Backend, Health, ProbeKind, Target};
use crate::model::health::Cause;
use crate::model::health::machine::Outcome;

/// How one backend is probed.
#[derive(Debug)]
pub(super) struct Manner {
    kind: Kind,
    timeout: Duration,
}

#[derive(Debug)]
enum Kind {
    Tcp,
    Tls(tls::Client),
    Http(http::Question),
    Https(tls::Client, http::Question),
}

impl Manner {
    pub(super) fn new(health: &Health, backend: &Backend) -> Self {
        let name = match (&health.host, &backend.address) {
            (Some(host), _) => Some(host.clone()),
            (None, Target::Name { host, port }) => Some(format!("{host}:{port}")),
            (None, Target::Address(_)) => None,
        };
        let question = || http::Question { host: name.clone(), path: health.path.clone() };
        let client = |alpn: &[&[u8]]| {
            let tls = health.tls.as_ref().expect("a valid configuration has TLS settings for this kind");
            tls::Client::new(tls, name.as_deref(), alpn)
        };
        let kind = match health.kind {
            ProbeKind::Tcp => Kind::Tcp,
            ProbeKind::Tls => Kind::Tls(client(&[])),
            ProbeKind::Http => Kind::Http(question()),
            ProbeKind::Https => Kind::Https(client(http::ALPN), question()),
        };
        Self { kind, timeout: health.timeout }
    }

    /// Probes `to` once. The timeout covers everything from the SYN to the answer.
    pub(super) async fn probe(&self, to: BackendAddr) -> Outcome {
        match tokio::time::timeout(self.timeout, self.ask(to)).await {
            Ok(outcome) => outcome,
            Err(_) => Outcome::Failed(Cause::TimedOut { after_ms: self.timeout.as_millis() as u64 }),
        }
    }

    async fn ask(&self, to: BackendAddr) -> Outcome {
        let stream = match connect::connect(to, self.timeout).await {
            Ok(stream) => stream,
            Err(error) => return fault::of_connect(&error),
        };
        match &self.kind {
            Kind::Tcp => Outcome::Passed,
            Kind::Tls(client) => match client.handshake(to, stream).await {
                Ok(stream) => tls::aftermath(stream).await,
                Err(error) => fault::of_io(&error),
            },
            Kind::Http(question) => question.ask(to, stream).await,
            Kind::Https(client, question) => match client.handshake(to, stream).await {
                Ok(stream) => question.ask(to, stream).await,
                Err(error) => fault::of_io(&error),
            },
        }
    }
}

#[cfg(test)]
mod tests;
