//! Clients on the host that is emptied: they reach the VIP by `lo`, also while it is kept there.

use std::sync::atomic::AtomicU64;

use super::*;

/// Regression: Baton served the connections that such clients made after the deadline, and waited half a minute for their end.
#[test]
fn clients_of_the_host_itself_that_come_again_do_not_keep_it_beyond_the_deadline() {
    let test = "clients_of_the_host_itself_that_come_again_do_not_keep_it_beyond_the_deadline";
    let Some(fleet) = Fleet::new(test, 2, Flows::Offload, |config| config) else { return };
    let fleet = fleet.with_owner();
    let (owner, heir) = (fleet.owner(), fleet.heir());
    let mut others = fleet.offloaded_clients(10);
    let (load, served) = (Load::default(), AtomicU64::new(0));
    let come_again = || {
        while !load.over.load(Relaxed) {
            let Ok(mut conn) = owner.host.try_connect(fleet.vip, secs(2)) else {
                std::thread::sleep(ms(10));
                continue;
            };
            while conn.try_echo(1, 1000).is_ok() && !load.over.load(Relaxed) {
                served.fetch_add(1, Relaxed);
                std::thread::sleep(ms(10));
            }
        }
    };
    std::thread::scope(|scope| {
        let _until = Until(&load);
        (0..4).for_each(|_| drop(scope.spawn(come_again)));
        eventually(LONG, "its own clients are served", || owner.baton.flow_count() == 14);
        let evacuation = scope.spawn(|| owner.baton.cli(&["evacuate", "--deadline", "6s", "--json"]));
        fleet.move_when_not_ready();
        // There is no other way to the VIP as long as other flows need it on lo.
        let before = served.load(Relaxed);
        eventually(LONG, "they are served until the deadline", || {
            assert!(!evacuation.is_finished(), "it is over before they were served");
            served.load(Relaxed) > before + 20
        });
        let output = evacuation.join().unwrap();
        let report = Instance::report(&output);
        println!("{report}");
        assert_eq!(report["outcome"], "away", "{report}");
        assert!((6000..8000).contains(&report["took_ms"].as_u64().unwrap()), "{report}");
        let flows = &report["flows"];
        assert!(flows["reset"].as_u64().unwrap() >= 4, "{report}");
        assert_eq!((&flows["proxied_left"], &flows["to_own_backend"]), (&0.into(), &0.into()), "{report}");
        // Nothing holds the VIP on lo any more, and the new owner serves them.
        eventually(LONG, "the VIP has left", || !owner.host.has_on_lo(VIP));
        let own = owner.host.v4.to_string();
        let is_own = |flow: &Value| flow["client"].as_str().is_some_and(|client| client.starts_with(&own));
        let served = || heir.baton.flows().iter().filter(|flow| is_own(flow)).count();
        eventually(LONG, "they are served by the new owner", || served() == 4);
    });
    others.iter_mut().for_each(|conn| conn.echo(9, 3000));
}
