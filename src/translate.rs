//! Translates the files of HAProxy and keepalived into Baton's, for `baton import`, and those of kubeadm, k3s, RKE2 and kubespray, for
//! `baton init`. It reads no file and asks no host: text comes in, text and the place of each value go out.
//!
//! ```text
//!   haproxy.cfg ──▶ haproxy::words ──▶ sections ──▶ notes (what needs no key, or has no equal)
//!                                         └───────▶ proxy, probe, server ──▶ toml ──▶ baton.toml
//!   keepalived.conf ──▶ keepalived ─────────────────────────────────────────▲
//!   each of them writes into the ledger what became of its line
//!
//!   options, addresses and files of the host ──▶ setup ──▶ toml ──▶ baton.toml, and facts: each value with its source
//! ```

mod haproxy;
mod keepalived;
mod ledger;
mod setup;
#[cfg(test)]
mod tests;
mod toml;

pub(crate) use ledger::{Ledger, LineOutcome, TranslatedLine};
pub(crate) use setup::{
    HostRoute, SetupHost, SetupPlan, SetupRefusal, SetupRequest, plan, refuse_rejected, unit_flags,
};
use toml::Toml;

/// A file of another program.
#[derive(Clone, Debug)]
pub(crate) struct ForeignFile {
    /// As the user has named it.
    pub name: String,
    pub text: String,
}

impl ForeignFile {
    /// `bytes` need not be UTF-8, and may begin with a byte order mark.
    pub(crate) fn new(name: String, bytes: &[u8]) -> Self {
        let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
        Self { name, text: String::from_utf8_lossy(bytes).into_owned() }
    }
}

/// Baton's file, and what became of each line of the others.
#[derive(Clone, Debug)]
pub(crate) struct ForeignTranslation {
    pub toml: String,
    /// One for each file, in the order given.
    pub ledgers: Vec<Ledger>,
    /// Steps that the operator takes before Baton can start with the file.
    pub steps: Vec<String>,
}

impl ForeignTranslation {
    /// Whether a line without an equal changes how connections are treated.
    pub(crate) fn changes_behaviour(&self) -> bool {
        self.ledgers.iter().any(|ledger| ledger.lines().iter().any(|line| line.changes_behaviour()))
    }
}

/// The first variable of a word, as `${NAME}` or `$NAME`. The names of keepalived's own begin with `_`.
fn variable(word: &str) -> Option<String> {
    word.match_indices('$').find_map(|(at, _)| {
        let after = &word[at + 1..];
        let name = after.strip_prefix('{').unwrap_or(after);
        let end = name.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(name.len());
        name.starts_with(|letter: char| letter.is_ascii_alphabetic()).then(|| format!("${{{}}}", &name[..end]))
    })
}

/// Translates an haproxy.cfg, and the keepalived.conf beside it.
pub(crate) fn translate(haproxy: &ForeignFile, keepalived: Option<&ForeignFile>) -> ForeignTranslation {
    let mut toml = Toml::default();
    let names =
        [Some(haproxy), keepalived].into_iter().flatten().map(|file| &*file.name).collect::<Vec<_>>().join(" and ");
    toml.comment(&format!("Translated by `baton import` from {names}; each key names the line that it comes from."));
    toml.comment("A key that no line sets is at Baton's default: config/baton.toml explains every key.");
    let mut proxies = Toml::default();
    let mut steps = Vec::new();
    let (ledger, addresses) = haproxy::translate(haproxy, &mut toml, &mut proxies, &mut steps);
    let mut ledgers = vec![ledger];
    match keepalived {
        Some(file) => ledgers.push(keepalived::translate(file, &addresses, &mut toml, &mut steps)),
        None => steps.extend(keepalived::changeover::without_keepalived(&addresses)),
    }
    toml.append(&proxies);
    ForeignTranslation { toml: toml.text(), ledgers, steps }
}
