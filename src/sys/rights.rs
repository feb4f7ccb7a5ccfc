//! Capabilities (capabilities(7)) that the process with the listeners gives up, because nothing of it needs them once the broker has them.
#![allow(unsafe_code)]

use std::io;

use rustix::thread::{self, CapabilitySet, CapabilitySets};

/// BPF_MAP_LOOKUP_ELEM of bpf(2).
const LOOK_UP: libc::c_long = 1;

/// The rights to load BPF programs, and to read each file of the host. Who has CAP_SYS_ADMIN has the first ones too; Baton's unit does not give it.
fn strongest() -> CapabilitySet {
    CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::DAC_READ_SEARCH | CapabilitySet::SYS_ADMIN
}

/// These, and the right to bind ports below 1024.
fn given_up() -> CapabilitySet {
    strongest() | CapabilitySet::NET_BIND_SERVICE
}

/// Whether this thread has any right for which a second process is worth its memory. Ports below 1024 alone are not.
pub(crate) fn are_worth_a_broker() -> bool {
    held().is_ok_and(|sets| sets.effective.intersects(strongest()))
}

/// Whether this thread is of a user other than root, and may read root's files all the same.
pub(crate) fn read_every_file() -> bool {
    let reading = CapabilitySet::DAC_READ_SEARCH | CapabilitySet::DAC_OVERRIDE;
    !rustix::process::geteuid().is_root() && held().is_ok_and(|sets| sets.effective.intersects(reading))
}

/// Does `act` with no other access to files than the thread's user has: also CAP_PERFMON opens some (/proc/PID/maps).
pub(crate) fn without_rights<T>(act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let sets = held()?;
    thread::set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..sets })?;
    let done = act();
    thread::set_capabilities(None, sets)?;
    done
}

/// The rights of this thread, to compare with another process's.
pub(crate) fn effective() -> io::Result<u64> {
    Ok(held()?.effective.bits())
}

/// Hands the rights of this thread on to the programs that it starts, also where it has them by file capabilities or as a user other than root.
pub(crate) fn hand_on() -> io::Result<()> {
    let sets = held()?;
    thread::set_capabilities(None, CapabilitySets { inheritable: sets.permitted, ..sets })?;
    for one in sets.permitted.iter() {
        thread::configure_capability_in_ambient_set(one, true)?;
    }
    Ok(())
}

/// Gives the rights up for good: this thread, those that it starts from now on, and their children cannot get them back. Programs of root
/// would (capabilities(7), "Capabilities and execution of programs by root"), so call it after PR_SET_NO_NEW_PRIVS.
///
/// A kernel may refuse all of bpf(2) to processes without CAP_BPF (sysctl kernel.unprivileged_bpf_disabled, before Linux 5.19): there the
/// process keeps this one.
pub(crate) fn give_up() -> io::Result<()> {
    let kept = if maps_need_a_right() { CapabilitySet::BPF } else { CapabilitySet::empty() };
    remove(given_up() - kept)
}

/// Whether this kernel asks for CAP_BPF at the use of a map that a process has.
fn maps_need_a_right() -> bool {
    // Rights belong to threads: only this one tries to do without.
    std::thread::scope(|scope| scope.spawn(is_refused_a_map).join()).is_ok_and(|refused| refused.unwrap_or(false))
}

fn is_refused_a_map() -> io::Result<bool> {
    remove(given_up())?;
    let attributes = [u64::MAX; 4];
    // SAFETY: the kernel reads the attributes, finds that no descriptor has their number, and writes nothing.
    let result = unsafe { libc::syscall(libc::SYS_bpf, LOOK_UP, attributes.as_ptr(), size_of_val(&attributes)) };
    Ok(result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EPERM))
}

fn remove(rights: CapabilitySet) -> io::Result<()> {
    let sets = held()?;
    // Only root may; another user gets nothing from this set.
    if sets.effective.contains(CapabilitySet::SETPCAP) {
        for one in rights.iter() {
            thread::remove_capability_from_bounding_set(one)?;
        }
    }
    let CapabilitySets { effective, permitted, inheritable } = sets;
    let [effective, permitted, inheritable] = [effective, permitted, inheritable].map(|set| set - rights);
    // The kernel takes from the ambient set what it takes from these.
    Ok(thread::set_capabilities(None, CapabilitySets { effective, permitted, inheritable })?)
}

fn held() -> io::Result<CapabilitySets> {
    Ok(thread::capabilities(None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_the_rights_and_its_children_have_none_of_them() {
        let without = std::thread::spawn(|| {
            let before = effective().unwrap();
            rustix::thread::set_no_new_privs(true).unwrap();
            give_up().unwrap();
            let status = std::process::Command::new("cat").arg("/proc/self/status").output().unwrap().stdout;
            (before, effective().unwrap(), String::from_utf8(status).unwrap())
        });
        let (before, after, child) = without.join().unwrap();
        let gone = given_up().bits();
        assert_eq!((after, after & gone), (before & !gone, 0));
        let line = child.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        assert_eq!(u64::from_str_radix(line.trim(), 16).unwrap() & gone, 0, "{line}");
    }
}
