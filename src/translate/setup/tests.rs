use std::path::Path;

use super::*;
use crate::config;

const HOST: &[(&str, &str)] = &[("lo", "127.0.0.1/8"), ("eth0", "10.0.0.11/24"), ("eth1", "192.168.1.11/24")];
const MANIFEST: &str = "spec:\n  containers:\n  - command:\n    - kube-apiserver\n    - --advertise-address=10.0.0.11\n    - --secure-port=6443\n";

/// A host with these files, whose routes lead to its networks only.
fn host(files: &[(&str, &str)], authorities: &[&str]) -> SetupHost {
    host_of(HOST, files, authorities)
}

fn host_of(networks: &[(&str, &str)], files: &[(&str, &str)], authorities: &[&str]) -> SetupHost {
    let networks: Vec<(String, IpNet)> =
        networks.iter().map(|(name, network)| ((*name).to_owned(), network.parse().unwrap())).collect();
    let known = networks.clone();
    let route = move |to: IpAddr| {
        let (name, network) = known.iter().find(|(_, network)| network.contains(&to))?;
        Some(HostRoute { interface: name.clone(), source: network.addr() })
    };
    let file = |(name, text): &(&str, &str)| ForeignFile { name: (*name).to_owned(), text: (*text).to_owned() };
    SetupHost {
        networks,
        route: Box::new(route),
        files: files.iter().map(file).collect(),
        authorities: authorities.iter().map(|path| (*path).to_owned()).collect(),
    }
}

fn ips(all: &[&str]) -> Vec<IpAddr> {
    all.iter().map(|ip| ip.parse().unwrap()).collect()
}

fn request(vips: &[&str], peers: &[&str]) -> SetupRequest {
    SetupRequest { vips: ips(vips), peers: ips(peers), ..SetupRequest::default() }
}

/// The plan's file by the daemon's own loader, with a key beside it and a CA that it need not read.
fn loaded(plan: &SetupPlan) -> config::Config {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("peers.key"), config::PeerKey([7; 32]).spell()).unwrap();
    let text: String = plan
        .toml
        .lines()
        .map(|line| if line.starts_with("ca_file") { "insecure_skip_verify = true" } else { line })
        .flat_map(|line| [line, "\n"])
        .collect();
    let loaded = config::parse(&text, &directory.path().join("baton.toml"));
    loaded.unwrap_or_else(|rejected| panic!("{}\n{text}", rejected.render(false))).config
}

fn said(plan: &SetupPlan) -> Vec<String> {
    plan.facts.iter().map(|fact| format!("{}: {} ({})", fact.key, fact.value, fact.place)).collect()
}

#[test]
fn three_kubeadm_hosts_get_the_same_fleet_each_with_its_own_place() {
    let all = ["10.0.0.11", "10.0.0.12", "10.0.0.13"];
    let mut fleets = Vec::new();
    for (slot, own) in all.iter().enumerate() {
        let networks = [("lo", "127.0.0.1/8".to_owned()), ("eth0", format!("{own}/24"))];
        let networks: Vec<_> = networks.iter().map(|(name, network)| (*name, &**network)).collect();
        let manifest = MANIFEST.replace("10.0.0.11", own);
        let host = host_of(&networks, &[(KUBEADM_MANIFEST, &manifest)], &[KUBEADM_CA]);
        let others: Vec<_> = all.iter().copied().filter(|ip| ip != own).collect();
        let by_peers = plan(&request(&["10.0.0.100"], &others), &host).unwrap();
        let by_hosts = SetupRequest { hosts: ips(&all), ..request(&["10.0.0.100"], &[]) };
        let strip =
            |toml: &str| toml.lines().map(|line| line.split("  #").next().unwrap().to_owned()).collect::<Vec<_>>();
        assert_eq!(strip(&by_peers.toml), strip(&plan(&by_hosts, &host).unwrap().toml));
        let config = loaded(&by_peers);
        assert_eq!(config.instance.slot, Some(slot as u8));
        let peers = config.peers.unwrap();
        let mut names: Vec<_> =
            peers.peers.iter().map(|peer| peer.name.to_string()).chain([peers.name.to_string()]).collect();
        names.sort_unstable();
        fleets.push((
            names,
            strip(&by_peers.toml).split_off(strip(&by_peers.toml).iter().position(|it| it == "[vip]").unwrap()),
        ));
    }
    assert!(fleets.windows(2).all(|two| two[0] == two[1]), "{fleets:?}");
    assert_eq!(fleets[0].0, ["lb-10-0-0-11", "lb-10-0-0-12", "lb-10-0-0-13"]);
}

#[test]
fn each_value_says_its_source() {
    let host = host(&[(KUBEADM_MANIFEST, MANIFEST)], &[KUBEADM_CA]);
    let plan = plan(&request(&["10.0.0.100"], &["10.0.0.12"]), &host).unwrap();
    assert_eq!(
        said(&plan),
        [
            "vip: 10.0.0.100 (--vip)",
            "interface: eth0 (its network, of 10.0.0.11, has 10.0.0.100 in it)",
            "own address: 10.0.0.11 (the route to 10.0.0.12)",
            "peers: 10.0.0.12 (--peers)",
            "slot: 0 (the position of the own address among those of all instances, from 0)",
            "backends: 10.0.0.11:6443, 10.0.0.12:6443 (/etc/kubernetes/manifests/kube-apiserver.yaml: --advertise-address, --secure-port; \
             the peers alike)",
            "port: 6443 (/etc/kubernetes/manifests/kube-apiserver.yaml: --advertise-address, --secure-port)",
            "name: lb-10-0-0-11 (the own address)",
            "health: https /readyz (/etc/kubernetes/pki/ca.crt is there)",
        ]
    );
    assert!(plan.toml.contains("address = \"10.0.0.12:6443\"  # /etc/kubernetes/manifests/"), "{}", plan.toml);
    assert_eq!((plan.ca_file.as_deref(), plan.peers), (Some(KUBEADM_CA), ips(&["10.0.0.12"])));
}

#[test]
fn a_bare_host_expects_an_apiserver_on_each_and_says_that_a_probe_asks_the_kernel_only() {
    let plan = plan(&request(&["10.0.0.100"], &["10.0.0.12"]), &host(&[], &[])).unwrap();
    let config = loaded(&plan);
    assert_eq!(config.frontends[0].backends.len(), 2);
    assert_eq!(config.frontends[0].health.kind, config::ProbeKind::Tcp);
    let health = said(&plan).into_iter().find(|fact| fact.starts_with("health")).unwrap();
    assert!(health.starts_with("health: tcp (no CA is here yet, so a probe asks the kernel only"), "{health}");
}

#[test]
fn a_wrong_address_is_refused_by_its_name() {
    let refused = |request: &SetupRequest| plan(request, &host(&[], &[])).unwrap_err().to_string();
    assert_eq!(
        refused(&request(&["10.0.0.11"], &["10.0.0.12"])),
        "--vip 10.0.0.11 is this host's own address: choose one that no host has; if it is the VIP already, let it be a /32 or /128 there, or the second address of its network"
    );
    assert_eq!(refused(&request(&["127.0.0.9"], &[])), "--vip 127.0.0.9 is no address that can move between hosts");
    for (vip, network) in
        [("10.0.0.255", "10.0.0.0/24"), ("10.0.0.0", "10.0.0.0/24"), ("192.168.1.255", "192.168.1.0/24")]
    {
        assert_eq!(
            refused(&request(&[vip], &["10.0.0.12"])),
            format!(
                "--vip {vip} is no address of a host: in {network} it is the network itself, or the broadcast address"
            )
        );
    }
    assert_eq!(
        refused(&request(&["10.0.0.100"], &["10.0.0.12", "10.0.0.11"])),
        "--peers has 10.0.0.11, an address of this host: --peers names the other hosts only; --hosts names all, the same on each"
    );
    assert_eq!(
        refused(&request(&["10.0.0.100"], &["10.0.0.100"])),
        "10.0.0.100 is the VIP and a host's own address as well"
    );
    assert_eq!(refused(&request(&["10.0.0.100"], &["172.16.0.1"])), "this host has no route to 172.16.0.1");
    assert_eq!(
        refused(&request(&["172.16.0.100"], &["10.0.0.12"])),
        "no network of this host has 172.16.0.100 in it, and no route leads there: name the interface with --interface"
    );
    let other = SetupRequest { interface: Some("eth9".to_owned()), ..request(&["10.0.0.100"], &[]) };
    assert_eq!(refused(&other), "this host has no interface eth9");
    let not_own = SetupRequest { hosts: ips(&["10.0.0.12"]), ..request(&["10.0.0.100"], &[]) };
    assert_eq!(refused(&not_own), "--hosts has no address of this host");
    assert_eq!(refused(&request(&[], &[])), "no file of this host says which address clients know: name it with --vip");
    let bad = SetupRequest { backends: vec!["cp1".to_owned()], ..request(&["10.0.0.100"], &[]) };
    assert_eq!(refused(&bad), "--backends has \"cp1\": expected an address, or a host with a port from 1 to 65535");
    let many: Vec<_> = (20..28).map(|last| format!("10.0.0.{last}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert_eq!(refused(&request(&["10.0.0.100"], &many)), "9 instances: a fleet has at most 8");
}

/// Otherwise hosts with their old files and hosts with new ones have the same slots, and do not link.
/// Each host wrote other backends, and said that the peers are alike.
#[test]
fn an_apiserver_on_another_network_than_the_hosts_is_no_rule_for_its_peers() {
    let manifest = MANIFEST.replace("10.0.0.11", "192.168.1.11");
    let host = host(&[(KUBEADM_MANIFEST, &manifest)], &[]);
    let error = plan(&request(&["10.0.0.100"], &["10.0.0.12"]), &host).unwrap_err().to_string();
    assert!(error.contains("has 192.168.1.11, and the hosts are named by addresses like 10.0.0.11"), "{error}");
    let backends = ["192.168.1.11", "192.168.1.12"].map(str::to_owned).to_vec();
    let named = SetupRequest { backends, ..request(&["10.0.0.100"], &["10.0.0.12"]) };
    assert_eq!(loaded(&plan(&named, &host).unwrap()).frontends[0].backends.len(), 2);
    plan(&request(&["10.0.0.100"], &[]), &host).unwrap();
}

#[test]
fn a_host_that_joins_the_fleet_takes_no_slot_of_another_one() {
    let slot = |own: &str, hosts: &[&str], before: Option<u8>, option: Option<u8>| {
        let networks = [("eth0", format!("{own}/24"))];
        let networks: Vec<_> = networks.iter().map(|(name, network)| (*name, &**network)).collect();
        let text = before.map(|slot| format!("[instance]\nslot = {slot}\n"));
        let before = text.map(|text| ForeignFile { name: "baton.toml".to_owned(), text });
        let asked = SetupRequest { hosts: ips(hosts), slot: option, before, ..request(&["10.0.0.100"], &[]) };
        plan(&asked, &host_of(&networks, &[], &[]))
            .map(|planned| loaded(&planned).instance.slot.unwrap())
            .map_err(|error| error.to_string())
    };
    // 10.0.0.12 joins 10.0.0.11 and 10.0.0.13: each keeps its own, whether its file is new or old.
    let all = ["10.0.0.11", "10.0.0.13", "10.0.0.12"];
    let slots = [("10.0.0.11", Some(0)), ("10.0.0.13", Some(1)), ("10.0.0.12", None)];
    assert_eq!(slots.map(|(own, before)| slot(own, &all, before, None)), [Ok(0), Ok(1), Ok(2)]);
    let in_the_middle = ["10.0.0.11", "10.0.0.12", "10.0.0.13"];
    assert_eq!(
        slot("10.0.0.13", &in_the_middle, Some(1), None).unwrap_err(),
        "baton.toml has slot 1, and 10.0.0.13 has position 2 in --hosts, from 0: add new hosts at the end of --hosts, on each host in \
         the same order, or give the slot by --slot 1; instances of the same slot do not link"
    );
    assert_eq!(slot("10.0.0.13", &in_the_middle, Some(1), Some(1)), Ok(1));
    // --peers has no order in common, so the file decides.
    let before = ForeignFile { name: "baton.toml".to_owned(), text: "[instance]\nslot = 5\n".to_owned() };
    let by_peers = SetupRequest { before: Some(before), ..request(&["10.0.0.100"], &["10.0.0.9"]) };
    assert_eq!(loaded(&plan(&by_peers, &host(&[], &[])).unwrap()).instance.slot, Some(5));
}

/// Baton would connect to itself.
#[test]
fn a_backend_that_is_the_vip_is_refused_by_the_option_that_has_it() {
    let of_options = |backends: &[&str]| SetupRequest {
        backends: backends.iter().map(|text| (*text).to_owned()).collect(),
        ..request(&["10.0.0.100"], &[])
    };
    let refused = |request: &SetupRequest| plan(request, &host(&[], &[])).unwrap_err().to_string();
    let why = "which is the VIP: a backend is an apiserver at the address of its own host";
    assert_eq!(refused(&of_options(&["10.0.0.11", "10.0.0.100"])), format!("--backends has 10.0.0.100:6443, {why}"));
    let text = "[kube_control_plane]\ncp1 ip=10.0.0.100\n".to_owned();
    let inventory = Some(ForeignFile { name: "hosts.ini".to_owned(), text });
    let refused = refused(&SetupRequest { inventory, ..request(&["10.0.0.100"], &[]) });
    assert_eq!(refused, format!("hosts.ini: group kube_control_plane has 10.0.0.100:6443, {why}"));
}

/// The file of a host is the same whether it has the VIP or not.
#[test]
fn a_host_that_has_the_vip_now_is_no_reason_to_refuse_it() {
    let with = [HOST, &[("eth0", "10.0.0.100/32")]].concat();
    let request = request(&["10.0.0.100"], &["10.0.0.12"]);
    let now = plan(&request, &host_of(&with, &[], &[])).unwrap();
    assert_eq!(now.toml, plan(&request, &host(&[], &[])).unwrap().toml);
}

#[test]
fn the_vip_is_found_in_the_clusters_own_files() {
    let kubeconfig = "clusters:\n- cluster:\n    server: https://10.0.0.100:6443\n";
    let files = [(KUBEADM_MANIFEST, MANIFEST), (KUBEADM_CONFIG, kubeconfig)];
    let found = plan(&request(&[], &["10.0.0.12"]), &host(&files, &[])).unwrap();
    assert_eq!(said(&found)[0], "vip: 10.0.0.100 (/etc/kubernetes/admin.conf: server)");
    let k3s = [(K3S_CONFIG, "node-ip: 10.0.0.11\ntls-san:\n  - 10.0.0.11\n  - 10.0.0.100\n")];
    let found = plan(&request(&[], &["10.0.0.12"]), &host(&k3s, &[K3S_CA])).unwrap();
    assert_eq!(said(&found)[0], "vip: 10.0.0.100 (/etc/rancher/k3s/config.yaml: tls-san)");
    assert!(said(&found).contains(&format!("health: https /ping ({K3S_CA} is there)")), "{:?}", said(&found));
    loaded(&found);
    // One of each family is for clients of both.
    let dual = [HOST, &[("eth0", "fd00::11/64")]].concat();
    let k3s = [(K3S_CONFIG, "tls-san: [\"fd00::100\", 10.0.0.100]\n")];
    let found = plan(&request(&[], &["10.0.0.12"]), &host_of(&dual, &k3s, &[K3S_CA])).unwrap();
    assert_eq!(said(&found)[0], "vip: 10.0.0.100, fd00::100 (/etc/rancher/k3s/config.yaml: tls-san)");
    loaded(&found);
    // The endpoint of a cluster without a balancer is an apiserver.
    let own = [(KUBEADM_CONFIG, "clusters:\n- cluster:\n    server: https://10.0.0.11:6443\n")];
    assert!(matches!(plan(&request(&[], &[]), &host(&own, &[])), Err(SetupRefusal::NoVip)));
}

/// Otherwise Baton takes another host's own address when that host reboots.
#[test]
fn an_address_that_may_be_another_host_s_own_is_not_taken_for_the_vip() {
    let k3s = [(K3S_CONFIG, "tls-san: [10.0.0.12, 10.0.0.100]\n")];
    let refused = plan(&request(&[], &[]), &host(&k3s, &[K3S_CA])).unwrap_err().to_string();
    assert_eq!(
        refused,
        "/etc/rancher/k3s/config.yaml: tls-san says that clients know 10.0.0.12, 10.0.0.100: name the one that moves between hosts with --vip"
    );
    let found = plan(&request(&[], &["10.0.0.12"]), &host(&k3s, &[K3S_CA])).unwrap();
    assert_eq!(said(&found)[0], "vip: 10.0.0.100 (/etc/rancher/k3s/config.yaml: tls-san)");
    assert!(found.steps[0].starts_with("make sure that 10.0.0.100 is no host's own address"), "{:?}", found.steps);
    let files = [(KUBEADM_CONFIG, "clusters:\n- cluster:\n    server: https://10.0.0.12:6443\n")];
    assert!(matches!(plan(&request(&[], &["10.0.0.12"]), &host(&files, &[])), Err(SetupRefusal::NoVip)));
}

#[test]
fn clients_keep_their_port_and_the_apiservers_theirs() {
    let ports = |request: &SetupRequest, files: &[(&str, &str)]| {
        let planned = plan(request, &host(files, &[])).unwrap();
        let addresses = planned.toml.lines().filter(|line| line.starts_with("address = ") && !line.contains(":9471\""));
        let are_apiservers = addresses.map(|line| line.contains(":6443\"")).collect::<Vec<_>>();
        (loaded(&planned).frontends[0].listen[0].socket_addr().port(), !are_apiservers.contains(&false))
    };
    let asked = request(&["10.0.0.100"], &["10.0.0.12"]);
    let by_option = SetupRequest { port: Some(8443), ..asked.clone() };
    assert_eq!(ports(&by_option, &[(KUBEADM_MANIFEST, MANIFEST)]), (8443, true));
    let kubeconfig = "clusters:\n- cluster:\n    server: https://10.0.0.100:8443\n";
    let files = [(KUBEADM_MANIFEST, MANIFEST), (KUBEADM_CONFIG, kubeconfig)];
    assert_eq!((ports(&asked, &files), ports(&request(&[], &["10.0.0.12"]), &files)), ((8443, true), (8443, true)));
    // Regression: the port of a name was dropped, and its clients were refused.
    let kubeconfig = "clusters:\n- cluster:\n    server: https://k8s.example.com:8443\n";
    let files = [(KUBEADM_MANIFEST, MANIFEST), (KUBEADM_CONFIG, kubeconfig)];
    assert_eq!(ports(&asked, &files), (8443, true));
    let said = said(&plan(&asked, &host(&files, &[])).unwrap());
    assert!(
        said.iter().any(|line| line == "port: 8443 (/etc/kubernetes/admin.conf: server, k8s.example.com)"),
        "{said:?}"
    );
    // An address of one host is no port of the VIP.
    let kubeconfig = "clusters:\n- cluster:\n    server: https://10.0.0.12:7443\n";
    assert_eq!(ports(&asked, &[(KUBEADM_MANIFEST, MANIFEST), (KUBEADM_CONFIG, kubeconfig)]), (6443, true));
    let haproxy = "frontend api\nbind *:8443\ndefault_backend b\nbackend b\nserver cp1 10.0.0.21:6443 check\n";
    assert_eq!(ports(&asked, &[(HAPROXY_CONFIG, haproxy)]), (8443, true));
}

#[test]
fn options_that_an_import_would_ignore_are_refused() {
    let haproxy = "listen api\nbind 10.0.0.100:6443\nserver cp1 10.0.0.21:6443 check check-ssl verify required ca-file /etc/pki/ca.crt\n";
    let files = [(HAPROXY_CONFIG, haproxy)];
    let refused = plan(&request(&[], &["10.0.0.12"]), &host(&files, &[])).unwrap_err().to_string();
    assert_eq!(
        refused,
        "--peers counts for nothing where /etc/haproxy/haproxy.cfg is imported: leave it out, or name the VIP with --vip, and \
         /etc/haproxy/haproxy.cfg is not read"
    );
    // A static pod must see the file that the probes need.
    let imported = plan(&request(&[], &[]), &host(&files, &[])).unwrap();
    assert_eq!(imported.ca_file.as_deref(), Some("/etc/pki/ca.crt"), "{}", imported.toml);
}

#[test]
fn k3s_and_rke2_without_a_file_are_known_by_their_ca() {
    for (ca, health) in [(K3S_CA, "https /ping"), (RKE2_CA, "tls")] {
        let found = plan(&request(&["10.0.0.100"], &["10.0.0.12"]), &host(&[], &[ca])).unwrap();
        assert!(said(&found).contains(&format!("health: {health} ({ca} is there)")), "{:?}", said(&found));
        let named = SetupRequest { ca_file: Some(ca.to_owned()), ..request(&["10.0.0.100"], &["10.0.0.12"]) };
        let named = plan(&named, &host(&[], &[ca])).unwrap();
        assert!(said(&named).contains(&format!("health: {health} (--ca-file)")), "{:?}", said(&named));
    }
}

#[test]
fn rke2_gets_a_frontend_for_its_supervisor() {
    let files = [(RKE2_CONFIG, "node-ip: 10.0.0.11\n")];
    let plan = plan(&request(&["10.0.0.100"], &["10.0.0.12"]), &host(&files, &[RKE2_CA])).unwrap();
    let config = loaded(&plan);
    let listens: Vec<_> = config.frontends.iter().map(|it| it.listen[0].socket_addr().port()).collect();
    assert_eq!(listens, [6443, 9345]);
    assert!(config.frontends.iter().all(|it| it.health.kind == config::ProbeKind::Tls));
    assert!(plan.toml.contains("address = \"10.0.0.12:9345\""), "{}", plan.toml);
}

#[test]
fn without_a_vip_haproxys_files_are_imported_and_with_one_its_servers_are_the_backends() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/migration");
    let text = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let (haproxy, keepalived) = (text("kubeadm.cfg"), text("unicast-keepalived.conf"));
    let files = [(HAPROXY_CONFIG, &*haproxy), (KEEPALIVED_CONFIG, &*keepalived)];
    let imported = plan(&request(&[], &[]), &host(&files, &[])).unwrap();
    assert!(imported.toml.contains("key_file = \"peers.key\""), "{}", imported.toml);
    assert!(!imported.peers.is_empty());
    assert!(said(&imported)[0].ends_with("without an equal (/etc/haproxy/haproxy.cfg)"), "{:?}", said(&imported));
    loaded(&imported);
    let named = plan(&request(&["10.0.0.100"], &["10.0.0.12"]), &host(&files, &[])).unwrap();
    assert!(said(&named).iter().any(|fact| fact.ends_with("(/etc/haproxy/haproxy.cfg: server)")), "{:?}", said(&named));
    // Regression: HAProxy had asked for /healthz, and Baton asked the kernel only.
    assert_eq!(loaded(&named).frontends[0].health.kind, config::ProbeKind::Https, "{}", named.toml);
    assert!(
        named.toml.contains("path = \"/healthz\"") && named.toml.contains("insecure_skip_verify = true"),
        "{}",
        named.toml
    );
    let told = "health: https /healthz (/etc/haproxy/haproxy.cfg: its check, which takes any certificate; once";
    assert!(said(&named).iter().any(|fact| fact.starts_with(told)), "{:?}", said(&named));
    let with_ca =
        SetupRequest { ca_file: Some("/etc/baton/ca.crt".to_owned()), ..request(&["10.0.0.100"], &["10.0.0.12"]) };
    let with_ca = plan(&with_ca, &host(&files, &[])).unwrap();
    assert!(with_ca.toml.contains("path = \"/readyz\"") && !with_ca.toml.contains("insecure"), "{}", with_ca.toml);
}

/// Regression: the CA of k3s was said not to be there yet, where `data-dir` says that it is in another place.
#[test]
fn a_data_dir_is_named_where_the_ca_is_not_in_the_usual_place() {
    let k3s = (K3S_CONFIG, "tls-san: 10.0.0.100\ndata-dir: /srv/k3s\n");
    let planned = plan(&request(&[], &["10.0.0.12"]), &host(&[k3s], &[])).unwrap();
    let health = said(&planned).into_iter().find(|fact| fact.starts_with("health")).unwrap();
    assert!(health.contains("by --ca-file /srv/k3s/server/tls/server-ca.crt"), "{health}");
}

/// They were in `baton import` alone.
#[test]
fn what_is_to_do_after_an_import_is_a_step_of_init_as_well() {
    let reject = "listen api\nbind 10.0.0.100:6443\ntcp-request connection reject if { src -f /etc/haproxy/deny }\n\
                  server a 10.0.0.1:6443 check\n";
    let imported = plan(&request(&[], &[]), &host(&[(HAPROXY_CONFIG, reject)], &[])).unwrap();
    let [admission, _, ledger] = &imported.steps[..] else { panic!("{:?}", imported.steps) };
    assert!(
        admission.contains("set \"allow\" or \"deny\" of frontend api before it serves")
            && ledger.contains("`baton import`"),
        "{:?}",
        imported.steps
    );
}

/// Debian's package of haproxy installs such a file.
#[test]
fn an_haproxy_cfg_without_a_frontend_is_not_made_into_a_file_that_check_rejects() {
    let files = [(HAPROXY_CONFIG, "global\n\tlog /dev/log local0\n\tdaemon\n\ndefaults\n\tmode http\n")];
    let refused = plan(&request(&[], &[]), &host(&files, &[])).unwrap_err().to_string();
    let expected = "/etc/haproxy/haproxy.cfg has no frontend that Baton can write (`baton import /etc/haproxy/haproxy.cfg` says \
                    why): name the VIP with --vip";
    assert_eq!(refused, expected);
    // With a VIP, it is no reason against the apiserver on each host.
    let named = plan(&request(&["10.0.0.100"], &["10.0.0.12"]), &host(&files, &[])).unwrap();
    assert_eq!(loaded(&named).frontends[0].backends.len(), 2, "{}", named.toml);
}

#[test]
fn an_inventory_names_the_backends() {
    let text = "[kube_control_plane]\ncp1 ansible_host=10.0.0.11\ncp2 ansible_host=10.0.0.12\n";
    let file = |text: &str| Some(ForeignFile { name: "hosts.ini".to_owned(), text: text.to_owned() });
    let asked = SetupRequest { inventory: file(text), ..request(&["10.0.0.100"], &[]) };
    let planned = plan(&asked, &host(&[], &[])).unwrap();
    let backends: Vec<_> = loaded(&planned).frontends[0].backends.iter().map(|it| it.name.to_string()).collect();
    assert_eq!(backends, ["cp1", "cp2"]);
    // A host in the group's old name and in its new one is one host.
    let both = "[kube-master]\ncp1 ip=10.0.0.11\n[kube_control_plane]\ncp1\n";
    let both = plan(&SetupRequest { inventory: file(both), ..asked.clone() }, &host(&[], &[])).unwrap();
    assert_eq!(loaded(&both).frontends[0].backends.len(), 1, "{}", both.toml);
    let empty = SetupRequest { inventory: file("[kube_node]\nw1\n"), ..asked };
    let refused = plan(&empty, &host(&[], &[])).unwrap_err().to_string();
    assert_eq!(refused, "hosts.ini has no host in the group kube_control_plane");
}

#[test]
fn a_node_local_instance_listens_on_loopback_beside_an_apiserver_on_another_port() {
    let asked = |backends: &[&str]| SetupRequest {
        is_node_local: true,
        backends: backends.iter().map(|text| (*text).to_owned()).collect(),
        ..SetupRequest::default()
    };
    let local = |files: &[(&str, &str)]| {
        let config =
            loaded(&plan(&asked(&["10.0.0.11", "10.0.0.12:7443", "cp3.example.com:6443"]), &host(files, &[])).unwrap());
        assert!(config.vip.is_none() && config.peers.is_none());
        assert_eq!((config.process.workers, config.offload.mode), (Some(1), config::OffloadMode::Off));
        assert_eq!(config.frontends[0].backends.len(), 3);
        config.frontends[0].listen[0].socket_addr().to_string()
    };
    assert_eq!(local(&[]), "127.0.0.1:6443");
    assert_eq!(local(&[(KUBEADM_MANIFEST, MANIFEST)]), "127.0.0.1:7445");
    let refused = plan(&asked(&[]), &host(&[], &[])).unwrap_err().to_string();
    assert_eq!(refused, "no file of this host names an apiserver: name them with --backends or --inventory");
}

#[test]
fn the_peers_of_a_node_local_instance_are_the_apiservers_where_this_host_has_none() {
    let asked = SetupRequest { is_node_local: true, ..request(&[], &["10.0.0.12", "10.0.0.13"]) };
    let planned = plan(&asked, &host(&[], &[])).unwrap();
    let backends = "backends: 10.0.0.12:6443, 10.0.0.13:6443 (--peers; no file here names an apiserver of this host)";
    assert!(said(&planned).contains(&backends.to_owned()), "{:?}", said(&planned));
    assert!(loaded(&planned).peers.is_none());
}

/// Its key went to nobody, and on the host that joins the key of a running fleet was to be overwritten.
#[test]
fn the_hosts_that_baton_s_file_before_does_not_name_are_new() {
    let of = |hosts: &[&str], before: Option<&str>| {
        let before = before.map(|text| ForeignFile { name: "b".to_owned(), text: text.to_owned() });
        plan(&SetupRequest { hosts: ips(hosts), before, ..request(&["10.0.0.100"], &[]) }, &host(&[], &[])).unwrap()
    };
    let two = of(&["10.0.0.11", "10.0.0.12"], None);
    assert_eq!(two.new_peers, ips(&["10.0.0.12"]));
    let three = of(&["10.0.0.11", "10.0.0.12", "10.0.0.13"], Some(&two.toml));
    assert_eq!((three.new_peers, three.peers), (ips(&["10.0.0.13"]), ips(&["10.0.0.12", "10.0.0.13"])));
}

#[test]
fn a_host_that_is_named_twice_is_refused() {
    let twice = SetupRequest { hosts: ips(&["10.0.0.11", "10.0.0.11"]), ..request(&["10.0.0.100"], &[]) };
    let refused = |request: &SetupRequest| plan(request, &host(&[], &[])).unwrap_err().to_string();
    assert_eq!(refused(&twice), "--hosts has 10.0.0.11 twice: name each host once");
    let peers = request(&["10.0.0.100"], &["10.0.0.12", "10.0.0.12"]);
    assert_eq!(refused(&peers), "--peers has 10.0.0.12 twice: name each host once");
}

#[test]
fn a_directory_beside_the_file_of_rke2_counts_without_the_file_too() {
    let beside = ("/etc/rancher/rke2/config.yaml.d/10.yaml", "https-listen-port: 7443\ntls-san: [10.0.0.100]\n");
    let planned = plan(&request(&[], &["10.0.0.12"]), &host(&[beside], &[RKE2_CA])).unwrap();
    assert!(said(&planned)[0].ends_with("(/etc/rancher/rke2/config.yaml.d/10.yaml: tls-san)"), "{:?}", said(&planned));
    assert_eq!(loaded(&planned).frontends[0].listen[0].socket_addr().to_string(), "10.0.0.100:7443");
}

#[test]
fn the_key_that_init_makes_is_no_step_of_the_operator_s() {
    let haproxy = (HAPROXY_CONFIG, "listen api\nmode tcp\nbind *:6443\nserver cp1 10.0.0.21:6443\n");
    let keepalived = (
        KEEPALIVED_CONFIG,
        "vrrp_instance A {\ninterface eth0\nvirtual_router_id 5\nunicast_src_ip 10.0.0.11\nunicast_peer {\n10.0.0.12\n}\nvirtual_ipaddress {\n10.0.0.100\n}\n}\n",
    );
    let planned = plan(&request(&[], &[]), &host(&[haproxy, keepalived], &[])).unwrap();
    assert_eq!((planned.peers.len(), planned.steps.iter().any(|step| step.contains("genkey"))), (1, false));
}

/// Baton was given 127.0.0.1:7445, which no client there uses, and the agent itself as an apiserver.
#[test]
fn an_agent_of_k3s_or_rke2_has_no_apiserver_and_a_balancer_of_its_own() {
    let asked = |port| SetupRequest {
        is_node_local: true,
        backends: vec!["10.0.0.12:6443".to_owned()],
        port,
        ..SetupRequest::default()
    };
    let refused = |port, host: &SetupHost| plan(&asked(port), host).unwrap_err().to_string();
    let config = [(RKE2_CONFIG, "server: https://10.0.0.100:9345\n")];
    assert_eq!(
        refused(None, &host(&config, &[])),
        "this host is an agent of RKE2 (/etc/rancher/rke2/config.yaml has \"server\", and /var/lib/rancher/rke2/server/tls/server-ca.crt \
         is not there). It has no apiserver, and its kubelet always connects to the agent's own balancer on 127.0.0.1, port 6444 and \
         6443; Baton balances for it at a VIP that `server` of each agent names. For other clients of this host, give a free port by --port"
    );
    // k3s' agents need no file of their own.
    let k3s = host(&[], &[K3S_AGENT_CA]);
    assert!(refused(None, &k3s).contains("an agent of k3s (") && refused(Some(6444), &k3s).contains("port 6444;"));
    let moved = host(&[(K3S_CONFIG, "lb-server-port: 6544\n")], &[K3S_AGENT_CA]);
    assert!(refused(Some(6544), &moved).contains("port 6544;"));
    let planned = plan(&asked(Some(7443)), &k3s).unwrap();
    assert_eq!(loaded(&planned).frontends[0].listen[0].socket_addr().to_string(), "127.0.0.1:7443");
    assert!(said(&planned).contains(&format!("health: https /ping ({K3S_AGENT_CA} is there)")), "{:?}", said(&planned));
    // A server that has joined another one has the same key.
    let server = host(&config, &[RKE2_CA, RKE2_AGENT_CA]);
    assert_eq!(loaded(&plan(&asked(None), &server).unwrap()).frontends[0].listen[0].socket_addr().port(), 7445);
    let with_vip = plan(&request(&["10.0.0.100"], &["10.0.0.12"]), &host(&config, &[RKE2_AGENT_CA])).unwrap();
    assert!(
        said(&with_vip).iter().any(|fact| fact.contains("no file here names an apiserver")),
        "{:?}",
        said(&with_vip)
    );
}

/// The first frontend was taken, be it that of an ingress, and backup servers got as many clients as the others.
#[test]
fn the_apiservers_of_an_haproxy_cfg_are_those_of_port_6443_without_backup_and_disabled_ones() {
    let of = |text: &str| {
        let planned = plan(&request(&["10.0.0.100"], &["10.0.0.12"]), &host(&[(HAPROXY_CONFIG, text)], &[]));
        planned.map_err(|error| error.to_string())
    };
    let web = "listen web\nmode tcp\nbind *:443\nserver w1 10.0.0.31:443\n";
    let api = "listen api\nmode tcp\nbind *:8443\nserver cp1 10.0.0.21:6443\nserver cp2 10.0.0.22:6443 backup\n\
               server cp3 10.0.0.23:6443 disabled\n";
    let planned = of(&format!("{web}{api}")).unwrap();
    let told = said(&planned);
    let place = "(/etc/haproxy/haproxy.cfg: server; backup or disabled, so left out: cp2, cp3)";
    assert!(told.contains(&format!("backends: 10.0.0.21:6443 {place}")), "{told:?}");
    assert!(told.contains(&"port: 8443 (/etc/haproxy/haproxy.cfg: bind)".to_owned()), "{told:?}");
    let candidates = "name the apiservers by --backends; its frontends with servers are web (port 443: 10.0.0.31:443)";
    assert!(of(web).unwrap_err().ends_with(candidates), "{:?}", of(web));
    assert!(
        of(&format!("{api}{}", api.replace("api", "other").replace("8443", "9443")))
            .unwrap_err()
            .contains("several frontends")
    );
    let template = "listen api\nmode tcp\nbind *:8443\nserver-template cp 3 api.example.com:6443 check\n";
    assert!(of(template).unwrap_err().contains("names servers by server-template"), "{:?}", of(template));
    let beside = template.replace("server-template", "server cp0 10.0.0.20:6443\nserver-template");
    assert!(of(&beside).unwrap_err().contains("names servers by server-template"), "{:?}", of(&beside));
    let file = ForeignFile { name: "h".to_owned(), text: template.to_owned() };
    let lines = translate(&file, None).ledgers[0].lines().to_vec();
    assert!(lines[3].changes_behaviour() && lines[3].notes[0].words.contains("[frontend.discover]"), "{:?}", lines[3]);
}

/// Regression: port 6444 of https-listen-port was said to come from node-ip, and a VIP of config.yaml from the file that adds to it.
#[test]
fn each_value_of_k3s_names_the_file_and_the_key_that_have_it() {
    const DROP_IN: &str = "/etc/rancher/k3s/config.yaml.d/10-x.yaml";
    let text = "tls-san: 10.0.0.100\nhttps-listen-port: 6444\nnode-ip: 10.0.0.11\n";
    let one = said(&plan(&request(&[], &[]), &host(&[(K3S_CONFIG, text)], &[])).unwrap());
    let has = |all: &[String], fact: &str| assert!(all.iter().any(|it| it == fact), "{fact}: {all:#?}");
    has(&one, "port: 6444 (/etc/rancher/k3s/config.yaml: https-listen-port)");
    has(&one, "backends: 10.0.0.11:6444 (/etc/rancher/k3s/config.yaml: node-ip, https-listen-port; the peers alike)");
    let first = "tls-san: [10.0.0.100]\nserver: https://10.0.0.100:6443\n";
    let files = [(K3S_CONFIG, first), (DROP_IN, "tls-san+: [10.0.0.11]\nadvertise-address: 10.0.0.11\n")];
    let two = said(&plan(&request(&[], &[]), &host(&files, &[K3S_CA])).unwrap());
    has(&two, "vip: 10.0.0.100 (/etc/rancher/k3s/config.yaml: tls-san)");
    has(&two, "port: 6443 (Kubernetes' default)");
}

/// Regression: what k3s' installer was given by INSTALL_K3S_EXEC stands in the unit alone, and the VIP was asked for.
#[test]
fn flags_of_the_unit_count_more_than_the_files_of_k3s() {
    const UNIT: &str = "/etc/systemd/system/k3s.service";
    let flags = r#"{"tls-san":["10.0.0.100"],"https-listen-port":["6444"]}"#;
    let told = said(&plan(&request(&[], &[]), &host(&[(UNIT, flags)], &[K3S_CA])).unwrap());
    assert!(told.contains(&format!("vip: 10.0.0.100 ({UNIT}: tls-san)")), "{told:#?}");
    assert!(told.contains(&format!("port: 6444 ({UNIT}: https-listen-port)")), "{told:#?}");
    let both = [(K3S_CONFIG, "https-listen-port: 7443\nnode-ip: 10.0.0.11\n"), (UNIT, flags)];
    let told = said(&plan(&request(&[], &[]), &host(&both, &[K3S_CA])).unwrap());
    assert!(told.contains(&format!("port: 6444 ({UNIT}: https-listen-port)")), "{told:#?}");
}

/// Regression: a host of an inventory that has an IPv6 address as its name led to `invalid value for "name"`, and to no file.
#[test]
fn a_host_of_an_inventory_has_a_name_that_baton_takes() {
    let text = "[kube_control_plane]\nfd00::13 ip=10.0.0.13\nfd00--13 ip=10.0.0.14\ncp1 ip=10.0.0.15\n".to_owned();
    let inventory = Some(ForeignFile { name: "hosts.ini".to_owned(), text });
    let plan = plan(&SetupRequest { inventory, ..request(&["10.0.0.100"], &[]) }, &host(&[], &[])).unwrap();
    let names: Vec<_> = loaded(&plan).frontends[0].backends.iter().map(|it| it.name.to_string()).collect();
    assert_eq!(names, ["fd00--13", "fd00--13-2", "cp1"]);
}
