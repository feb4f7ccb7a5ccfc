//! Stopping a process between two of its system calls, as a debugger would: what else could happen between them, such as
//! a kill, then happens exactly there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Pid;

/// A system call that a thread is about to make.
#[derive(Clone, Debug)]
pub struct Call {
    /// What the thread is called.
    pub thread: &'static str,
    pub number: libc::c_long,
    pub arguments: [u64; 6],
    /// What descriptor the first argument is, such as `socket:[123]`, if it is one.
    pub descriptor: String,
}

/// A process whose threads are watched; it goes its way until one of them is about to make the call that is waited for,
/// and that thread then hangs until the process is killed.
#[derive(Debug)]
pub struct Tracer {
    frozen: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Tracer {
    /// Watches those threads of `pid` that are called one of `names`. `stop_here` sees each call of theirs before it is
    /// made, those of all threads in one order.
    #[track_caller]
    pub fn start(
        pid: Pid,
        names: &'static [&'static str],
        mut stop_here: impl FnMut(&Call) -> bool + Send + 'static,
    ) -> Self {
        let (freezes, frozen) = channel();
        let (attaches, attached) = channel();
        // All requests must come from the thread that attached.
        let thread = std::thread::spawn(move || {
            let threads = threads_called(pid, names);
            let seized = threads.keys().try_for_each(|tid| seize(*tid));
            let failed = seized.is_err();
            attaches.send(seized).expect("somebody waits");
            if failed {
                return;
            }
            while let Some((tid, stop)) = next_stop() {
                let signal = match stop {
                    Stop::Ended => continue,
                    Stop::Signal(signal) => signal,
                    Stop::Other => 0,
                    Stop::Call(number, arguments) => {
                        let descriptor = descriptor(pid, arguments[0]);
                        let call = Call { thread: threads[&tid], number, arguments, descriptor };
                        if stop_here(&call) {
                            let _ = freezes.send(());
                            continue;
                        }
                        0
                    }
                };
                go_on(tid, signal);
            }
        });
        attached.recv().expect("the tracer answers").expect("the threads are there");
        Self { frozen, thread: Some(thread) }
    }

    /// Whether a thread hangs at the call by now.
    pub fn is_frozen(&self, wait: Duration) -> bool {
        self.frozen.recv_timeout(wait).is_ok()
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // It ends with the process.
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            let _ = thread.join();
        }
    }
}

/// Threads that run on only when this is dropped, while the others of their process do all the time.
#[derive(Debug)]
pub struct Halted {
    release: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Halted {
    /// Halts those threads of `pid` that are called one of `names`.
    #[track_caller]
    pub fn start(pid: Pid, names: &'static [&'static str]) -> Self {
        let (release, released) = channel::<()>();
        let (attaches, attached) = channel();
        let thread = std::thread::spawn(move || {
            let threads = threads_called(pid, names);
            let all = threads.len();
            let halted =
                threads.keys().try_for_each(|tid| seize(*tid)).map(|()| (0..all).filter_map(|_| next_stop()).count());
            attaches.send(halted.map(|halted| halted == names.len())).expect("somebody waits");
            // They go on when the thread that attached ends (ptrace(2)).
            let _ = released.recv();
        });
        assert!(attached.recv().expect("the thread answers").expect("they are halted"), "not all are there");
        Self { release: Some(release), thread: Some(thread) }
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        drop(self.release.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

enum Stop {
    Call(libc::c_long, [u64; 6]),
    Signal(i32),
    Ended,
    Other,
}

/// By their ids.
fn threads_called(pid: Pid, names: &[&'static str]) -> BTreeMap<libc::pid_t, &'static str> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    let of_task = |task: std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let name = names.iter().find(|one| **one == name.trim())?;
        Some((task.file_name().to_str()?.parse().ok()?, *name))
    };
    tasks.filter_map(of_task).collect()
}

fn descriptor(pid: Pid, number: u64) -> String {
    let path = PathBuf::from(format!("/proc/{}/fd/{number}", pid.as_raw_nonzero()));
    std::fs::read_link(path).map(|target| target.display().to_string()).unwrap_or_default()
}

fn seize(tid: libc::pid_t) -> std::io::Result<()> {
    // SAFETY: ptrace(2) with these requests takes no memory of ours.
    let results = unsafe {
        let options = libc::PTRACE_O_TRACESYSGOOD as usize;
        [
            libc::ptrace(libc::PTRACE_SEIZE, tid, 0usize, options),
            libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0usize, 0usize),
        ]
    };
    if results.contains(&-1) { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// The next thing that happens to a watched thread; `None` once there is none left.
fn next_stop() -> Option<(libc::pid_t, Stop)> {
    let mut status = 0;
    // SAFETY: `status` outlives the call. Children of other threads are none of this one's.
    let tid = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) };
    if tid <= 0 {
        return None;
    }
    if !libc::WIFSTOPPED(status) {
        return Some((tid, Stop::Ended));
    }
    let stop = match libc::WSTOPSIG(status) {
        signal if signal == libc::SIGTRAP | 0x80 => entered(tid).unwrap_or(Stop::Other),
        _ if status >> 16 != 0 => Stop::Other,
        signal => Stop::Signal(signal),
    };
    Some((tid, stop))
}

/// The call that the thread is about to make; `None` if it comes back from one.
fn entered(tid: libc::pid_t) -> Option<Stop> {
    // SAFETY: the kernel writes at most as many bytes as it is told, all zeros is a valid value of the struct, and the
    // member of the union is that which `op` names.
    unsafe {
        let mut info: libc::ptrace_syscall_info = std::mem::zeroed();
        let size = size_of::<libc::ptrace_syscall_info>();
        let told = libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, tid, size, &raw mut info);
        if told <= 0 || info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
            return None;
        }
        Some(Stop::Call(info.u.entry.nr as libc::c_long, info.u.entry.args))
    }
}

fn go_on(tid: libc::pid_t, signal: i32) {
    // SAFETY: ptrace(2) with this request takes no memory of ours. A thread that was killed meanwhile is waited for.
    unsafe {
        libc::ptrace(libc::PTRACE_SYSCALL, tid, 0usize, signal as usize);
    }
}
