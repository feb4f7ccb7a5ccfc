//! Shared by this module's tests: hand-written configuration, and certificates.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::PrivateKeyDer;

use crate::addr::BackendAddr;
use crate::config::*;

pub(super) fn health() -> Health {
    Health {
        kind: ProbeKind::Http,
        jitter_percent: 0,
        damping: Damping { half_life: Duration::from_secs(60), suppress: 3.0, reuse: 1.0 },
        ..frontend_by_default("apiserver").health
    }
}

pub(super) fn backend(name: &str, to: BackendAddr) -> Backend {
    Backend {
        name: name.into(),
        address: Target::Address(to),
        weight: 1,
        max_connections: None,
        health_address: None,
        is_discovered: false,
    }
}

pub(super) fn frontend(name: &str, health: Health, backends: Vec<Backend>) -> Frontend {
    Frontend { health, backends, ..frontend_by_default(name) }
}

pub(super) fn config(frontends: Vec<Frontend>) -> Arc<Config> {
    let base = by_default(frontends.into_iter().map(Arc::new).collect());
    let process = Process { reset_within: Duration::from_secs(1), reset_rate: 5000, ..base.process };
    Arc::new(Config { process, ..base })
}

/// A server's certificate and the authority that signed it.
#[derive(Clone)]
pub(super) struct Certificate {
    authority: Arc<CertifiedIssuer<'static, KeyPair>>,
    pub server: Arc<ServerConfig>,
}

impl Certificate {
    pub(super) fn new(name: &str) -> Self {
        Self::valid(name, 2001, 2900)
    }

    /// For `name`, from one New Year to another.
    pub(super) fn valid(name: &str, from_year: i32, to_year: i32) -> Self {
        Self::signed("kubernetes", name, from_year, to_year)
    }

    /// By an authority called `authority`, which has a new key.
    pub(super) fn signed(authority: &str, name: &str, from_year: i32, to_year: i32) -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, authority);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Arc::new(authority);
        let server = Arc::new(issue(&authority, name, from_year, to_year, false));
        Self { authority, server }
    }

    /// Another certificate of the same authority.
    pub(super) fn reissued(self, name: &str, from_year: i32, to_year: i32) -> Self {
        let server = Arc::new(issue(&self.authority, name, from_year, to_year, false));
        Self { server, ..self }
    }

    /// Its server asks for client certificates.
    pub(super) fn wanting_clients(self) -> Self {
        let server = Arc::new(issue(&self.authority, "cp1", 2001, 2900, true));
        Self { server, ..self }
    }

    /// Its server resumes sessions of `other`.
    pub(super) fn server_sharing_tickets_of(&self, other: &Self) -> Arc<ServerConfig> {
        let mut server = ServerConfig::clone(&self.server);
        server.session_storage = other.server.session_storage.clone();
        server.ticketer = other.server.ticketer.clone();
        Arc::new(server)
    }

    /// A client that trusts its authority.
    pub(super) fn trusted(&self) -> ProbeTls {
        let client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots(&self.authority))
            .with_no_client_auth();
        ProbeTls { client: Arc::new(client), server_name: None, fingerprint: 0 }
    }
}

fn issue(
    authority: &CertifiedIssuer<'static, KeyPair>,
    name: &str,
    from_year: i32,
    to_year: i32,
    want_clients: bool,
) -> ServerConfig {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.not_before = date_time_ymd(from_year, 1, 1);
    params.not_after = date_time_ymd(to_year, 1, 1);
    params.insert_extended_key_usage(ExtendedKeyUsagePurpose::ServerAuth);
    let key = KeyPair::generate().unwrap();
    let chain = vec![params.signed_by(&key, authority).unwrap().der().clone()];
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
    let builder = match want_clients {
        false => builder.with_no_client_auth(),
        true => {
            let roots = Arc::new(roots(authority));
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        }
    };
    builder.with_single_cert(chain, key).unwrap()
}

fn roots(authority: &CertifiedIssuer<'static, KeyPair>) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    roots
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
