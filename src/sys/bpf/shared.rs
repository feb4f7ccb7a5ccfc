//! The values of an array map as memory of this process, so that reading them takes no call.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU64;

use super::Map;

/// All values of an array map that was made with BPF_F_MMAPABLE, one after another, as words. BPF programs may write
/// them at any time.
#[derive(Debug)]
pub(crate) struct SharedWords {
    words: *const AtomicU64,
    count: usize,
}

// SAFETY: the mapping belongs to this value alone and stays where it is until it is dropped; all access to it is atomic.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Fails if the map was not made with BPF_F_MMAPABLE.
    pub(crate) fn of(map: &Map) -> io::Result<Self> {
        // The kernel keeps each element of an array at a multiple of eight bytes (kernel/bpf/arraymap.c).
        let count = map.value_size.div_ceil(8) * map.max_entries as usize;
        // SAFETY: a new mapping at an address of the kernel's choice, of a descriptor that is open.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.fd.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { words: start.cast(), count })
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: `of` has mapped so many words, at a page's start, and they stay mapped for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.words, self.count) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: what `of` has mapped, and nobody borrows any more.
        unsafe { libc::munmap(self.words.cast_mut().cast(), self.count * 8) };
    }
}
