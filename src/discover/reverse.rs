//! Names of clients by reverse DNS, for those that neither the file nor the cluster names. Nobody waits for a query: lists and events have a
//! name once it is known. A name counts only if its own addresses have the client's, as whoever has the reverse zone may write any name
//! there (RFC 1912, section 2.1).

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::dns::{NameServers, addresses, ask, text_of};
use crate::config::Config;
use crate::essential::aside;
use crate::model::discover::NameReply;
use crate::model::names::{NameMap, node_name};
use crate::part::Part;
use crate::table::flows::FlowTable;
use crate::table::names::{ClientNames, NameSource};

/// Names that are known, and addresses that have none.
#[derive(Debug, Default)]
struct KnownNames {
    of: HashMap<IpAddr, KnownName>,
}

#[derive(Debug)]
struct KnownName {
    /// `None`: it has none, or no name server answered.
    name: Option<Arc<str>>,
    until: Instant,
}

/// Looks for the names of the clients of living flows while the configuration says so, until it is dropped.
pub(crate) async fn run(names: Part<ClientNames>, flows: Part<FlowTable>, mut config: watch::Receiver<Arc<Config>>) {
    let mut known = KnownNames::default();
    loop {
        let settings = config.borrow_and_update().names.clone();
        if settings.reverse_dns {
            let table = flows.clone();
            let walk = move || table.iter().map(|flow| flow.origin.client.ip().to_canonical()).collect::<HashSet<_>>();
            // `None`: the runtime is shutting down.
            let Some(clients) = aside(walk).await else { return };
            known.look(clients, &names, &settings.reverse_dns_servers).await;
        } else {
            known.of.clear();
        }
        names.set(NameSource::ReverseDns, known.names());
        tokio::select! {
            () = sleep(LOOK_EVERY), if settings.reverse_dns => {}
            changed = config.changed() => {
                if changed.is_err() {
                    return;
                }
                if config.borrow().names.reverse_dns_servers != settings.reverse_dns_servers {
                    // Other servers may know others.
                    known.of.clear();
                }
            }
        }
    }
}

impl KnownNames {
    /// Asks for some of those that nobody names yet, or no longer.
    async fn look(&mut self, clients: HashSet<IpAddr>, names: &ClientNames, servers: &[SocketAddr]) {
        let now = Instant::now();
        self.of.retain(|client, it| clients.contains(client) || it.until > now);
        let has_room = self.of.len() < NAMES_MAX;
        let is_due = |client: &IpAddr| match self.of.get(client) {
            Some(it) => it.until <= now,
            // Those that the file or the cluster names need none.
            None => has_room && names.of(*client).is_none(),
        };
        let due: Vec<_> = clients.into_iter().filter(is_due).take(AT_ONCE).collect();
        if due.is_empty() {
            return;
        }
        // /etc/resolv.conf may have changed.
        let Ok(servers) = NameServers::read(servers).map(Arc::new) else { return };
        let mut queries = JoinSet::new();
        for client in due {
            let servers = servers.clone();
            queries.spawn(async move { (client, timeout(QUERY_MAX, look_up(&servers, client)).await.unwrap_or(None)) });
        }
        while let Some(Ok((client, found))) = queries.join_next().await {
            let last = self.of.get(&client).and_then(|it| it.name.clone());
            let (name, lasts) = found.unwrap_or_else(|| (last.clone(), RETRY));
            let is_new = name != last;
            self.of.insert(client, KnownName { name, until: Instant::now() + lasts });
            if is_new {
                // The others may have to wait for their answers.
                names.set(NameSource::ReverseDns, self.names());
            }
        }
    }

    fn names(&self) -> NameMap {
        self.of.iter().filter_map(|(client, it)| Some((*client, it.name.clone()?))).collect()
    }
}

/// An address's name, if its own addresses have this one, and how long that may be used. `None`: nothing is known.
async fn look_up(servers: &NameServers, client: IpAddr) -> Option<(Option<Arc<str>>, Duration)> {
    match ask(servers, &Name::from(client), RecordType::PTR, name_of).await {
        NameReply::Failed(_) => None,
        NameReply::NoName | NameReply::NoRecord => Some((None, NONE_FOR)),
        NameReply::Records { records, ttl_s } => {
            let ttl = Duration::from_secs(ttl_s.into()).clamp(TTL_MIN, TTL_MAX);
            for name in records.iter().take(NAMES_OF_ONE) {
                match addresses(servers, name, 0).await {
                    NameReply::Failed(_) => return None,
                    NameReply::Records { records, .. } if records.iter().any(|it| it.ip().to_canonical() == client) => {
                        // An address as a name would be taken for another client's.
                        let name = text_of(name);
                        let is_name = name.parse::<IpAddr>().is_err();
                        return Some((node_name(&name).filter(|_| is_name), ttl));
                    }
                    NameReply::Records { .. } | NameReply::NoName | NameReply::NoRecord => {}
                }
            }
            Some((None, ttl))
        }
    }
}

/// The name in a PTR record.
pub(super) fn name_of(record: &Record) -> Option<Name> {
    let RData::PTR(name) = &record.data else { return None };
    Some(name.0.clone())
}

/// Between two looks at the clients.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Clients of one look, so that a thousand new ones are no storm for the name servers.
const AT_ONCE: usize = 32;
const NAMES_MAX: usize = 16_384;
/// For all questions about one client.
const QUERY_MAX: Duration = Duration::from_secs(5);
/// Names of one address that are looked at.
const NAMES_OF_ONE: usize = 4;
/// After an error, while the last name stays.
const RETRY: Duration = Duration::from_secs(60);
/// After the answer that there is no name.
const NONE_FOR: Duration = Duration::from_secs(600);
const TTL_MIN: Duration = Duration::from_secs(60);
const TTL_MAX: Duration = Duration::from_secs(3600);
