//! TLS for probes: the keys of `[frontend.health]` that make a [`ProbeTls`].

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use super::certificate::{self, PemFault};
use super::file::FileFault;
use super::health::spelled;
use super::kind::{FilePath, Host, Truth, quote};
use super::section::{Field, Section};
use super::{ProbeKind, ProbeTls, file};

/// Reads the TLS keys. `None` if `kind` has no TLS, or if an error was reported.
pub(super) fn read(section: &Section, kind: &Field<ProbeKind>) -> Option<ProbeTls> {
    let ca_file = section.read("ca_file", &FilePath);
    let insecure = section.read_or("insecure_skip_verify", &Truth, false);
    let server_name = section.read("server_name", &Host);
    let cert_file = section.read("client_cert_file", &FilePath);
    let key_file = section.read("client_key_file", &FilePath);

    let roots = ca_file.value.as_deref().and_then(|path| roots(section, path));
    let certs = cert_file.value.as_deref().and_then(|path| client_certificates(section, path));
    let key = key_file.value.as_deref().and_then(|path| client_key(section, path));

    if cert_file.is_given() && !key_file.is_given() && !key_file.is_refused() {
        let message = format!("{} is set without client_key_file", section.name("client_cert_file"));
        section.refuse("client_cert_file", message, "set both, or neither");
    }
    if key_file.is_given() && !cert_file.is_given() && !cert_file.is_refused() {
        let message = format!("{} is set without client_cert_file", section.name("client_key_file"));
        section.refuse("client_key_file", message, "set both, or neither");
    }
    if kind.is_refused() {
        return None;
    }
    if !matches!(kind.value, ProbeKind::Tls | ProbeKind::Https) {
        refuse_without_tls(
            section,
            kind,
            &[
                ("ca_file", ca_file.is_given()),
                ("insecure_skip_verify", insecure.is_given()),
                ("server_name", server_name.is_given()),
                ("client_cert_file", cert_file.is_given()),
                ("client_key_file", key_file.is_given()),
            ],
        );
        return None;
    }
    if ca_file.is_given() && insecure.value {
        let message = format!("{} is true together with ca_file", section.name("insecure_skip_verify"));
        section.refuse("insecure_skip_verify", message, "remove one of the two");
        return None;
    }
    if !ca_file.is_given() && !insecure.value {
        if !ca_file.is_refused() && !insecure.is_refused() {
            let help =
                "expected the file of the CA that signed the backends' certificates, or insecure_skip_verify = true";
            section.refuse("ca_file", format!("missing {}", section.name("ca_file")), help);
        }
        return None;
    }
    if insecure.value {
        let name = section.name("insecure_skip_verify");
        let message = format!("{name} is true: Baton accepts any server at a backend's address as the backend");
        section.warn("insecure_skip_verify", message, "set ca_file instead");
    }
    let verify = if insecure.value { Verify::Nothing } else { Verify::Against(roots?) };
    let identity = match (cert_file.is_given(), key_file.is_given()) {
        (false, false) => None,
        _ => Some((certs?, key?)),
    };
    let alpn = if kind.value == ProbeKind::Https { vec![b"http/1.1".to_vec()] } else { Vec::new() };
    let fingerprint = fingerprint(&verify, identity.as_ref(), &alpn);
    let mut client = client_config(verify, identity).map_err(|error| refuse_identity(section, &error)).ok()?;
    client.alpn_protocols = alpn;
    let server_name = server_name.value.map(|(_, name)| name);
    Some(ProbeTls { client: Arc::new(client), server_name, fingerprint })
}

/// The checks of a backend's certificate.
enum Verify {
    /// Chain, name and dates, against these.
    Against(Vec<CertificateDer<'static>>),
    /// Only that the backend has its certificate's key.
    Nothing,
}

type ClientIdentity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn client_config(verify: Verify, identity: Option<ClientIdentity>) -> Result<ClientConfig, rustls::Error> {
    // An explicit provider: the process default may be another one, or none.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match verify {
        Verify::Against(certificates) => {
            let mut roots = RootCertStore::empty();
            certificates.into_iter().try_for_each(|certificate| roots.add(certificate))?;
            builder.with_root_certificates(roots)
        }
        Verify::Nothing => builder.dangerous().with_custom_certificate_verifier(AnyCertificate::new(provider)),
    };
    match identity {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key),
        None => Ok(builder.with_no_client_auth()),
    }
}

/// Digest of the settings and contents that determine how a probe behaves.
fn fingerprint(verify: &Verify, identity: Option<&ClientIdentity>, alpn: &[Vec<u8>]) -> u64 {
    let mut hasher = DefaultHasher::new();
    match verify {
        Verify::Against(roots) => roots.iter().for_each(|root| root.as_ref().hash(&mut hasher)),
        Verify::Nothing => "nothing".hash(&mut hasher),
    }
    if let Some((chain, key)) = identity {
        chain.iter().for_each(|certificate| certificate.as_ref().hash(&mut hasher));
        key.secret_der().hash(&mut hasher);
    }
    alpn.hash(&mut hasher);
    hasher.finish()
}

fn roots(section: &Section, path: &str) -> Option<Vec<CertificateDer<'static>>> {
    let read = || {
        let all = certificate::certificates(&file::read(&section.document.resolve(path))?)?;
        for (index, certificate) in all.iter().enumerate() {
            let added = RootCertStore::empty().add(certificate.clone());
            added.map_err(|source| PemFault::BadCertificate { number: index + 1, source })?;
        }
        Ok(all)
    };
    let all = read().map_err(|fault| refuse_file(section, "ca_file", path, &fault, "certificate")).ok()?;
    warn_if_expired(section, "ca_file", path, &all);
    Some(all)
}

fn client_certificates(section: &Section, path: &str) -> Option<Vec<CertificateDer<'static>>> {
    let read = || {
        let all = certificate::certificates(&file::read(&section.document.resolve(path))?)?;
        let first = ParsedCertificate::try_from(&all[0]);
        first.map_err(|source| PemFault::BadCertificate { number: 1, source })?;
        Ok(all)
    };
    let all = read().map_err(|fault| refuse_file(section, "client_cert_file", path, &fault, "certificate")).ok()?;
    warn_if_expired(section, "client_cert_file", path, &all[..1]);
    Some(all)
}

fn client_key(section: &Section, path: &str) -> Option<PrivateKeyDer<'static>> {
    let read = || {
        let key = certificate::private_key(&file::read(&section.document.resolve(path))?)?;
        let loaded = rustls::crypto::ring::default_provider().key_provider.load_private_key(key.clone_key());
        loaded.map(|_| key).map_err(|source| PemFault::BadKey { source })
    };
    read().map_err(|fault| refuse_file(section, "client_key_file", path, &fault, "unencrypted private key")).ok()
}

fn refuse_file(section: &Section, key: &str, path: &str, fault: &PemFault, what: &str) {
    if let PemFault::File(FileFault::Unanswered(silence)) = fault {
        return section.refuse_unread(key, path, *silence);
    }
    let message = format!("cannot use {} as {}: {fault}", quote(path), section.name(key));
    section.refuse(key, message, format!("expected a readable PEM file with a whole {what}"));
}

/// A warning, not an error: a CA's dates are not part of the chain's verification (RFC 5280 section 6.1), and a
/// certificate that expires must not make the next reload fail.
fn warn_if_expired(section: &Section, key: &str, path: &str, certificates: &[CertificateDer]) {
    for (index, certificate) in certificates.iter().enumerate() {
        if let Some(day) = certificate::expired_on(certificate, SystemTime::now()) {
            let (path, name) = (quote(path), section.name(key));
            let message = format!("certificate {} in {path}, {name}, expired on {day}", index + 1);
            section.warn(key, message, "replace it with a valid certificate");
        }
    }
}

fn refuse_without_tls(section: &Section, kind: &Field<ProbeKind>, given: &[(&str, bool)]) {
    for (key, _) in given.iter().filter(|(_, given)| *given) {
        let message = format!("{} is a setting of TLS, and {} has no TLS", section.name(key), spelled(kind));
        section.refuse(key, message, "remove it, or set kind to \"tls\" or \"https\"");
    }
}

fn refuse_identity(section: &Section, error: &rustls::Error) {
    let message = format!("{} is not the certificate's ({error})", section.name("client_key_file"));
    section.refuse("client_key_file", message, "expected the private key of the first certificate in client_cert_file");
}

/// Accepts any chain and name. The handshake's signature is still verified, so the peer at least has the key of its
/// certificate.
#[derive(Debug)]
pub(crate) struct AnyCertificate(Arc<CryptoProvider>);

impl AnyCertificate {
    pub(crate) fn new(provider: Arc<CryptoProvider>) -> Arc<Self> {
        Arc::new(Self(provider))
    }
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use rustls::server::{ResolvesServerCertUsingSni, WebPkiClientVerifier};
    use rustls::sign::CertifiedKey;
    use rustls::{ClientConnection, ServerConfig, ServerConnection};
    use rustls_pki_types::pem::PemObject;

    /// A CA, and the certificate that it signed for `backend.test`.
    struct Authority {
        issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
        certificate: rcgen::Certificate,
    }

    impl Authority {
        fn new() -> Self {
            let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            let key = rcgen::KeyPair::generate().unwrap();
            let certificate = params.self_signed(&key).unwrap();
            Self { issuer: rcgen::Issuer::new(params, key), certificate }
        }

        fn sign(&self) -> (rcgen::Certificate, rcgen::KeyPair) {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::new(vec!["backend.test".into()]).unwrap();
            (params.signed_by(&key, &self.issuer).unwrap(), key)
        }

        fn roots(&self) -> Arc<RootCertStore> {
            let mut roots = RootCertStore::empty();
            roots.add(self.certificate.der().clone()).unwrap();
            Arc::new(roots)
        }
    }

    fn probe(directory: &Path, health: &str) -> ProbeTls {
        let text = format!(
            "[[frontend]]\nname = \"f\"\nlisten = [\"127.0.0.1:1\"]\n[frontend.health]\n{health}\n\
             [[frontend.backend]]\nname = \"b\"\naddress = \"backend.test:1\"\n"
        );
        let loaded = crate::config::parse(&text, &directory.join("baton.toml")).unwrap();
        loaded.config.frontends[0].health.tls.clone().unwrap()
    }

    fn server(chain: &rcgen::Certificate, key: &rcgen::KeyPair, clients: Option<Arc<RootCertStore>>) -> ServerConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let key = provider.key_provider.load_private_key(key).unwrap();
        let mut certs = ResolvesServerCertUsingSni::new();
        // Not checked to belong together: an attacker would not check either.
        certs.add("backend.test", CertifiedKey::new(vec![chain.der().clone()], key)).unwrap();
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            Some(roots) => builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(roots, provider).build().unwrap(),
            ),
            None => builder.with_no_client_auth(),
        };
        let mut server = builder.with_cert_resolver(Arc::new(certs));
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        server
    }

    /// A handshake in memory; returns the negotiated protocol.
    fn handshake(client: &ProbeTls, server: ServerConfig) -> Result<Option<Vec<u8>>, rustls::Error> {
        let name = "backend.test".try_into().unwrap();
        let mut client = ClientConnection::new(client.client.clone(), name).unwrap();
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        while client.is_handshaking() || server.is_handshaking() || server.wants_write() || client.wants_write() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut &bytes[..]).unwrap();
            server.process_new_packets()?;
            bytes.clear();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut &bytes[..]).unwrap();
            client.process_new_packets()?;
        }
        Ok(client.alpn_protocol().map(<[u8]>::to_vec))
    }

    #[test]
    fn a_probe_trusts_the_backend_that_the_ca_signed_and_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let (ours, other) = (Authority::new(), Authority::new());
        std::fs::write(directory.path().join("ca.pem"), ours.certificate.pem()).unwrap();
        let probe = probe(directory.path(), "kind = \"https\"\nca_file = \"ca.pem\"");
        let (good, good_key) = ours.sign();
        let (bad, bad_key) = other.sign();
        assert_eq!(handshake(&probe, server(&good, &good_key, None)), Ok(Some(b"http/1.1".to_vec())));
        let refused = handshake(&probe, server(&bad, &bad_key, None)).unwrap_err();
        assert!(matches!(refused, rustls::Error::InvalidCertificate(_)), "{refused}");
    }

    #[test]
    fn an_insecure_probe_takes_any_certificate_whose_key_the_backend_has() {
        let probe = probe(Path::new(""), "kind = \"tls\"\ninsecure_skip_verify = true");
        let authority = Authority::new();
        let (certificate, key) = authority.sign();
        assert_eq!(handshake(&probe, server(&certificate, &key, None)), Ok(None));
        let (_, other_key) = authority.sign();
        let refused = handshake(&probe, server(&certificate, &other_key, None)).unwrap_err();
        assert_eq!(refused, rustls::Error::InvalidCertificate(rustls::CertificateError::BadSignature));
    }

    #[test]
    fn a_probe_shows_its_client_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let (certificate, key) = authority.sign();
        std::fs::write(directory.path().join("probe.crt"), certificate.pem()).unwrap();
        std::fs::write(directory.path().join("probe.key"), key.serialize_pem()).unwrap();
        let anonymous = probe(directory.path(), "kind = \"tls\"\ninsecure_skip_verify = true");
        let known = "kind = \"tls\"\ninsecure_skip_verify = true\nclient_cert_file = \"probe.crt\"\nclient_key_file = \"probe.key\"";
        let known = probe(directory.path(), known);
        let (certificate, key) = authority.sign();
        assert_eq!(handshake(&known, server(&certificate, &key, Some(authority.roots()))), Ok(None));
        assert!(handshake(&anonymous, server(&certificate, &key, Some(authority.roots()))).is_err());
        assert_ne!(anonymous, known);
    }
}
