//! Which certificates the probes of a frontend take: those of the server whose check demands most.

use std::path::Path;

use super::probe::GlobalProbes;
use super::proxy::Draft;
use super::server::{CfgServer, ServerOption};
use crate::translate::ledger::Ledger;
use crate::translate::toml::quoted;

/// Where Debian, Alpine and others have the authorities that OpenSSL trusts.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// What HAProxy's check of one server demands of the server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CertificateDemand {
    /// It has no TLS, or a hello alone.
    Unseen,
    /// Any: `verify none`, on this line.
    Any { line: usize },
    /// One of the authority in this file.
    Authority { line: usize, path: String },
    /// One of the authorities of the host.
    System { line: usize },
    /// One of an authority, and no line names it: HAProxy does not start.
    Unnamed { line: usize },
}

use CertificateDemand::*;

/// Writes the keys of TLS. `line`: why the probes have it; `everywhere`: the line that gives it to the checks of all servers.
pub(super) fn trust(
    checked: &[&CfgServer],
    line: usize,
    everywhere: Option<usize>,
    global: &GlobalProbes,
    draft: &mut Draft,
    ledger: &mut Ledger,
) {
    let demands: Vec<_> = checked.iter().map(|server| (*server, demand(server, everywhere, global))).collect();
    // The first of those that demand as much.
    let Some((lead, demanded)) = demands.iter().min_by_key(|(_, demand)| demand.rank()) else { return };
    match demanded {
        Authority { line, path } => {
            if let Some((base, _)) = global.ca_base.as_ref().filter(|_| !is_absolute(lead)) {
                ledger.translated(*base, "[frontend.health] ca_file");
            }
            draft.set("ca_file", quoted(path), *line, ledger);
            let verify = lead.option("verify").filter(|verify| verify.line != *line);
            verify.into_iter().for_each(|verify| ledger.translated(verify.line, "[frontend.health] ca_file"));
        }
        System { line } => {
            draft.set("ca_file", quoted(SYSTEM_AUTHORITIES), *line, ledger);
            ledger.no_equal(
                *line,
                "@system-ca: Baton reads authorities from a file, and this is not its name on every system: Fedora has \
                 /etc/pki/tls/certs/ca-bundle.crt",
            );
        }
        Unnamed { line } => {
            draft.set("ca_file", quoted(SYSTEM_AUTHORITIES), *line, ledger);
            ledger.missing(
                *line,
                "verify: HAProxy demands a certificate of an authority, and does not start, since no ca-file names one: set ca_file",
            );
        }
        Any { line } => draft.set("insecure_skip_verify", "true".to_owned(), *line, ledger),
        Unseen => {
            draft.set("insecure_skip_verify", "true".to_owned(), line, ledger);
            ledger.kept(line, "HAProxy says hello, and looks at no certificate");
        }
    }
    for (server, other) in demands.iter().filter(|(server, _)| server.line != lead.line) {
        differing(lead, demanded, server, other, ledger);
    }
    names(lead, draft, ledger);
    for name in ["verifyhost", "check-sni", "sni", "crt"] {
        let value = |server: &CfgServer| server.option(name).map(|it| it.value.clone());
        for (server, _) in demands.iter().filter(|(server, _)| value(server) != value(lead)) {
            let why = format!("{name}: Baton probes all backends of a frontend alike, as {}", lead.name);
            ledger.missing(server.option(name).map_or(server.line, |it| it.line), why);
        }
    }
}

impl CertificateDemand {
    /// The smaller, the more it demands, and the better it says what.
    fn rank(&self) -> u8 {
        match self {
            Authority { .. } => 0,
            System { .. } => 1,
            Unnamed { .. } => 2,
            Any { .. } => 3,
            Unseen => 4,
        }
    }
}

fn demand(server: &CfgServer, everywhere: Option<usize>, global: &GlobalProbes) -> CertificateDemand {
    let tls = server.option("check-ssl").or_else(|| server.option("ssl")).map(|it| it.line).or(everywhere);
    let Some(tls) = tls else { return Unseen };
    let verify = server.option("verify");
    match (verify, global.verify_none) {
        (Some(verify), _) if verify.value == "none" => return Any { line: verify.line },
        (None, Some(line)) => return Any { line },
        _ => {}
    }
    match server.option("ca-file") {
        Some(file) if file.value == "@system-ca" => System { line: file.line },
        Some(file) if !file.value.starts_with('@') => Authority { line: file.line, path: path(file, global) },
        _ => Unnamed { line: verify.map_or(tls, |it| it.line) },
    }
}

fn path(file: &ServerOption, global: &GlobalProbes) -> String {
    match &global.ca_base {
        Some((_, base)) => Path::new(base).join(&file.value).display().to_string(),
        None => file.value.clone(),
    }
}

fn is_absolute(server: &CfgServer) -> bool {
    server.option("ca-file").is_some_and(|file| Path::new(&file.value).is_absolute())
}

/// Says what becomes of the check of `server`, which is probed as `lead` is.
fn differing(
    lead: &CfgServer,
    demanded: &CertificateDemand,
    server: &CfgServer,
    other: &CertificateDemand,
    ledger: &mut Ledger,
) {
    let (name, own) = (&lead.name, &server.name);
    let alike = "Baton probes all backends of a frontend alike";
    match (demanded, other) {
        (Unseen, _) | (Any { .. }, Any { .. }) => {}
        (Any { .. }, _) => {
            ledger.missing(server.line, format!("check-ssl: HAProxy checks {own} without TLS, and {alike}, as {name}"));
        }
        (_, Unseen) => {
            let why = format!(
                "verify: HAProxy checks {own} without a look at its certificate, and {alike}, as {name}: {own} needs a certificate of \
                 the same authority"
            );
            ledger.missing(server.line, why);
        }
        (_, Any { line }) => {
            let why = format!(
                "verify none: {alike}, as {name}, which must have a certificate of an authority: {own} needs one of the same"
            );
            ledger.missing(*line, why);
        }
        (Authority { path, .. }, Authority { path: its, .. }) if path == its => {}
        (System { .. }, System { .. }) | (Unnamed { .. }, Unnamed { .. }) => {}
        (_, Authority { line, .. } | System { line } | Unnamed { line }) => {
            let file = server.option("ca-file").map_or("no ca-file", |file| &file.value);
            let why = format!(
                "ca-file: {own} has {file}, and {alike}, as {name}: name in ca_file one file with the certificates of all authorities"
            );
            ledger.missing(*line, why);
        }
    }
}

/// The name in the certificate, and the probe's own certificate.
fn names(server: &CfgServer, draft: &mut Draft, ledger: &mut Ledger) {
    if let Some(option) =
        server.option("verifyhost").or_else(|| server.option("check-sni")).or_else(|| server.option("sni"))
    {
        let name = option.value.strip_prefix("str(").and_then(|it| it.strip_suffix(')')).unwrap_or(&option.value);
        match name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte)) && !name.is_empty() {
            true => draft.set("server_name", quoted(name), option.line, ledger),
            false => ledger.missing(option.line, format!("{name}: \"server_name\" is one name for all probes")),
        }
    }
    if let Some(pem) = server.option("crt") {
        draft.set("client_cert_file", quoted(&pem.value), pem.line, ledger);
        draft.set("client_key_file", quoted(&pem.value), pem.line, ledger);
    }
}
