//! One direction of a flow: bytes from one socket to the other.
//!
//! ```text
//!            read returns 0              FIN passed on
//!   Open ───────────────────▶ Ending ───────────────────▶ Done
//! ```
//! A direction holds bytes only while the destination accepts none: then it stops reading, and the kernel's windows
//! carry the backpressure to the sender. Small messages go through the worker's one buffer. Two full buffers in a row
//! mean bulk data, which goes through a borrowed pipe until the source is dry.

pub(super) mod pipes;
pub(super) mod serve;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::sys::pipe::Pipe;
use crate::sys::socket;
use crate::table::flow_transfer::{HalfWay, Progress};
use pipes::PipePool;

/// Bytes, and turns of read and write, before other flows have their turn.
const FAIR_BYTES: u64 = 1 << 20;
const FAIR_TURNS: usize = 64;

/// Large reads in a row that make a stream bulk.
const BULK_AFTER: u8 = 2;

/// A read of this many bytes is large: from here on, two splices cost less than two copies.
const LARGE: usize = 32 * 1024;

/// The end of a direction that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Destination,
}

/// A direction broke: the socket at `end` cannot be used any more.
#[derive(Debug)]
pub(super) struct Broken {
    pub end: End,
    pub error: io::Error,
}

/// The bytes that a pump moved, also if it broke in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pumped {
    /// Bytes read from the source.
    pub read: u64,
    /// Bytes that the destination took.
    pub written: u64,
    /// There may be more at once, but other flows should have their turn.
    pub again: bool,
}

/// The worker's tools, for the direction that it pumps.
#[derive(Debug)]
pub(super) struct Tools {
    pub buffer: Box<[u8]>,
    pub pipes: PipePool,
}

#[derive(Debug)]
pub(super) struct Direction {
    stage: RelayStage,
    held: HeldBytes,
    /// The source may have bytes, an EOF or an error.
    readable: bool,
    /// The kernel reported an end behind the bytes, so a short read does not prove that no more follows.
    end_behind: bool,
    large_reads: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RelayStage {
    Open,
    Ending,
    Done,
}

/// Bytes that were read and not yet written. Any variant but `Nothing` means that the destination was full.
#[derive(Debug)]
enum HeldBytes {
    Nothing,
    Bytes { bytes: Box<[u8]>, written: usize },
    Pipe(Pipe),
}

impl Default for Direction {
    fn default() -> Self {
        Self { stage: RelayStage::Open, held: HeldBytes::Nothing, readable: false, end_behind: false, large_reads: 0 }
    }
}

impl Direction {
    /// A direction that must deliver `first` before any byte that it reads.
    pub(super) fn beginning_with(first: Vec<u8>) -> Self {
        Self { held: HeldBytes::Bytes { bytes: first.into_boxed_slice(), written: 0 }, ..Self::default() }
    }

    /// An open direction that holds `bytes`, perhaps none. epoll reports its sockets' readiness anew.
    pub(super) fn holding(bytes: Vec<u8>) -> Self {
        if bytes.is_empty() { Self::default() } else { Self::beginning_with(bytes) }
    }

    /// The source became readable; `end_behind` if an EOF or error is among what can be read.
    pub(super) fn source_ready(&mut self, end_behind: bool) {
        self.readable = true;
        self.end_behind |= end_behind;
    }

    /// Whether it waits for the destination to accept the held bytes.
    pub(super) fn is_blocked(&self) -> bool {
        !matches!(self.held, HeldBytes::Nothing)
    }

    /// Whether it reads its source when that is readable: not while it is blocked, nor after the source's EOF.
    pub(super) fn reads(&self) -> bool {
        self.stage == RelayStage::Open && !self.is_blocked()
    }

    /// Whether its FIN was passed on.
    pub(super) fn is_done(&self) -> bool {
        self.stage == RelayStage::Done
    }

    /// Whether it has nothing to do: it holds no byte, none waits to be read, and its source is open.
    pub(super) fn is_quiet(&self) -> bool {
        self.reads() && !self.readable
    }

    /// Reads once and holds the bytes, so that they can leave with the flow. True: that was all, and no end follows.
    pub(super) fn read_ahead(
        &mut self,
        source: impl AsFd,
        tools: &mut Tools,
        pumped: &mut Pumped,
    ) -> Result<bool, Broken> {
        let Some(count) = self.read(source.as_fd(), tools)? else { return Ok(false) };
        pumped.read += count as u64;
        self.held = HeldBytes::Bytes { bytes: tools.buffer[..count].into(), written: 0 };
        Ok(!self.readable)
    }

    /// Takes the held bytes, to leave with the flow. Not from a pipe: bulk data does not leave.
    pub(super) fn take_held(&mut self) -> Vec<u8> {
        match std::mem::replace(&mut self.held, HeldBytes::Nothing) {
            HeldBytes::Bytes { bytes, written: 0 } => bytes.into_vec(),
            HeldBytes::Bytes { bytes, written } => bytes[written..].to_vec(),
            HeldBytes::Nothing => Vec::new(),
            HeldBytes::Pipe(pipe) => {
                self.held = HeldBytes::Pipe(pipe);
                Vec::new()
            }
        }
    }

    /// Whether a pump could do anything.
    pub(super) fn wants_pump(&self) -> bool {
        self.readable || self.is_blocked()
    }

    /// The state that another process needs to continue. Bytes in a pipe become bytes in memory, here too.
    pub(super) fn pack(&mut self, tools: &mut Tools) -> io::Result<HalfWay> {
        if let HeldBytes::Pipe(pipe) = &mut self.held {
            let bytes = pipe.read_out()?.into_boxed_slice();
            self.dismantle(tools);
            self.held = HeldBytes::Bytes { bytes, written: 0 };
        }
        let held = match &self.held {
            HeldBytes::Bytes { bytes, written } => bytes[*written..].to_vec(),
            HeldBytes::Nothing | HeldBytes::Pipe(_) => Vec::new(),
        };
        let progress = match self.stage {
            RelayStage::Open => Progress::Open,
            RelayStage::Ending => Progress::Ending,
            RelayStage::Done => Progress::Done,
        };
        Ok(HalfWay { progress, held })
    }

    /// Continues from the state of [`Direction::pack`]. epoll reports the sockets' readiness anew.
    pub(super) fn unpack(half_way: HalfWay) -> Self {
        let stage = match half_way.progress {
            Progress::Open => RelayStage::Open,
            Progress::Ending => RelayStage::Ending,
            Progress::Done => RelayStage::Done,
        };
        let held = match half_way.held.is_empty() {
            true => HeldBytes::Nothing,
            false => HeldBytes::Bytes { bytes: half_way.held.into_boxed_slice(), written: 0 },
        };
        Self { stage, held, ..Self::default() }
    }

    /// Moves all bytes that can be moved now, and adds them to `pumped`. The caller sends the FIN:
    /// [`Direction::owes_fin`].
    pub(super) fn pump(
        &mut self,
        source: impl AsFd,
        destination: impl AsFd,
        tools: &mut Tools,
        pumped: &mut Pumped,
    ) -> Result<(), Broken> {
        let (source, destination) = (source.as_fd(), destination.as_fd());
        for _ in 0..FAIR_TURNS {
            if !self.deliver(destination, tools, pumped)? {
                return Ok(());
            }
            if self.stage != RelayStage::Open || !self.readable {
                return Ok(());
            }
            if pumped.read >= FAIR_BYTES {
                break;
            }
            self.take(source, destination, tools, pumped)?;
        }
        pumped.again = self.wants_pump();
        Ok(())
    }

    /// Whether the source's FIN is due: all bytes before it were delivered.
    pub(super) fn owes_fin(&self) -> bool {
        self.stage == RelayStage::Ending && !self.is_blocked()
    }

    /// Passes the source's FIN on, or sends one in its place.
    pub(super) fn pass_fin(&mut self, destination: impl AsFd) {
        // ENOTCONN: the far end has reset meanwhile; its own direction reports that, with the reason.
        let _ = socket::finish_writing(destination);
        self.stage = RelayStage::Done;
    }

    /// Returns what was borrowed. Call it before dropping.
    pub(super) fn dismantle(&mut self, tools: &mut Tools) {
        if let HeldBytes::Pipe(pipe) = std::mem::replace(&mut self.held, HeldBytes::Nothing) {
            tools.pipes.give_back(pipe);
        }
    }

    /// Writes the held bytes; false if the destination is full.
    fn deliver(&mut self, destination: BorrowedFd<'_>, tools: &mut Tools, pumped: &mut Pumped) -> Result<bool, Broken> {
        loop {
            let result = match &mut self.held {
                HeldBytes::Nothing => return Ok(true),
                HeldBytes::Bytes { bytes, written } if *written == bytes.len() => {
                    self.held = HeldBytes::Nothing;
                    return Ok(true);
                }
                HeldBytes::Bytes { bytes, written } => {
                    socket::write(destination, &bytes[*written..]).inspect(|count| *written += count)
                }
                HeldBytes::Pipe(pipe) if pipe.held() == 0 => {
                    self.dismantle(tools);
                    return Ok(true);
                }
                HeldBytes::Pipe(pipe) => pipe.drain_to(destination),
            };
            match settle(result) {
                Ok(Some(count)) => pumped.written += count as u64,
                Ok(None) => return Ok(false),
                Err(error) => return Err(Broken { end: End::Destination, error }),
            }
        }
    }

    /// Reads once and writes the bytes; holds the rest.
    fn take(
        &mut self,
        source: BorrowedFd<'_>,
        destination: BorrowedFd<'_>,
        tools: &mut Tools,
        pumped: &mut Pumped,
    ) -> Result<(), Broken> {
        if self.large_reads >= BULK_AFTER
            && let Some(pipe) = tools.pipes.take()
        {
            return self.splice(pipe, source, destination, tools, pumped);
        }
        let Some(count) = self.read(source, tools)? else { return Ok(()) };
        pumped.read += count as u64;
        let bytes = &tools.buffer[..count];
        match settle(socket::write(destination, bytes)) {
            Ok(written) => {
                let written = written.unwrap_or(0);
                pumped.written += written as u64;
                if written < count {
                    self.held = HeldBytes::Bytes { bytes: bytes[written..].into(), written: 0 };
                }
                Ok(())
            }
            Err(error) => Err(Broken { end: End::Destination, error }),
        }
    }

    /// Reads once into the buffer; `None` at the source's end, or if it is dry.
    fn read(&mut self, source: BorrowedFd<'_>, tools: &mut Tools) -> Result<Option<usize>, Broken> {
        let count = match settle(socket::read(source, &mut tools.buffer)) {
            Ok(Some(0)) => {
                self.end();
                return Ok(None);
            }
            Ok(Some(count)) => count,
            Ok(None) => {
                self.run_dry();
                return Ok(None);
            }
            Err(error) => return Err(Broken { end: End::Source, error }),
        };
        self.large_reads = if count >= LARGE { self.large_reads.saturating_add(1) } else { 0 };
        if count < tools.buffer.len() {
            // A short read has emptied the socket, so another call would be wasted; the next segment makes a new edge.
            // But if an end follows, its edge has already come.
            self.readable = self.end_behind;
        }
        Ok(Some(count))
    }

    /// Moves bulk data through `pipe` until the source is dry, the destination full, or a fair share is done.
    fn splice(
        &mut self,
        mut pipe: Pipe,
        source: BorrowedFd<'_>,
        destination: BorrowedFd<'_>,
        tools: &mut Tools,
        pumped: &mut Pumped,
    ) -> Result<(), Broken> {
        let mut outcome = Ok(());
        let before = pumped.read;
        while pumped.read < FAIR_BYTES {
            match settle(pipe.fill_from(source)) {
                Ok(Some(0)) => self.end(),
                Ok(Some(count)) => pumped.read += count as u64,
                Ok(None) => self.run_dry(),
                Err(error) => outcome = Err(Broken { end: End::Source, error }),
            }
            while pipe.held() > 0 {
                match settle(pipe.drain_to(destination)) {
                    Ok(Some(count)) => pumped.written += count as u64,
                    Ok(None) => {
                        self.held = HeldBytes::Pipe(pipe);
                        return outcome;
                    }
                    Err(error) => {
                        outcome = Err(Broken { end: End::Destination, error });
                        break;
                    }
                }
            }
            if outcome.is_err() || !self.readable {
                break;
            }
        }
        // Bulk data may run dry for a moment, as it does whenever the relay keeps up, and stays bulk; small messages
        // are cheaper to copy.
        if !self.readable && pumped.read - before < LARGE as u64 {
            self.large_reads = 0;
        }
        tools.pipes.give_back(pipe);
        outcome
    }

    fn end(&mut self) {
        self.stage = RelayStage::Ending;
        self.readable = false;
    }

    fn run_dry(&mut self) {
        self.readable = false;
        self.end_behind = false;
    }
}

/// `None` for a call that would block.
fn settle(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    /// Two streams with their far ends: (source's far end, source, destination, destination's far end).
    fn streams() -> (UnixStream, UnixStream, UnixStream, UnixStream) {
        let (feeder, source) = UnixStream::pair().unwrap();
        let (destination, reader) = UnixStream::pair().unwrap();
        source.set_nonblocking(true).unwrap();
        destination.set_nonblocking(true).unwrap();
        (feeder, source, destination, reader)
    }

    #[test]
    fn a_fin_read_in_the_last_fair_turn_is_owed_at_once() {
        let (mut feeder, source, destination, mut reader) = streams();
        let mut tools = Tools { buffer: vec![0; 16].into(), pipes: PipePool::new(0) };
        feeder.write_all(&[7; 16 * (FAIR_TURNS - 1)]).unwrap();
        feeder.shutdown(Shutdown::Write).unwrap();
        let mut direction = Direction::default();
        direction.source_ready(true);
        let mut pumped = Pumped::default();
        direction.pump(&source, &destination, &mut tools, &mut pumped).unwrap();
        assert!(direction.owes_fin(), "no event would come for it any more");
        direction.pass_fin(&destination);
        let mut received = Vec::new();
        reader.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), 16 * (FAIR_TURNS - 1));
    }

    #[test]
    fn a_full_destination_stops_the_reading_until_it_drains() {
        let (mut feeder, source, destination, mut reader) = streams();
        let mut tools = Tools { buffer: vec![0; 4096].into(), pipes: PipePool::new(0) };
        feeder.set_nonblocking(true).unwrap();
        let mut direction = Direction::default();
        let (mut fed, mut pumped) = (0, Pumped::default());
        while let Ok(count) = feeder.write(&[7; 4096]) {
            fed += count as u64;
            direction.source_ready(false);
            direction.pump(&source, &destination, &mut tools, &mut pumped).unwrap();
        }
        assert!(direction.is_blocked() && !direction.reads());
        assert!(pumped.read - pumped.written <= 4096, "more than one buffer is held");
        drop(feeder);
        direction.source_ready(true);
        reader.set_nonblocking(true).unwrap();
        let mut received = 0;
        let mut buffer = [0; 65536];
        while !direction.owes_fin() {
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                received += count as u64;
            }
            direction.pump(&source, &destination, &mut tools, &mut pumped).unwrap();
        }
        while let Ok(count @ 1..) = reader.read(&mut buffer) {
            received += count as u64;
        }
        assert_eq!((received, pumped.written), (fed, fed));
    }
}
