//! Values of the configuration, spelled as the file has them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::addr::BackendAddr;
use crate::config::{
    FlowLog, Group, KeyFile, LogFormat, LogLevel, OffloadMode, Peer, ProbeKind, PublicKey, SharePort, Source, Target,
};
use crate::model::balance::Balance;
use crate::model::duration::display;
use crate::model::fleet::InstanceName;

/// A value as a reader of the file knows it.
pub(super) trait Spell {
    fn spell(&self) -> String;
}

/// For each key its name, and its value in the first and in the second.
macro_rules! spelled {
    ($old:expr, $new:expr; $($key:literal => $($field:ident).+),+ $(,)?) => {
        vec![$(($key, $old.$($field).+.spell(), $new.$($field).+.spell())),+]
    };
}
pub(super) use spelled;

macro_rules! by_display {
    ($($kind:ty),+) => { $(impl Spell for $kind {
        fn spell(&self) -> String {
            self.to_string()
        }
    })+ };
}
impl Spell for Group {
    fn spell(&self) -> String {
        self.name.clone()
    }
}

by_display!(bool, u8, u16, u32, usize, f64, String, Arc<str>, IpAddr, SocketAddr, IpNet, BackendAddr, InstanceName);

/// Enums whose words in the file are their variants' names.
macro_rules! by_variant {
    ($($kind:ty),+) => { $(impl Spell for $kind {
        fn spell(&self) -> String {
            snake(&format!("{self:?}"))
        }
    })+ };
}
by_variant!(Balance, FlowLog, LogFormat, LogLevel, OffloadMode, ProbeKind, SharePort, crate::config::RebalanceWhen);

impl Spell for Duration {
    fn spell(&self) -> String {
        display(*self)
    }
}

impl Spell for PathBuf {
    fn spell(&self) -> String {
        self.display().to_string()
    }
}

impl<K> Spell for KeyFile<K> {
    fn spell(&self) -> String {
        self.path.spell()
    }
}

impl Spell for Peer {
    fn spell(&self) -> String {
        let begin = |key: &PublicKey| format!(", known by {:.8}...", key.to_string());
        let keys: String = self.public_keys.iter().map(begin).collect();
        format!("{} at {}{keys}", self.name, self.address)
    }
}

impl Spell for Source {
    fn spell(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Route => "route".to_owned(),
            Self::Address(ip) => ip.to_string(),
        }
    }
}

impl Spell for Target {
    fn spell(&self) -> String {
        match self {
            Self::Address(address) => address.to_string(),
            Self::Name { host, port } => format!("{host}:{port}"),
        }
    }
}

impl<T: Spell> Spell for Option<T> {
    fn spell(&self) -> String {
        self.as_ref().map_or("none".to_owned(), Spell::spell)
    }
}

impl<T: Spell> Spell for Vec<T> {
    fn spell(&self) -> String {
        format!("[{}]", self.iter().map(Spell::spell).collect::<Vec<_>>().join(", "))
    }
}

/// `LeastConn` is `least_conn`.
fn snake(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push('_');
        }
        words.extend(letter.to_lowercase());
    }
    words
}
