//! The set of backends that a frontend's discovery has found: which results change it, and which change nothing.

use std::collections::BTreeSet;

use super::entries::{LineFault, beginning, entries};
use crate::addr::BackendAddr;

/// A set of addresses, as a source lists them.
pub(crate) type AddressSet = BTreeSet<BackendAddr>;

/// Limit for the addresses of one frontend. Baton probes each of them; a longer list was named by mistake.
pub(crate) const ADDRESSES_MAX: usize = 256;

/// The last valid set of one frontend.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiscoveredSet {
    addresses: AddressSet,
    /// The error of the last look, if that failed.
    fault: Option<String>,
    /// Why the source cannot be watched.
    unwatched: Option<String>,
}

/// What a look has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LookNews {
    pub added: Vec<BackendAddr>,
    pub removed: Vec<BackendAddr>,
    /// The look failed, with another error than the look before it.
    pub failed: Option<String>,
    /// The look before this one failed.
    pub recovered: bool,
    /// The source cannot be watched, for another reason than at the look before it.
    pub unwatched: Option<String>,
    /// It could not be watched until now.
    pub watched: bool,
}

impl DiscoveredSet {
    pub(crate) fn new(addresses: AddressSet) -> Self {
        Self { addresses, ..Self::default() }
    }

    pub(crate) fn addresses(&self) -> &AddressSet {
        &self.addresses
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.fault.is_some()
    }

    /// Whether a valid list may be an old one.
    pub(crate) fn is_unwatched(&self) -> bool {
        self.unwatched.is_some()
    }

    /// Takes what a valid look says of the watch.
    pub(crate) fn settle_watch(&mut self, unwatched: Option<String>, news: &mut LookNews) {
        if unwatched != self.unwatched {
            news.watched = unwatched.is_none();
            news.unwatched.clone_from(&unwatched);
            self.unwatched = unwatched;
        }
    }

    /// Takes the result of a look. Only a valid list of at least one address changes the set: an error, an empty list and a list that
    /// is too long leave it as it is.
    pub(crate) fn settle(&mut self, found: Result<AddressSet, String>) -> LookNews {
        match found.and_then(valid) {
            Ok(found) => {
                let news = LookNews {
                    added: found.difference(&self.addresses).copied().collect(),
                    removed: self.addresses.difference(&found).copied().collect(),
                    failed: None,
                    recovered: self.fault.take().is_some(),
                    ..LookNews::default()
                };
                self.addresses = found;
                news
            }
            Err(error) => {
                let is_news = self.fault.as_ref() != Some(&error);
                self.fault = Some(error.clone());
                LookNews { failed: is_news.then_some(error), ..LookNews::default() }
            }
        }
    }
}

/// A set that a source may give.
pub(crate) fn valid(found: AddressSet) -> Result<AddressSet, String> {
    match found.len() {
        0 => Err("it has no address".to_owned()),
        number if number > ADDRESSES_MAX => Err(format!("it has {number} addresses, and the limit is {ADDRESSES_MAX}")),
        _ => Ok(found),
    }
}

/// The name of the backend at `address`, by the rules for names of the file: `10.0.0.11-6443`, `2001-db8--11-6443`. No two addresses
/// have the same: an IPv4 address has dots.
pub(crate) fn backend_name(address: BackendAddr) -> String {
    let ip = address.ip().to_string().replace(':', "-");
    // A name begins with a letter or digit; "0::1" is "::1".
    let zero = if ip.starts_with('-') { "0" } else { "" };
    format!("{zero}{ip}-{}", address.port())
}

/// What name servers say of one name, and of one or more types of record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NameReply<T> {
    /// At least one, and the shortest time to live in seconds.
    Records { records: Vec<T>, ttl_s: u32 },
    /// The name exists, and has none.
    NoRecord,
    /// There is no such name (NXDOMAIN; RFC 8020).
    NoName,
    /// Nothing is known.
    Failed(String),
}

/// All replies as one. A failure counts for all: what could not be asked may be there. A name without records has none, and one that
/// exists for some type of record exists.
pub(crate) fn joined<T>(replies: impl IntoIterator<Item = NameReply<T>>) -> NameReply<T> {
    let (mut all, mut ttl_all_s) = (Vec::new(), u32::MAX);
    let mut none = NameReply::NoName;
    for reply in replies {
        match reply {
            NameReply::Records { records, ttl_s } => {
                all.extend(records);
                ttl_all_s = ttl_all_s.min(ttl_s);
            }
            NameReply::NoRecord => none = NameReply::NoRecord,
            NameReply::NoName => {}
            NameReply::Failed(error) => return NameReply::Failed(error),
        }
    }
    if all.is_empty() { none } else { NameReply::Records { records: all, ttl_s: ttl_all_s } }
}

/// Reads a list with an address and its port in each line.
///
/// # Errors
/// The first line that is no such address, or is half written.
pub(crate) fn parse_list(text: &str) -> Result<AddressSet, LineFault> {
    let address = |entry: &str| {
        entry.parse().ok().and_then(BackendAddr::reachable).ok_or_else(|| {
            format!(
                "expected an address that can be connected to, with its port, such as \"10.0.0.11:6443\" or \
                 \"[2001:db8::11]:6443\"; found {:?}",
                beginning(entry)
            )
        })
    };
    entries(text, address)?.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(addresses: &[&str]) -> AddressSet {
        addresses.iter().map(|it| BackendAddr::new(it.parse().unwrap())).collect()
    }

    fn list(addresses: &[&str]) -> Vec<BackendAddr> {
        set(addresses).into_iter().collect()
    }

    #[test]
    fn an_error_an_empty_list_and_an_endless_one_change_nothing() {
        let mut it = DiscoveredSet::default();
        let (a, b, c) = ("10.0.0.1:6443", "10.0.0.2:6443", "10.0.0.3:6443");
        let news = it.settle(Ok(set(&[a, b])));
        assert_eq!(news, LookNews { added: list(&[a, b]), ..LookNews::default() });
        let endless =
            (0..=ADDRESSES_MAX).map(|port| BackendAddr::new(([10, 0, 0, 1], port as u16 + 1).into())).collect();
        for bad in [Err("no answer".to_owned()), Ok(set(&[])), Ok(endless)] {
            let news = it.settle(bad.clone());
            assert!(news.failed.is_some() && news.removed.is_empty() && news.added.is_empty(), "{news:?}");
            assert_eq!((it.addresses(), it.is_failing()), (&set(&[a, b]), true));
            assert_eq!(it.settle(bad), LookNews::default(), "it is said once");
        }
        let news = it.settle(Ok(set(&[b, c])));
        let expected = LookNews { added: list(&[c]), removed: list(&[a]), recovered: true, ..LookNews::default() };
        assert_eq!(news, expected);
        assert_eq!(it.settle(Ok(set(&[c, b]))), LookNews::default());
    }

    #[test]
    fn that_a_source_cannot_be_watched_is_said_once_and_changes_no_address() {
        let mut it = DiscoveredSet::new(set(&["10.0.0.1:6443"]));
        let mut settle = |unwatched: Option<&str>| {
            let mut news = LookNews::default();
            it.settle_watch(unwatched.map(str::to_owned), &mut news);
            (news.unwatched, news.watched, it.is_unwatched(), it.is_failing())
        };
        assert_eq!(settle(Some("403")), (Some("403".to_owned()), false, true, false));
        assert_eq!(settle(Some("403")), (None, false, true, false));
        assert_eq!(settle(None), (None, true, false, false));
        assert_eq!(settle(None), (None, false, false, false));
    }

    #[test]
    fn one_failure_of_several_replies_is_a_failure_and_the_shortest_time_counts() {
        let some = |records: &[u8], ttl_s| NameReply::Records { records: records.to_vec(), ttl_s };
        assert_eq!(joined([some(&[1], 60), NameReply::NoRecord, some(&[2, 3], 5)]), some(&[1, 2, 3], 5));
        assert_eq!(joined([NameReply::<u8>::NoName, NameReply::NoRecord]), NameReply::NoRecord);
        assert_eq!(joined([NameReply::<u8>::NoName, NameReply::NoName]), NameReply::NoName);
        let failed = NameReply::Failed("no answer".to_owned());
        assert_eq!(joined([some(&[1], 60), failed.clone()]), failed);
    }

    #[test]
    fn a_list_names_the_line_that_is_wrong() {
        let read = parse_list("# backends\n10.0.0.1:6443 # cp1\n\n  [2001:db8::1]:6443\r\n10.0.0.1:6443\n");
        assert_eq!(read, Ok(set(&["10.0.0.1:6443", "[2001:db8::1]:6443"])));
        assert_eq!(parse_list(""), Ok(set(&[])));
        for (text, line) in [
            ("10.0.0.1:6443\ncp1:6443\n", 2),
            ("10.0.0.1\n", 1),
            ("\n0.0.0.0:6443\n", 2),
            ("10.0.0.1:0\n", 1),
            ("224.0.0.1:1\n", 1),
            // Half of 10.0.0.2:6443 is an address, too.
            ("10.0.0.1:6443\n10.0.0.2:64", 2),
        ] {
            assert_eq!(parse_list(text).map_err(|fault| fault.line), Err(line), "{text}");
        }
    }

    #[test]
    fn the_name_of_a_backend_is_its_address_s_own() {
        let name = |text: &str| backend_name(BackendAddr::new(text.parse().unwrap()));
        assert_eq!(name("10.0.0.11:6443"), "10.0.0.11-6443");
        assert_eq!(name("[::ffff:10.0.0.11]:6443"), "10.0.0.11-6443");
        assert_eq!(name("[2001:db8::11]:443"), "2001-db8--11-443");
        assert_eq!(name("[::1]:443"), "0--1-443");
        assert!(name("[2001:db8:1111:2222:3333:4444:5555:6666]:65535").len() <= 63);
    }
}
