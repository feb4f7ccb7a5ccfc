//! bpf(2) for maps, links and test runs. The loader (aya) loads programs into the kernel. Work on their maps needs
//! batches, flags and an atomic removal, on bytes with a layout that the caller knows.
#![allow(unsafe_code)]

mod barrier;
mod shared;
mod verdict;

pub(crate) use barrier::Barrier;
pub(crate) use shared::SharedWords;
pub use verdict::ProgramFault;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Commands of `enum bpf_cmd` (include/uapi/linux/bpf.h).
#[derive(Clone, Copy, Debug)]
enum BpfCommand {
    Create = 0,
    LookUp = 1,
    Update = 2,
    Delete = 3,
    Pin = 6,
    Get = 7,
    TestRun = 10,
    Info = 15,
    Query = 16,
    TakeOut = 21,
    LookUpBatch = 24,
}

/// The kind of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    Any = 0,
    /// Fails with `AlreadyExists`.
    OnlyNew = 1,
}

/// A map. Keys and values are bytes, as long as the map's own; a value of a per-CPU map has one part for each CPU.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    key_size: usize,
    value_size: usize,
    max_entries: u32,
    #[cfg(test)]
    unreadable: bool,
}

/// The kernel's state of a TCX link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcxLinkInfo {
    pub program_id: u32,
    /// 0: detached, because its interface is gone or a program detached it.
    pub ifindex: u32,
}

/// The result of a test run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// The program's return value.
    pub verdict: i32,
    /// Length of the packet afterwards.
    pub length: usize,
    /// Average of one run.
    pub duration_ns: u32,
}

/// The head of `struct __sk_buff` as a test run takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    pub mark: u32,
    /// The interface that the packet came in by; 0: none.
    pub ingress_ifindex: u32,
    pub ifindex: u32,
    pub gso_segs: u32,
    pub gso_size: u32,
}

#[repr(C)]
#[derive(Default)]
struct ElementAttr {
    map: u32,
    zero: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct BatchAttr {
    at: u64,
    next: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct RunAttr {
    program: u32,
    verdict: u32,
    size_in: u32,
    size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_size_in: u32,
    context_size_out: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    /// The kernel checks these bytes of padding.
    zero: u32,
}

#[repr(C)]
#[derive(Default)]
struct Info {
    fd: u32,
    length: u32,
    info: u64,
}

#[repr(C)]
#[derive(Default)]
struct Object {
    path: u64,
    fd: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct Query {
    ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    zero: u32,
    program_flags: u64,
    links: u64,
    link_flags: u64,
    revision: u64,
}

/// Length and offsets of `struct __sk_buff`.
const CONTEXT_SIZE: usize = 192;
const CONTEXT_MARK: usize = 8;
const CONTEXT_INGRESS_IFINDEX: usize = 36;
const CONTEXT_IFINDEX: usize = 40;
const CONTEXT_GSO_SEGS: usize = 164;
const CONTEXT_GSO_SIZE: usize = 176;

/// Opens the object pinned at `path`: a map, a program or a link.
pub fn open_pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attr = Object { path: path.as_ptr() as u64, ..Object::default() };
    // SAFETY: `path` is a string that ends in NUL and outlives the call.
    let fd = unsafe { call(BpfCommand::Get, &mut attr) }?;
    // SAFETY: the kernel has just made this descriptor for us, close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Pins the object, a map, a program or a link, at `path`.
pub(crate) fn pin(object: impl AsFd, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attr = Object { path: path.as_ptr() as u64, fd: object.as_fd().as_raw_fd() as u32, ..Object::default() };
    // SAFETY: `path` is a string that ends in NUL and outlives the call.
    unsafe { call(BpfCommand::Pin, &mut attr) }.map(drop)
}

/// The id of the program that sees an interface's packets before all others of TCX. Needs CAP_NET_ADMIN.
pub(crate) fn first_of_tcx(ifindex: u32) -> io::Result<Option<u32>> {
    let mut ids = [0u32; 1];
    let mut attr = Query {
        ifindex,
        attach_type: BPF_TCX_INGRESS,
        programs: ids.as_mut_ptr() as u64,
        count: ids.len() as u32,
        ..Query::default()
    };
    // SAFETY: the kernel writes at most `count` numbers to `programs`, which outlives the call.
    match unsafe { call(BpfCommand::Query, &mut attr) } {
        // There are more than asked for (bpf_mprog_query, kernel/bpf/mprog.c).
        Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    Ok((ids[0] != 0).then_some(ids[0]))
}

/// Whether this kernel attaches programs by TCX links (since Linux 6.6, or backported): queries the links of an
/// interface. Needs CAP_NET_ADMIN.
pub(crate) fn knows_tcx(ifindex: u32) -> io::Result<bool> {
    let mut attr = Query { ifindex, attach_type: BPF_TCX_INGRESS, ..Query::default() };
    // SAFETY: the command takes what `Query` holds; the pointer in it is null, for a list of no length.
    match unsafe { call(BpfCommand::Query, &mut attr) } {
        Ok(_) => Ok(true),
        // The first kernels with TCX return this for an interface without any link.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the kernel is known to have them.
#[allow(dead_code, reason = "for tests of the program")]
pub fn has_tcx() -> bool {
    knows_tcx(1).unwrap_or(false)
}

/// The state of a TCX link; `InvalidInput` if it is a link of another kind.
pub fn tcx_link_info(link: impl AsFd) -> io::Result<TcxLinkInfo> {
    // struct bpf_link_info: type, id, prog_id, padding, then for TCX: ifindex, attach_type.
    let words = info::<6>(link)?;
    if words[0] != BPF_LINK_TYPE_TCX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(TcxLinkInfo { program_id: words[2], ifindex: words[4] })
}

/// The id of a program, which no other has until the machine boots again.
pub(crate) fn program_id(program: impl AsFd) -> io::Result<u32> {
    // struct bpf_prog_info: type, id.
    let [_, id] = info::<2>(program)?;
    Ok(id)
}

/// The inode of the network namespace that a link is attached to; 0: the namespace is gone, or somebody detached the link.
/// `InvalidInput` if it is a link of another kind.
pub(crate) fn namespace_of_link(link: impl AsFd) -> io::Result<u32> {
    // As for TCX, then: netns_ino, attach_type.
    let words = info::<6>(link)?;
    if words[0] != BPF_LINK_TYPE_NETNS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(words[4])
}

impl Map {
    /// Opens the map that is pinned at `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let fd = open_pinned(path)?;
        // struct bpf_map_info: type, id, key_size, value_size, max_entries ...
        let [kind, _, key_size, value_size, max_entries] = info::<5>(&fd)?;
        let value_size = match kind {
            BPF_MAP_TYPE_PERCPU_ARRAY => value_size.next_multiple_of(8) as usize * possible_cpus()?,
            _ => value_size as usize,
        };
        Ok(Self::of(fd, key_size as usize, value_size, max_entries))
    }

    fn of(fd: OwnedFd, key_size: usize, value_size: usize, max_entries: u32) -> Self {
        Self {
            fd,
            key_size,
            value_size,
            max_entries,
            #[cfg(test)]
            unreadable: false,
        }
    }

    /// The same map, for another thread.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, ..*self })
    }

    pub fn key_size(&self) -> usize {
        self.key_size
    }

    /// For all CPUs together.
    pub fn value_size(&self) -> usize {
        self.value_size
    }

    pub fn max_entries(&self) -> u32 {
        self.max_entries
    }

    /// Copies the value at `key`; false: there is none. Fails with ENOMEM, EPERM or EACCES even if the map is intact
    /// (map_lookup_elem, kernel/bpf/syscall.c): then it is unknown whether there is one.
    pub fn look_up(&self, key: &[u8], value: &mut [u8]) -> io::Result<bool> {
        self.fits(key, value)?;
        #[cfg(test)]
        self.is_readable()?;
        // SAFETY: the kernel reads a key and writes a value, whose lengths were compared.
        found(unsafe { self.element(BpfCommand::LookUp, key, value.as_mut_ptr(), 0) })
    }

    /// As [`Map::look_up`], and removes the entry in the same step, so that no count is lost.
    pub(crate) fn take_out(&self, key: &[u8], value: &mut [u8]) -> io::Result<bool> {
        self.fits(key, value)?;
        #[cfg(test)]
        self.is_readable()?;
        // SAFETY: the kernel reads a key and writes a value, whose lengths were compared.
        found(unsafe { self.element(BpfCommand::TakeOut, key, value.as_mut_ptr(), 0) })
    }

    /// Enters `value`. `StorageFull`: there is no room for another entry.
    pub fn update(&self, key: &[u8], value: &[u8], how: Update) -> io::Result<()> {
        self.fits(key, value)?;
        // SAFETY: the kernel reads a key and a value, whose lengths were compared, and writes neither.
        let result = unsafe { self.element(BpfCommand::Update, key, value.as_ptr().cast_mut(), how as u64) };
        result.map_err(|error| match error.raw_os_error() {
            Some(libc::E2BIG | libc::ENOMEM) => io::ErrorKind::StorageFull.into(),
            _ => error,
        })
    }

    /// Deletes the entry at `key`; false: there was none.
    pub(crate) fn delete(&self, key: &[u8]) -> io::Result<bool> {
        if key.len() != self.key_size {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the kernel reads a key, whose length was compared.
        found(unsafe { self.element(BpfCommand::Delete, key, std::ptr::null_mut(), 0) })
    }

    /// Copies entries of a hash map, bucket by bucket, into `keys` and `values`, as many as fit. Returns the number of
    /// entries and the mark for the next call; `None`: that was the last. `StorageFull`: one bucket has more entries
    /// than fit.
    pub fn look_up_batch(
        &self,
        from: Option<u32>,
        keys: &mut [u8],
        values: &mut [u8],
    ) -> io::Result<(usize, Option<u32>)> {
        // The pinned map may be of another kind: a ring buffer has no keys.
        if self.key_size == 0 || self.value_size == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        #[cfg(test)]
        self.is_readable()?;
        let room = (keys.len() / self.key_size).min(values.len() / self.value_size);
        let (mut at, mut next) = (from.unwrap_or(0), 0u32);
        let mut attr = BatchAttr {
            at: if from.is_some() { &raw mut at as u64 } else { 0 },
            next: &raw mut next as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: room as u32,
            map: self.fd.as_raw_fd() as u32,
            ..BatchAttr::default()
        };
        // SAFETY: `at` and `next` are the 32 bits that a hash map's mark has (kernel/bpf/hashtab.c), and both slices
        // have room for `room` keys and values of this map.
        let result = unsafe { call(BpfCommand::LookUpBatch, &mut attr) };
        match result {
            Ok(_) => Ok((attr.count as usize, Some(next))),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok((attr.count as usize, None)),
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => Err(io::ErrorKind::StorageFull.into()),
            Err(error) => Err(error),
        }
    }

    /// Makes every look-up and removal fail for want of memory, or none.
    #[cfg(test)]
    pub(crate) fn set_unreadable(&mut self, unreadable: bool) {
        self.unreadable = unreadable;
    }

    #[cfg(test)]
    fn is_readable(&self) -> io::Result<()> {
        if self.unreadable { Err(io::Error::from_raw_os_error(libc::ENOMEM)) } else { Ok(()) }
    }

    fn fits(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let fits = key.len() == self.key_size && value.len() == self.value_size;
        if fits { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// # Safety
    /// `key` and `value` must point to as many bytes as `command` reads and writes of this map's elements.
    unsafe fn element(&self, command: BpfCommand, key: &[u8], value: *mut u8, flags: u64) -> io::Result<()> {
        let mut attr = ElementAttr {
            map: self.fd.as_raw_fd() as u32,
            key: key.as_ptr() as u64,
            value: value as u64,
            flags,
            ..ElementAttr::default()
        };
        // SAFETY: the caller's promise.
        unsafe { call(command, &mut attr) }.map(drop)
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Runs a program for packets `repeat` times on a copy of `packet` (BPF_PROG_TEST_RUN), in this thread's network
/// namespace; writes the changed copy to `out`. `StorageFull`: `out` is too short.
pub fn test_run(
    program: impl AsFd,
    packet: &[u8],
    out: &mut [u8],
    context: Context,
    repeat: u32,
) -> io::Result<TestRun> {
    let mut raw = [0; CONTEXT_SIZE];
    for (offset, word) in [
        (CONTEXT_MARK, context.mark),
        (CONTEXT_INGRESS_IFINDEX, context.ingress_ifindex),
        (CONTEXT_IFINDEX, context.ifindex),
        (CONTEXT_GSO_SEGS, context.gso_segs),
        (CONTEXT_GSO_SIZE, context.gso_size),
    ] {
        raw[offset..][..4].copy_from_slice(&word.to_ne_bytes());
    }
    let given = context != Context::default();
    let mut attr = RunAttr {
        program: program.as_fd().as_raw_fd() as u32,
        size_in: packet.len() as u32,
        size_out: out.len() as u32,
        data_in: packet.as_ptr() as u64,
        data_out: out.as_mut_ptr() as u64,
        repeat,
        context_size_in: if given { CONTEXT_SIZE as u32 } else { 0 },
        context_in: if given { raw.as_ptr() as u64 } else { 0 },
        ..RunAttr::default()
    };
    // SAFETY: the kernel reads `size_in` bytes of `packet` and the context, and writes at most `size_out` to `out`.
    match unsafe { call(BpfCommand::TestRun, &mut attr) } {
        Ok(_) => {
            Ok(TestRun { verdict: attr.verdict as i32, length: attr.size_out as usize, duration_ns: attr.duration })
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => Err(io::ErrorKind::StorageFull.into()),
        Err(error) => Err(error),
    }
}

/// The first words of the result of BPF_OBJ_GET_INFO_BY_FD.
fn info<const N: usize>(fd: impl AsFd) -> io::Result<[u32; N]> {
    let mut words = [0u32; N];
    let mut attr =
        Info { fd: fd.as_fd().as_raw_fd() as u32, length: size_of_val(&words) as u32, info: words.as_mut_ptr() as u64 };
    // SAFETY: the kernel writes at most `length` bytes to `words`.
    unsafe { call(BpfCommand::Info, &mut attr) }?;
    Ok(words)
}

/// # Safety
/// Every pointer in `attr`, which must be what `command` takes, must hold for as many bytes as the command uses.
unsafe fn call<T>(command: BpfCommand, attr: &mut T) -> io::Result<i64> {
    // SAFETY: the caller's promise; the kernel takes a shorter `bpf_attr` for one that ends in zeros.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_long, &raw mut *attr, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn found(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Number of CPUs that this machine may ever have: a per-CPU value has a part for each (`num_possible_cpus`).
fn possible_cpus() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

const BPF_MAP_TYPE_PERCPU_ARRAY: u32 = 6;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_LINK_TYPE_NETNS: u32 = 5;
const BPF_LINK_TYPE_TCX: u32 = 11;
