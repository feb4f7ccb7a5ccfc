//! TLS settings from PEM files.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::tls::AnyCertificate;

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

/// For a server with HTTP/2 and HTTP/1.1.
pub(crate) fn server_config(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsFileError> {
    let chain = certificates(&PemText::read(cert)?)?;
    let key_der = private_key(&PemText::read(key)?)?;
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

/// For a client with HTTP/2 only that trusts the certificates in `ca`.
pub fn client_config(ca: &Path) -> Result<Arc<ClientConfig>, TlsFileError> {
    client_config_as(ca, None)
}

/// As [`client_config`], with a client certificate and its key.
pub(crate) fn client_config_as(ca: &Path, own: Option<(&Path, &Path)>) -> Result<Arc<ClientConfig>, TlsFileError> {
    let own = own.map(|(cert, key)| Ok::<_, TlsFileError>((PemText::read(cert)?, PemText::read(key)?)));
    client_config_of(Some(&PemText::read(ca)?), own.transpose()?.as_ref())
}

/// For a client that trusts the certificates in `ca`, or any server (`None`), with its own certificate and key.
pub(crate) fn client_config_of(
    ca: Option<&PemText>,
    own: Option<&(PemText, PemText)>,
) -> Result<Arc<ClientConfig>, TlsFileError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("ring has all of them");
    let builder = match ca {
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(ca)? {
                roots.add(certificate).map_err(|source| ca.unusable(source))?;
            }
            builder.with_root_certificates(roots)
        }
        None => builder.dangerous().with_custom_certificate_verifier(AnyCertificate::new(provider)),
    };
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => builder
            .with_client_auth_cert(certificates(cert)?, private_key(key)?)
            .map_err(|source| cert.unusable(source))?,
    };
    config.alpn_protocols = vec![H2.to_vec()];
    Ok(Arc::new(config))
}

/// PEM, and the place where it stands, for errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PemText {
    pub place: PathBuf,
    pub text: Vec<u8>,
}

impl PemText {
    pub(crate) fn read(path: &Path) -> Result<Self, TlsFileError> {
        let text = std::fs::read(path).map_err(|source| TlsFileError::Read { path: path.to_owned(), source })?;
        Ok(Self { place: path.to_owned(), text })
    }

    fn unusable(&self, source: rustls::Error) -> TlsFileError {
        TlsFileError::Use { path: self.place.clone(), source }
    }
}

fn private_key(pem: &PemText) -> Result<PrivateKeyDer<'static>, TlsFileError> {
    PrivateKeyDer::from_pem_slice(&pem.text).map_err(|source| TlsFileError::Pem { path: pem.place.clone(), source })
}

fn certificates(pem: &PemText) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let chain = CertificateDer::pem_slice_iter(&pem.text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| TlsFileError::Pem { path: pem.place.clone(), source })?;
    if chain.is_empty() { Err(TlsFileError::Empty { path: pem.place.clone() }) } else { Ok(chain) }
}

/// ALPN name of HTTP/2 (RFC 9113 section 3.1).
pub(crate) const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

#[cfg(test)]
mod tests {
    use rustls::server::WebPkiClientVerifier;
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;
    use crate::lab::certs::{Authority, Flaw};

    #[tokio::test]
    async fn a_client_shows_its_certificate_to_a_server_that_asks_for_one() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new().unwrap();
        let ca = authority.write(directory.path()).unwrap();
        let own = authority.issue(directory.path(), "own", &[], Flaw::None).unwrap();
        let mut roots = RootCertStore::empty();
        certificates(&PemText::read(&ca).unwrap())
            .unwrap()
            .into_iter()
            .for_each(|certificate| roots.add(certificate).unwrap());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()));
        let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(
                certificates(&PemText::read(&own.cert).unwrap()).unwrap(),
                private_key(&PemText::read(&own.key).unwrap()).unwrap(),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(server));
        for shows in [true, false] {
            let own = shows.then_some((own.cert.as_path(), own.key.as_path()));
            let client = client_config_as(&ca, own).unwrap();
            let connect = async {
                let stream = TcpStream::connect(address).await.unwrap();
                TlsConnector::from(client).connect(address.ip().into(), stream).await
            };
            let (shown, _connected) = tokio::join!(shown_by(&listener, &acceptor), connect);
            assert_eq!(shown.ok(), shows.then_some(1));
        }
    }

    async fn shown_by(listener: &TcpListener, acceptor: &TlsAcceptor) -> io::Result<usize> {
        let (stream, _) = listener.accept().await.unwrap();
        Ok(acceptor.accept(stream).await?.get_ref().1.peer_certificates().map_or(0, <[_]>::len))
    }
}
