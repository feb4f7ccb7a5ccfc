//! The real thing: kubelet-like clients over HTTP/2 and TLS renew their leases every second and hold a watch, while
//! what can happen to an apiserver happens.

use std::time::Duration;

use crate::lab::*;

/// A kubelet renews every 10 s and its node is NotReady 40 s after the last renewal; inside one renewal is safe.
const RENEWAL: Duration = secs(10);

struct Cluster {
    lab: Lab,
    certificates: Certificates,
    stand_ins: Vec<StandIn>,
    kubelets: Vec<Kubelet>,
    baton: Baton,
}

impl Cluster {
    fn new() -> Option<Self> {
        let lab = Lab::new("kubelets")?;
        let certificates = Certificates::make(&lab);
        let stand_ins = lab.backends().map(|host| StandIn::start(&lab, &certificates, host)).into();
        let config = lab.config().https(&certificates.ca()).frontend("drain_timeout", "4s");
        let baton = lab.start(&config);
        let kubelet = |n: usize| {
            let host = if n.is_multiple_of(2) { &lab.client } else { &lab.client2 };
            Kubelet::start(&lab, &certificates, host, &lab.lb, &format!("node-{n}"))
        };
        let kubelets = (0..6).map(kubelet).collect();
        let cluster = Self { lab, certificates, stand_ins, kubelets, baton };
        cluster.settle();
        Some(cluster)
    }

    /// Waits until every kubelet renews.
    #[track_caller]
    fn settle(&self) {
        for kubelet in &self.kubelets {
            kubelet.wait_renewals(kubelet.now(), 2, LONG);
        }
    }

    /// Does `fault`, waits until every kubelet has renewed often enough to show its gap, prints the longest.
    #[track_caller]
    fn longest_gap(&mut self, what: &str, fault: impl FnOnce(&mut Self)) {
        self.settle();
        let before: Vec<_> = self.kubelets.iter().map(Kubelet::now).collect();
        let at: Vec<_> = self.kubelets.iter().filter(|kubelet| kubelet.served_by().as_deref() == Some("b1")).collect();
        let at_b1 = at.len();
        fault(self);
        for (kubelet, before) in self.kubelets.iter().zip(&before) {
            kubelet.wait_renewals(*before, 6, secs(40));
        }
        let gaps = self.kubelets.iter().zip(&before).map(|(kubelet, before)| kubelet.longest_gap(*before));
        let longest = gaps.max().expect("there are kubelets");
        println!("kubelets: {what}: longest gap between two renewals {longest:?} ({at_b1} of 6 were at b1)");
        assert!(longest < RENEWAL, "{what}: {longest:?}");
    }

    #[track_caller]
    fn b1_is(&self, standing: &str) {
        self.baton.wait_standing("b1", standing, LONG);
    }

    /// Brings kubelets back to b1, so that the next fault meets some.
    #[track_caller]
    fn spread(&self) {
        self.b1_is("ready");
        for backend in ["b2", "b3"] {
            self.baton.order(&["drain", backend]);
        }
        let of_others = || self.baton.flows_of("b2") + self.baton.flows_of("b3");
        eventually(LONG, "the kubelets have left the others", || of_others() == 0);
        for backend in ["b2", "b3"] {
            self.baton.order(&["undrain", backend]);
            self.baton.wait_standing(backend, "ready", LONG);
        }
        self.settle();
        assert!(self.baton.flows_of("b1") >= 6);
    }
}

#[test]
fn no_renewal_is_late_whatever_happens_to_an_apiserver() {
    let Some(mut cluster) = Cluster::new() else { return };

    cluster.spread();
    cluster.longest_gap("a backend is killed", |cluster| {
        cluster.stand_ins[0].process.kill();
        cluster.b1_is("ejected");
    });
    cluster.longest_gap("it is brought back", |cluster| {
        let back = StandIn::start(&cluster.lab, &cluster.certificates, &cluster.lab.b1);
        cluster.stand_ins[0] = back;
        cluster.b1_is("ready");
    });

    cluster.spread();
    cluster.longest_gap("a backend hangs (SIGSTOP)", |cluster| {
        cluster.stand_ins[0].process.stop();
        cluster.b1_is("ejected");
    });
    cluster.longest_gap("it goes on (SIGCONT)", |cluster| {
        cluster.stand_ins[0].process.go_on();
        cluster.b1_is("ready");
    });

    cluster.spread();
    cluster.longest_gap("a backend's host is cut off", |cluster| {
        cluster.lab.b1.link_down();
        cluster.b1_is("ejected");
    });
    cluster.longest_gap("its host is back", |cluster| {
        cluster.lab.b1.link_up();
        cluster.b1_is("ready");
    });

    cluster.spread();
    cluster.longest_gap("a backend is drained by an operator", |cluster| {
        cluster.baton.order(&["drain", "b1"]);
        eventually(LONG, "its flows are gone", || cluster.baton.flows_of("b1") == 0);
    });
    cluster.longest_gap("it is undrained", |cluster| {
        cluster.baton.order(&["undrain", "b1"]);
        cluster.b1_is("ready");
    });

    cluster.spread();
    cluster.longest_gap("a backend says that it is not ready", |cluster| {
        cluster.stand_ins[0].set_ready(false);
        cluster.b1_is("draining");
        eventually(LONG, "its flows are gone", || cluster.baton.flows_of("b1") == 0);
    });
    cluster.longest_gap("it is ready again", |cluster| {
        cluster.stand_ins[0].set_ready(true);
        cluster.b1_is("ready");
    });

    for kubelet in &cluster.kubelets {
        assert!(!kubelet.events_since("watched", stand_in::Moment::default()).is_empty(), "the watch brings events");
    }
    cluster.kubelets.clear();
    cluster.baton.rests();
}

#[test]
fn a_certificate_that_is_expired_or_of_another_name_is_an_error_that_names_it() {
    let Some(lab) = Lab::new("certificates") else { return };
    let certificates = Certificates::make(&lab);
    let _expired = StandIn::start_as(&lab, &certificates, &lab.b1, "expired");
    let _wrong = StandIn::start_as(&lab, &certificates, &lab.b2, "wrong-name");
    let _right = StandIn::start(&lab, &certificates, &lab.b3);
    let baton = lab.baton(&lab.config().https(&certificates.ca()));
    baton.wait_standing("b3", "ready", LONG);
    let why = |name: &str| baton.backend(name).unwrap()["why"].as_str().unwrap().to_owned();
    eventually(LONG, "b1 is out", || baton.standing("b1") == "ejected" && why("b1").contains("expired"));
    eventually(LONG, "b2 is out", || baton.standing("b2") == "ejected" && why("b2").contains("name"));
    println!("b1: {}\nb2: {}", why("b1"), why("b2"));
    lab.client.connect(lab.lb.v4(6443));
}
