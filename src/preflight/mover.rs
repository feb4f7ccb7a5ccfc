//! Finds the program that moves the VIP away from a host that should not have it: keepalived by its track file, or
//! BIRD. Without one an evacuation would wait for nothing.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::keepalived::KEEPALIVED_DEFAULT;
use super::keepalived::{Follows, Keepalived};
use crate::sys::process;

/// Why each of `vips`, which are on this host, would stay; one sentence each. `track_file`: that of the configuration,
/// if any.
pub(crate) fn missing(vips: &[IpAddr], track_file: Option<&Path>) -> Vec<String> {
    if vips.is_empty() {
        return Vec::new();
    }
    let read = keepalived();
    let others = Others { bird: process::runs_any("bird"), kube_vip: process::runs_any("kube-vip") };
    vips.iter().filter_map(|vip| why_it_stays(*vip, track_file, &read, others)).collect()
}

/// The files of all keepalived processes of this host.
pub(super) fn keepalived() -> Vec<Keepalived> {
    let files = process::arguments_of("keepalived");
    files.iter().map(|words| Keepalived::read(Some(&file_of(words)))).collect()
}

/// Other programs here that may move addresses, and whose files do not show it.
#[derive(Clone, Copy, Debug, Default)]
struct Others {
    bird: bool,
    kube_vip: bool,
}

fn why_it_stays(vip: IpAddr, track_file: Option<&Path>, read: &[Keepalived], others: Others) -> Option<String> {
    let all: Vec<_> = read.iter().map(|keepalived| keepalived.follows(vip, track_file)).collect();
    // BIRD is switched by deploy/bird/watch, which no file shows; but an address of keepalived is not BIRD's.
    if all.contains(&Follows::Yes) || others.bird && !all.contains(&Follows::Nothing) {
        return None;
    }
    let names = || read.iter().map(Keepalived::name).collect::<Vec<_>>().join(", ");
    Some(match all.as_slice() {
        _ if others.kube_vip && !all.contains(&Follows::Nothing) => {
            format!("kube-vip runs here and does not ask Baton: {vip} stays on this host until you stop kube-vip")
        }
        [] => format!(
            "no program that moves {vip} was found: neither keepalived nor bird runs here; unless another program \
             asks `baton ready`, {vip} stays on this host"
        ),
        all if all.contains(&Follows::Unread) => {
            format!("cannot read {}, so Baton does not know whether keepalived moves {vip}", names())
        }
        all if all.contains(&Follows::Nothing) => format!(
            "keepalived has {vip}, but by {} it follows neither `baton ready` (track_script) nor failover.track_file",
            names()
        ),
        _ => format!("keepalived runs here, but {} has no {vip}", names()),
    })
}

/// keepalived(8): `-f`, `--use-file`.
fn file_of(words: &[String]) -> PathBuf {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if ["-f", "--use-file"].contains(&word.as_str()) {
            return words.next().map_or_else(|| KEEPALIVED_DEFAULT.into(), PathBuf::from);
        }
        if let Some(file) = word.strip_prefix("--use-file=").or_else(|| word.strip_prefix("-f")) {
            return file.into();
        }
    }
    KEEPALIVED_DEFAULT.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIPPED: &str = include_str!("../../deploy/keepalived/keepalived.conf");

    fn said(text: &str, track_file: Option<&str>) -> Option<String> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("keepalived.conf");
        std::fs::write(&file, text).unwrap();
        why_it_stays(
            "10.0.0.100".parse().unwrap(),
            track_file.map(Path::new),
            &[Keepalived::read(Some(&file))],
            Others::default(),
        )
    }

    #[test]
    fn the_shipped_file_moves_the_vip_by_script_or_by_track_file() {
        assert_eq!(said(SHIPPED, None), None);
        let without_script = SHIPPED.replace("baton ready", "true");
        assert_eq!(said(&without_script, Some("/run/baton-vip-away")), None);
        for other in [None, Some("/run/another")] {
            let why = said(&without_script, other).unwrap();
            assert!(why.contains("follows neither"), "{why}");
        }
    }

    #[test]
    fn whatever_would_leave_the_vip_here_is_named() {
        let vip = "10.0.0.100".parse().unwrap();
        assert!(
            why_it_stays(vip, None, &[], Others::default()).unwrap().contains("neither keepalived nor bird runs here")
        );
        let nowhere = Keepalived::read(Some(Path::new("/nowhere/keepalived.conf")));
        assert!(why_it_stays(vip, None, &[nowhere], Others::default()).unwrap().contains("does not know whether"));
        let why = said(&SHIPPED.replace("10.0.0.100", "10.0.0.99"), None).unwrap();
        assert!(why.contains("has no 10.0.0.100"), "{why}");
    }

    #[test]
    fn other_movers_count_for_what_they_may_have() {
        let vip = "10.0.0.100".parse().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("keepalived.conf");
        std::fs::write(&file, SHIPPED.replace("baton ready", "true")).unwrap();
        let (bird, kube_vip) = (Others { bird: true, kube_vip: false }, Others { bird: false, kube_vip: true });
        let read = || [Keepalived::read(Some(&file))];
        assert_eq!(why_it_stays(vip, None, &[], bird), None);
        // Regression: a host was reported as ready for an evacuation because a BIRD ran there for other addresses.
        for others in [bird, kube_vip] {
            assert!(why_it_stays(vip, None, &read(), others).unwrap().contains("follows neither"));
        }
        assert!(why_it_stays(vip, None, &[], kube_vip).unwrap().contains("kube-vip runs here"));
        std::fs::write(&file, SHIPPED.replace("10.0.0.100", "10.0.0.99")).unwrap();
        assert_eq!(why_it_stays(vip, None, &read(), bird), None, "keepalived has others, BIRD may have this one");
    }

    #[test]
    fn keepalived_is_told_of_its_file_in_several_ways() {
        let of = |words: &str| file_of(&words.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for words in
            ["keepalived -n -f /x", "keepalived -f/x", "keepalived --use-file=/x -n", "keepalived --use-file /x"]
        {
            assert_eq!(of(words), Path::new("/x"), "{words}");
        }
        assert_eq!(of("keepalived -n -l"), Path::new(KEEPALIVED_DEFAULT));
    }
}
