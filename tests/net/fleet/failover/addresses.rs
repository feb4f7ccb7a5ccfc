//! The fate of an address that proxied flows still need: it leaves a process that has just started, a reload has
//! removed it from the file, or it has a label.

use std::net::TcpListener;
use std::os::fd::AsRawFd;

use super::*;

/// The owner's process is killed, and another one started by the words of a command that becomes it.
fn restart_by(fleet: &mut Fleet, wrapper: &[&str]) {
    let owner = &mut fleet.all[0];
    owner.baton = Baton::start_by(wrapper, &owner.host, &owner.directory);
}

/// The owner's process is started anew on a host where nft takes 6 s.
fn with_a_slow_nft(fleet: &mut Fleet) {
    let slow = fleet.owner().directory.join("slow");
    std::fs::create_dir(&slow).unwrap();
    std::fs::write(slow.join("nft"), "#!/bin/sh\nexec sleep 6\n").unwrap();
    std::fs::set_permissions(slow.join("nft"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fleet.all[0].baton.process.kill();
    let path = format!("PATH={}:{}", slow.display(), std::env::var("PATH").unwrap());
    restart_by(fleet, &["env", &path]);
}

fn kept_on_lo(instance: &Instance) -> bool {
    instance.host.has_on_lo(VIP)
}

/// A file that says 10.77.0.77 where it said the VIP.
fn without_the_vip(instance: &Instance) {
    instance.host.run("ip address replace 10.77.0.77/32 dev lo");
    instance.reload_with(VIP, "10.77.0.77");
}

fn goes_on_at_the_heir(fleet: &Fleet, conn: &mut Conn) {
    fleet.heir().wait_sees("lb-a", "flows", 1);
    fleet.take(fleet.heir());
    conn.echo(2, 1000);
    conn.echo(3, 100_000);
    assert_eq!(fleet.owner().baton.flow_count(), 1);
}

/// Regression: clients hung. An address that Baton had not seen on this host was not kept for its flows, and the first
/// look came after a call of nft.
#[test]
fn an_address_that_leaves_while_nftables_is_slow_is_kept_for_flows_that_have_just_begun() {
    let test = "an_address_that_leaves_while_nftables_is_slow";
    let Some(mut fleet) = Fleet::new(test, 2, Flows::Kept, |config| config).map(Fleet::with_owner) else { return };
    with_a_slow_nft(&mut fleet);
    fleet.wait_served();
    let mut conn = fleet.scene.lab.client.connect(fleet.vip);
    conn.echo(1, 100);
    fleet.remove_vip(fleet.owner());
    goes_on_at_the_heir(&fleet, &mut conn);
}

/// Likewise: the listener outlived the process before, as with systemd's store of descriptors. It is a blocking one, as those of a
/// socket unit are; found as a worker that was stuck in accept(2).
#[test]
fn an_address_that_left_before_a_process_got_its_listeners_is_kept_for_who_waits_there() {
    let test = "an_address_that_left_before_a_process_got_its_listeners";
    let Some(mut fleet) = Fleet::new(test, 2, Flows::Kept, |config| config).map(Fleet::with_owner) else { return };
    fleet.all[0].baton.process.kill();
    let listener = fleet.owner().host.enter(|| TcpListener::bind(fleet.vip).unwrap());
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    let mut conn = fleet.scene.lab.client.connect(fleet.vip);
    conn.send(1, 100).unwrap();
    fleet.remove_vip(fleet.owner());
    let script = format!("export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\" 3<&{}", listener.as_raw_fd());
    restart_by(&mut fleet, &["bash", "-c", &script, "bash"]);
    drop(listener);
    assert_eq!(conn.read_tally(100).unwrap(), Tally::of_pattern(1, 100));
    goes_on_at_the_heir(&fleet, &mut conn);
}

/// As above, when a reload brings the address.
#[test]
fn an_address_that_a_reload_has_just_brought_is_kept_while_nftables_is_slow() {
    let test = "an_address_that_a_reload_has_just_brought";
    let Some(mut fleet) = Fleet::new(test, 2, Flows::Kept, |config| config).map(Fleet::with_owner) else { return };
    without_the_vip(fleet.owner());
    with_a_slow_nft(&mut fleet);
    fleet.owner().baton.wait_until_ready();
    fleet.owner().reload_with("10.77.0.77", VIP);
    fleet.wait_served();
    let mut conn = fleet.scene.lab.client.connect(fleet.vip);
    conn.echo(1, 100);
    fleet.remove_vip(fleet.owner());
    goes_on_at_the_heir(&fleet, &mut conn);
}

/// Regression: clients hung. Baton forgot an address that the file no longer names, though its flows had until
/// `drain_timeout`.
#[test]
fn flows_of_an_address_that_a_reload_took_away_go_on_when_it_moves_and_are_reset_when_their_host_dies() {
    let test = "flows_of_an_address_that_a_reload_took_away";
    for dies in [false, true] {
        let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config).map(Fleet::with_owner) else { return };
        let mut conns = fleet.clients(3);
        fleet.wait_known(3, 0);
        // One after the other, as people do it.
        fleet.all.iter().for_each(without_the_vip);
        conns.iter_mut().for_each(|conn| conn.echo(2, 100));
        if dies {
            fleet.owner().host.link_down();
            fleet.heir().wait_sees("lb-a", "liveness", "dead");
            fleet.take(fleet.heir());
            println!("reset after {:?}", all_reset(&mut conns));
        } else {
            fleet.remove_vip(fleet.owner());
            fleet.take(fleet.heir());
            conns.iter_mut().for_each(|conn| conn.echo(3, 20_000));
            drop(conns);
            eventually(LONG, "it is given up once they have ended", || !kept_on_lo(fleet.owner()));
        }
    }
}

/// Regression: clients hung. Baton took the label for the interface's name, so it could not silence ARP and kept no
/// address.
#[test]
fn an_address_with_a_label_is_kept_and_so_is_silence_on_every_interface() {
    let test = "an_address_with_a_label";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config) else { return };
    let host = &fleet.owner().host;
    host.run(&format!("ip address add {VIP}/24 dev eth0 label eth0:vip"));
    host.run(
        "ip link add other type veth peer name others && ip link set other up && ip address add 10.99.0.1/24 dev other",
    );
    for interface in ["all", "eth0", "other"] {
        host.sysctl(&format!("net/ipv4/conf/{interface}/arp_ignore"), "0");
    }
    fleet.wait_served();
    let mut conn = fleet.scene.lab.client.connect(fleet.vip);
    conn.echo(1, 100);
    fleet.remove_vip(fleet.owner());
    goes_on_at_the_heir(&fleet, &mut conn);
    for interface in ["eth0", "other"] {
        assert_eq!(host.run(&format!("cat /proc/sys/net/ipv4/conf/{interface}/arp_ignore")).trim(), "1", "{interface}");
    }
}

/// Regression: a host's own clients were refused, and its apiserver got no connection from the new owner, for ever.
#[test]
fn an_address_that_is_kept_is_given_up_by_a_stop_and_by_a_next_process_without_peers() {
    let test = "an_address_that_is_kept_is_given_up_by_a_stop";
    for stopped in [true, false] {
        let stops = |config: Config| config.process("stop_timeout", "1s");
        let Some(mut fleet) = Fleet::new(test, 2, Flows::Kept, stops).map(Fleet::with_owner) else { return };
        let _conns = fleet.clients(2);
        fleet.remove_vip(fleet.owner());
        fleet.take(fleet.heir());
        eventually(LONG, "it is kept", || kept_on_lo(fleet.owner()));
        let process = &mut fleet.all[0].baton.process;
        if stopped {
            process.signal(rustix::process::Signal::TERM);
            eventually(LONG, "it has stopped", || fleet.owner().baton.process.exit_status().is_some());
        } else {
            process.kill();
            assert!(kept_on_lo(fleet.owner()));
            let config = std::fs::read_to_string(&fleet.owner().baton.paths.config).unwrap();
            let mut config: toml::Table = config.parse().unwrap();
            config.remove("peers");
            std::fs::write(&fleet.owner().baton.paths.config, config.to_string()).unwrap();
            restart_by(&mut fleet, &[]);
            fleet.owner().baton.wait_until_ready();
        }
        assert!(!kept_on_lo(fleet.owner()), "stopped: {stopped}");
    }
}

/// Regression: after a process that was killed, the address stayed on `lo` until the next process began. Its kernel dropped what the new owner sent to
/// the apiserver of this host, and answered the host's own clients of the VIP itself.
#[test]
fn an_address_that_a_killed_or_hung_process_kept_goes_by_itself_and_comes_back_with_the_process() {
    for hangs in [false, true] {
        let test = "an_address_that_a_killed_or_hung_process_kept";
        let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config).map(Fleet::with_owner) else { return };
        let mut conns = fleet.clients(2);
        fleet.heir().wait_sees("lb-a", "flows", 2);
        fleet.remove_vip(fleet.owner());
        fleet.take(fleet.heir());
        eventually(LONG, "it is kept", || kept_on_lo(fleet.owner()));
        if hangs {
            wait::throughout(secs(7), "it is kept as long as the process runs", || kept_on_lo(fleet.owner()));
        }
        conns.iter_mut().for_each(|conn| conn.echo(2, 1000));
        let process = &fleet.owner().baton.process;
        match hangs {
            true => process.stop(),
            false => process.kill(),
        }
        eventually(secs(15), "the kernel removes it", || !kept_on_lo(fleet.owner()));
        for conn in &mut conns {
            let (end, ..) = conn.read_end(secs(2));
            assert!(matches!(end, End::Rst | End::Fin), "{end:?}");
        }
        fleet.clients(2);
        if hangs {
            fleet.owner().baton.process.go_on();
            eventually(LONG, "no flow needs it any more", || {
                fleet.owner().baton.flow_count() == 0 && !kept_on_lo(fleet.owner())
            });
        }
    }
}

/// Regression: it was announced once, and a neighbour that lost that frame sent to the former host until its own entry ran out.
#[test]
fn an_address_that_has_come_is_announced_again_for_neighbours_that_lost_the_first_word() {
    let test = "an_address_that_has_come_is_announced_again";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config) else { return };
    let fleet = fleet.with_owner();
    let client = &fleet.scene.lab.client;
    client.nft("table arp heard {\n chain input {\n type filter hook input priority 0;\n }\n}\n");
    client.nft(&format!("add rule arp heard input arp saddr ip {VIP} arp daddr ip {VIP} counter\n"));
    fleet.remove_vip(fleet.owner());
    // If both hosts seem to have it, it is announced anew once the other has left.
    fleet.heir().wait_sees("lb-a", "vips", serde_json::json!([]));
    fleet.take(fleet.heir());
    let heard = || {
        let said = client.run("nft list table arp heard");
        let count = said.split("packets ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        count.unwrap_or_else(|| panic!("{said}"))
    };
    // Each time by a question and by an answer.
    eventually(LONG, "it is announced four times", || heard() >= 8);
    wait::throughout(secs(3), "and then no more", || heard() == 8);
}
