//! The parts of a kubeconfig that a drill needs: the server, the certificates to trust, and the user's own.
//!
//! The format is that of kubectl (k8s.io/client-go/tools/clientcmd/api/v1). Baton runs no program that a kubeconfig names, and asks no provider.

use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use yaml_rust2::{Yaml, YamlLoader};

use crate::lab::tls::PemText;

/// Why a kubeconfig cannot be used. Each sentence names the file and the key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeconfigError {
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: it is no YAML: {source}", path.display())]
    Yaml { path: PathBuf, source: yaml_rust2::ScanError },
    #[error("{}: {key} is missing", path.display())]
    Missing { path: PathBuf, key: String },
    #[error("{}: there is no {kind} {name:?}; there is {}", path.display(), known.join(", "))]
    Unknown { path: PathBuf, kind: &'static str, name: String, known: Vec<String> },
    #[error("{}: {key} is no base64: {source}", path.display())]
    Base64 { path: PathBuf, key: String, source: base64::DecodeError },
    #[error("{}: {key} is {server:?}; expected https://HOST or https://HOST:PORT", path.display())]
    Server { path: PathBuf, key: String, server: String },
    #[error("{}: {key} is set; a drill connects without a proxy: name the address of the server before --kubeconfig", path.display())]
    Proxy { path: PathBuf, key: String },
    #[error("{}: {key} gets its credentials from {by}, which a drill does not run; name --token-file, or --client-cert and --client-key", path.display())]
    Provider { path: PathBuf, key: String, by: &'static str },
}

/// The cluster and the user of one context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KubeContext {
    /// HOST:PORT.
    pub server: String,
    /// The name in the server's certificate, if it is not the host.
    pub server_name: Option<String>,
    pub trust: KubeTrust,
    pub user: KubeUser,
}

/// Certificates that a server's certificate must lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KubeTrust {
    /// The default file.
    Default,
    /// PEM.
    Given(PemText),
    /// Any certificate.
    Anything,
}

/// What a user proves itself by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KubeUser {
    Nobody,
    Token(String),
    Certificate {
        cert: PemText,
        key: PemText,
    },
    /// Another program or a provider has the credentials; `key` is the place in the file.
    Provider {
        key: String,
        by: &'static str,
    },
}

/// Reads the context called `context`, or the current one.
pub(super) fn read(path: &Path, context: Option<&str>) -> Result<KubeContext, KubeconfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| read_error(path, source))?;
    let documents =
        YamlLoader::load_from_str(&text).map_err(|source| KubeconfigError::Yaml { path: path.to_owned(), source })?;
    let file = Kubeconfig { path, root: documents.into_iter().next().unwrap_or(Yaml::Null) };
    file.context(context)
}

struct Kubeconfig<'a> {
    path: &'a Path,
    root: Yaml,
}

impl Kubeconfig<'_> {
    fn context(&self, wanted: Option<&str>) -> Result<KubeContext, KubeconfigError> {
        let current = || self.root["current-context"].as_str().filter(|name| !name.is_empty());
        let name = wanted.or_else(current).ok_or_else(|| self.missing("current-context"))?;
        let context = self.named("contexts", "context", name)?;
        let key = |key: &str| format!("context {name:?}: {key}");
        let cluster = context["cluster"].as_str().ok_or_else(|| self.missing(&key("cluster")))?;
        let user = context["user"].as_str().filter(|user| !user.is_empty());
        let user = user.map_or(Ok(KubeUser::Nobody), |user| self.user(user))?;
        let place = format!("cluster {cluster:?}");
        let cluster = self.named("clusters", "cluster", cluster)?;
        if cluster["proxy-url"].as_str().is_some_and(|url| !url.is_empty()) {
            return Err(KubeconfigError::Proxy { path: self.path.to_owned(), key: format!("{place}: proxy-url") });
        }
        let trust = match self.pem(cluster, &place, "certificate-authority")? {
            _ if cluster["insecure-skip-tls-verify"].as_bool() == Some(true) => KubeTrust::Anything,
            Some(pem) => KubeTrust::Given(pem),
            None => KubeTrust::Default,
        };
        let server_name = cluster["tls-server-name"].as_str().map(str::to_owned);
        Ok(KubeContext { server: self.server(cluster, &format!("{place}: server"))?, server_name, trust, user })
    }

    /// HOST:PORT of an https URL without a path.
    fn server(&self, cluster: &Yaml, key: &str) -> Result<String, KubeconfigError> {
        let server = cluster["server"].as_str().ok_or_else(|| self.missing(key))?;
        let refused =
            || KubeconfigError::Server { path: self.path.to_owned(), key: key.to_owned(), server: server.to_owned() };
        let place = server.strip_prefix("https://").ok_or_else(refused)?;
        let place = place.strip_suffix('/').unwrap_or(place);
        if place.is_empty() || place.contains(['/', '?', '#', '@']) {
            return Err(refused());
        }
        // The colons of an IPv6 address are in brackets.
        let after_host = place.rsplit_once(']').map_or(place, |(_, rest)| rest);
        match after_host.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => Ok(place.to_owned()),
            Some(_) => Err(refused()),
            None => Ok(format!("{place}:443")),
        }
    }

    fn user(&self, name: &str) -> Result<KubeUser, KubeconfigError> {
        let place = format!("user {name:?}");
        let user = self.named("users", "user", name)?;
        let cert = self.pem(user, &place, "client-certificate")?;
        if let Some(cert) = cert {
            let key = self.pem(user, &place, "client-key")?;
            let key = key.ok_or_else(|| self.missing(&format!("{place}: client-key or client-key-data")))?;
            return Ok(KubeUser::Certificate { cert, key });
        }
        if let Some(token) = user["token"].as_str() {
            return Ok(KubeUser::Token(token.to_owned()));
        }
        if let Some(file) = user["tokenFile"].as_str() {
            let file = self.beside(file);
            let token = std::fs::read_to_string(&file).map_err(|source| read_error(&file, source))?;
            return Ok(KubeUser::Token(token.trim().to_owned()));
        }
        let provider = ["exec", "auth-provider", "username"].into_iter().find(|key| !user[*key].is_badvalue());
        Ok(provider.map_or(KubeUser::Nobody, |by| KubeUser::Provider { key: place, by }))
    }

    /// `KEY-data`, base64 of PEM, or else the file that `KEY` names.
    fn pem(&self, of: &Yaml, place: &str, key: &str) -> Result<Option<PemText>, KubeconfigError> {
        let data = format!("{key}-data");
        if let Some(text) = of[data.as_str()].as_str().filter(|text| !text.is_empty()) {
            let key = format!("{place}: {data}");
            let packed: String = text.split_whitespace().collect();
            let text = STANDARD.decode(packed);
            let text = text.map_err(|source| KubeconfigError::Base64 {
                path: self.path.to_owned(),
                key: key.clone(),
                source,
            })?;
            return Ok(Some(PemText { place: format!("{}: {key}", self.path.display()).into(), text }));
        }
        let Some(file) = of[key].as_str().filter(|file| !file.is_empty()) else { return Ok(None) };
        let place = self.beside(file);
        let text = std::fs::read(&place).map_err(|source| read_error(&place, source))?;
        Ok(Some(PemText { place, text }))
    }

    /// Relative names count from the kubeconfig's folder.
    fn beside(&self, file: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(file)
    }

    /// The entry `name` of a list of the file, such as `clusters`.
    fn named(&self, list: &str, kind: &'static str, name: &str) -> Result<&Yaml, KubeconfigError> {
        let entries = || self.root[list].as_vec().into_iter().flatten();
        let found = entries().find(|entry| entry["name"].as_str() == Some(name)).map(|entry| &entry[kind]);
        found.ok_or_else(|| {
            let known = entries().filter_map(|entry| entry["name"].as_str()).map(str::to_owned).collect::<Vec<_>>();
            let known = if known.is_empty() { vec!["none".to_owned()] } else { known };
            KubeconfigError::Unknown { path: self.path.to_owned(), kind, name: name.to_owned(), known }
        })
    }

    fn missing(&self, key: &str) -> KubeconfigError {
        KubeconfigError::Missing { path: self.path.to_owned(), key: key.to_owned() }
    }
}

fn read_error(path: &Path, source: io::Error) -> KubeconfigError {
    KubeconfigError::Read { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "
current-context: admin@prod
contexts:
- name: admin@prod
  context: {cluster: prod, user: admin}
- name: robot@lab
  context: {cluster: lab, user: robot}
- name: cloud
  context: {cluster: lab, user: cloud}
- name: nowhere
  context: {cluster: gone}
clusters:
- name: prod
  cluster: {server: 'https://10.0.0.100:6443', certificate-authority-data: UEVN, tls-server-name: kubernetes}
- name: lab
  cluster: {server: 'https://[fd00::1]/', insecure-skip-tls-verify: true}
users:
- name: admin
  user: {client-certificate-data: Q0VSVA==, client-key: keys/admin.key}
- name: robot
  user: {tokenFile: token}
- name: cloud
  user: {exec: {command: aws}}
";

    fn read_text(text: &str, context: Option<&str>) -> Result<KubeContext, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        std::fs::write(&path, text).unwrap();
        std::fs::create_dir(directory.path().join("keys")).unwrap();
        std::fs::write(directory.path().join("keys/admin.key"), "KEY").unwrap();
        std::fs::write(directory.path().join("token"), "secret\n").unwrap();
        let folder = format!("{}/", directory.path().display());
        read(&path, context).map_err(|error| error.to_string().replace(&folder, ""))
    }

    #[test]
    fn each_context_has_its_server_its_trust_and_its_user() {
        let prod = read_text(WHOLE, None).unwrap();
        assert_eq!((&*prod.server, prod.server_name.as_deref()), ("10.0.0.100:6443", Some("kubernetes")));
        assert!(matches!(&prod.trust, KubeTrust::Given(pem) if pem.text == b"PEM"), "{prod:?}");
        assert!(
            matches!(&prod.user, KubeUser::Certificate { cert, key } if cert.text == b"CERT" && key.text == b"KEY")
        );
        let lab = read_text(WHOLE, Some("robot@lab")).unwrap();
        assert_eq!(
            (&*lab.server, lab.trust, lab.user),
            ("[fd00::1]:443", KubeTrust::Anything, KubeUser::Token("secret".to_owned()))
        );
        let cloud = read_text(WHOLE, Some("cloud")).unwrap();
        assert_eq!(cloud.user, KubeUser::Provider { key: "user \"cloud\"".to_owned(), by: "exec" });
    }

    #[test]
    fn an_error_names_the_file_and_the_key() {
        for (from, to, context, expected) in [
            ("current-context: admin@prod", "", None, "config: current-context is missing"),
            (
                "",
                "",
                Some("nobody"),
                "config: there is no context \"nobody\"; there is admin@prod, robot@lab, cloud, nowhere",
            ),
            ("", "", Some("nowhere"), "config: there is no cluster \"gone\"; there is prod, lab"),
            (
                "UEVN",
                "'*'",
                None,
                "config: cluster \"prod\": certificate-authority-data is no base64: Invalid symbol 42, offset 0.",
            ),
            (
                "https://10.0.0.100:6443",
                "http://10.0.0.100",
                None,
                "config: cluster \"prod\": server is \"http://10.0.0.100\"; expected https://HOST or https://HOST:PORT",
            ),
            (
                "10.0.0.100:6443",
                "rancher/k8s/clusters/c-1",
                None,
                "config: cluster \"prod\": server is \"https://rancher/k8s/clusters/c-1\"; expected https://HOST or https://HOST:PORT",
            ),
            ("keys/admin.key", "keys/gone.key", None, "keys/gone.key: No such file or directory (os error 2)"),
            (
                ", client-key: keys/admin.key",
                "",
                None,
                "config: user \"admin\": client-key or client-key-data is missing",
            ),
            (
                "tls-server-name: kubernetes",
                "proxy-url: 'http://proxy'",
                None,
                "config: cluster \"prod\": proxy-url is set; a drill connects without a proxy: name the address of the server before --kubeconfig",
            ),
        ] {
            assert!(WHOLE.contains(from), "{from}");
            assert_eq!(read_text(&WHOLE.replacen(from, to, 1), context).unwrap_err(), expected);
        }
        assert!(read_text("a: [", None).unwrap_err().starts_with("config: it is no YAML: "));
        assert_eq!(read_text("", None).unwrap_err(), "config: current-context is missing");
    }
}
