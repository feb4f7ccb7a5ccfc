//! Tasks and threads that the process needs. If one panics, the process ends: the supervisor restarts Baton, and
//! offloaded flows go on meanwhile. Without this rule the process would go on, look healthy, and not do that part's
//! work.
//!
//! `tests/house/layers.rs` allows no other way to spawn, except in its list.

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::OnceLock;
use std::task::Poll;
use std::thread;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Wraps `work` for spawning. A panic in it aborts the process; its end or its drop does not.
pub(crate) async fn task<F: Future>(name: &'static str, work: F) -> F::Output {
    let mut work = pin!(work);
    let polled = std::future::poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(done)) => Poll::Ready(done),
        Err(_) => give_up(name),
    });
    polled.await
}

/// Runs `work`, which walks through all flows or asks the kernel for a list, on a thread for blocking work. A panic in
/// it goes on in the caller; `None`: the runtime is shutting down.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Some(done),
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => None,
        },
    }
}

/// The tasks of one part, each of them [`task`]. Dropping it ends them at their next await; [`Tasks::stop`] also waits
/// for that.
#[derive(Default)]
pub(crate) struct Tasks {
    ended: CancellationToken,
    all: TaskTracker,
}

impl Tasks {
    /// Needs a tokio runtime.
    pub(crate) fn spawn(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.spawn_on(name, work, &Handle::current());
    }

    pub(crate) fn spawn_on(
        &self,
        name: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
        runtime: &Handle,
    ) {
        let until_ended = self.ended.clone().run_until_cancelled_owned(task(name, work));
        self.all.spawn_on(
            async move {
                until_ended.await;
            },
            runtime,
        );
    }

    /// Spawns a task that ends by itself after the token is cancelled, with work of its own to do then.
    pub(crate) fn spawn_with<F>(&self, name: &'static str, work: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.all.spawn(task(name, work(self.ended.clone())));
    }

    /// Ends all tasks.
    pub(crate) fn end(&self) {
        self.ended.cancel();
    }

    /// Ends all tasks, and waits for their end.
    pub(crate) async fn stop(&self) {
        self.end();
        self.all.close();
        self.all.wait().await;
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tasks", self.all.len())
    }
}

/// Starts a thread called `name`, with the rule of [`task`].
pub(crate) fn thread<T: Send + 'static>(
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

/// `work` runs before this process aborts itself: it writes what the log still holds. Only the first call has an effect.
pub(crate) fn before_abort(work: impl Fn() + Send + Sync + 'static) {
    let _ = BEFORE_ABORT.set(Box::new(work));
}

static BEFORE_ABORT: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Ends the process at once, like a panic in an essential task: its sockets close, so that the clients of its proxied flows have an end.
pub(crate) fn abort(why: &str) -> ! {
    tracing::error!("{why}; the process aborts, and the supervisor should restart it");
    end()
}

/// The panic hook has printed the message and the place.
fn give_up(name: &str) -> ! {
    tracing::error!(name, "an essential task panicked; the process aborts, and the supervisor should restart it");
    end()
}

fn end() -> ! {
    if let Some(work) = BEFORE_ABORT.get() {
        work();
    }
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// Set in the process that must die.
    const VICTIM: &str = "BATON_TEST_VICTIM";

    /// Runs `die` in a process of its own that runs this very test; returns the signal that ended it.
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
    fn an_abort_ends_the_process() {
        let signal = ends_by("an_abort_ends_the_process", || abort("worker 0 has been stuck"));
        assert_eq!(signal, Some(libc::SIGABRT));
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
    fn the_tasks_of_a_part_end_with_it_and_a_stop_waits_for_their_last_words() {
        runtime().block_on(async {
            let (told, hears) = tokio::sync::oneshot::channel();
            let (dropped, is_dropped) = tokio::sync::oneshot::channel::<()>();
            let tasks = Tasks::default();
            tasks.spawn("part", async move {
                let _held = dropped;
                std::future::pending::<()>().await;
            });
            tasks.spawn_with("part", |ended| async move {
                ended.cancelled().await;
                tokio::task::yield_now().await;
                told.send(7).unwrap();
            });
            assert_eq!(tasks.all.len(), 2);
            tasks.stop().await;
            assert_eq!((hears.await, is_dropped.await.is_err(), tasks.all.len()), (Ok(7), true, 0));

            let (dropped, is_dropped) = tokio::sync::oneshot::channel::<()>();
            let tasks = Tasks::default();
            tasks.spawn("part", async move {
                let _held = dropped;
                std::future::pending::<()>().await;
            });
            drop(tasks);
            assert!(is_dropped.await.is_err(), "it ends with its part");
        });
    }

    #[test]
    fn a_panic_of_a_part_s_task_ends_the_process() {
        let signal = ends_by("a_panic_of_a_part_s_task_ends_the_process", || {
            runtime().block_on(async {
                let tasks = Tasks::default();
                tasks.spawn("part", async { panic!("as a fault would") });
                std::future::pending::<()>().await;
            });
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
