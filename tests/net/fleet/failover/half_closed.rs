//! Flows of which the backend has closed its half, while the client still sends.

use super::*;

/// For 5 s the last owner of an address gets unknown packets; a client repeats a packet from before the end of that
/// time at most 6.4 s later.
const RESET_WITHIN: std::time::Duration = secs(20);

/// Found in a soak: of a killed process's socket the kernel keeps FIN_WAIT2 for a minute. Its host said that it had the connection: the
/// next owner of the VIP sent the client's packets there, where the VIP was no more.
#[test]
fn a_client_that_still_sends_when_its_process_is_killed_and_the_vip_moves_is_reset() {
    let test = "a_client_that_still_sends_when_its_process_is_killed";
    let Some(scene) = Scene::new(test, 2) else { return };
    let closing = [scene.lab.b1.v4(7443), scene.lab.b2.v4(7443)];
    let _servers = [&scene.lab.b1, &scene.lab.b2].map(|host| host.serve_on(host.v4(7443), Behaviour::FinFirst));
    let change = |_, config: Config| config.only(&[]).backend("b1", closing[0]).backend("b2", closing[1]);
    let Some(mut fleet) = Fleet::within(scene, VIP, test, 2, Flows::Kept, change) else { return };
    fleet.take(fleet.owner());
    // The next owner learns of no flow that begins now.
    fleet.all.iter().for_each(|instance| instance.host.drop_packets("input", "tcp dport 9471"));
    fleet.heir().wait_sees("lb-a", "liveness", "unlinked");
    let client = &fleet.scene.lab.client;
    let mut conns: Vec<_> = (0..3).map(|_| client.connect(fleet.vip)).collect();
    conns.iter_mut().for_each(|conn| assert_eq!(conn.end(LONG), End::Fin));
    fleet.owner().baton.process.kill();
    fleet.remove_vip(fleet.owner());
    fleet.take(fleet.heir());
    let owner = &mut fleet.all[0];
    owner.baton = Baton::start_by(&[], &owner.host, &owner.directory);
    fleet.all.iter().for_each(|instance| instance.host.nft_clear());
    fleet.heir().wait_synced("lb-a");
    fleet.owner().wait_synced("lb-b");
    let watch = Stopwatch::start();
    for mut conn in conns {
        let mut sent = 0;
        eventually(RESET_WITHIN.saturating_sub(watch.elapsed()).max(ms(1)), "a client that sends is reset", || {
            sent += 1;
            conn.send(sent, 1).is_err()
        });
    }
    println!("all reset after {:?}", watch.elapsed());
}
