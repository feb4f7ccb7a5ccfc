//! The clock of a connection's timestamps (RFC 7323), put forward.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The next TSval that `socket` sends.
pub fn next(socket: impl AsFd) -> io::Result<u32> {
    option(&socket, libc::TCP_TIMESTAMP, None)
}

/// From now on `socket` counts on from `value`, in milliseconds: TCP_TIMESTAMP of a socket that is repaired for a moment. Needs
/// CAP_NET_ADMIN.
pub fn count_from(socket: impl AsFd, value: u32) -> io::Result<()> {
    option(&socket, libc::TCP_REPAIR, Some(1))?;
    // An odd number would turn it to microseconds.
    let set = option(&socket, libc::TCP_TIMESTAMP, Some((value & !1).cast_signed()));
    // Without the probe of its peer that the end of a repair sends else.
    option(&socket, libc::TCP_REPAIR, Some(-1))?;
    set.map(drop)
}

/// Sets an option of TCP, or reads it.
fn option(socket: &impl AsFd, option: libc::c_int, value: Option<libc::c_int>) -> io::Result<u32> {
    let fd = socket.as_fd().as_raw_fd();
    let mut number = value.unwrap_or(0);
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    let at = (&raw mut number).cast();
    // SAFETY: the kernel reads or writes at most `length` bytes of `number`, which outlives the call.
    let result = unsafe {
        match value {
            Some(_) => libc::setsockopt(fd, libc::IPPROTO_TCP, option, at, length),
            None => libc::getsockopt(fd, libc::IPPROTO_TCP, option, at, &mut length),
        }
    };
    if result == 0 { Ok(number.cast_unsigned()) } else { Err(io::Error::last_os_error()) }
}
