//! `[frontend.discover]`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::kind::{DnsName, FilePath, OneOf, ProbePlace, whole};
use super::section::{Field, Origin, Section};
use super::{ProbeKind, ProbeTls, file, tls};
use crate::model::discover::{AddressSet, parse_list, valid};

/// `[frontend.discover]`: the source that lists a frontend's backends, beside those of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Discover {
    pub source: DiscoverSource,
    /// Keeps the last set for a start at which the source is out of reach.
    pub cache_file: PathBuf,
}

#[derive(Clone, Debug, PartialEq)]
pub enum DiscoverSource {
    /// An address a line.
    File {
        path: PathBuf,
    },
    Dns(DnsSource),
    /// The EndpointSlices of default/kubernetes, at the frontend's backends.
    Kubernetes(KubernetesSource),
}

/// A name whose addresses are backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsSource {
    pub name: String,
    pub record: DnsRecord,
    /// Empty: those of /etc/resolv.conf.
    pub servers: Vec<SocketAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsRecord {
    /// A and AAAA.
    Address {
        port: u16,
    },
    Srv,
}

/// How an apiserver is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct KubernetesSource {
    pub tls: ProbeTls,
    /// Has a bearer token.
    pub token_file: Option<PathBuf>,
}

/// Reads the table of the frontend called `frontend`. `None`: the file does not have it, or an error was reported.
pub(super) fn read(section: &Section, frontend: &str, is_there: bool) -> Option<Discover> {
    let kind = if is_there { section.require("kind", &KIND) } else { section.read("kind", &KIND).value };
    let cache_file = section.read("cache_file", &FilePath).value;
    let cache_file = cache_file.map_or_else(
        || Path::new(STATE_FOLDER).join(format!("{frontend}.backends")),
        |path| section.document.resolve(&path),
    );
    for (other, keys) in KEYS {
        for key in keys {
            // So that it counts as known.
            let is_given = section.table_has(key);
            if let Some(kind) = kind.filter(|kind| is_given && *kind != other) {
                let message = format!("{} has no effect with kind = {:?}", section.name(key), word(kind));
                section.refuse(key, message, format!("remove it, or set kind to {:?}", word(other)));
            }
        }
    }
    let source = match kind? {
        SourceKind::File => file_source(section),
        SourceKind::Dns => dns_source(section),
        SourceKind::Kubernetes => kubernetes_source(section),
    };
    Some(Discover { source: source?, cache_file })
}

fn file_source(section: &Section) -> Option<DiscoverSource> {
    let path = section.document.resolve(&section.require("path", &FilePath)?);
    if let Err(fault) = read_list(&path).and_then(valid) {
        let message = format!("{} gives no valid list: {fault}", section.name("path"));
        section.warn("path", message, "write an address and its port on each line, such as 10.0.0.11:6443");
    }
    Some(DiscoverSource::File { path })
}

fn dns_source(section: &Section) -> Option<DiscoverSource> {
    let name = section.require("name", &DnsName);
    let record = section.read_or("record", &RECORD, false);
    let is_srv = record.value;
    let port = match is_srv || record.is_refused() {
        true => section.read("port", &whole(1, u16::MAX.into())).value,
        false => section.require("port", &whole(1, u16::MAX.into())),
    };
    if is_srv && port.is_some() {
        let message = format!("{} is set, and a record of type SRV has its own port", section.name("port"));
        section.refuse("port", message, "remove it, or set record to \"address\"");
    }
    let servers = section.list("servers", &ProbePlace).into_iter().map(|server| server.value.socket_addr()).collect();
    let record = match is_srv {
        true => DnsRecord::Srv,
        false => DnsRecord::Address { port: u16::try_from(port?).ok()? },
    };
    Some(DiscoverSource::Dns(DnsSource { name: name?, record, servers }))
}

fn kubernetes_source(section: &Section) -> Option<DiscoverSource> {
    let tls = tls::read(section, &Field { value: ProbeKind::Https, origin: Origin::Given });
    let token_file = section.read("token_file", &FilePath).value;
    let token_file = token_file.map(|path| section.document.resolve(&path));
    if let Some(Err(error)) = token_file.as_deref().map(file::metadata) {
        let message = format!("{} cannot be read: {error}", section.name("token_file"));
        section.warn(
            "token_file",
            message,
            "write the token of a service account there; Baton reads it at each request",
        );
    }
    Some(DiscoverSource::Kubernetes(KubernetesSource { tls: tls?, token_file }))
}

/// Reads a file that lists backends, an address a line.
///
/// # Errors
/// A sentence that names the file, and the line if one is wrong.
pub(crate) fn read_list(path: &Path) -> Result<AddressSet, String> {
    file::read_entries(path, parse_list)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceKind {
    File,
    Dns,
    Kubernetes,
}

fn word(kind: SourceKind) -> &'static str {
    KIND.0.iter().find(|(_, meaning)| *meaning == kind).map_or("", |(word, _)| word)
}

const KIND: OneOf<SourceKind> =
    OneOf(&[("file", SourceKind::File), ("dns", SourceKind::Dns), ("kubernetes", SourceKind::Kubernetes)]);

/// The keys that only one kind has.
const KEYS: [(SourceKind, &[&str]); 3] = [
    (SourceKind::File, &["path"]),
    (SourceKind::Dns, &["name", "record", "port", "servers"]),
    (
        SourceKind::Kubernetes,
        &["ca_file", "insecure_skip_verify", "server_name", "client_cert_file", "client_key_file", "token_file"],
    ),
];

/// Whether the name has records of type SRV.
const RECORD: OneOf<bool> = OneOf(&[("address", false), ("srv", true)]);

/// systemd's StateDirectory of deploy/baton.service.
const STATE_FOLDER: &str = "/var/lib/baton";

impl DiscoverSource {
    /// Its name in events, and in the file with its last set.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::File { path } => format!("file {}", path.display()),
            Self::Dns(DnsSource { name, record: DnsRecord::Address { port }, .. }) => format!("dns {name}:{port}"),
            Self::Dns(DnsSource { name, record: DnsRecord::Srv, .. }) => format!("dns srv {name}"),
            Self::Kubernetes(_) => "kubernetes default/kubernetes".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_file_and_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("backends");
        assert_eq!(read_list(&path), Err(format!("cannot read {}: no such file", path.display())));
        std::fs::write(&path, "10.0.0.1:6443\nten\n").unwrap();
        assert!(read_list(&path).unwrap_err().starts_with(&format!("{}:2: expected an address", path.display())));
        std::fs::write(&path, [0xff, b'\n']).unwrap();
        assert_eq!(read_list(&path), Err(format!("{} is not UTF-8", path.display())));
        std::fs::write(&path, "10.0.0.1:6443\n").unwrap();
        assert_eq!(read_list(&path).unwrap().len(), 1);
    }
}
