//! The same drill against the usual setup of clusters: a pair of haproxy with keepalived, once with the settings of
//! kubeadm's guide to high availability, once with those of an expert on both. Its figures are beside Baton's in
//! docs/drill.md.

use super::*;

/// Longer than a kubelet needs to notice that no one answers: 30 s until it pings, 15 s for the answer, and then to
/// connect.
const UNTIL_PINGED: std::time::Duration = secs(55);

#[derive(Clone, Copy, Debug)]
enum Settings {
    Guide,
    /// Checks and adverts as often as Baton's defaults have them, and flows of a dead server are ended.
    Tuned,
}

/// Two hosts with haproxy and keepalived before two apiserver stand-ins, and kubelets at the VIP.
struct Pair {
    lab: Lab,
    settings: Settings,
    stand_ins: [StandIn; 2],
    haproxy: [Process; 2],
    keepalived: [Process; 2],
    drill: Drill,
}

impl Pair {
    fn new(test: &str, settings: Settings) -> Option<Self> {
        let lab = Lab::new(test)?;
        let certificates = Certificates::make(&lab);
        let stand_ins = [&lab.b1, &lab.b2].map(|host| StandIn::start(&lab, &certificates, host));
        let hosts = [&lab.lb, &lab.client2];
        let haproxy = hosts.map(|host| haproxy(&lab, host, settings));
        let keepalived = [0, 1].map(|number| {
            let process = keepalived(&lab, hosts[number], hosts[1 - number], settings, number == 0);
            if number == 0 {
                let has_it = || hosts[0].has_address(VIP);
                eventually(LONG, "the first has the VIP", has_it);
            }
            process
        });
        let served = format!("curl -sfk --max-time 1 https://{VIP}:6443/readyz >/dev/null && echo served || true");
        eventually(LONG, "the VIP is served", || lab.client.run(&served).contains("served"));
        let drill = kubelets(&lab, &certificates);
        let pair = Self { lab, settings, stand_ins, haproxy, keepalived, drill };
        let connected = || pair.lab.client.run(&format!("ss -Htn state established dst {VIP} | wc -l"));
        eventually(secs(30), "all kubelets are connected", || connected().trim() == KUBELETS.to_string());
        pair.drill.pass(secs(2 * EVERY_S));
        Some(pair)
    }

    /// The drill's verdict when all nodes had time to come back.
    fn verdict(self, fault: &str, time: std::time::Duration) {
        self.drill.pass(time);
        let (verdict, longest) = self.drill.end();
        println!(
            "drill: haproxy and keepalived, {:?}: {fault}: longest gap measured {longest:?}, {} of {KUBELETS} not ready, {} lost \
             their connection",
            self.settings, verdict["not_ready"], verdict["disconnections"]
        );
        assert_eq!(verdict["never"], 0, "{verdict}");
    }
}

fn directory(lab: &Lab, host: &Host) -> PathBuf {
    let directory = lab.directory().join(host.name);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

fn haproxy(lab: &Lab, host: &Host, settings: Settings) -> Process {
    let file = |name: &str| directory(lab, host).join(name).display().to_string();
    let server = match settings {
        Settings::Guide => "inter 2s",
        Settings::Tuned => "inter 1s fall 2 rise 2 on-marked-down shutdown-sessions",
    };
    let [b1, b2] = [&lab.b1, &lab.b2].map(|host| host.v4(6443));
    let text = format!(
        "defaults\nmode tcp\noption redispatch\nretries 1\ntimeout connect 5s\ntimeout client 35s\ntimeout server 35s\n\
         timeout check 10s\n\
         frontend apiserver\nbind *:6443\ndefault_backend apiservers\n\
         backend apiservers\nbalance roundrobin\noption httpchk\nhttp-check connect ssl\nhttp-check send meth GET uri /readyz\n\
         http-check expect status 200\ndefault-server check check-ssl verify none {server}\n\
         server b1 {b1}\nserver b2 {b2}\n"
    );
    std::fs::write(file("haproxy.cfg"), text).unwrap();
    host.spawn(&["haproxy", "-db", "-f", &file("haproxy.cfg")], file("haproxy.log").as_ref())
}

fn keepalived(lab: &Lab, host: &Host, peer: &Host, settings: Settings, first: bool) -> Process {
    let (advert, check) = match settings {
        Settings::Guide => ("1", "interval 3\nweight -2\nfall 10\nrise 2"),
        Settings::Tuned => ("0.1", "interval 0.5\ntimeout 1\nfall 2\nrise 2"),
    };
    let (state, priority) = if first { ("MASTER", 101) } else { ("BACKUP", 100) };
    let text = format!(
        "global_defs {{\nvrrp_version 3\nscript_user root\nenable_script_security\n}}\n\
         vrrp_script check_apiserver {{\nscript \"/usr/bin/curl -sfk --max-time 2 -o /dev/null https://localhost:6443/readyz\"\n{check}\n}}\n\
         vrrp_instance VI_1 {{\nstate {state}\ninterface eth0\nvirtual_router_id 51\npriority {priority}\nadvert_int {advert}\n\
         unicast_src_ip {}\nunicast_peer {{\n{}\n}}\nvirtual_ipaddress {{\n{VIP}/32\n}}\n\
         track_script {{\ncheck_apiserver\n}}\n}}\n",
        host.v4, peer.v4
    );
    crate::vip::run_keepalived(host, &directory(lab, host), &text)
}

/// One fault, with either settings; `time` is how long it takes until every kubelet must have noticed.
fn drill(fault: &str, time: std::time::Duration, strikes: impl Fn(&Pair)) {
    for settings in [Settings::Guide, Settings::Tuned] {
        let Some(pair) = Pair::new("drill haproxy", settings) else { return };
        strikes(&pair);
        pair.verdict(fault, time);
    }
}

#[test]
#[ignore = "figures for docs/drill.md: it wants a machine for itself"]
fn haproxy_when_an_apiserver_is_killed() {
    drill("apiserver killed", secs(20), |pair| pair.stand_ins[0].process.kill());
}

#[test]
#[ignore = "figures for docs/drill.md: it wants a machine for itself"]
fn haproxy_when_an_apiserver_hangs() {
    drill("apiserver hung", UNTIL_PINGED, |pair| pair.stand_ins[0].process.stop());
}

#[test]
#[ignore = "figures for docs/drill.md: it wants a machine for itself"]
fn haproxy_when_an_apiserver_s_host_is_gone() {
    drill("apiserver's host gone", UNTIL_PINGED, |pair| pair.lab.b1.link_down());
}

#[test]
#[ignore = "figures for docs/drill.md: it wants a machine for itself"]
fn haproxy_when_it_is_killed() {
    drill("balancer killed", secs(45), |pair| pair.haproxy[0].kill());
}

#[test]
#[ignore = "figures for docs/drill.md: it wants a machine for itself"]
fn haproxy_when_it_hangs() {
    drill("balancer hung", secs(70), |pair| pair.haproxy[0].stop());
}

#[test]
#[ignore = "figures for docs/drill.md: it wants a machine for itself"]
fn haproxy_when_its_host_is_gone() {
    drill("balancer's host gone", UNTIL_PINGED, |pair| pair.lab.lb.link_down());
}

#[test]
#[ignore = "figures for docs/drill.md: it wants a machine for itself"]
fn haproxy_when_its_host_is_gone_and_the_next_one_drops_what_it_has_not_tracked() {
    drill("balancer's host gone, firewall", UNTIL_PINGED, |pair| {
        drop_untracked(&pair.lab.client2);
        pair.lab.lb.link_down();
    });
}

#[test]
#[ignore = "figures for docs/drill.md: it wants a machine for itself"]
fn haproxy_when_a_host_is_evacuated() {
    drill("host evacuated", UNTIL_PINGED, |pair| {
        pair.keepalived[0].signal(rustix::process::Signal::TERM);
        pair.keepalived[0].wait(LONG);
        pair.drill.pass(secs(5));
        pair.lab.lb.link_down();
    });
}
