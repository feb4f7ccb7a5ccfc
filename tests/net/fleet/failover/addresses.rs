//! An address that leaves a process that has just started.

use std::net::TcpListener;
use std::os::fd::AsRawFd;

use super::*;

/// The owner's process is killed, and another one started by the words of a command that becomes it.
fn restart_by(fleet: &mut Fleet, wrapper: &[&str]) {
    let owner = &mut fleet.all[0];
    owner.baton = Baton::start_by(wrapper, &owner.host, &owner.directory);
}

fn goes_on_at_the_heir(fleet: &Fleet, conn: &mut Conn) {
    fleet.heir().wait_sees("lb-a", "flows", 1);
    fleet.take(fleet.heir());
    conn.echo(2, 1000);
    conn.echo(3, 100_000);
    assert_eq!(fleet.owner().baton.flow_count(), 1);
}

/// Found as clients that hung: what had not been seen on this host was not kept for its flows, and the first look came after
/// nftables had been asked for something.
#[test]
fn an_address_that_leaves_while_nftables_is_slow_is_kept_for_flows_that_have_just_begun() {
    let test = "an_address_that_leaves_while_nftables_is_slow";
    let Some(mut fleet) = Fleet::new(test, 2, Flows::Kept, |config| config).map(Fleet::with_owner) else { return };
    let slow = fleet.owner().directory.join("slow");
    std::fs::create_dir(&slow).unwrap();
    std::fs::write(slow.join("nft"), "#!/bin/sh\nexec sleep 6\n").unwrap();
    std::fs::set_permissions(slow.join("nft"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fleet.all[0].baton.process.kill();
    let path = format!("PATH={}:{}", slow.display(), std::env::var("PATH").unwrap());
    restart_by(&mut fleet, &["env", &path]);
    fleet.wait_served();
    let mut conn = fleet.scene.lab.client.connect(fleet.vip);
    conn.echo(1, 100);
    fleet.let_go(fleet.owner());
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
    fleet.let_go(fleet.owner());
    let script = format!("export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\" 3<&{}", listener.as_raw_fd());
    restart_by(&mut fleet, &["bash", "-c", &script, "bash"]);
    drop(listener);
    assert_eq!(conn.read_tally(100).unwrap(), Tally::of_pattern(1, 100));
    goes_on_at_the_heir(&fleet, &mut conn);
}
