//! The program by filters of the qdisc clsact, as on kernels without TCX links.

use ::baton::offload::program::{self, Attachment, OpenError, Program, ProgramOrigin};
use ::baton::sys::bpf::{Map, Update};

use crate::lab::{Host, Lab, Pinned};

/// A program of another agent, which passes every packet on.
const STRANGER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/offload/bpf/sums.o");

fn open(pinned: &Pinned, interfaces: &[&str]) -> Result<Program, OpenError> {
    Program::open_by(&pinned.settings(interfaces), Attachment::Clsact)
}

/// The names of the BPF filters at an interface's ingress, in their order, and the id of the program of each.
fn filters(host: &Host, interface: &str) -> Vec<(String, u32)> {
    let shown = host.run(&format!("tc filter show dev {interface} ingress"));
    let lines = shown.lines().filter(|line| line.contains(" handle "));
    let of = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|word| !word.starts_with("0x"));
        let name = words.nth(1).unwrap_or_default().to_owned();
        (name, words.skip_while(|word| *word != "id").nth(1).and_then(|id| id.parse().ok()).unwrap_or_default())
    };
    lines.map(of).collect()
}

fn names(host: &Host, interface: &str) -> Vec<String> {
    filters(host, interface).into_iter().map(|(name, _)| name).collect()
}

fn add_stranger(host: &Host) {
    host.run(&format!("tc filter add dev eth0 ingress pref 1 bpf da obj {STRANGER} sec classifier"));
}

#[test]
fn the_filter_is_first_outlives_the_process_and_comes_back_when_another_takes_its_place() {
    let Some(lab) = Lab::new("path") else { return };
    lab.lb.enter(|| {
        let Some((pinned, before)) = Pinned::load("path", &[]) else { return };
        drop(before);
        lab.lb.run("tc qdisc add dev eth0 clsact");
        add_stranger(&lab.lb);
        let mut program = open(&pinned, &["eth0"]).unwrap();
        let stranger = "sums.o:[classifier]";
        assert_eq!(names(&lab.lb, "eth0"), ["baton", stranger]);
        assert_eq!((program.attached().len(), program.fix().unwrap().interfaces), (1, vec![]));
        drop(program);
        let link = &program::status(&pinned.directory).unwrap().unwrap().links[0];
        assert!(link.attached && link.by == Some(Attachment::Clsact), "{link:?}");
        let id = filters(&lab.lb, "eth0")[0].1;
        let mut program = open(&pinned, &["eth0"]).unwrap();
        assert_eq!(program.origin(), ProgramOrigin::Recovered);
        assert_eq!(filters(&lab.lb, "eth0")[0], ("baton".to_owned(), id), "the next process finds it");

        add_stranger(&lab.lb);
        assert_eq!(names(&lab.lb, "eth0"), [stranger, "baton", stranger]);
        assert!(!program::status(&pinned.directory).unwrap().unwrap().links[0].attached);
        assert_eq!(program.fix().unwrap().interfaces, ["eth0"]);
        assert_eq!(names(&lab.lb, "eth0"), ["baton", stranger, stranger]);
        lab.lb.run("tc filter del dev eth0 ingress pref 1");
        assert_eq!(program.fix().unwrap().interfaces, ["eth0"]);
        assert_eq!(names(&lab.lb, "eth0"), ["baton"]);
        lab.lb.run("tc qdisc del dev eth0 clsact");
        assert_eq!(program.fix().unwrap().interfaces, ["eth0"]);
        assert_eq!(names(&lab.lb, "eth0"), ["baton"]);
    });
}

#[test]
fn another_version_s_program_is_replaced_in_its_filter() {
    let Some(lab) = Lab::new("path") else { return };
    lab.lb.enter(|| {
        let Some((pinned, before)) = Pinned::load("path", &[]) else { return };
        drop(before);
        drop(open(&pinned, &["eth0"]).unwrap());
        let meta = Map::open(&pinned.directory.join("meta")).unwrap();
        let mut raw = vec![0; meta.value_size()];
        assert!(meta.look_up(&0u32.to_ne_bytes(), &mut raw).unwrap());
        raw[16] ^= 1;
        meta.update(&0u32.to_ne_bytes(), &raw, Update::Any).unwrap();
        let old = filters(&lab.lb, "eth0");
        let mut program = open(&pinned, &["eth0"]).unwrap();
        assert_eq!(program.origin(), ProgramOrigin::Replaced);
        let new = filters(&lab.lb, "eth0");
        assert!(new.len() == 1 && new[0].1 != old[0].1, "{old:?} {new:?}");
        assert_eq!(program.fix().unwrap().interfaces, [""; 0]);
    });
}

#[test]
fn a_removal_takes_the_qdisc_if_baton_made_it_and_nobody_else_uses_it() {
    let Some(lab) = Lab::new("path") else { return };
    lab.lb.enter(|| {
        let Some((pinned, before)) = Pinned::load("path", &[]) else { return };
        drop(before);
        lab.lb.run(
            "ip link add name plain.5 type veth peer name used; ip link set plain.5 up; ip link set used up\n\
             tc qdisc add dev eth0 clsact",
        );
        let program = open(&pinned, &["eth0", "plain.5", "used", "lo"]).unwrap();
        assert_eq!(program.attached().len(), 4);
        drop(program);
        lab.lb.run("tc filter add dev used egress u32 match u32 0 0 classid 1:1; ip link set used down; ip link set used name other");
        assert_eq!(names(&lab.lb, "other"), ["baton"]);
        let removal = program::remove(&pinned.directory).unwrap().unwrap();
        assert!(["eth0", "lo", "plain.5"].iter().all(|name| removal.interfaces.contains(&(*name).to_owned())));
        let qdiscs = |interface| lab.lb.run(&format!("tc qdisc show dev {interface}"));
        for (interface, stays) in [("eth0", true), ("other", true), ("plain.5", false), ("lo", false)] {
            assert_eq!(names(&lab.lb, interface), [""; 0], "{interface}");
            assert_eq!(qdiscs(interface).contains("clsact"), stays, "{interface}: {}", qdiscs(interface));
        }
        // Whoever removes the pins by hand leaves the filter, and a removal finds it.
        drop(open(&pinned, &["eth0"]).unwrap());
        for entry in std::fs::read_dir(&pinned.directory).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() { std::fs::remove_dir(path) } else { std::fs::remove_file(path) }.unwrap();
        }
        std::fs::remove_dir(&pinned.directory).unwrap();
        assert_eq!(names(&lab.lb, "eth0"), ["baton"]);
        assert_eq!(program::remove(&pinned.directory).unwrap().unwrap().interfaces, ["eth0"]);
        assert_eq!(names(&lab.lb, "eth0"), [""; 0]);
    });
}

#[test]
fn one_attachment_stays_when_the_way_changes() {
    let Some(lab) = Lab::new("path") else { return };
    if !lab.lb.enter(::baton::sys::bpf::has_tcx) {
        return;
    }
    lab.lb.enter(|| {
        let Some((pinned, before)) = Pinned::load("path", &[]) else { return };
        drop(before);
        let by =
            || program::status(&pinned.directory).unwrap().unwrap().links.iter().map(|it| it.by).collect::<Vec<_>>();
        for (way, filter) in [(Attachment::Clsact, 1), (Attachment::Tcx, 0), (Attachment::Clsact, 1)] {
            let program = Program::open_by(&pinned.settings(&["eth0"]), way).unwrap();
            assert_eq!((program.attached().len(), by()), (1, vec![Some(way)]));
            assert_eq!(filters(&lab.lb, "eth0").len(), filter);
            assert_eq!(pinned.directory.join("link-eth0").exists(), way == Attachment::Tcx);
        }
    });
}

#[test]
fn another_kind_of_filter_in_the_first_place_is_named() {
    let Some(lab) = Lab::new("path") else { return };
    lab.lb.enter(|| {
        let Some((pinned, before)) = Pinned::load("path", &[]) else { return };
        drop(before);
        lab.lb.run(
            "tc qdisc add dev eth0 clsact\n\
             tc filter add dev eth0 ingress pref 1 protocol all u32 match u32 0 0 classid 1:1",
        );
        let refusal = open(&pinned, &["eth0"]).unwrap_err().to_string();
        assert!(refusal.contains("eth0 has a u32 filter of another program at preference 1"), "{refusal}");
    });
}
