//! Checks keepalived: whether its file moves the VIP when it should, and only then.

mod judge;
mod syntax;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::place::HostPlace;
use crate::config::{Config, VipTrack};
use crate::model::finding::Finding;
use crate::model::humane::list;
use crate::model::keepalived::asks_baton;
use syntax::{File, Node};

/// The default path of its configuration.
pub(crate) const KEEPALIVED_DEFAULT: &str = "/etc/keepalived/keepalived.conf";

const TOPIC: &str = "keepalived";

/// Its file, as far as it could be read.
#[derive(Debug)]
pub(super) struct Keepalived {
    path: PathBuf,
    /// Whether the user has named the file.
    named: bool,
    file: io::Result<File>,
}

/// Whether keepalived removes an address when Baton asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    Yes,
    /// It has the address, and does not check Baton.
    Nothing,
    /// It does not have the address.
    NoVip,
    /// Its file cannot be read.
    Unread,
}

/// One `vrrp_instance`.
#[derive(Clone, Copy, Debug)]
struct VrrpInstance<'f> {
    node: &'f Node,
    name: &'f str,
}

/// One `vrrp_script` that checks whether Baton is ready.
#[derive(Clone, Copy, Debug)]
struct Script<'f> {
    name: &'f str,
    interval: Duration,
    timeout: Duration,
    fall: u32,
    weight: i32,
}

/// Reads `bytes` as its file, without what the file includes.
#[cfg(fuzzing)]
pub(super) fn read_any(bytes: &[u8]) {
    let lines: Vec<_> = String::from_utf8_lossy(bytes).lines().map(crate::model::keepalived::words).collect();
    let file = File { nodes: syntax::parse(&lines), unread: Vec::new() };
    let read = Keepalived { path: KEEPALIVED_DEFAULT.into(), named: true, file: Ok(file) };
    read.addresses();
    read.advert_interval();
    read.vip_track();
    read.follows(IpAddr::from([10, 0, 0, 100]), Some(Path::new("/run/baton-vip-away")));
}

impl Keepalived {
    pub(super) fn read(path: Option<&Path>) -> Self {
        let named = path.is_some();
        let path = path.unwrap_or(Path::new(KEEPALIVED_DEFAULT)).to_owned();
        let file = syntax::read(&path);
        Self { path, named, file }
    }

    /// Every address that it moves.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        self.instances().iter().flat_map(VrrpInstance::addresses).collect()
    }

    pub(super) fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// The longest of its instances.
    pub(super) fn advert_interval(&self) -> Option<Duration> {
        self.instances().iter().map(VrrpInstance::advert_interval).max()
    }

    /// How long a host on which Baton is dead or hangs keeps the VIP: the longest of its instances.
    pub(super) fn vip_track(&self) -> VipTrack {
        let Ok(file) = &self.file else { return VipTrack::Unread };
        let scripts = scripts(file);
        let instances = self.instances();
        let times = instances.iter().map(|instance| instance.asking(&scripts).map(Script::fails_after));
        match times.collect::<Option<Vec<_>>>() {
            None => VipTrack::Stays,
            Some(times) => times.into_iter().max().map_or(VipTrack::Unread, VipTrack::After),
        }
    }

    /// Why its file cannot be read, if the user has named it.
    pub(super) fn fault_of_named(self) -> Option<io::Error> {
        self.file.err().filter(|_| self.named)
    }

    /// Whether it removes `vip` from a host that should not have it.
    pub(super) fn follows(&self, vip: IpAddr, track_file: Option<&Path>) -> Follows {
        let Ok(file) = &self.file else { return Follows::Unread };
        let scripts = scripts(file);
        let is_tracked = |node: &&Node| {
            let path = node.value("file").map(Path::new);
            ["vrrp_track_file", "track_file"].contains(&node.keyword()) && path.is_some() && path == track_file
        };
        let files: Vec<_> = file.nodes.iter().filter(is_tracked).filter_map(Node::argument).collect();
        let with_vip: Vec<_> = self.instances().into_iter().filter(|it| it.addresses().contains(&vip)).collect();
        let follows = |it: &VrrpInstance| {
            let in_block = |block: &str, name: &str| {
                it.node.find(block).is_some_and(|block| block.block.iter().any(|line| line.keyword() == name))
            };
            scripts.iter().any(|script| in_block("track_script", script.name))
                || files.iter().any(|file| in_block("track_file", file))
        };
        match with_vip.as_slice() {
            [] => Follows::NoVip,
            some if some.iter().any(follows) => Follows::Yes,
            _ => Follows::Nothing,
        }
    }

    pub(super) fn judge(&self, config: &Config, place: &HostPlace) -> Vec<Finding> {
        let moved = config.vip.as_ref().map(|vip| &vip.addresses[..]).unwrap_or_default();
        let both: Vec<_> = self.addresses().into_iter().filter(|address| moved.contains(address)).collect();
        match &self.file {
            // Nothing in it is worth tuning.
            Ok(_) if !both.is_empty() => vec![Finding::fault(
                TOPIC,
                format!("{} has {}, as [vip] has", self.name(), list(&both)),
                "once keepalived runs, both it and Baton add and remove the address, and neither asks the other",
                "systemctl disable --now keepalived, in the order that docs/vip.md describes; or remove [vip]",
            )],
            Ok(file) => judge::all(self, file, config, place),
            Err(error) if self.named => vec![Finding::fault(
                TOPIC,
                format!("{}: {error}", self.path.display()),
                "Baton does not know how the VIP moves",
                "name keepalived's file with --keepalived",
            )],
            Err(error) if error.kind() == io::ErrorKind::NotFound && place.vips.is_empty() => {
                vec![Finding::good(TOPIC, "no file, and no frontend listens on a VIP")]
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && moves_all(config, place) => {
                vec![Finding::good(TOPIC, "no file; Baton moves the VIP itself")]
            }
            // An address on the loopback interface is announced by a router.
            Err(error) if error.kind() == io::ErrorKind::NotFound && place.vips == place.kept => {
                vec![Finding::good(TOPIC, "no file; the VIP is on lo, and a router sends its packets here")]
            }
            Err(error) => vec![Finding::advice(
                TOPIC,
                format!("{}: {error}", self.path.display()),
                "a frontend listens on a VIP, and Baton does not know how the VIP moves",
                "name keepalived's file with --keepalived, or begin with deploy/keepalived/keepalived.conf",
            )],
        }
    }

    fn instances(&self) -> Vec<VrrpInstance<'_>> {
        let nodes = self.file.as_ref().map_or(&[][..], |file| &file.nodes);
        let instances = nodes.iter().filter(|node| node.keyword() == "vrrp_instance");
        instances.map(|node| VrrpInstance { node, name: node.argument().unwrap_or("?") }).collect()
    }
}

/// Whether Baton moves each VIP itself.
fn moves_all(config: &Config, place: &HostPlace) -> bool {
    let own = config.vip.as_ref().map(|vip| &vip.addresses[..]).unwrap_or_default();
    place.vips.iter().all(|vip| own.contains(vip))
}

impl VrrpInstance<'_> {
    /// `virtual_ipaddress` and `virtual_ipaddress_excluded`, without their prefixes.
    fn addresses(&self) -> Vec<IpAddr> {
        let blocks = ["virtual_ipaddress", "virtual_ipaddress_excluded"];
        let lines = blocks.iter().filter_map(|block| self.node.find(block)).flat_map(|block| &block.block);
        lines.filter_map(|line| line.keyword().split('/').next()?.parse().ok()).collect()
    }

    fn advert_interval(&self) -> Duration {
        seconds(self.node.value("advert_int")).unwrap_or(Duration::from_secs(1))
    }

    /// The names in its `track_script` block.
    fn tracked(&self) -> Vec<&str> {
        let block = self.node.find("track_script");
        block.map(|block| block.block.iter().map(Node::keyword).collect()).unwrap_or_default()
    }

    /// The first of `scripts` that it tracks.
    fn asking<'s, 'f>(&self, scripts: &'s [Script<'f>]) -> Option<&'s Script<'f>> {
        let tracked = self.tracked();
        scripts.iter().find(|script| tracked.contains(&script.name))
    }
}

impl Script<'_> {
    /// Time from an instance's silence until keepalived takes the script as failed.
    fn fails_after(&self) -> Duration {
        (self.interval + self.timeout) * self.fall
    }
}

fn seconds(text: Option<&str>) -> Option<Duration> {
    text?.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

/// The scripts of a file that run `baton ready`. Defaults as in keepalived.conf(5).
fn scripts(file: &File) -> Vec<Script<'_>> {
    let scripts = file.nodes.iter().filter(|node| node.keyword() == "vrrp_script");
    let asks = |node: &&Node| node.find("script").is_some_and(|line| asks_baton(&line.words));
    let read = |node: &'_ Node| -> (Duration, Duration, u32, i32) {
        let interval = seconds(node.value("interval")).unwrap_or(Duration::from_secs(1));
        let number = |keyword: &str| node.value(keyword).and_then(|text| text.parse::<i32>().ok());
        let fall = number("fall").and_then(|fall| u32::try_from(fall).ok()).unwrap_or(1);
        (interval, seconds(node.value("timeout")).unwrap_or(interval), fall.max(1), number("weight").unwrap_or(0))
    };
    let found = scripts.filter(asks).map(|node| {
        let (interval, timeout, fall, weight) = read(node);
        Script { name: node.argument().unwrap_or("?"), interval, timeout, fall, weight }
    });
    found.collect()
}
