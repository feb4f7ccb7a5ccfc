//! TCP servers on backend hosts: threads of the test, each with a runtime in its host's namespace.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, oneshot};
use tokio::task::LocalSet;

use super::bytes::{Pattern, Tally};
use super::client::End;
use super::namespace::Namespace;

/// What a server does with each connection.
#[derive(Clone, Debug)]
pub enum Behaviour {
    /// Sends back what comes, and what [`Server::say`] says; FIN after FIN.
    Echo,
    /// Reads to the end, then FIN.
    Sink,
    /// Sends the pattern of `seed`, then FIN, while it reads to the end.
    Source { seed: u64, bytes: u64 },
    /// Reads to the client's FIN, only then sends, then FIN.
    AnswerAfterFin { seed: u64, bytes: u64 },
    /// Sends FIN at once, reads to the end.
    FinFirst,
    /// Reads so many bytes, then RST.
    ReadThenReset { bytes: u64 },
    /// Reads so many bytes, then nothing until it is told to go on by [`Server::resume`], then to the end, then FIN.
    Stall { bytes: u64 },
    /// Accepts and does nothing.
    Silent,
}

/// One connection, as its server saw it end.
#[derive(Clone, Debug)]
pub struct Served {
    pub received: Tally,
    pub sent: u64,
    pub end: End,
}

/// A running server. Dropped, it closes all of its sockets.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    accepted: AtomicUsize,
    open: AtomicUsize,
    ended: Mutex<Vec<Served>>,
    resumed: tokio::sync::Semaphore,
    said: broadcast::Sender<Said>,
}

/// Something to be sent unasked.
#[derive(Clone, Copy, Debug)]
struct Said {
    /// To the connection that was accepted with this number, counted from 0, or to each.
    to: Option<usize>,
    seed: u64,
    bytes: u64,
}

impl Server {
    /// Serves in `namespace`, or where this process is.
    #[track_caller]
    pub fn start(namespace: Option<&Arc<Namespace>>, address: SocketAddr, behaviour: Behaviour) -> Self {
        let shared = Arc::new(Shared {
            accepted: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            ended: Mutex::default(),
            resumed: tokio::sync::Semaphore::new(0),
            said: broadcast::Sender::new(256),
        });
        let (bound, binds) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn({
            let (namespace, shared) = (namespace.cloned(), shared.clone());
            move || {
                if let Some(namespace) = namespace {
                    namespace.enter();
                }
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                let local = LocalSet::new();
                local.block_on(&runtime, async {
                    let listener = match listen(address) {
                        Ok(listener) => listener,
                        Err(error) => return drop(bound.send(Err(error))),
                    };
                    let _ = bound.send(Ok(()));
                    tokio::select! {
                        () = accept_all(listener, behaviour, shared) => {}
                        _ = stopped => {}
                    }
                });
            }
        });
        binds.recv().expect("the thread answers").unwrap_or_else(|error| panic!("{address}: {error}"));
        Self { shared, stop: Some(stop), thread: Some(thread) }
    }

    /// Connections so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(SeqCst)
    }

    /// Connections now.
    pub fn open(&self) -> usize {
        self.shared.open.load(SeqCst)
    }

    /// Connections that have ended, oldest first.
    pub fn ended(&self) -> Vec<Served> {
        self.shared.ended.lock().unwrap().clone()
    }

    /// Waits for the end of the connection with this number, counted in the order of their ends.
    #[track_caller]
    pub fn ended_one(&self, number: usize, deadline: Duration) -> Served {
        super::eventually_some(deadline, "the server sees a connection end", || self.ended().get(number).cloned()).0
    }

    /// Lets [`Behaviour::Stall`] go on.
    pub fn resume(&self) {
        self.shared.resumed.add_permits(10_000);
    }

    /// Sends the pattern of `seed` on each connection of [`Behaviour::Echo`], unasked, as an apiserver does to who watches.
    pub fn say(&self, seed: u64, bytes: u64) {
        let _ = self.shared.said.send(Said { to: None, seed, bytes });
    }

    /// As [`Server::say`], on the connection that was accepted with the number `to`, counted from 0.
    pub fn say_to(&self, to: usize, seed: u64, bytes: u64) {
        let _ = self.shared.said.send(Said { to: Some(to), seed, bytes });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A listener that can be made again at once after one with connections in TIME_WAIT.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        // As Go's net.Listen has it: one that is for every address is IPv4's as well.
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    TcpListener::from_std(socket.into())
}

async fn accept_all(listener: TcpListener, behaviour: Behaviour, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let number = shared.accepted.fetch_add(1, SeqCst);
        shared.open.fetch_add(1, SeqCst);
        let (behaviour, shared) = (behaviour.clone(), shared.clone());
        tokio::task::spawn_local(async move {
            let _ = stream.set_nodelay(true);
            let mut served = Served { received: Tally::default(), sent: 0, end: End::Fin };
            served.end = match serve(stream, number, &behaviour, &shared, &mut served).await {
                Ok(()) => End::Fin,
                Err(error) => End::of_error(&error),
            };
            shared.ended.lock().unwrap().push(served);
            shared.open.fetch_sub(1, SeqCst);
        });
    }
}

async fn serve(
    stream: TcpStream,
    number: usize,
    behaviour: &Behaviour,
    shared: &Shared,
    served: &mut Served,
) -> io::Result<()> {
    let mut stream = stream;
    match *behaviour {
        Behaviour::Echo => echo(&mut stream, number, shared.said.subscribe(), served).await,
        Behaviour::Sink => {
            read_to_end(&mut stream, served).await?;
            stream.shutdown().await
        }
        Behaviour::FinFirst => {
            stream.shutdown().await?;
            read_to_end(&mut stream, served).await
        }
        Behaviour::Source { seed, bytes } => {
            let (mut reader, mut writer) = stream.split();
            let mut sent = 0;
            let sending = async {
                send(&mut writer, seed, bytes, &mut sent).await?;
                writer.shutdown().await
            };
            let both = tokio::try_join!(sending, read_to_end(&mut reader, served));
            served.sent = sent;
            both.map(drop)
        }
        Behaviour::AnswerAfterFin { seed, bytes } => {
            read_to_end(&mut stream, served).await?;
            let mut sent = 0;
            let sending = send(&mut stream, seed, bytes, &mut sent).await;
            served.sent = sent;
            sending?;
            stream.shutdown().await
        }
        Behaviour::ReadThenReset { bytes } => {
            read_some(&mut stream, bytes, served).await?;
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))
        }
        Behaviour::Stall { bytes } => {
            read_some(&mut stream, bytes, served).await?;
            let _ = shared.resumed.acquire().await;
            read_to_end(&mut stream, served).await?;
            stream.shutdown().await
        }
        Behaviour::Silent => std::future::pending().await,
    }
}

async fn echo(
    stream: &mut TcpStream,
    number: usize,
    mut said: broadcast::Receiver<Said>,
    served: &mut Served,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = tokio::select! {
            read = stream.read(&mut buffer) => read?,
            Ok(Said { to, seed, bytes }) = said.recv() => {
                if to.is_some_and(|to| to != number) {
                    continue;
                }
                let mut sent = 0;
                send(stream, seed, bytes, &mut sent).await?;
                served.sent += sent;
                continue;
            }
        };
        if read == 0 {
            return stream.shutdown().await;
        }
        served.received.add(&buffer[..read]);
        stream.write_all(&buffer[..read]).await?;
        served.sent += read as u64;
    }
}

async fn send(stream: &mut (impl AsyncWriteExt + Unpin), seed: u64, bytes: u64, sent: &mut u64) -> io::Result<()> {
    let mut pattern = Pattern::new(seed);
    let mut buffer = vec![0; 64 * 1024];
    while *sent < bytes {
        let part = buffer.len().min((bytes - *sent) as usize);
        pattern.fill(&mut buffer[..part]);
        stream.write_all(&buffer[..part]).await?;
        *sent += part as u64;
    }
    Ok(())
}

async fn read_to_end(stream: &mut (impl AsyncReadExt + Unpin), served: &mut Served) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            read => served.received.add(&buffer[..read]),
        }
    }
}

async fn read_some(stream: &mut TcpStream, bytes: u64, served: &mut Served) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    while served.received.bytes < bytes {
        let room = buffer.len().min((bytes - served.received.bytes) as usize);
        match stream.read(&mut buffer[..room]).await? {
            0 => return Ok(()),
            read => served.received.add(&buffer[..read]),
        }
    }
    Ok(())
}
