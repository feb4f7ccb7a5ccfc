//! TCP clients: blocking sockets with deadlines, made in a host's namespace and used from any thread.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use super::bytes::{Pattern, Tally};
use super::wait::{Stopwatch, patient};

/// How a connection ended, as one side's kernel told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// read(2) returned 0.
    Fin,
    /// ECONNRESET, or EPIPE for a write after it.
    Rst,
    /// The other host vanished: ETIMEDOUT, EHOSTUNREACH.
    TimedOut,
    /// It had not ended by the deadline.
    Open,
    Other(ErrorKind),
}

impl End {
    pub fn of_error(error: &io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Self::Rst,
            ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Self::TimedOut,
            ErrorKind::WouldBlock => Self::Open,
            other => Self::Other(other),
        }
    }
}

/// One client connection.
#[derive(Debug)]
pub struct Conn {
    stream: TcpStream,
    /// Everything that was read.
    received: Tally,
    deadline: Duration,
}

impl Conn {
    pub fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("a connected socket");
        let conn = Self { stream, received: Tally::default(), deadline: patient(super::LONG) };
        conn.stream.set_write_timeout(Some(conn.deadline)).expect("a connected socket");
        conn
    }

    /// The same connection, which waits for so long for each byte.
    pub fn patient(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    pub fn local(&self) -> SocketAddr {
        self.stream.local_addr().expect("a connected socket")
    }

    /// A second handle of the same connection, for another thread.
    pub fn twin(&self) -> Self {
        let stream = self.stream.try_clone().expect("a second handle");
        Self { stream, received: Tally::default(), deadline: self.deadline }
    }

    /// Sends the first `bytes` bytes of the pattern of `seed`.
    pub fn send(&mut self, seed: u64, bytes: u64) -> io::Result<()> {
        let mut pattern = Pattern::new(seed);
        let mut buffer = vec![0; 64 * 1024];
        let mut left = bytes;
        while left > 0 {
            let part = buffer.len().min(left as usize);
            pattern.fill(&mut buffer[..part]);
            self.stream.write_all(&buffer[..part])?;
            left -= part as u64;
        }
        Ok(())
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends while the peer takes more; returns how many bytes it took before it stalled for `pause`.
    pub fn send_until_stalled(&mut self, seed: u64, pause: Duration, at_most: u64) -> io::Result<u64> {
        let mut pattern = Pattern::new(seed);
        let mut buffer = vec![0; 16 * 1024];
        let mut sent = 0;
        self.stream.set_write_timeout(Some(pause))?;
        'sending: while sent < at_most {
            pattern.fill(&mut buffer);
            let mut rest = &buffer[..];
            while !rest.is_empty() {
                match self.stream.write(rest) {
                    Ok(wrote) => {
                        sent += wrote as u64;
                        rest = &rest[wrote..];
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break 'sending,
                    Err(error) => return Err(error),
                }
            }
        }
        self.stream.set_write_timeout(Some(self.deadline))?;
        Ok(sent)
    }

    /// Reads exactly `bytes` bytes and returns their tally.
    pub fn read_tally(&mut self, bytes: u64) -> io::Result<Tally> {
        self.stream.set_read_timeout(Some(self.deadline))?;
        let mut tally = Tally::default();
        let mut buffer = vec![0; 64 * 1024];
        while tally.bytes < bytes {
            let room = buffer.len().min((bytes - tally.bytes) as usize);
            match self.stream.read(&mut buffer[..room])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => {
                    tally.add(&buffer[..read]);
                    self.received.add(&buffer[..read]);
                }
            }
        }
        Ok(tally)
    }

    /// One byte.
    pub fn read_byte(&mut self) -> io::Result<u8> {
        self.stream.set_read_timeout(Some(self.deadline))?;
        let mut byte = [0];
        self.stream.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    /// Sends `bytes` of the pattern of `seed` and checks that exactly these come back.
    #[track_caller]
    pub fn echo(&mut self, seed: u64, bytes: u64) {
        self.try_echo(seed, bytes).unwrap_or_else(|error| panic!("echo of {bytes} bytes: {error}"));
    }

    /// As [`Conn::echo`], but an error is returned. Wrong bytes still panic.
    #[track_caller]
    pub fn try_echo(&mut self, seed: u64, bytes: u64) -> io::Result<()> {
        let mut writer = self.twin();
        let received = std::thread::scope(|scope| {
            let sending = scope.spawn(move || writer.send(seed, bytes));
            let received = self.read_tally(bytes);
            sending.join().expect("sending does not panic").and(received)
        })?;
        assert_eq!(received, Tally::of_pattern(seed, bytes), "the echo differs from what was sent");
        Ok(())
    }

    /// Checks that all that was read by [`Conn::read_tally`] and [`Conn::read_end`] is a beginning of the pattern of
    /// `seed`; returns how many bytes that is.
    #[track_caller]
    pub fn received_pattern(&self, seed: u64) -> u64 {
        assert_eq!(self.received, Tally::of_pattern(seed, self.received.bytes), "wrong bytes came");
        self.received.bytes
    }

    /// Sends FIN; this side can still read.
    pub fn half_close(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Closes with RST.
    pub fn reset(self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).expect("a socket");
    }

    /// Reads to the end: how it ended, what came before, and how long that took.
    pub fn read_end(&mut self, deadline: Duration) -> (End, Tally, Duration) {
        self.read_for(patient(deadline))
    }

    fn read_for(&mut self, deadline: Duration) -> (End, Tally, Duration) {
        let watch = Stopwatch::start();
        let mut tally = Tally::default();
        let mut buffer = vec![0; 64 * 1024];
        let mut has_looked = false;
        let end = loop {
            let left = deadline.saturating_sub(watch.elapsed());
            // Once at least, however late this thread is.
            if left.is_zero() && has_looked {
                break End::Open;
            }
            has_looked = true;
            self.stream.set_read_timeout(Some(left.max(super::ms(1)))).expect("a socket");
            match self.stream.read(&mut buffer) {
                Ok(0) => break End::Fin,
                Ok(read) => {
                    tally.add(&buffer[..read]);
                    self.received.add(&buffer[..read]);
                }
                Err(error) => break End::of_error(&error),
            }
        };
        (end, tally, watch.elapsed())
    }

    /// How it ends within `deadline`.
    pub fn end(&mut self, deadline: Duration) -> End {
        self.read_end(deadline).0
    }

    /// Checks that it has not ended and that no byte came for `time`.
    #[track_caller]
    pub fn stays_open(&mut self, time: Duration) {
        let (end, tally, after) = self.read_for(time);
        assert_eq!((end, tally.bytes), (End::Open, 0), "after {after:?}");
    }
}
