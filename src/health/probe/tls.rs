//! The TLS side of a probe.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls_pki_types::ServerName;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::fault;
use crate::addr::BackendAddr;
use crate::config::ProbeTls;
use crate::model::health::machine::ProbeOutcome;

/// How long a TLS probe waits for the server's verdict on its certificate.
const AFTERMATH: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct TlsClient {
    config: Arc<rustls::ClientConfig>,
    /// `None`: the probed address.
    name: Option<ServerName<'static>>,
}

impl TlsClient {
    /// `host` may have a port.
    pub(super) fn new(tls: &ProbeTls, host: Option<&str>, alpn: &[&[u8]]) -> Self {
        let mut config = rustls::ClientConfig::clone(&tls.client);
        // A resumed session presents no certificate, so the probe would not notice that it has expired.
        config.resumption = Resumption::disabled();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let name = tls.server_name.clone().or_else(|| ServerName::try_from(without_port(host?).to_owned()).ok());
        Self { config: Arc::new(config), name }
    }

    pub(super) async fn handshake(&self, to: BackendAddr, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = self.name.clone().unwrap_or_else(|| to.ip().into());
        TlsConnector::from(self.config.clone()).connect(name, stream).await
    }
}

/// Waits for the end of the handshake on the server's side. In TLS 1.3 the client is done before the server has checked
/// the client's certificate (RFC 8446 section 2), so a refusal comes only now; and a server whose handshake our RST
/// cuts off would log an error each second.
pub(super) async fn aftermath(mut stream: TlsStream<TcpStream>) -> ProbeOutcome {
    match tokio::time::timeout(AFTERMATH, stream.read(&mut [0; 1])).await {
        Ok(Err(error)) => match fault::tls_error(&error) {
            Some(_) => fault::of_io(&error),
            None => ProbeOutcome::Passed,
        },
        Ok(Ok(_)) | Err(_) => ProbeOutcome::Passed,
    }
}

fn without_port(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((ip, _)) => ip,
        None => match host.rsplit_once(':') {
            // More than one colon: a bare IPv6 address.
            Some((name, port)) if !name.contains(':') && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_loses_its_port_only() {
        for (host, name) in [
            ("cp1.example:6443", "cp1.example"),
            ("cp1.example", "cp1.example"),
            ("10.0.0.1:6443", "10.0.0.1"),
            ("[2001:db8::1]:6443", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
        ] {
            assert_eq!(without_port(host), name);
        }
    }
}
