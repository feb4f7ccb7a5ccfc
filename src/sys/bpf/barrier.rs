//! Waits until every packet that read a map before a change has left the program.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{BpfCommand, Map, Update, call};
use crate::sys::silence::wait_for_all_cpus;

/// One of the kernel's ways to wait for an RCU grace period: every packet that was looked up in a map before
/// [`Barrier::wait`] has reached its socket when that returns. Takes milliseconds.
#[derive(Debug)]
pub(crate) enum Barrier {
    /// membarrier(2). The kernel refuses it where CPUs run without a tick (nohz_full; kernel/sched/membarrier.c).
    Membarrier,
    /// An update of a map of maps waits for all programs that may still use the old map (kernel/bpf/syscall.c,
    /// maybe_wait_bpf_programs). Needs CAP_BPF.
    Update { outer: Map, inner: OwnedFd },
}

/// The part of `union bpf_attr` that makes a map.
#[repr(C)]
#[derive(Default)]
struct Create {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    inner: u32,
}

const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_ARRAY_OF_MAPS: u32 = 12;

impl Barrier {
    /// The first way that this kernel supports. An error names both.
    pub(crate) fn open() -> io::Result<Self> {
        Self::of(wait_for_all_cpus, Self::update)
    }

    /// Calls `first`, which waits once; if that fails, tries `other`.
    fn of(first: impl Fn() -> io::Result<()>, other: impl Fn() -> io::Result<Self>) -> io::Result<Self> {
        let Err(refused) = first() else { return Ok(Self::Membarrier) };
        let other = other().and_then(|other| other.wait().map(|()| other));
        other.map_err(|error| io::Error::new(error.kind(), format!("membarrier: {refused}; a map of maps: {error}")))
    }

    fn update() -> io::Result<Self> {
        let inner = create(Create {
            kind: BPF_MAP_TYPE_ARRAY,
            key_size: 4,
            value_size: 4,
            max_entries: 1,
            ..Create::default()
        })?;
        let of = Create { inner: inner.as_raw_fd() as u32, ..Create::default() };
        let outer =
            create(Create { kind: BPF_MAP_TYPE_ARRAY_OF_MAPS, key_size: 4, value_size: 4, max_entries: 1, ..of })?;
        Ok(Self::Update { outer: Map::of(outer, 4, 4, 1), inner })
    }

    pub(crate) fn wait(&self) -> io::Result<()> {
        match self {
            Self::Membarrier => wait_for_all_cpus(),
            Self::Update { outer, inner } => outer.update(&[0; 4], &inner.as_raw_fd().to_ne_bytes(), Update::Any),
        }
    }
}

fn create(mut wanted: Create) -> io::Result<OwnedFd> {
    // SAFETY: the command takes what `Create` holds, and no pointer.
    let fd = unsafe { call(BpfCommand::Create, &mut wanted) }?;
    // SAFETY: the kernel has just made this descriptor for us, close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EINVAL))
    }

    #[test]
    fn where_membarrier_is_refused_an_update_of_a_map_of_maps_waits() {
        if rustix::process::geteuid().as_raw() != 0 {
            return;
        }
        assert!(matches!(Barrier::open().unwrap(), Barrier::Membarrier));
        let barrier = Barrier::of(refused, Barrier::update).unwrap();
        assert!(matches!(barrier, Barrier::Update { .. }));
        (0..3).for_each(|_| barrier.wait().unwrap());
    }

    #[test]
    fn where_both_are_refused_both_are_named() {
        let error = Barrier::of(refused, || Err(io::ErrorKind::PermissionDenied.into())).unwrap_err().to_string();
        assert!(error.contains("membarrier: Invalid argument") && error.contains("map of maps: permission"), "{error}");
    }
}
