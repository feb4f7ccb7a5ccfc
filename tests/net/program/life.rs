//! The program's life: made, recovered, fixed, taken away.

use std::net::{TcpListener, TcpStream};

use baton::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
use baton::model::ids::FlowId;
use baton::model::splice::{FlowDirection, SocketState, Terms};
use baton::offload::entry::{Action, Egress, Ends, Identity, Splice, Start};
use baton::offload::probe::EntryChange;
use baton::offload::program::{self, Cursor, InstallError, LegAddresses, OpenError, Program, ProgramOrigin};

use crate::lab::{Lab, Pinned};

/// A flow whose client has this number.
pub fn flow(number: u32) -> Splice {
    let client = std::net::Ipv4Addr::from_bits(0x0a00_0000 + number);
    let start = Start { egress: Egress::Interface(1), bytes_before: 7, position: 1000 };
    Splice {
        ends: Ends {
            client: ClientAddr::new((client, 40_000).into()),
            vip: VipAddr::new("192.0.2.1:6443".parse().unwrap()),
            local: LocalAddr::new((std::net::Ipv4Addr::from_bits(0xc000_0201), 1024 + (number % 60_000) as u16).into()),
            backend: BackendAddr::new((std::net::Ipv4Addr::from_bits(0x0b00_0000 + number / 60_000), 6443).into()),
        },
        terms: Terms::default(),
        identity: Identity { id: FlowId(number.into()), accepted_at_ns: 5, connect_us: 6, backend_key: 8 },
        up: start,
        down: start,
        backend_slot: 0,
    }
}

#[test]
fn what_is_pinned_outlives_the_process_and_is_recovered_with_its_flows() {
    let Some((pinned, first)) = Pinned::load("path", &["lo"]) else { return };
    assert_eq!((first.origin(), first.flows_max()), (ProgramOrigin::Fresh, 1000));
    first.install(&flow(1)).unwrap();
    drop(first);

    let status = program::status(&pinned.directory).unwrap().unwrap();
    assert!(status.recoverable && status.current && status.links[0].attached, "{status:?}");
    assert_eq!((status.entries, status.other_actions, status.flows_max), (Some(2), 0, 1000));

    let second = pinned.open(&["lo"]).unwrap();
    assert_eq!(second.origin(), ProgramOrigin::Recovered);
    let ends = flow(1).ends;
    let entry = second.entry(&ends.key(FlowDirection::ToBackend)).unwrap().unwrap();
    assert_eq!(entry, flow(1).entry(FlowDirection::ToBackend));
    assert_eq!(entry.ends(ends.key(FlowDirection::ToBackend)), ends);
    drop(second);

    let removal = program::remove(&pinned.directory).unwrap().unwrap();
    assert_eq!((removal.flows, removal.interfaces), (Some(1), vec!["lo".to_owned()]));
    assert_eq!(program::remove(&pinned.directory).unwrap(), None);
    assert!(!pinned.directory.exists());
    assert_eq!(program::status(&pinned.directory).unwrap(), None);
}

/// In instructions that the kernel's verifier went through: seconds of a busy machine's start, if a loop has them a thousand times.
#[test]
fn the_kernel_has_checked_each_program_soon() {
    let Some((_pinned, _program)) = Pinned::load("checked", &[]) else { return };
    for (name, most) in [("offload", 100_000), ("probe", 5_000), ("amend", 5_000)] {
        let counts = aya::programs::loaded_programs().filter_map(|info| {
            let info = info.ok()?;
            (info.name_as_str() == Some(name)).then(|| info.verified_instruction_count()).flatten()
        });
        // The fewest: another test may just now have the program of an earlier release.
        let count = counts.min().expect("the program is loaded");
        println!("{name}: {count}");
        assert!(count <= most, "the kernel went through {count} instructions of {name}");
    }
}

#[test]
fn a_full_map_refuses_both_directions_and_evicts_nobody() {
    let Some((_pinned, program)) = Pinned::load("path", &[]) else { return };
    let mut installed = 0;
    let refusal = loop {
        match program.install(&flow(installed)) {
            Ok(()) => installed += 1,
            Err(refusal) => break refusal,
        }
    };
    assert!(matches!(refusal, InstallError::Full), "{refusal:?}");
    // The kernel counts large maps per CPU, in lots.
    assert!((1000..1100).contains(&installed), "{installed} flows fit");
    assert_eq!(all(&program).len(), 2 * installed as usize);
    assert!(program.entry(&flow(0).ends.key(FlowDirection::ToBackend)).unwrap().is_some());
    assert!(
        program.entry(&flow(installed).ends.key(FlowDirection::ToClient)).unwrap().is_none(),
        "one direction was left"
    );
    let removed = program.remove(&flow(0).ends).unwrap();
    assert!(removed.up.is_some() && removed.down.is_some());
    program.install(&flow(installed)).unwrap();
    assert!(matches!(program.install(&flow(installed)), Err(InstallError::Exists)));
    assert!(
        program.entry(&flow(installed).ends.key(FlowDirection::ToClient)).unwrap().is_some(),
        "the old one stays whole"
    );
}

fn all(program: &Program) -> Vec<(baton::offload::entry::Key, baton::offload::entry::Entry)> {
    let (mut cursor, mut entries) = (Cursor::default(), Vec::new());
    while program.scan(&mut cursor, 300, &mut entries).unwrap() {}
    entries
}

#[test]
fn entries_are_changed_where_they_are() {
    let Some((_pinned, program)) = Pinned::load("path", &[]) else { return };
    let flows: Vec<_> = (0..100).map(flow).collect();
    flows.iter().for_each(|flow| program.install(flow).unwrap());
    let to_client: Vec<_> =
        flows.iter().map(|flow| (flow.identity.id, flow.ends.key(FlowDirection::ToClient))).collect();
    assert_eq!(program.change_each(&to_client, EntryChange::Commit).unwrap(), 100);
    assert_eq!(program.change_each(&to_client[..70], EntryChange::Interface(9)).unwrap(), 70);
    assert_eq!(program.change_each(&to_client[..1], EntryChange::Reset).unwrap(), 1);
    let [(first, first_key), (second, second_key), .., (_, last_key)] = to_client[..] else { unreachable!() };
    assert_eq!(program.change(second, &[second_key.reversed()], EntryChange::Reset).unwrap(), 0);
    assert_eq!(program.change(first, &[second_key], EntryChange::Reset).unwrap(), 0, "another flow's");
    assert_eq!(program.entry(&second_key).unwrap().unwrap().action, Action::Splice);
    assert_eq!(program.hear(&[second_key]).unwrap(), 1, "whichever flow's");
    let (first, last) = (program.entry(&first_key).unwrap().unwrap(), program.entry(&last_key).unwrap().unwrap());
    assert_eq!((first.action, first.egress, first.committed), (Action::Reset, Egress::Interface(9), true));
    assert_eq!((last.action, last.egress, last.committed), (Action::Splice, Egress::Interface(1), true));
    assert!(!program.entry(&flows[0].ends.key(FlowDirection::ToBackend)).unwrap().unwrap().committed);
}

#[test]
fn a_probe_tells_what_the_kernel_knows_of_many_sockets() {
    let Some((_pinned, program)) = Pinned::load("path", &[]) else { return };
    for ip in ["127.0.0.1", "[::1]"] {
        let listener = TcpListener::bind(format!("{ip}:0")).unwrap();
        let pairs: Vec<_> = (0..40)
            .map(|_| (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap().0))
            .collect();
        let legs: Vec<_> = pairs
            .iter()
            .map(|(near, far)| {
                LegAddresses::backend(
                    LocalAddr::new(near.local_addr().unwrap()),
                    BackendAddr::new(far.local_addr().unwrap()),
                )
            })
            .collect();
        use std::io::Write;
        (&pairs[39].1).write_all(&[0; 1000]).unwrap();
        pairs[39].0.peek(&mut [0; 1000]).unwrap();
        let states = program.probe(&legs).unwrap();
        let states: Vec<_> = states.into_iter().map(Option::unwrap).collect();
        assert_eq!(states.len(), 40);
        let state = states[39];
        assert_eq!(state.state, SocketState::Established);
        assert_eq!((state.unread(), state.unacknowledged(), state.ipv6), (1000, 0, ip != "127.0.0.1"));
        assert_eq!(states[0].unread(), 0);
        assert!(state.room() >= 10_000 && state.path_mtu >= 1280 && state.peer_mss >= 1000 && state.own_mss >= 1000);
        assert!(state.peer_window_scale <= 14 && state.own_window_scale <= 14 && state.sack);
        let timestamps = state.timestamps.expect("on by default");
        assert_eq!(timestamps.per_second, 1000);
        let other = LegAddresses::client(
            ClientAddr::new(pairs[39].0.local_addr().unwrap()),
            VipAddr::new(pairs[39].1.local_addr().unwrap()),
        );
        let other = program.probe(&[other]).unwrap()[0].unwrap();
        assert_eq!((other.snd_nxt, other.write_seq), (state.rcv_nxt, state.rcv_nxt));
        let behind = other.timestamps.unwrap().own.wrapping_sub(timestamps.recent);
        assert!(behind < 60_000, "the peer's clock is {behind} ms from what it last sent");
        // No instance has this one, but a socket listens there.
        let nobody = LegAddresses::client(
            ClientAddr::new("127.0.0.1:1".parse().unwrap()),
            VipAddr::new(listener.local_addr().unwrap()),
        );
        assert_eq!(program.probe(&[nobody]).unwrap(), [None]);
    }
}

#[test]
fn an_interface_that_is_not_there_is_refused_with_what_fixes_it() {
    let Some((pinned, _program)) = Pinned::load("path", &[]) else { return };
    let refusal = pinned.open(&["no-such"]).unwrap_err();
    assert!(matches!(refusal, OpenError::Interface { .. }));
    assert!(refusal.to_string().contains("[offload] interfaces"), "{refusal}");
}

/// Otherwise a restart would reset the flows of this host's own apiserver.
#[test]
fn the_program_stays_on_lo_where_the_file_names_other_interfaces() {
    let Some(lab) = Lab::new("path") else { return };
    lab.lb.enter(|| {
        let Some((pinned, mut first)) = Pinned::load("path", &["eth0"]) else { return };
        first.attach(1).unwrap();
        drop(first);
        let mut second = pinned.open(&["eth0"]).unwrap();
        assert!(second.attached().len() == 2 && second.attached().contains(&1), "{:?}", second.attached());
        second.detach(1).unwrap();
        drop(second);
        assert_eq!(pinned.open(&["eth0"]).unwrap().attached().len(), 1);
    });
}
