//! Names of clients: a line for each address, as in hosts(5).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::entries::{LineFault, beginning, entries};

/// The name of each address.
pub(crate) type NameMap = HashMap<IpAddr, Arc<str>>;

/// What a file has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamesRead {
    pub names: NameMap,
    /// The lines that are no names.
    pub faults: Vec<LineFault>,
}

/// Reads lines of an address and its name; further names of the line count for nothing. Of two lines for one address the first
/// counts, as for the resolver of the C library. A line that is neither is passed over: it costs no other node its name.
///
/// # Errors
/// The last line, if it is half written; the first that is no name, if none is.
pub(crate) fn parse_names(text: &str) -> Result<NamesRead, LineFault> {
    let mut read = NamesRead::default();
    for entry in entries(text, name_of_address)? {
        match entry {
            Ok((address, name)) => {
                read.names.entry(address).or_insert(name);
            }
            Err(fault) => read.faults.push(fault),
        }
    }
    if read.names.is_empty() && !read.faults.is_empty() {
        return Err(read.faults.swap_remove(0));
    }
    Ok(read)
}

fn name_of_address(entry: &str) -> Result<(IpAddr, Arc<str>), String> {
    let (address, names) = entry.split_once(char::is_whitespace).unwrap_or((entry, ""));
    let address: IpAddr = address.parse().map_err(|_| {
        format!("expected an address and its name, such as \"10.0.0.7 worker-7\"; found {:?}", beginning(address))
    })?;
    let name = names.split_whitespace().next().and_then(node_name);
    name.map(|name| (address.to_canonical(), name)).ok_or_else(|| format!("{address} has no name"))
}

/// `name`, if it can be a host's or a node's.
pub(crate) fn node_name(name: &str) -> Option<Arc<str>> {
    let fits = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '.' | '_');
    (!name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(fits)).then(|| name.into())
}

/// `10.0.0.7:51234 (worker-7)`.
pub(crate) fn named(client: SocketAddr, node: Option<&str>) -> String {
    node.map_or_else(|| client.to_string(), |node| format!("{client} ({node})"))
}

/// Of a DNS name (RFC 1035 section 2.3.4), which a node's name is.
const NAME_BYTES_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_names_an_address_and_a_fault_names_its_line() {
        let text = "# nodes\n10.0.0.7 worker-7 worker-7.example.com\n\n::ffff:10.0.0.8\tworker-8 # rack 3\nfd00::9 worker-9\n10.0.0.7 other\n";
        let NamesRead { names: found, faults } = parse_names(text).unwrap();
        assert_eq!(faults, []);
        let name = |ip: &str| found.get(&ip.parse::<IpAddr>().unwrap()).map(|name| name.to_string());
        assert_eq!(found.len(), 3);
        assert_eq!(
            ["10.0.0.7", "10.0.0.8", "fd00::9"].map(name),
            ["worker-7", "worker-8", "worker-9"].map(|it| Some(it.to_owned()))
        );
        let fault = |text: &str| parse_names(text).unwrap_err().to_string();
        assert!(fault("\nworker-7 10.0.0.7\n10.0.0.7\n").starts_with("2: expected an address and its name"));
        assert_eq!(fault("10.0.0.7\n"), "1: 10.0.0.7 has no name");
        assert_eq!(fault("10.0.0.7 \u{1b}[2J\n"), "1: 10.0.0.7 has no name", "no byte of it steers a terminal");
        assert!(fault("10.0.0.7 a\n10.0.0.8 b").starts_with("2: the last line does not end with a newline"));
    }

    /// Regression: one line without a name took the names of all nodes away.
    #[test]
    fn a_line_that_is_no_name_costs_no_other_line_its_name() {
        let read = parse_names("10.0.0.7 a\nworker-8 10.0.0.8\n10.0.0.9\n10.0.0.10 d\n").unwrap();
        let lines: Vec<_> = read.faults.iter().map(|fault| fault.line).collect();
        assert_eq!((read.names.len(), lines), (2, vec![2, 3]));
    }
}
