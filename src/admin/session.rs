//! Connections to the admin socket: the permission, and the limits in size and time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::protocol::{Command, Effect, REQUEST_MAX, Refusal};
use super::upgrade::ToldGuard;
use super::{Admin, commands};
use crate::table::journal::What;

/// Limits of one admin socket; the tests make them small.
#[derive(Clone, Copy, Debug)]
pub struct SessionLimits {
    pub connections: usize,
    /// Time for a whole request, the first and each further one.
    pub request: Duration,
    /// Time for the client to accept the written bytes.
    pub write: Duration,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self { connections: 32, request: Duration::from_secs(10), write: Duration::from_secs(10) }
    }
}

/// The commands that a socket carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketAccess {
    /// All of them, for root and the user that Baton runs as.
    All,
    /// Those that change nothing and read no file that the client names, for whoever the file's mode lets in.
    Read,
}

impl SocketAccess {
    /// The name of `command` if this socket refuses it.
    fn refuses(self, command: &Command) -> Option<&'static str> {
        match command.effect() {
            Effect::OpensFile(typed) | Effect::Order(typed, _) if self == Self::Read => Some(typed),
            _ => None,
        }
    }
}

/// Serves `listener` as long as it is polled. Accepted connections go on by themselves, so that a reload that moves the
/// socket still gets its answer.
pub async fn serve(admin: Arc<Admin>, listener: UnixListener, access: SocketAccess, limits: SessionLimits) {
    let room = Arc::new(Semaphore::new(limits.connections));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the admin socket cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let permit = room.clone().try_acquire_owned();
        let admin = admin.clone();
        tokio::spawn(async move {
            let (reader, writer) = stream_parts(stream, access, limits);
            let served = match (permit, reader) {
                (Ok(_permit), Ok((caller, reader))) => converse(&admin, caller, reader, writer, access, limits).await,
                (Err(_), _) => refuse(writer, &Refusal::Busy).await,
                (_, Err(refusal)) => refuse(writer, &refusal).await,
            };
            if let Err(error) = served {
                tracing::debug!(%error, "an admin connection broke");
            }
        });
    }
}

/// The replies to a client. Every write has a deadline.
#[derive(Debug)]
pub(crate) struct Replies {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    pending: Vec<u8>,
    write_limit: Duration,
    access: SocketAccess,
    told: Option<ToldGuard>,
}

impl Replies {
    /// Adds one line of a listing; [`Replies::flush`] sends the collected lines.
    pub(crate) fn item(&mut self, item: &impl Serialize) {
        #[derive(Serialize)]
        struct Item<T> {
            item: T,
        }
        self.line(&Item { item });
    }

    /// Whether the socket of this client carries out orders.
    pub(crate) fn takes_orders(&self) -> bool {
        self.access == SocketAccess::All
    }

    /// Whether enough lines were collected to send them.
    pub(crate) fn is_full(&self) -> bool {
        self.pending.len() >= FLUSH_AT
    }

    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        let sent = timeout(self.write_limit, self.writer.write_all(&self.pending)).await;
        self.pending.clear();
        sent.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// Keeps `told` until the result was sent.
    pub(crate) fn tell(&mut self, told: ToldGuard) {
        self.told = Some(told);
    }

    /// Returns once the client has hung up or sends more.
    pub(crate) async fn interrupted(&mut self) {
        let _ = self.reader.fill_buf().await;
    }

    async fn end(&mut self, outcome: Result<serde_json::Value, Refusal>) -> io::Result<()> {
        match outcome {
            Ok(ok) => self.line(&serde_json::json!({ "ok": ok })),
            Err(refusal) => self.line(&refusal.to_json()),
        }
        let sent = self.flush().await;
        self.told = None;
        sent
    }

    fn line(&mut self, line: &impl Serialize) {
        serde_json::to_writer(&mut self.pending, line).expect("a vector takes everything");
        self.pending.push(b'\n');
    }
}

/// The process at the other end, as the kernel names it (SO_PEERCRED of unix(7)).
#[derive(Clone, Copy, Debug)]
struct Caller {
    uid: u32,
    /// 0: it is in another PID namespace.
    pid: u32,
}

async fn converse(
    admin: &Arc<Admin>,
    caller: Caller,
    reader: BufReader<OwnedReadHalf>,
    writer: LineWriter,
    access: SocketAccess,
    limits: SessionLimits,
) -> io::Result<()> {
    let (writer, write_limit) = (writer.0, limits.write);
    let mut replies = Replies { reader, writer, pending: Vec::new(), write_limit, access, told: None };
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut capped = (&mut replies.reader).take(REQUEST_MAX as u64);
        match timeout(limits.request, capped.read_until(b'\n', &mut line)).await {
            // Silence between requests is allowed; half a request is not.
            Err(_) if line.is_empty() => return Ok(()),
            Err(_) => {
                let limit_ms = limits.request.as_millis() as u64;
                return replies.end(Err(Refusal::TooSlow { limit_ms })).await;
            }
            Ok(read) => read?,
        };
        if line.is_empty() {
            return Ok(());
        }
        if !line.ends_with(b"\n") && line.len() == REQUEST_MAX {
            return replies.end(Err(Refusal::TooLarge)).await;
        }
        let outcome = match Command::parse(&line) {
            Ok(command) => match access.refuses(&command) {
                Some(command) => Err(Refusal::ReadOnly { command: command.to_owned() }),
                None => {
                    if let Effect::Order(order, arguments) = command.effect() {
                        admin.table.journal.record(What::OrderReceived {
                            uid: caller.uid,
                            pid: caller.pid,
                            order: format!("{order}{arguments}"),
                        });
                    }
                    commands::execute(admin, command, &mut replies).await?
                }
            },
            Err(refusal) => Err(refusal),
        };
        replies.end(outcome).await?;
    }
}

struct LineWriter(OwnedWriteHalf, Duration);

fn stream_parts(
    stream: UnixStream,
    access: SocketAccess,
    limits: SessionLimits,
) -> (Result<(Caller, BufReader<OwnedReadHalf>), Refusal>, LineWriter) {
    let peer = stream.peer_cred().map(|peer| {
        let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
        Caller { uid: peer.uid(), pid }
    });
    let (reader, writer) = stream.into_split();
    let own = rustix::process::geteuid().as_raw();
    let allowed = match peer {
        Ok(peer) if access == SocketAccess::Read || may_speak(peer.uid, own) => Ok((peer, BufReader::new(reader))),
        Ok(Caller { uid, .. }) => Err(Refusal::Forbidden { uid }),
        Err(_) => Err(Refusal::Forbidden { uid: u32::MAX }),
    };
    (allowed, LineWriter(writer, limits.write))
}

/// The file's mode says the same, but somebody may change a mode by mistake.
fn may_speak(peer: u32, own: u32) -> bool {
    peer == 0 || peer == own
}

async fn refuse(mut writer: LineWriter, refusal: &Refusal) -> io::Result<()> {
    let mut line = refusal.to_json().to_string().into_bytes();
    line.push(b'\n');
    timeout(writer.1, writer.0.write_all(&line)).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

const FLUSH_AT: usize = 32 * 1024;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_own_user_may_speak() {
        assert!(may_speak(0, 1000) && may_speak(1000, 1000) && may_speak(0, 0));
        assert!(!may_speak(1001, 1000) && !may_speak(1000, 0));
    }
}
