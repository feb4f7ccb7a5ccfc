//! The source "dns": the addresses of a name, or of the hosts of an SRV record.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ProtocolConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use hickory_resolver::system_conf::read_system_conf;
use tokio::time::{sleep, timeout};

use super::LookSender;
use crate::addr::BackendAddr;
use crate::config::{DnsRecord, DnsSource};
use crate::model::discover::{AddressSet, NameReply, joined};

/// Bounds of the time between two looks, which is the shortest time to live of all records.
const TTL_MIN: Duration = Duration::from_secs(1);
const TTL_MAX: Duration = Duration::from_secs(3600);

/// Until the next look after one that failed.
const RETRY: Duration = Duration::from_secs(5);

/// One query to one name server gets this long ...
const QUERY_MAX: Duration = Duration::from_secs(2);

/// ... so many times ...
const ATTEMPTS: usize = 2;

/// ... and a whole look so long.
const LOOK_MAX: Duration = Duration::from_secs(15);

/// A start waits this long for its first list.
const FIRST_MAX: Duration = Duration::from_secs(3);

/// Limit for the hosts of an SRV record, each of which is two further queries.
const HOSTS_MAX: usize = 64;

/// Looks the name up, again whenever the answer's time to live is over.
pub(super) async fn follow(source: DnsSource, looks: LookSender) {
    loop {
        let (found, pause) = match look_up(&source).await {
            Ok((found, ttl)) => (Ok(found), ttl.clamp(TTL_MIN, TTL_MAX)),
            Err(error) => (Err(error), RETRY),
        };
        looks.send(found).await;
        sleep(pause).await;
    }
}

/// The set for a start that knows no other.
pub(super) async fn first(source: &DnsSource) -> Option<AddressSet> {
    let (found, _) = timeout(FIRST_MAX, look_up(source)).await.ok()?.ok()?;
    Some(found)
}

/// The addresses, and how long they may be used.
async fn look_up(source: &DnsSource) -> Result<(AddressSet, Duration), String> {
    let looked = timeout(LOOK_MAX, ask_all(source)).await;
    match looked.unwrap_or_else(|_| Err("no name server answered in time".to_owned()))? {
        NameReply::Records { records, ttl_s } => {
            let found = records.into_iter().filter_map(BackendAddr::reachable).collect();
            Ok((found, Duration::from_secs(ttl_s.into())))
        }
        NameReply::NoName => Err("the name does not exist (NXDOMAIN)".to_owned()),
        NameReply::NoRecord => {
            let record = match source.record {
                DnsRecord::Address { .. } => "A or AAAA",
                DnsRecord::Srv => "SRV",
            };
            Err(format!("the name exists, and has no record {record}"))
        }
        NameReply::Failed(error) => Err(error),
    }
}

async fn ask_all(source: &DnsSource) -> Result<NameReply<SocketAddr>, String> {
    // It reads /etc/resolv.conf each time, as that may have changed.
    let resolver = NameServers::read(&source.servers).map_err(|error| error.to_string())?;
    let Ok(name) = Name::from_str(&source.name) else {
        return Ok(NameReply::Failed(format!("{} is not a DNS name", source.name)));
    };
    let port = match source.record {
        DnsRecord::Address { port } => port,
        DnsRecord::Srv => {
            return Ok(match ask(&resolver, &name, RecordType::SRV, host_of).await {
                NameReply::Records { records, .. } if records.len() > HOSTS_MAX => {
                    NameReply::Failed(format!("it has {} hosts, and the limit is {HOSTS_MAX}", records.len()))
                }
                NameReply::Records { records, ttl_s } => {
                    let mut replies = Vec::new();
                    for (host, port) in records {
                        replies.push(addresses(&resolver, &host, port).await);
                    }
                    match joined(replies) {
                        NameReply::Records { records, ttl_s: other } => {
                            NameReply::Records { records, ttl_s: ttl_s.min(other) }
                        }
                        NameReply::NoRecord | NameReply::NoName => {
                            NameReply::Failed("no host of its record SRV has an address".to_owned())
                        }
                        failed => failed,
                    }
                }
                NameReply::NoRecord => NameReply::NoRecord,
                NameReply::NoName => NameReply::NoName,
                NameReply::Failed(error) => NameReply::Failed(error),
            });
        }
    };
    Ok(addresses(&resolver, &name, port).await)
}

/// Reads `bytes` as the answer of a name server to each question that is asked.
#[cfg(fuzzing)]
pub(super) fn read_any(bytes: &[u8]) {
    use hickory_resolver::proto::op::Message;

    let Ok(message) = Message::from_vec(bytes) else { return };
    let answers = &message.answers;
    if let NameReply::Records { records, .. } = found_in(answers, |record| address_of(record, 6443)) {
        assert!(records.len() <= answers.len());
        records.into_iter().filter_map(BackendAddr::reachable).for_each(|it| assert!(!it.ip().is_unspecified()));
    }
    let mut names = Vec::new();
    if let NameReply::Records { records, .. } = found_in(answers, host_of) {
        names.extend(records.into_iter().map(|(host, _)| host));
    }
    if let NameReply::Records { records, .. } = found_in(answers, super::reverse::name_of) {
        names.extend(records);
    }
    for name in &names {
        let text = text_of(name);
        assert!(!text.contains(char::is_control), "{text:?}");
        // What is shown as a client's name is that name, and no other that reads the same.
        if crate::model::names::node_name(&text).is_some()
            && let Ok(mut read) = Name::from_str(&text)
        {
            read.set_fqdn(true);
            assert_eq!(read, *name);
        }
    }
}

/// The addresses of one host.
pub(super) async fn addresses(resolver: &NameServers, host: &Name, port: u16) -> NameReply<SocketAddr> {
    let address = |record: &Record| address_of(record, port);
    let v4 = ask(resolver, host, RecordType::A, address);
    let v6 = ask(resolver, host, RecordType::AAAA, address);
    let (v4, v6) = tokio::join!(v4, v6);
    joined([v4, v6])
}

/// What the records of one type of `name` are. A name in a record is asked for as it stands there: its text may be read as another's.
pub(super) async fn ask<T>(
    resolver: &NameServers,
    name: &Name,
    kind: RecordType,
    read: impl Fn(&Record) -> Option<T>,
) -> NameReply<T> {
    let mut whole = name.clone();
    // No search list: a name of the file is whole.
    whole.set_fqdn(true);
    let name = text_of(name);
    match resolver.resolver.lookup(whole.clone(), kind).await {
        Ok(found) => found_in(found.answers(), read),
        Err(NetError::Dns(DnsError::NoRecordsFound(none))) if none.response_code == ResponseCode::NoError => {
            NameReply::NoRecord
        }
        Err(NetError::Dns(DnsError::NoRecordsFound(none))) if none.response_code == ResponseCode::NXDomain => {
            NameReply::NoName
        }
        Err(NetError::Dns(DnsError::ResponseCode(code))) => {
            NameReply::Failed(format!("the name server answered {code} for {kind} of {name}"))
        }
        // The error is TCP's, in words of the resolver's inside.
        Err(_) if resolver.truncates(whole, kind).await => NameReply::Failed(format!(
            "{kind} of {name}: the answer by UDP was truncated, and TCP to the name server failed"
        )),
        Err(error) => NameReply::Failed(format!("{kind} of {name}: {error}")),
    }
}

/// What `read` makes of the records of an answer.
fn found_in<T>(answers: &[Record], read: impl Fn(&Record) -> Option<T>) -> NameReply<T> {
    let ttl_s = answers.iter().map(|record| record.ttl).min().unwrap_or(0);
    let records: Vec<_> = answers.iter().filter_map(read).collect();
    // An alias without the record that it leads to.
    if records.is_empty() { NameReply::NoRecord } else { NameReply::Records { records, ttl_s } }
}

fn address_of(record: &Record, port: u16) -> Option<SocketAddr> {
    Some(SocketAddr::new(record.data.ip_addr()?, port))
}

/// The host and port of an SRV record. The root as host means that there is no such service (RFC 2782).
fn host_of(record: &Record) -> Option<(Name, u16)> {
    let RData::SRV(srv) = &record.data else { return None };
    (!srv.target.is_root()).then(|| (srv.target.clone(), srv.port))
}

/// For people: without its last dot, and with each byte that is no letter, digit or hyphen behind a backslash.
pub(super) fn text_of(name: &Name) -> String {
    let text = name.to_ascii();
    text.strip_suffix('.').unwrap_or(&text).to_owned()
}

/// The name servers to ask.
pub(super) struct NameServers {
    config: ResolverConfig,
    options: ResolverOpts,
    resolver: TokioResolver,
}

impl NameServers {
    /// `servers`: none for those of /etc/resolv.conf.
    pub(super) fn read(servers: &[SocketAddr]) -> io::Result<Self> {
        let by = |servers| ResolverConfig::from_parts(None, Vec::new(), servers);
        let (config, mut options) = match servers {
            [] => read_system_conf().unwrap_or_else(|_| {
                // resolv.conf(5): without the file, the name server on the local machine.
                let local = NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into());
                (by(vec![local]), ResolverOpts::default())
            }),
            servers => (by(servers.iter().map(|server| at(*server)).collect()), ResolverOpts::default()),
        };
        // Each look asks: the pause between two of them is the time to live.
        (options.cache_size, options.use_hosts_file) = (0, ResolveHosts::Never);
        (options.timeout, options.attempts) = (QUERY_MAX, ATTEMPTS);
        let resolver = resolver(&config, &options)?;
        Ok(Self { config, options, resolver })
    }

    /// Whether an answer by UDP says that only TCP has all of it.
    async fn truncates(&self, name: Name, kind: RecordType) -> bool {
        let (mut config, mut options) = (self.config.clone(), self.options.clone());
        for server in &mut config.name_servers {
            server.connections.retain(|connection| matches!(connection.protocol, ProtocolConfig::Udp));
        }
        options.attempts = 0;
        let Ok(resolver) = resolver(&config, &options) else { return false };
        matches!(resolver.lookup(name, kind).await, Err(NetError::Truncated))
    }
}

fn resolver(config: &ResolverConfig, options: &ResolverOpts) -> io::Result<TokioResolver> {
    let builder = TokioResolver::builder_with_config(config.clone(), TokioRuntimeProvider::default());
    builder.with_options(options.clone()).build().map_err(io::Error::other)
}

fn at(server: SocketAddr) -> NameServerConfig {
    let mut config = NameServerConfig::udp_and_tcp(server.ip());
    config.connections.iter_mut().for_each(|connection| connection.port = server.port());
    config
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, UdpSocket};

    use super::*;

    /// Answers all queries by UDP with these bits of the header's second half (RFC 1035, section 4.1.1), and ends each connection by TCP.
    async fn failing(flags: u16, by_tcp: bool) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let socket = UdpSocket::bind(address).await.unwrap();
        if by_tcp {
            tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        } else {
            drop(listener);
        }
        tokio::spawn(async move {
            let mut query = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut query).await {
                // The question ends with a root, its type and its class.
                let end = 12 + query[12..length].iter().position(|byte| *byte == 0).unwrap() + 5;
                let [high, low] = (0x8180 | flags).to_be_bytes();
                let reply = [&query[..2], &[high, low, 0, 1, 0, 0, 0, 0, 0, 0], &query[12..end]].concat();
                socket.send_to(&reply, from).await.unwrap();
            }
        });
        let record = DnsRecord::Address { port: 6443 };
        look_up(&DnsSource { name: "api.test".to_owned(), record, servers: vec![address] }).await.unwrap_err()
    }

    /// Regression: a typing error in the name and a name without addresses had the same text, "no such record".
    #[tokio::test]
    async fn a_name_that_does_not_exist_is_told_from_one_without_the_record() {
        assert_eq!(failing(3, false).await, "the name does not exist (NXDOMAIN)");
        assert_eq!(failing(0, false).await, "the name exists, and has no record A or AAAA");
    }

    /// Regression: a truncated answer whose TCP failed read "A of api.test.example: receiver was canceled".
    #[tokio::test]
    async fn a_truncated_answer_without_tcp_says_so() {
        const TRUNCATED: u16 = 0x0200;
        let ended = failing(TRUNCATED, true).await;
        let refused = failing(TRUNCATED, false).await;
        for error in [&ended, &refused] {
            assert!(error.contains("the answer by UDP was truncated, and TCP to the name server failed"), "{error}");
        }
        let other = failing(2, false).await;
        assert!(other.contains("Server Failure") && !other.contains("TCP"), "{other}");
    }
}
