//! Tasks and threads that a process cannot do without. One that panics ends the process: the supervisor starts Baton anew,
//! and what has been offloaded goes on meanwhile. Without it the process would live on, look well, and leave its part undone.
//!
//! `tests/house/layers.rs` lets nothing be spawned in another way, but for what it lists.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::thread;

/// `work`, to be spawned. A panic in it aborts the process; its end or its being dropped does not.
pub async fn task<F: Future>(name: &'static str, work: F) -> F::Output {
    let mut work = pin!(work);
    let polled = std::future::poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(done)) => Poll::Ready(done),
        Err(_) => give_up(name),
    });
    polled.await
}

/// Starts a thread called `name`, of which [`task`]'s rule holds.
pub fn thread<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<thread::JoinHandle<T>> {
    let name = name.into();
    let run = {
        let name = name.clone();
        move || catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| give_up(&name))
    };
    thread::Builder::new().name(name).spawn(run)
}

/// The hook has said what panicked, and where.
fn give_up(name: &str) -> ! {
    tracing::error!(name, "an essential task panicked; the process aborts, and the supervisor should restart it");
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// Set in the process that is to die.
    const VICTIM: &str = "BATON_TEST_VICTIM";

    /// Runs `die` in a process of its own that runs this very test; the signal that ended it.
    fn ends_by(test: &str, die: impl FnOnce()) -> Option<i32> {
        if std::env::var_os(VICTIM).is_some() {
            die();
            std::process::exit(0);
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &format!("essential::tests::{test}"), "--nocapture"]).env(VICTIM, "1");
        let output = child.output().unwrap();
        output.status.signal()
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap()
    }

    #[test]
    fn a_panic_of_an_essential_task_ends_the_process() {
        let signal = ends_by("a_panic_of_an_essential_task_ends_the_process", || {
            runtime().block_on(async {
                let panics = async {
                    tokio::task::yield_now().await;
                    panic!("as a fault would");
                };
                let _ = tokio::spawn(task("part", panics)).await;
            });
        });
        assert_eq!(signal, Some(libc::SIGABRT));
    }

    #[test]
    fn a_panic_of_an_essential_thread_ends_the_process() {
        let signal = ends_by("a_panic_of_an_essential_thread_ends_the_process", || {
            let _ = thread("part", || panic!("as a fault would")).unwrap().join();
        });
        assert_eq!(signal, Some(libc::SIGABRT));
    }

    #[test]
    fn the_end_of_an_essential_part_is_none_of_the_process() {
        let signal = ends_by("the_end_of_an_essential_part_is_none_of_the_process", || {
            runtime().block_on(async {
                assert_eq!(tokio::spawn(task("part", async { 7 })).await.unwrap(), 7);
                let dropped = tokio::spawn(task("part", std::future::pending::<()>()));
                dropped.abort();
                assert!(dropped.await.unwrap_err().is_cancelled());
            });
            assert_eq!(thread("part", || 7).unwrap().join().unwrap(), 7);
        });
        assert_eq!(signal, None);
    }
}
