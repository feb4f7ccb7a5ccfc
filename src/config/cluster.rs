//! `[cluster]`.

use std::time::Duration;

use super::Cluster;
use super::kind::{OneOf, Time, time};
use super::section::Section;
use crate::model::duration::display;

impl Default for Cluster {
    fn default() -> Self {
        Self {
            node_monitor_grace_period: Duration::from_secs(40),
            lease_renew: Duration::from_secs(10),
            vrrp_advert_interval: None,
            // As deploy/keepalived has them.
            vrrp_track_time: Duration::from_secs(3),
        }
    }
}

pub(super) fn read(section: &Section) -> Cluster {
    let profile = section.read_or("profile", &PROFILE, Cluster::default().node_monitor_grace_period);
    let grace = section.read_or("node_monitor_grace_period", &SECONDS, profile.value);
    let lease_renew = section.read_or("lease_renew", &SECONDS, Cluster::default().lease_renew);
    if lease_renew.value >= grace.value && !lease_renew.is_refused() && !grace.is_refused() {
        let (renew, until) = (display(lease_renew.value), display(grace.value));
        let message =
            format!("a lease renewed every {renew} (lease_renew) is too old after {until} (node_monitor_grace_period)");
        let key = if lease_renew.is_given() { "lease_renew" } else { "node_monitor_grace_period" };
        section.refuse(key, message, "set lease_renew below node_monitor_grace_period, or no node is ever Ready");
    }
    let advert = section.read("vrrp_advert_interval", &ADVERT);
    let track = section.read_or("vrrp_track_time", &TRACK, Cluster::default().vrrp_track_time);
    if track.is_given() && advert.value.is_none() && !advert.is_refused() {
        let message = format!("{} is {} and has no effect", section.name("vrrp_track_time"), display(track.value));
        section.warn(
            "vrrp_track_time",
            message,
            "set vrrp_advert_interval as well: without it Baton does not know how the VIP moves",
        );
    }
    Cluster {
        node_monitor_grace_period: grace.value,
        lease_renew: lease_renew.value,
        vrrp_advert_interval: advert.value,
        vrrp_track_time: track.value,
    }
}

/// The grace periods of Kubernetes' defaults and of the three profiles of Kubespray's reliability guide.
const PROFILE: OneOf<Duration> = OneOf(&[
    ("default", Duration::from_secs(40)),
    ("since_1_32", Duration::from_secs(50)),
    ("fast", Duration::from_secs(20)),
    ("medium", Duration::from_secs(120)),
    ("slow", Duration::from_secs(300)),
]);
const SECONDS: Time = time(Duration::from_secs(1), Duration::from_secs(3600));
const TRACK: Time = time(Duration::from_millis(10), Duration::from_secs(3600));
const ADVERT: Time = time(Duration::from_millis(10), Duration::from_secs(255));
