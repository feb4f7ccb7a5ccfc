//! The source "dns": the addresses of a name, or of the hosts of an SRV record.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
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
        NameReply::NoRecord => Err("the name has no such record".to_owned()),
        NameReply::Failed(error) => Err(error),
    }
}

async fn ask_all(source: &DnsSource) -> Result<NameReply<SocketAddr>, String> {
    // It reads /etc/resolv.conf each time, as that may have changed.
    let resolver = resolver(&source.servers).map_err(|error| error.to_string())?;
    let port = match source.record {
        DnsRecord::Address { port } => port,
        DnsRecord::Srv => {
            return Ok(match ask(&resolver, &source.name, RecordType::SRV, host_of).await {
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
                        none => none,
                    }
                }
                NameReply::NoRecord => NameReply::NoRecord,
                NameReply::Failed(error) => NameReply::Failed(error),
            });
        }
    };
    Ok(addresses(&resolver, &source.name, port).await)
}

/// The addresses of one host.
async fn addresses(resolver: &TokioResolver, host: &str, port: u16) -> NameReply<SocketAddr> {
    let address = |record: &Record| Some(SocketAddr::new(record.data.ip_addr()?, port));
    let v4 = ask(resolver, host, RecordType::A, address);
    let v6 = ask(resolver, host, RecordType::AAAA, address);
    let (v4, v6) = tokio::join!(v4, v6);
    joined([v4, v6])
}

async fn ask<T>(
    resolver: &TokioResolver,
    name: &str,
    kind: RecordType,
    read: impl Fn(&Record) -> Option<T>,
) -> NameReply<T> {
    let Ok(mut whole) = Name::from_str(name) else { return NameReply::Failed(format!("{name} is not a DNS name")) };
    // No search list: a name of the file is whole.
    whole.set_fqdn(true);
    match resolver.lookup(whole, kind).await {
        Ok(found) => {
            let answers = found.answers();
            let ttl_s = answers.iter().map(|record| record.ttl).min().unwrap_or(0);
            let records: Vec<_> = answers.iter().filter_map(read).collect();
            // An alias without the record that it leads to.
            if records.is_empty() { NameReply::NoRecord } else { NameReply::Records { records, ttl_s } }
        }
        Err(NetError::Dns(DnsError::NoRecordsFound(none)))
            if matches!(none.response_code, ResponseCode::NoError | ResponseCode::NXDomain) =>
        {
            NameReply::NoRecord
        }
        Err(NetError::Dns(DnsError::ResponseCode(code))) => {
            NameReply::Failed(format!("the name server answered {code} for {kind} of {name}"))
        }
        Err(error) => NameReply::Failed(format!("{kind} of {name}: {error}")),
    }
}

/// The host and port of an SRV record. The root as host means that there is no such service (RFC 2782).
fn host_of(record: &Record) -> Option<(String, u16)> {
    let RData::SRV(srv) = &record.data else { return None };
    (!srv.target.is_root()).then(|| (srv.target.to_ascii(), srv.port))
}

fn resolver(servers: &[SocketAddr]) -> io::Result<TokioResolver> {
    let mut builder = match servers {
        [] => TokioResolver::builder_tokio().unwrap_or_else(|_| {
            // resolv.conf(5): without the file, the name server on the local machine.
            by_servers(vec![NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into())])
        }),
        servers => by_servers(servers.iter().map(|server| at(*server)).collect()),
    };
    let options = builder.options_mut();
    // Each look asks: the pause between two of them is the time to live.
    (options.cache_size, options.use_hosts_file) = (0, ResolveHosts::Never);
    (options.timeout, options.attempts) = (QUERY_MAX, ATTEMPTS);
    builder.build().map_err(io::Error::other)
}

fn by_servers(servers: Vec<NameServerConfig>) -> hickory_resolver::ResolverBuilder<TokioRuntimeProvider> {
    let config = ResolverConfig::from_parts(None, Vec::new(), servers);
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
}

fn at(server: SocketAddr) -> NameServerConfig {
    let mut config = NameServerConfig::udp_and_tcp(server.ip());
    config.connections.iter_mut().for_each(|connection| connection.port = server.port());
    config
}
