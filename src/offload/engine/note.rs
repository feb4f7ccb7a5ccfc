//! The client that a PROXY header named for a flow: kept beside the entries, which hold only the connection's
//! addresses.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::addr::ClientAddr;
use crate::offload::program::UserNote;

const PORT: usize = 16;

pub(super) fn of(client: ClientAddr) -> UserNote {
    let ip = match client.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut note = UserNote::default();
    note[..PORT].copy_from_slice(&ip.octets());
    note[PORT..PORT + 2].copy_from_slice(&client.port().to_be_bytes());
    note
}

pub(super) fn client(note: &UserNote) -> ClientAddr {
    let (ip, rest) = note.split_first_chunk::<PORT>().expect("a note is longer");
    let port = u16::from_be_bytes([rest[0], rest[1]]);
    ClientAddr::new(SocketAddr::new(Ipv6Addr::from(*ip).into(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_survives_its_note() {
        for text in ["10.1.2.3:40000", "[2001:db8::9]:1"] {
            let address = ClientAddr::new(text.parse().unwrap());
            assert_eq!(client(&of(address)), address);
        }
    }
}
