//! A throw-away certificate authority: for the demo, and for tests that need certificates with a known flaw.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};

#[derive(Debug, thiserror::Error)]
pub enum CertError {
    #[error("making a certificate: {0}")]
    Make(#[from] rcgen::Error),
    #[error("writing {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// The flaw of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// It was valid for one day in 2020.
    Expired,
    /// It is for `wrong.example` only.
    WrongName,
}

/// The paths of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// A certificate authority whose key is in memory only.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub fn new() -> Result<Self, CertError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "baton demo CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// The authority's own certificate, PEM.
    #[allow(dead_code, reason = "for tests of TLS")]
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// Writes the authority's certificate to `dir`/ca.crt.
    pub fn write(&self, dir: &Path) -> Result<PathBuf, CertError> {
        write_private(dir.join("ca.crt"), &self.pem)
    }

    /// Signs a server certificate and writes it to `dir`/`stem`.crt and `dir`/`stem`.key. It is valid for 127.0.0.1,
    /// ::1, localhost and `more_names` (addresses or DNS names), unless the flaw is the name.
    pub fn issue(&self, dir: &Path, stem: &str, more_names: &[String], flaw: Flaw) -> Result<CertFiles, CertError> {
        let names = match flaw {
            Flaw::WrongName => vec!["wrong.example".to_owned()],
            _ => LOCAL_NAMES.iter().map(|name| (*name).to_owned()).chain(more_names.iter().cloned()).collect(),
        };
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, stem);
        // A client can present it as well.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        if flaw == Flaw::Expired {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2020, 1, 2);
        }
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?;
        Ok(CertFiles {
            cert: write_private(dir.join(format!("{stem}.crt")), &cert.pem())?,
            key: write_private(dir.join(format!("{stem}.key")), &key.serialize_pem())?,
        })
    }

    /// One certificate of each kind, all by this authority: ca.crt, and server, expired, wrong-name (.crt, .key).
    pub(crate) fn issue_all(&self, dir: &Path, more_names: &[String]) -> Result<(), CertError> {
        self.write(dir)?;
        self.issue(dir, "server", more_names, Flaw::None)?;
        self.issue(dir, "expired", more_names, Flaw::Expired)?;
        self.issue(dir, "wrong-name", more_names, Flaw::WrongName)?;
        Ok(())
    }
}

/// Replaces the file, so that the mode of an older one with more rights does not stay.
fn write_private(path: PathBuf, text: &str) -> Result<PathBuf, CertError> {
    let write = || {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?.write_all(text.as_bytes())
    };
    match write() {
        Ok(()) => Ok(path),
        Err(source) => Err(CertError::Write { path, source }),
    }
}

const LOCAL_NAMES: [&str; 3] = ["127.0.0.1", "::1", "localhost"];

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn keys_are_readable_by_their_owner_only_even_over_an_older_file() {
        let dir = tempfile::tempdir().unwrap();
        let older = dir.path().join("server.key");
        std::fs::write(&older, "x").unwrap();
        std::fs::set_permissions(&older, std::fs::Permissions::from_mode(0o644)).unwrap();

        Authority::new().unwrap().issue_all(dir.path(), &["10.0.0.100".to_owned()]).unwrap();

        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir.path()).unwrap().map(Result::unwrap) {
            assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.path());
            names.push(entry.file_name().into_string().unwrap());
        }
        names.sort_unstable();
        let expected =
            ["ca.crt", "expired.crt", "expired.key", "server.crt", "server.key", "wrong-name.crt", "wrong-name.key"];
        assert_eq!(names, expected);
    }
}
