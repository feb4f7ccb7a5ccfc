//! Entries for the fuzz targets of fuzz/, each into code that reads the bytes of a stranger, of another program or of an operator.
//! They panic if the code does, or if what it returns contradicts its input. No other build has this module.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use tokio::runtime::Runtime;

use crate::admin::Admin;
use crate::admin::http::any::answers;
use crate::admin::protocol::{Command, Effect};
use crate::model::discover::parse_list;
use crate::model::proxy_protocol::{self, Parse};
use crate::translate::{ForeignFile, translate};
use crate::{config, discover, offload, preflight, sys};

/// The first bytes of a client (haproxy's proxy-protocol.txt).
pub fn proxy_header(bytes: &[u8]) {
    let whole = proxy_protocol::parse(bytes);
    match &whole {
        Parse::Header { length, .. } => {
            assert!(*length <= bytes.len());
            assert_eq!(proxy_protocol::parse(&bytes[..*length]), whole, "bytes behind the header count for nothing");
            for cut in 0..*length {
                assert_eq!(proxy_protocol::parse(&bytes[..cut]), Parse::Incomplete, "the first {cut} bytes");
            }
        }
        Parse::Incomplete => {
            for cut in 0..bytes.len() {
                assert_eq!(proxy_protocol::parse(&bytes[..cut]), Parse::Incomplete, "the first {cut} bytes");
            }
        }
        Parse::Invalid(_) => {}
    }
}

/// A configuration file.
pub fn configuration(bytes: &[u8]) {
    match config::check(Path::new("baton.toml"), Ok(bytes.to_vec())) {
        Ok(loaded) => loaded.warnings.iter().for_each(|warning| drop(warning.render(false))),
        Err(rejected) => {
            assert!(!rejected.errors.is_empty());
            let lines = bytes.split(|byte| *byte == b'\n').count();
            for error in &rejected.errors {
                assert!(error.line as usize <= lines, "{error} in a file of {lines} lines");
                drop(error.render(false));
            }
        }
    }
}

/// An haproxy.cfg, and behind a NUL the keepalived.conf beside it.
pub fn import(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (haproxy, keepalived) = text.split_once('\0').map_or((&*text, None), |(one, other)| (one, Some(other)));
    let file = |name: &str, text: &str| ForeignFile { name: name.to_owned(), text: text.to_owned() };
    let (haproxy, keepalived) = (file("haproxy.cfg", haproxy), keepalived.map(|text| file("keepalived.conf", text)));
    let made = translate(&haproxy, keepalived.as_ref());
    for (ledger, source) in made.ledgers.iter().zip([Some(&haproxy), keepalived.as_ref()].into_iter().flatten()) {
        assert_eq!(ledger.lines().len(), source.text.lines().count(), "each line has its outcome");
    }
    if let Err(error) = made.toml.parse::<toml::Table>() {
        panic!("no TOML: {error}\n{}", made.toml);
    }
    let _ = config::parse(&made.toml, Path::new("baton.toml"));
}

/// One line of the admin socket.
pub fn admin_line(bytes: &[u8]) {
    let Ok(command) = Command::parse(bytes) else { return };
    if let Effect::Order(order, arguments) = command.effect() {
        assert!(!format!("{order}{arguments}").contains(['\n', '\r', '\x1b']), "it forges a line of the log");
    }
    assert_eq!(Command::parse(&command.to_line()), Ok(command));
}

/// What nft, iptables-save and keepalived.conf say of this host.
pub fn host_rules(bytes: &[u8]) {
    preflight::read_any(bytes);
}

/// Messages of rtnetlink(7).
pub fn netlink(bytes: &[u8]) {
    sys::netlink::read_any(bytes);
}

/// What a client of the HTTP server sends before it closes. `admin` is that of an instance whose clients are of 192.0.2.0/24.
pub fn http_request(runtime: &Runtime, admin: &Arc<Admin>, bytes: &[u8]) {
    let ask = |bytes: &[u8], further| runtime.block_on(answers(admin, bytes, further));
    let said = ask(bytes, true);
    let first = status_of(&said);
    assert!(matches!(first, None | Some(200 | 400 | 404 | 405 | 414 | 421 | 431 | 503)), "{}", lossy(&said));
    // The same request for a host that is a stranger's, unless its target names one.
    let begins = bytes.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(bytes.len());
    if let Some(end) = bytes[begins..].iter().position(|byte| *byte == b'\n').map(|end| begins + end + 1)
        && bytes[begins..end].split(|byte| *byte == b' ').nth(1).is_some_and(|target| target.starts_with(b"/"))
    {
        let strangers = [&bytes[begins..end], b"Host: attacker.example\r\n", &bytes[end..]].concat();
        let said = ask(&strangers, false);
        assert!(!said.windows(8).any(|it| it == b"192.0.2."), "{}", lossy(&said));
    }
    if first == Some(200) {
        let mut searched = String::new();
        bytes.iter().take(2_000).for_each(|byte| write!(searched, "%{byte:02x}").expect("a string"));
        let page = format!("GET /?flows={searched}%22%3Cb4ton%27%3E&nodes={searched}%3Cb4ton%3E HTTP/1.0\r\n\r\n");
        let page = ask(page.as_bytes(), false);
        assert_eq!(status_of(&page), Some(200));
        assert!(!lossy(&page).contains("<b4ton"), "what was searched for became an element: {}", lossy(&page));
    }
}

/// Of the first answer.
fn status_of(answers: &[u8]) -> Option<u16> {
    let line = answers.strip_prefix(b"HTTP/1.1 ").or_else(|| answers.strip_prefix(b"HTTP/1.0 "));
    assert!(line.is_some() || answers.is_empty(), "{}", lossy(answers));
    lossy(line?.get(..3)?).parse().ok()
}

fn lossy(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// A message of a name server.
pub fn dns_answer(bytes: &[u8]) {
    discover::read_any_answer(bytes);
}

/// What the sources of backends answer: a list of EndpointSlices or of nodes and, a line each, events of its watch; the body of an error;
/// and a file of addresses.
pub fn discovery(bytes: &[u8]) {
    discover::read_any(bytes);
    let _ = parse_list(&String::from_utf8_lossy(bytes));
}

/// A record that the BPF program reports.
pub fn program_event(bytes: &[u8]) {
    let _ = offload::events::decode(bytes);
}
