//! `baton offload`, the real command.

use std::process::{Command, Output};

use ::baton::offload::program;
use ::baton::sys::bpf;
use serde_json::Value;

use super::life::flow;
use crate::lab::Pinned;

fn baton(pinned: &Pinned, arguments: &[&str]) -> Output {
    let pins = ["--pins", pinned.directory.to_str().unwrap()];
    Command::new(env!("CARGO_BIN_EXE_baton")).arg("offload").args(arguments).args(pins).output().unwrap()
}

/// The state of the link on `lo`; `None`: the kernel has none, and clsact.rs tries the same with filters.
fn linked(pinned: &Pinned) -> Option<bpf::TcxLinkInfo> {
    bpf::has_tcx().then(|| bpf::tcx_link_info(bpf::open_pinned(&pinned.directory.join("link-lo")).unwrap()).unwrap())
}

#[test]
fn what_is_pinned_is_shown_and_taken_away_by_hand() {
    let Some((pinned, program)) = Pinned::load("path", &["lo"]) else { return };
    program.install(&flow(1)).unwrap();
    drop(program);
    let status = baton(&pinned, &["status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!((&status["entries"], &status["flows_max"]), (&2.into(), &1000.into()));
    assert_eq!((&status["links"][0]["interface"], &status["links"][0]["attached"]), (&"lo".into(), &true.into()));
    assert_eq!(status["counters"]["spliced"], 0);
    let text = String::from_utf8(baton(&pinned, &["status"]).stdout).unwrap();
    assert!(text.contains("1 of at most 1,000") && text.contains("lo  attached"), "{text}");

    let refused = baton(&pinned, &["remove"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("would reset 1 flow;"));
    assert!(program::status(&pinned.directory).unwrap().is_some());
    let removed = baton(&pinned, &["remove", "--yes"]);
    assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
    assert!(String::from_utf8_lossy(&removed.stdout).contains("1 flow in it"));
    assert!(!pinned.directory.exists());
    let nothing = baton(&pinned, &["status"]);
    assert!(String::from_utf8_lossy(&nothing.stdout).starts_with("no BPF program of Baton: nothing is pinned"));
}

#[test]
fn a_directory_with_a_strangers_pins_is_left_alone() {
    let Some((pinned, program)) = Pinned::load("path", &[]) else { return };
    drop(program);
    let strange = pinned.directory.join("somebody");
    std::fs::create_dir(&strange).unwrap();
    let refused = baton(&pinned, &["remove", "--yes"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is not Baton's"), "{refused:?}");
    assert!(program::status(&pinned.directory).unwrap().is_some(), "nothing was removed");
    std::fs::remove_dir(&strange).unwrap();
}

#[test]
fn what_another_version_pinned_is_refused_with_what_fixes_it_and_its_program_is_replaced() {
    let Some((pinned, program)) = Pinned::load("path", &["lo"]) else { return };
    program.install(&flow(1)).unwrap();
    drop(program);
    let meta = bpf::Map::open(&pinned.directory.join("meta")).unwrap();
    let (zero, mut raw) = (0u32.to_ne_bytes(), vec![0; meta.value_size()]);
    assert!(meta.look_up(&zero, &mut raw).unwrap());
    let good = raw.clone();
    // Another program of the same layout: its flows go on under this one's.
    raw[16] ^= 1;
    meta.update(&zero, &raw, bpf::Update::Any).unwrap();
    assert!(!program::status(&pinned.directory).unwrap().unwrap().current);
    let before = linked(&pinned);
    let program = pinned.open(&["lo"]).unwrap();
    assert_eq!(program.origin(), program::ProgramOrigin::Replaced);
    assert!(program.entry(&flow(1).ends.key(::baton::model::splice::FlowDirection::ToBackend)).unwrap().is_some());
    let after = linked(&pinned);
    assert!(
        before.zip(after).is_none_or(|(old, new)| new.program_id != old.program_id && new.ifindex == old.ifindex),
        "{before:?} {after:?}"
    );
    assert!(program::status(&pinned.directory).unwrap().unwrap().current);
    drop(program);
    // Another layout.
    let mut raw = good;
    raw[8] = 99;
    meta.update(&zero, &raw, bpf::Update::Any).unwrap();
    let refusal = pinned.open(&["lo"]).unwrap_err().to_string();
    assert!(refusal.contains("layout 99") && refusal.contains("`baton offload remove`"), "{refusal}");
    let status = program::status(&pinned.directory).unwrap().unwrap();
    assert!(!status.recoverable && status.links[0].attached, "its flows go on");
}

#[test]
fn a_program_that_somebody_detached_or_whose_interface_was_made_anew_is_attached_again() {
    let Some(lab) = crate::lab::Lab::new("path") else { return };
    let run = |lines: &str| lab.lb.run(lines);
    run("ip link add spare type veth peer name other; ip link set spare up");
    lab.lb.enter(|| {
        let Some((pinned, mut program)) = Pinned::load("path", &["eth0", "spare"]) else { return };
        assert_eq!(program.fix().unwrap().interfaces, [""; 0]);
        assert_eq!(program.attached().len(), 2);
        run("ip link del spare; ip link add spare type veth peer name other");
        let attached = || {
            program::status(&pinned.directory).unwrap().unwrap().links.iter().map(|l| l.attached).collect::<Vec<_>>()
        };
        assert_eq!(attached(), [true, false]);
        assert_eq!(program.fix().unwrap().interfaces, ["spare"]);
        assert_eq!(attached(), [true, true]);
        run("ip link del spare");
        assert_eq!(program.fix().unwrap().interfaces, [""; 0], "one that is gone is waited for");
        assert_eq!(program.attached().len(), 1);
        run("ip link add spare type veth peer name other");
        assert_eq!(program.fix().unwrap().interfaces, ["spare"]);
        // An interface more, as flows that come by it demand.
        let index = ::baton::sys::netdev::interface("other").unwrap().index;
        program.attach(index).unwrap();
        assert!(program.attached().contains(&index));
        drop(program);
        let program = pinned.open(&[]).unwrap();
        assert_eq!(program.attached().len(), 3, "with none named, what was attached stays so");
    });
}
