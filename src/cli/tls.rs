//! TLS settings out of PEM files.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    #[error("reading {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Pem { path: PathBuf, source: pem::Error },
    #[error("{}: holds no certificate", path.display())]
    Empty { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Use { path: PathBuf, source: rustls::Error },
}

/// For a server that speaks HTTP/2 and HTTP/1.1.
pub fn server_config(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsFileError> {
    let chain = certificates(cert)?;
    let key_pem = read(key)?;
    let key_der =
        PrivateKeyDer::from_pem_slice(&key_pem).map_err(|source| TlsFileError::Pem { path: key.to_owned(), source })?;
    let unusable = |source| TlsFileError::Use { path: cert.to_owned(), source };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, key_der)
        .map_err(unusable)?;
    config.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
    Ok(Arc::new(config))
}

/// For a client that speaks HTTP/2 only and trusts the certificates in `ca`.
pub fn client_config(ca: &Path) -> Result<Arc<ClientConfig>, TlsFileError> {
    let unusable = |source| TlsFileError::Use { path: ca.to_owned(), source };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(unusable)?;
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![H2.to_vec()];
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let chain = CertificateDer::pem_slice_iter(&read(path)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| TlsFileError::Pem { path: path.to_owned(), source })?;
    if chain.is_empty() { Err(TlsFileError::Empty { path: path.to_owned() }) } else { Ok(chain) }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsFileError> {
    std::fs::read(path).map_err(|source| TlsFileError::Read { path: path.to_owned(), source })
}

/// ALPN name of HTTP/2 (RFC 9113 section 3.1).
pub const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";
