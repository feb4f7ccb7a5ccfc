//! `baton check --host`: what stands against offloaded flows, found where it is.

use ::baton::model::finding::{Finding, Verdict};
use ::baton::offload::preflight;

use crate::lab::{Lab, Pinned};

fn of<'f>(findings: &'f [Finding], topic: &str) -> Vec<&'f Finding> {
    findings.iter().filter(|finding| finding.topic == topic).collect()
}

#[test]
fn a_host_is_looked_at_with_what_fixes_it() {
    let Some(lab) = Lab::new("path") else { return };
    lab.lb.enter(|| {
        let Some((pinned, program)) = Pinned::load("path", &[]) else { return };
        let look = || preflight::look(&pinned.directory, &[lab.lb.v4(6443)], &[lab.b1.v6(6443)], &[]);
        let findings = look();
        assert!(findings.iter().all(|finding| finding.verdict == Verdict::Good), "{findings:#?}");
        assert!(of(&findings, "eth0")[0].read.starts_with("MTU 1500"), "{findings:#?}");
        // A second interface with another MTU, towards other backends, with another program's classifiers.
        lab.lb.run(
            "ip link add wide type veth peer name far; ip link set wide mtu 9000 up; ip link set far up\n\
             ip address add 192.0.2.1/24 dev wide\n\
             tc qdisc add dev wide clsact; tc filter add dev wide ingress u32 match u32 0 0 classid 1:1",
        );
        drop(program);
        let backends = ["192.0.2.9:6443".parse().unwrap()];
        let findings = preflight::look(&pinned.directory, &[lab.lb.v4(6443)], &backends, &[]);
        let wide = of(&findings, "wide")[0];
        assert_eq!(wide.verdict, Verdict::Advice);
        assert!(wide.read.contains("tc filter (u32)") && wide.why.contains("Cilium"), "{wide:?}");
        let mtu = of(&findings, "MTU")[0];
        assert_eq!((mtu.verdict, mtu.fix.as_str()), (Verdict::Advice, "ip link set wide mtu 1500"));
        let named = preflight::look(&pinned.directory, &[], &[], &["no-such".to_owned()]);
        assert_eq!(of(&named, "no-such")[0].verdict, Verdict::Hindrance);
        let unmounted = preflight::look(lab.directory(), &[], &[], &[]);
        assert_eq!(of(&unmounted, "file system")[0].verdict, Verdict::Hindrance);
    });
}
