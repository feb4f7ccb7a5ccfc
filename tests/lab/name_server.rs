//! A name server over UDP, with a zone that a test changes.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use super::host::Host;
use super::ms;

/// What the server answers about one name and type of record.
#[derive(Clone, Debug)]
pub enum Answer {
    Addresses {
        ips: Vec<IpAddr>,
        ttl_s: u32,
    },
    /// Hosts and their ports.
    Services {
        hosts: Vec<(&'static str, u16)>,
        ttl_s: u32,
    },
    /// The name of an address.
    Name {
        host: String,
        ttl_s: u32,
    },
    /// An error by its number: 2 is SERVFAIL, 3 is NXDOMAIN.
    Code(u8),
    Nothing,
}

pub const A: u16 = 1;
pub const PTR: u16 = 12;
pub const AAAA: u16 = 28;
pub const SRV: u16 = 33;

/// A running server. Dropped, it ends.
#[derive(Debug)]
pub struct NameServer {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    zone: Mutex<HashMap<(String, u16), Answer>>,
    asked: Mutex<Vec<(String, u16)>>,
    ends: AtomicBool,
}

impl NameServer {
    /// Serves on port 53 of `host`. It knows no name yet.
    pub fn start(host: &Host) -> Self {
        let address = host.v4(53);
        let socket = host.enter(|| UdpSocket::bind(address)).expect("port 53 is free");
        socket.set_read_timeout(Some(ms(100))).expect("a socket");
        let shared = Arc::new(Shared::default());
        let thread = std::thread::spawn({
            let shared = shared.clone();
            move || {
                let mut query = [0; 4096];
                while !shared.ends.load(SeqCst) {
                    let Ok((length, from)) = socket.recv_from(&mut query) else { continue };
                    if let Some(reply) = shared.reply(&query[..length]) {
                        let _ = socket.send_to(&reply, from);
                    }
                }
            }
        });
        Self { address, shared, thread: Some(thread) }
    }

    /// From now on `name` has this answer for records of type `kind`. A name without any answer does not exist; one with answers for
    /// other types has no such record.
    pub fn set(&self, name: &str, kind: u16, answer: Answer) {
        self.shared.zone().insert((name.to_owned(), kind), answer);
    }

    pub fn set_addresses(&self, name: &str, ttl_s: u32, ips: &[IpAddr]) {
        for (kind, is_v4) in [(A, true), (AAAA, false)] {
            let ips: Vec<_> = ips.iter().copied().filter(|ip| ip.is_ipv4() == is_v4).collect();
            match ips.is_empty() {
                true => drop(self.shared.zone().remove(&(name.to_owned(), kind))),
                false => self.set(name, kind, Answer::Addresses { ips, ttl_s }),
            }
        }
    }

    pub fn forget(&self, name: &str) {
        self.shared.zone().retain(|(other, _), _| other != name);
    }

    /// How often it was asked for this record.
    pub fn asked(&self, name: &str, kind: u16) -> usize {
        self.shared.asked.lock().unwrap().iter().filter(|it| **it == (name.to_owned(), kind)).count()
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.shared.ends.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn zone(&self) -> MutexGuard<'_, HashMap<(String, u16), Answer>> {
        self.zone.lock().unwrap()
    }

    /// RFC 1035, section 4. `None`: no answer.
    fn reply(&self, query: &[u8]) -> Option<Vec<u8>> {
        let (mut name, mut at) = (Vec::new(), 12);
        loop {
            let length = usize::from(*query.get(at)?);
            at += 1;
            if length == 0 {
                break;
            }
            name.push(String::from_utf8_lossy(query.get(at..at + length)?).to_lowercase());
            at += length;
        }
        let name = name.join(".");
        let kind = u16::from_be_bytes([*query.get(at)?, *query.get(at + 1)?]);
        self.asked.lock().unwrap().push((name.clone(), kind));
        let zone = self.zone();
        let is_known = zone.keys().any(|(other, _)| *other == name);
        let answer = zone.get(&(name, kind)).cloned();
        let (code, ttl_s, records) = match answer {
            Some(Answer::Nothing) => return None,
            Some(Answer::Code(code)) => (code, 0, Vec::new()),
            Some(Answer::Addresses { ips, ttl_s }) => (0, ttl_s, ips.into_iter().map(octets).collect()),
            Some(Answer::Services { hosts, ttl_s }) => (0, ttl_s, hosts.into_iter().map(service).collect()),
            Some(Answer::Name { host, ttl_s }) => (0, ttl_s, vec![labels(&host)]),
            None => (if is_known { 0 } else { 3 }, 0, Vec::new()),
        };
        let mut reply = query[..2].to_vec();
        // An answer, authoritative, of a server that recurses.
        reply.extend([0x84 | (query[2] & 1), 0x80 | code, 0, 1]);
        reply.extend((records.len() as u16).to_be_bytes());
        reply.extend([0; 4]);
        reply.extend(&query[12..at + 4]);
        for record in records {
            // The name is that of the question.
            reply.extend([0xc0, 12]);
            reply.extend(kind.to_be_bytes());
            reply.extend([0, 1]);
            reply.extend(ttl_s.to_be_bytes());
            reply.extend((record.len() as u16).to_be_bytes());
            reply.extend(record);
        }
        Some(reply)
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn service((host, port): (&str, u16)) -> Vec<u8> {
    let mut data = vec![0, 0, 0, 10];
    data.extend(port.to_be_bytes());
    data.extend(labels(host));
    data
}

fn labels(host: &str) -> Vec<u8> {
    let mut data = Vec::new();
    for label in host.split('.') {
        data.push(label.len() as u8);
        data.extend(label.as_bytes());
    }
    data.push(0);
    data
}
