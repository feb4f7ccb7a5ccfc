//! The real thing: kubelet-like clients over HTTP/2 and TLS renew their leases every second and hold a watch, while
//! what can happen to an apiserver happens.

use std::time::Duration;

use crate::lab::*;

/// A kubelet renews every 10 s and its node is NotReady 40 s after the last renewal; inside one renewal is safe.
const RENEWAL: Duration = secs(10);

/// Three stand-ins, Baton, and six kubelets that are all at b1.
struct Cluster {
    lab: Lab,
    certificates: Certificates,
    b1: StandIn,
    _others: [StandIn; 2],
    kubelets: Vec<Kubelet>,
    baton: Baton,
}

impl Cluster {
    fn new() -> Option<Self> {
        let lab = Lab::new("kubelets")?;
        let certificates = Certificates::make(&lab);
        let [b1, b2, b3] = lab.backends().map(|host| StandIn::start(&lab, &certificates, host));
        let config = lab.config().https(&certificates.ca()).frontend("drain_timeout", "2s");
        let baton = lab.start(&config);
        for other in ["b2", "b3"] {
            baton.order(&["drain", other]);
        }
        let kubelets = (0..6).map(|n: usize| {
            let host = if n.is_multiple_of(2) { &lab.client } else { &lab.client2 };
            Kubelet::start(&lab, &certificates, host, &lab.lb, &format!("node-{n}"))
        });
        let kubelets: Vec<_> = kubelets.collect();
        for kubelet in &kubelets {
            kubelet.wait_renewals(kubelet.now(), 1, LONG);
        }
        assert_eq!(baton.flows_of("b1"), 6);
        for other in ["b2", "b3"] {
            baton.order(&["undrain", other]);
            baton.wait_health(other, "ready", LONG);
        }
        Some(Self { lab, certificates, b1, _others: [b2, b3], kubelets, baton })
    }

    /// Does `fault`, waits until every kubelet renews again, and prints the longest gap of any.
    #[track_caller]
    fn longest_gap(&mut self, what: &str, fault: impl FnOnce(&mut Self)) {
        let before: Vec<_> = self.kubelets.iter().map(Kubelet::now).collect();
        fault(self);
        let after: Vec<_> = self.kubelets.iter().map(Kubelet::now).collect();
        for (kubelet, after) in self.kubelets.iter().zip(after) {
            kubelet.wait_renewals(after, 3, secs(20));
        }
        let gaps = self.kubelets.iter().zip(before).map(|(kubelet, before)| kubelet.longest_gap(before));
        let longest = gaps.max().expect("there are kubelets");
        println!("kubelets: {what}: the longest gap between two renewals, of 6 kubelets, was {longest:?}");
        assert!(longest < RENEWAL, "{what}: {longest:?}");
    }

    #[track_caller]
    fn b1_is(&self, health_state: &str) {
        self.baton.wait_health("b1", health_state, LONG);
    }

    #[track_caller]
    fn b1_has_no_flows(&self) {
        eventually(LONG, "its flows are gone", || self.baton.flows_of("b1") == 0);
    }

    /// Every watch got events, no connection is left at the end, and nothing was leaked.
    #[track_caller]
    fn ends_well(mut self) {
        for kubelet in &self.kubelets {
            let watched = || !kubelet.events_since("watched", stand_in::Moment::default()).is_empty();
            eventually(LONG, "the watch brings events", watched);
        }
        self.kubelets.clear();
        self.baton.rests();
    }
}

#[test]
fn no_renewal_is_late_when_a_backend_is_killed_and_brought_back() {
    let Some(mut cluster) = Cluster::new() else { return };
    cluster.longest_gap("a backend is killed", |cluster| {
        cluster.b1.process.kill();
        cluster.b1_is("ejected");
    });
    cluster.longest_gap("it is brought back", |cluster| {
        cluster.b1 = StandIn::start(&cluster.lab, &cluster.certificates, &cluster.lab.b1);
        cluster.b1_is("ready");
    });
    cluster.ends_well();
}

#[test]
fn no_renewal_is_late_when_a_backend_hangs_and_goes_on() {
    let Some(mut cluster) = Cluster::new() else { return };
    cluster.longest_gap("a backend hangs (SIGSTOP)", |cluster| {
        cluster.b1.process.stop();
        cluster.b1_is("ejected");
    });
    cluster.longest_gap("it goes on (SIGCONT)", |cluster| {
        cluster.b1.process.go_on();
        cluster.b1_is("ready");
    });
    cluster.ends_well();
}

#[test]
fn no_renewal_is_late_when_a_backend_s_host_is_cut_off_and_comes_back() {
    let Some(mut cluster) = Cluster::new() else { return };
    cluster.longest_gap("a backend's host is cut off", |cluster| {
        cluster.lab.b1.link_down();
        cluster.b1_is("ejected");
    });
    cluster.longest_gap("its host is back", |cluster| {
        cluster.lab.b1.link_up();
        cluster.b1_is("ready");
    });
    cluster.ends_well();
}

#[test]
fn no_renewal_is_late_when_a_backend_is_drained_and_undrained() {
    let Some(mut cluster) = Cluster::new() else { return };
    cluster.longest_gap("a backend is drained by an operator", |cluster| {
        cluster.baton.order(&["drain", "b1"]);
        cluster.b1_has_no_flows();
    });
    cluster.longest_gap("it is undrained", |cluster| {
        cluster.baton.order(&["undrain", "b1"]);
        cluster.b1_is("ready");
    });
    cluster.ends_well();
}

#[test]
fn no_renewal_is_late_when_a_backend_says_that_it_is_not_ready() {
    let Some(mut cluster) = Cluster::new() else { return };
    cluster.longest_gap("a backend answers /readyz with 500", |cluster| {
        cluster.b1.set_ready(false);
        cluster.b1_is("draining");
        cluster.b1_has_no_flows();
    });
    cluster.longest_gap("it is ready again", |cluster| {
        cluster.b1.set_ready(true);
        cluster.b1_is("ready");
    });
    cluster.ends_well();
}

/// Twenty clients with a kubelet's timing, and each apiserver restarted in turn.
#[test]
fn after_a_rolling_restart_kubelets_are_spread_again_and_no_renewal_was_late() {
    const KUBELETS: u64 = 20;
    const BACKENDS: [&str; 3] = ["b1", "b2", "b3"];
    let Some(lab) = Lab::new("rolling restart") else { return };
    let certificates = Certificates::make(&lab);
    let mut stand_ins = lab.backends().map(|host| StandIn::start(&lab, &certificates, host));
    // The default: the other tests have none.
    let baton = lab.start(&lab.config().https(&certificates.ca()).health("slow_start", "30s"));
    let started = Stopwatch::start();
    let kubelets: Vec<_> = (0..KUBELETS)
        .map(|n| {
            let host = if n % 2 == 0 { &lab.client } else { &lab.client2 };
            let timing = ["--renew-every", "10s"];
            Kubelet::start_with(&lab, &certificates, host, &lab.lb, &format!("node-{n}"), &timing)
        })
        .collect();
    // One answer for all: a flow that moves meanwhile would be in none of three.
    let spread = || {
        let status = baton.status();
        let all = status["frontends"][0]["backends"].as_array().expect("a list");
        BACKENDS.map(|name| {
            let backend = all.iter().find(|it| it["name"] == name).expect("it is listed");
            backend["flows"].as_u64().expect("a number")
        })
    };
    eventually(LONG, "each kubelet has its connection", || spread().iter().sum::<u64>() == KUBELETS);
    for kubelet in &kubelets {
        kubelet.wait_renewals(stand_in::Moment::default(), 1, LONG);
    }

    for (stand_in, host) in stand_ins.iter_mut().zip(lab.backends()) {
        stand_in.process.kill();
        baton.wait_health(host.name, "ejected", LONG);
        eventually(LONG, "its kubelets are connected again", || spread().iter().sum::<u64>() == KUBELETS);
        *stand_in = StandIn::start(&lab, &certificates, host);
        baton.wait_health(host.name, "ready", LONG);
    }
    let restarted = Stopwatch::start();
    let skewed = spread();
    // At most 1.3 times the mean.
    let none_has_more = |flows: [u64; 3]| flows.iter().all(|it| it * 3 * 10 <= KUBELETS * 13);
    let is_even = |flows: [u64; 3]| flows.iter().sum::<u64>() == KUBELETS && none_has_more(flows);
    eventually(secs(120), "no backend has more than 1.3 times its share", || is_even(spread()));
    println!("kubelets: after a rolling restart {skewed:?} of them, {:?} after {:?}", spread(), restarted.elapsed());
    assert!(!is_even(skewed), "the restart made no skew, so this shows nothing: {skewed:?}");

    // One more renewal of each, on the connection that it has now.
    let moved: Vec<_> = kubelets.iter().map(Kubelet::now).collect();
    for (kubelet, moved) in kubelets.iter().zip(moved) {
        kubelet.wait_renewals(moved, 1, secs(30));
    }
    // Slow start goes on, and moves with it: one that is on its way is at none.
    let later = spread();
    assert!(none_has_more(later), "it stays so: {later:?}");
    eventually(LONG, "and each kubelet has its connection", || is_even(spread()));
    let gaps = kubelets.iter().map(|kubelet| kubelet.longest_gap(stand_in::Moment::default()));
    let longest = gaps.max().expect("there are kubelets");
    println!("kubelets: the longest gap between two renewals of 20, in {:?}, was {longest:?}", started.elapsed());
    // A renewal comes 10 s after the last one has been answered.
    assert!(longest < RENEWAL + secs(3), "{longest:?}");
    drop(kubelets);
    baton.rests();
}

#[test]
fn a_certificate_that_is_expired_or_of_another_name_is_an_error_that_names_it() {
    let Some(lab) = Lab::new("certificates") else { return };
    let certificates = Certificates::make(&lab);
    let _expired = StandIn::start_as(&lab, &certificates, &lab.b1, "expired");
    let _wrong = StandIn::start_as(&lab, &certificates, &lab.b2, "wrong-name");
    let _right = StandIn::start(&lab, &certificates, &lab.b3);
    let baton = lab.baton(&lab.config().https(&certificates.ca()));
    baton.wait_health("b3", "ready", LONG);
    let b = |name: &str| baton.backend(name).unwrap();
    for (name, word) in [("b1", "expired"), ("b2", "wrong.example")] {
        eventually(LONG, &format!("{name} is not ready"), || b(name)["cause"]["kind"] == "tls");
        assert_ne!(b(name)["health_state"], "ready");
        println!("{name}: {}", b(name)["why"]);
        assert!(b(name)["why"].as_str().unwrap().contains(word), "{}", b(name)["why"]);
    }
    assert_eq!(baton.serving(&lab.client.connect(lab.lb.v4(6443))), "b3");
}
