//! A filter of system calls (seccomp(2)), which refuses what Baton never needs. A process cannot take it off again, and its children and
//! the process of an upgrade have it too.
//!
//! It lists what is refused, because `nft`, the operator's programs and each C library use other calls, also some that nobody here has
//! thought of. But it knows no call that is newer than itself: the answer to those is that of a kernel without them (ENOSYS), which
//! every program must expect.
#![allow(unsafe_code)]

use std::io;

use libc::{c_long, sock_filter};

/// The architecture whose numbers this program uses (include/uapi/linux/audit.h).
#[cfg(target_arch = "x86_64")]
const NATIVE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const NATIVE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const NATIVE: Option<u32> = None;

/// The first number of a system call that this list knows nothing of: Linux 6.17 ends in file_setattr(2), 469. The numbers are the same on
/// all architectures from 424 on. Those of x32 are above 2³⁰.
const UNKNOWN: u32 = 470;

/// open_tree_attr(2), which libc does not name.
const OPEN_TREE_ATTR: c_long = 467;
#[cfg(target_arch = "x86_64")]
const KEXEC_FILE_LOAD: c_long = 320;
#[cfg(not(target_arch = "x86_64"))]
const KEXEC_FILE_LOAD: c_long = 294;

/// The answer is EPERM. After systemd's sets of system calls (src/shared/seccomp-util.c), as the unit has them.
const REFUSED: &[c_long] = &[
    // Other processes' memory and files.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    // @mount and namespaces; clone(2) is below.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    // @module, @reboot, @swap.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    KEXEC_FILE_LOAD,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // @keyring.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // @clock.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    // Files past their directories' rights.
    libc::SYS_open_by_handle_at,
    // Large parts of the kernel that Baton has no use for, and in which there was many a hole.
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_fanotify_init,
    // What concerns the whole host.
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    // Another execution domain, which has no randomized addresses.
    libc::SYS_personality,
    // @obsolete.
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
    // @raw-io, @cpu-emulation.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// The families of sockets that Baton uses (RestrictAddressFamilies= of the unit).
const FAMILIES: [i32; 5] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET];

/// The flags of clone(2) that make a namespace (include/uapi/linux/sched.h): mount, cgroup, UTS, IPC, user, PID, network.
const NEW_NAMESPACES: u32 = 0x7e02_0000;

/// An option of prctl(2) that the kernel does not know: with the digest of a filter, the answer is that this filter is there.
const ASK: u32 = 0x4241_544f;

/// Of struct seccomp_data (include/uapi/linux/seccomp.h), whose arguments have 64 bits. Both architectures are little-endian.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;
const SECOND_ARGUMENT: u32 = 24;

/// What the filter answers: its place among [`ANSWERS`].
#[derive(Clone, Copy, Debug)]
enum FilterAnswer {
    Allow,
    NotPermitted,
    NoSuchCall,
    NoSuchFamily,
    InForce,
}

const ANSWERS: [u32; 5] = [
    libc::SECCOMP_RET_ALLOW,
    libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
    libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32,
    libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32,
    libc::SECCOMP_RET_ERRNO | libc::EALREADY as u32,
];

/// One instruction before the answers.
#[derive(Clone, Copy, Debug)]
enum FilterStep {
    /// Reads a number of [`NUMBER`]'s structure.
    Read(u32),
    /// Leaves out the next steps, as many as given second, unless it is this one.
    OnlyOf(u32, u8),
    Equal(u32, FilterAnswer),
    AtLeast(u32, FilterAnswer),
    AnyBit(u32, FilterAnswer),
    Unequal(u32, FilterAnswer),
    Always(FilterAnswer),
}

/// Puts the filter on this thread, and on the threads and processes that it starts from now on: call it before there are others. It does
/// nothing if this very filter is there, from the process before an upgrade. Programs that this process starts gain no rights by
/// set-user-ID bits or file capabilities any more (PR_SET_NO_NEW_PRIVS), without which the kernel takes a filter from root alone.
pub(crate) fn install() -> io::Result<()> {
    let (program, _) = program().ok_or(io::ErrorKind::Unsupported)?;
    if is_in_force() {
        return Ok(());
    }
    rustix::thread::set_no_new_privs(true)?;
    let described = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the instructions and writes nowhere. `program` outlives the call, and is as long as `len` says.
    unsafe { set_filter(&raw const described) }
}

/// Whether this release's filter is on this thread.
pub(crate) fn is_in_force() -> bool {
    let Some((_, digest)) = program() else { return false };
    // SAFETY: the kernel knows no such option and reads no argument of it; the filter only compares.
    let answer = unsafe { libc::prctl(ASK as i32, libc::c_ulong::from(digest), 0, 0, 0) };
    answer != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EALREADY)
}

/// Whether a process may have a filter here: the kernel looks for the filter only then (seccomp(2), "Checking for seccomp support").
pub(crate) fn supported() -> io::Result<()> {
    NATIVE.ok_or(io::ErrorKind::Unsupported)?;
    // SAFETY: the kernel takes a null pointer for an address that it cannot read.
    match unsafe { set_filter(std::ptr::null()) } {
        Err(error) if error.raw_os_error() != Some(libc::EFAULT) => Err(error),
        _ => Ok(()),
    }
}

/// The flag: without it, kernels before 5.16 slow the whole process down (Spectre variant 4), against code of others in the same process.
/// The older prctl(2) has no flags, and is for where seccomp(2) is refused, as by @system-service of systemd's SystemCallFilter=.
///
/// # Safety
///
/// `filter` must be null, or lead to as many instructions as it says.
unsafe fn set_filter(filter: *const libc::sock_fprog) -> io::Result<()> {
    let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let done = |result: c_long| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: as the caller promises; the kernel only reads.
    let set = unsafe { libc::syscall(libc::SYS_seccomp, c_long::from(libc::SECCOMP_SET_MODE_FILTER), flags, filter) };
    match done(set) {
        Err(error) if error.raw_os_error() != Some(libc::EFAULT) => {
            let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
            // SAFETY: as above.
            done(unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, filter) }.into())
        }
        other => other,
    }
}

/// The filter, and its digest, by which [`ASK`] asks for it. `None`: for this processor there is none.
fn program() -> Option<(Vec<sock_filter>, u32)> {
    let native = NATIVE?;
    let bytes = |it: sock_filter| [&it.code.to_ne_bytes()[..], &[it.jt, it.jf], &it.k.to_ne_bytes()].concat();
    let digest = crc32fast::hash(&assembled(&steps(native, 0)).into_iter().flat_map(bytes).collect::<Vec<_>>());
    Some((assembled(&steps(native, digest)), digest))
}

/// `asked`: the second argument of [`ASK`].
fn steps(native: u32, asked: u32) -> Vec<FilterStep> {
    use FilterAnswer::*;
    use FilterStep::*;
    let number = |call: c_long| call as u32;
    let mut steps = vec![
        Read(ARCHITECTURE),
        Unequal(native, NotPermitted),
        Read(NUMBER),
        AtLeast(UNKNOWN, NoSuchCall),
        // Its flags are in memory, where no filter can look. C libraries then use clone(2), as with systemd's RestrictNamespaces=.
        Equal(number(libc::SYS_clone3), NoSuchCall),
    ];
    steps.extend(REFUSED.iter().map(|call| Equal(number(*call), NotPermitted)));
    let mut only = |call: c_long, what: &[FilterStep]| {
        steps.push(OnlyOf(number(call), what.len() as u8));
        steps.extend(what);
    };
    only(libc::SYS_clone, &[Read(FIRST_ARGUMENT), AnyBit(NEW_NAMESPACES, NotPermitted), Always(Allow)]);
    let families: Vec<_> = FAMILIES.iter().map(|family| Equal(*family as u32, Allow)).collect();
    let families = [&[Read(FIRST_ARGUMENT)], &families[..], &[Always(NoSuchFamily)]].concat();
    only(libc::SYS_socket, &families);
    only(libc::SYS_socketpair, &families);
    let ask = [Read(FIRST_ARGUMENT), OnlyOf(ASK, 2), Read(SECOND_ARGUMENT), Equal(asked, InForce), Always(Allow)];
    only(libc::SYS_prctl, &ask);
    steps.push(Always(Allow));
    steps
}

/// The instructions of `steps`, and behind them the answers.
fn assembled(steps: &[FilterStep]) -> Vec<sock_filter> {
    use libc::{BPF_ABS, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let instruction = |code: u32, k: u32, (jt, jf)| sock_filter { code: code as u16, jt, jf, k };
    let jump = |test: u32, k: u32, to: (u8, u8)| instruction(BPF_JMP | test | BPF_K, k, to);
    let body = steps.iter().enumerate().map(|(at, step)| {
        // Fits: a few dozen steps.
        let to = |answer: FilterAnswer| (steps.len() - at - 1 + answer as usize) as u8;
        match *step {
            FilterStep::Read(offset) => instruction(BPF_LD | BPF_W | BPF_ABS, offset, (0, 0)),
            FilterStep::OnlyOf(k, others) => jump(BPF_JEQ, k, (0, others)),
            FilterStep::Equal(k, answer) => jump(BPF_JEQ, k, (to(answer), 0)),
            FilterStep::Unequal(k, answer) => jump(BPF_JEQ, k, (0, to(answer))),
            FilterStep::AtLeast(k, answer) => jump(BPF_JGE, k, (to(answer), 0)),
            FilterStep::AnyBit(k, answer) => jump(BPF_JSET, k, (to(answer), 0)),
            FilterStep::Always(answer) => jump(BPF_JA, to(answer).into(), (0, 0)),
        }
    });
    body.chain(ANSWERS.iter().map(|answer| instruction(BPF_RET | BPF_K, *answer, (0, 0)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would answer: the filter's instructions, one by one.
    fn answer(architecture: u32, number: u32, arguments: [u32; 2]) -> u32 {
        use libc::{BPF_ABS, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W};
        let (program, _) = program().expect("this processor has one");
        let (mut at, mut value) = (0, 0);
        loop {
            let it = program[at];
            at += 1;
            let holds = match u32::from(it.code) {
                code if code == BPF_RET | BPF_K => return it.k,
                code if code == BPF_LD | BPF_W | BPF_ABS => {
                    value = match it.k {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        FIRST_ARGUMENT => arguments[0],
                        SECOND_ARGUMENT => arguments[1],
                        other => panic!("it reads at {other}"),
                    };
                    continue;
                }
                code if code == BPF_JMP | BPF_JA | BPF_K => {
                    at += it.k as usize;
                    continue;
                }
                code if code == BPF_JMP | BPF_JEQ | BPF_K => value == it.k,
                code if code == BPF_JMP | BPF_JGE | BPF_K => value >= it.k,
                code if code == BPF_JMP | BPF_JSET | BPF_K => value & it.k != 0,
                other => panic!("code {other}"),
            };
            at += usize::from(if holds { it.jt } else { it.jf });
        }
    }

    #[test]
    fn what_is_listed_is_refused_and_nothing_else_that_is_known() {
        let native = NATIVE.unwrap();
        let of = |number: u32, first: i32| answer(native, number, [first as u32, 0]);
        for number in (0..UNKNOWN).filter(|number| *number != libc::SYS_clone3 as u32) {
            let expected = ANSWERS[usize::from(REFUSED.contains(&number.into()))];
            assert_eq!(of(number, libc::AF_INET), expected, "{number}");
        }
        for number in [libc::SYS_clone3 as u32, UNKNOWN, 0x4000_0000, u32::MAX] {
            assert_eq!(of(number, libc::AF_INET), ANSWERS[FilterAnswer::NoSuchCall as usize], "{number}");
        }
        // i386 (0x40000003), whose 26 is ptrace, and ARM.
        for other in [0x4000_0003, 0x4000_0028] {
            assert_eq!(answer(other, 26, [0; 2]), ANSWERS[FilterAnswer::NotPermitted as usize]);
        }
    }

    #[test]
    fn namespaces_and_families_are_told_by_the_first_argument() {
        let of = |call: c_long, first: i32| answer(NATIVE.unwrap(), call as u32, [first as u32, 0]);
        let [allowed, refused, family] = [FilterAnswer::Allow, FilterAnswer::NotPermitted, FilterAnswer::NoSuchFamily];
        let thread = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND;
        let spawned = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        for (call, first, expected) in [
            (libc::SYS_clone, thread, allowed),
            (libc::SYS_clone, spawned, allowed),
            (libc::SYS_clone, libc::SIGCHLD | libc::CLONE_NEWUSER, refused),
            (libc::SYS_clone, libc::SIGCHLD | libc::CLONE_NEWNS, refused),
            (libc::SYS_clone, libc::SIGCHLD | libc::CLONE_NEWNET, refused),
            (libc::SYS_socket, libc::AF_PACKET, allowed),
            (libc::SYS_socket, libc::AF_ALG, family),
            (libc::SYS_socket, libc::AF_VSOCK, family),
            (libc::SYS_socketpair, libc::AF_UNIX, allowed),
            (libc::SYS_socketpair, libc::AF_TIPC, family),
        ] {
            assert_eq!(of(call, first), ANSWERS[expected as usize], "{call} {first:#x}");
        }
    }

    /// The threads of the tests beside this one stay without it.
    #[test]
    fn the_kernel_takes_it_once_and_a_thread_and_a_program_that_are_started_have_it() {
        let tried = || {
            // SAFETY: all of these fail, or change this thread alone.
            let called = |call, first: c_long| unsafe { libc::syscall(call, first, 0, 0, 0, 0) };
            let errno = |call, first| (called(call, first) == -1).then(|| io::Error::last_os_error().raw_os_error());
            let refused = [libc::SYS_unshare, libc::SYS_keyctl, libc::SYS_personality, libc::SYS_io_uring_setup];
            refused.into_iter().for_each(|call| assert_eq!(errno(call, 0), Some(Some(libc::EPERM)), "{call}"));
            assert_eq!(errno(UNKNOWN.into(), 0), Some(Some(libc::ENOSYS)));
            assert_eq!(errno(libc::SYS_socket, libc::AF_ALG.into()), Some(Some(libc::EAFNOSUPPORT)));
            assert!(is_in_force());
        };
        let confined = move || {
            assert!(!is_in_force());
            if let Err(error) = supported().and_then(|()| install()) {
                return eprintln!("skipped: {error}");
            }
            let filters = || {
                let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
                let count = status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"));
                count.map(|count| count.trim().parse::<u32>().unwrap())
            };
            let before = filters();
            install().unwrap();
            assert_eq!(filters(), before, "a second one costs each system call some more");
            tried();
            std::thread::spawn(tried).join().unwrap();
            assert!(std::process::Command::new("true").status().unwrap().success());
            let unshared = std::process::Command::new("unshare").args(["--mount", "true"]).output().unwrap();
            assert!(!unshared.status.success());
        };
        std::thread::spawn(confined).join().unwrap();
        assert!(!is_in_force());
    }
}
