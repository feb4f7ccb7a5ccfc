//! One worker of the instance that has the built-in VIP hangs, while the rest of the process works.

use super::built_in::{config, has_vip, owner, places, restart, served_after};
use super::*;
use crate::fleet::Scene;
use crate::lab::{Call, Tracer};

/// The watchdog ends the process after five seconds; the rest is for a busy machine.
const TOLD_WITHIN: std::time::Duration = secs(12);

fn is_work(call: &Call) -> bool {
    ![libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2].contains(&call.number)
}

/// Regression: the VIP left at once, its new owner forwarded the packets of the hung worker's flows to the process that lived, and their
/// clients waited for their own timeouts, or for the service manager where there is one.
#[test]
fn clients_of_a_worker_that_hangs_have_an_end_and_the_other_host_serves_the_built_in_vip() {
    let Some(scene) = Scene::new("built-in vip worker hangs", 2) else { return };
    let _servers = scene.serve();
    let mut all: Vec<_> =
        (0..2).map(|number| scene.launch(number, &config(&scene, number).process("workers", 2))).collect();
    served_after(&scene, &Stopwatch::start());
    for (one, other) in [(0, 1), (1, 0)] {
        all[one].wait_synced(all[other].name);
    }
    let had = owner(&all);
    let mut waiting: Vec<_> = (0..20).map(|_| scene.lab.client.connect(places()[0])).collect();
    waiting.iter_mut().for_each(|conn| conn.echo(1, 1000));
    let tracer = Tracer::start(all[had].baton.process.pid(), &["worker-0"], is_work);
    let mut nudges = 0;
    eventually(LONG, "the worker hangs", || {
        nudges += 1;
        let _ = scene.lab.client.try_connect(places()[0], ms(100));
        tracer.is_frozen(ms(50))
    });
    let watch = Stopwatch::start();
    eventually(LONG, "the other has the VIP", || has_vip(&all[1 - had]) && !has_vip(&all[had]));
    let moved = watch.unstalled();
    served_after(&scene, &watch);
    let served = watch.unstalled();
    let ends: Vec<_> = waiting.iter_mut().map(|conn| (conn.end(LONG), watch.unstalled())).collect();
    let last = ends.iter().map(|(_, after)| *after).max().unwrap();
    println!(
        "worker hung: VIP moved after {moved:?}, served after {served:?}, the last client had its end after {last:?}"
    );
    assert!(ends.iter().all(|(end, after)| *end != End::Open && *after < TOLD_WITHIN), "{ends:?}");
    assert!(served < secs(5), "{served:?}");
    let status = all[had].baton.process.wait(LONG);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGABRT), "{status:?}");
    assert!(all[had].baton.process.log_text().contains("its clients would wait in vain"));
    drop(tracer);
    restart(&mut all[had]);
    wait::throughout(secs(2), "the VIP stays", || has_vip(&all[1 - had]) && !has_vip(&all[had]));
}
