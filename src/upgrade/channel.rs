//! Messages over a Unix socket, each with a deadline.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use super::codec::{self, DecodeError, HEADER_BYTES, Header, TooLong};
use super::message::{Message, Reasons};
use crate::sys::clock::now_ns;
use crate::sys::fd_passing;

/// Limit for unread bytes of ordinary messages. The last message may take twice as much, so that it always fits.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

/// One process's end of an upgrade.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

/// Why a message was not sent or received.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("the other process closed the connection")]
    Closed,
    #[error("the other process closed the connection in the middle of a message")]
    Cut,
    #[error("the other process did not answer for {0:?}")]
    TimedOut(Duration),
    #[error("the other process runs as uid {0}, which is neither root nor this process's user")]
    Stranger(u32),
    #[error("cannot read a message: {0}")]
    Decode(#[from] DecodeError),
    #[error(transparent)]
    TooLong(#[from] TooLong),
    #[error("a message came with {got} descriptors instead of {expected}")]
    Descriptors { expected: usize, got: usize },
    #[error("the connection to the other process broke: {0}")]
    Io(#[from] io::Error),
}

impl Channel {
    /// Uses `socket`, if the process at its other end belongs to the same user or to root.
    pub fn new(socket: OwnedFd) -> Result<Self, ChannelError> {
        let (peer, own) = (fd_passing::peer_uid(&socket)?, rustix::process::geteuid().as_raw());
        if peer != 0 && peer != own {
            return Err(ChannelError::Stranger(peer));
        }
        rustix::io::ioctl_fionbio(&socket, true).map_err(io::Error::from)?;
        fd_passing::set_send_buffer(&socket, SEND_BUFFER_BYTES)?;
        Ok(Self { socket })
    }

    /// Both ends, for a process that starts the other.
    pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
        fd_passing::pair()
    }

    /// Sends `message` and, with it, `fds`. After a failure the other end may have a part of it, but never all.
    pub fn send(&self, message: &Message, fds: &[BorrowedFd<'_>], limit: Duration) -> Result<(), ChannelError> {
        let frame = codec::encode(message, fds.len())?;
        let deadline_ns = deadline_ns(limit);
        let (mut sent, mut fds) = (0, fds);
        while sent < frame.len() {
            match fd_passing::send(&self.socket, &frame[sent..], fds) {
                Ok(count) => {
                    sent += count;
                    fds = &[];
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        let left = left(deadline_ns).ok_or(ChannelError::TimedOut(limit))?;
                        fd_passing::wait_writable(&self.socket, left)?;
                    }
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => return Err(ChannelError::Closed),
                    _ => return Err(error.into()),
                },
            }
        }
        Ok(())
    }

    /// The next message and its descriptors. `limit`: for the time until it has arrived.
    pub fn receive(&self, limit: Duration) -> Result<(Message, Vec<OwnedFd>), ChannelError> {
        let deadline_ns = deadline_ns(limit);
        let mut fds = Vec::new();
        let mut head = [0; HEADER_BYTES];
        self.fill(&mut head, &mut fds, deadline_ns, limit, ChannelError::Closed)?;
        let header = Header::parse(&head)?;
        let mut body = vec![0; header.length()];
        self.fill(&mut body, &mut fds, deadline_ns, limit, ChannelError::Cut)?;
        if fds.len() != header.descriptors() {
            return Err(ChannelError::Descriptors { expected: header.descriptors(), got: fds.len() });
        }
        Ok((codec::decode(&header, &body)?, fds))
    }

    /// Sends Abort. True: the other process will read it, after all earlier messages.
    pub(crate) fn abort(&self, reason: &str) -> bool {
        let message = Message::Abort(Reasons(vec![reason.to_owned()]));
        let grown = fd_passing::set_send_buffer(&self.socket, 2 * SEND_BUFFER_BYTES);
        grown.is_ok() && self.send(&message, &[], Duration::ZERO).is_ok()
    }

    fn fill(
        &self,
        mut into: &mut [u8],
        fds: &mut Vec<OwnedFd>,
        deadline_ns: u64,
        limit: Duration,
        at_start: ChannelError,
    ) -> Result<(), ChannelError> {
        let whole = into.len();
        while !into.is_empty() {
            match fd_passing::receive(&self.socket, into, fds) {
                Ok(0) if into.len() == whole => return Err(at_start),
                Ok(0) => return Err(ChannelError::Cut),
                Ok(count) => into = &mut into[count..],
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        let left = left(deadline_ns).ok_or(ChannelError::TimedOut(limit))?;
                        fd_passing::wait_readable(&self.socket, left)?;
                    }
                    io::ErrorKind::ConnectionReset => return Err(ChannelError::Closed),
                    _ => return Err(error.into()),
                },
            }
        }
        Ok(())
    }
}

fn deadline_ns(limit: Duration) -> u64 {
    now_ns() + limit.as_nanos() as u64
}

fn left(deadline_ns: u64) -> Option<Duration> {
    let left_ns = deadline_ns.checked_sub(now_ns()).filter(|left_ns| *left_ns > 0)?;
    Some(Duration::from_nanos(left_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upgrade::message::{BatchNumber, Hello};
    use std::os::fd::AsFd;

    const SOON: Duration = Duration::from_secs(5);

    fn ends() -> (Channel, Channel) {
        let (near, far) = Channel::pair().unwrap();
        (Channel::new(near).unwrap(), Channel::new(far).unwrap())
    }

    #[test]
    fn a_stranger_at_the_other_end_is_refused() {
        use rustix::thread::{Uid, set_thread_res_uid};
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // Linux counts credentials per thread, and a pair belongs to the thread that made it (unix(7), SO_PEERCRED).
        let nobody = Uid::from_raw(65_534);
        let pair = std::thread::spawn(move || {
            set_thread_res_uid(nobody, nobody, nobody).unwrap();
            Channel::pair().unwrap()
        });
        let (near, _far) = pair.join().unwrap();
        assert!(matches!(Channel::new(near), Err(ChannelError::Stranger(65_534))));
    }

    #[test]
    fn a_message_larger_than_the_buffers_arrives_with_its_descriptors() {
        let (near, far) = ends();
        let long = Message::Refuse(Reasons(vec!["x".repeat(3 << 20)]));
        let sent = long.clone();
        let sender = std::thread::spawn(move || {
            let socket = near.socket.as_fd();
            near.send(&sent, &[socket, socket], SOON).unwrap();
        });
        let (message, fds) = far.receive(SOON).unwrap();
        sender.join().unwrap();
        assert_eq!((message == long, fds.len()), (true, 2));
    }

    #[test]
    fn silence_an_end_and_half_a_message_are_told_apart() {
        let (near, far) = ends();
        assert!(matches!(far.receive(Duration::from_millis(10)), Err(ChannelError::TimedOut(_))));
        let frame = codec::encode(&Message::Hello(Hello::here()), 0).unwrap();
        fd_passing::send(&near.socket, &frame[..frame.len() - 1], &[]).unwrap();
        drop(near);
        assert!(matches!(far.receive(SOON), Err(ChannelError::Cut)));
        assert!(matches!(far.receive(SOON), Err(ChannelError::Closed)));
        assert!(matches!(far.send(&Message::Ready, &[], SOON), Err(ChannelError::Closed)));
    }

    #[test]
    fn the_last_word_finds_room_where_nothing_else_does() {
        let (near, far) = ends();
        let mut waiting = 0;
        while near.send(&Message::Commit(BatchNumber(1)), &[], Duration::ZERO).is_ok() {
            waiting += 1;
        }
        assert!(near.abort("enough"));
        for _ in 0..waiting {
            assert!(matches!(far.receive(SOON).unwrap().0, Message::Commit(_)));
        }
        assert_eq!(far.receive(SOON).unwrap().0, Message::Abort(Reasons(vec!["enough".to_owned()])));
    }
}
