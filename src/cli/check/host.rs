//! `baton check --host`: whether this host can carry graduated flows.

use std::io::{self, Write};

use crate::config::{Config, Target};
use crate::path::preflight::{self, Verdict};

/// Writes what was found, a line each, and below it why it matters and what mends it.
pub fn report(config: &Config, json: bool, out: &mut impl Write) -> io::Result<()> {
    let frontends = || config.frontends.iter();
    let addresses: Vec<_> = frontends().flat_map(|frontend| &frontend.listen).map(|vip| vip.socket_addr()).collect();
    let backends = frontends().flat_map(|frontend| &frontend.backends);
    let backends: Vec<_> = backends
        .filter_map(|backend| match backend.address {
            Target::Address(address) => Some(address.socket_addr()),
            Target::Name { .. } => None,
        })
        .collect();
    let interfaces: Vec<_> = config.path.interfaces.iter().map(|name| name.to_string()).collect();
    let findings = preflight::look(&config.path.pins, &addresses, &backends, &interfaces);
    if json {
        return writeln!(out, "{}", serde_json::to_string_pretty(&findings)?);
    }
    for finding in &findings {
        let word = match finding.verdict {
            Verdict::Good => "ok",
            Verdict::Advice => "note",
            Verdict::Hindrance => "hinders",
        };
        writeln!(out, "{word:8} {}: {}", finding.topic, finding.read)?;
        if !finding.why.is_empty() {
            writeln!(out, "         why:  {}\n         mend: {}", finding.why, finding.mend)?;
        }
    }
    let hindered = findings.iter().any(|finding| finding.verdict == Verdict::Hindrance);
    writeln!(out, "{}", if hindered { "flows stay proxied on this host" } else { "flows can graduate on this host" })
}
