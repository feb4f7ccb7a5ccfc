//! One connection: made or accepted, greeted, then read and written until it ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::credentials::{Credentials, Proof};
use super::secure::{self, LinkError, Opener, Sealer, closed};
use super::wire::Version;
use crate::model::fleet::{Hello, InstanceName, Message};
use crate::model::humane::printable;

/// Limit for the time from the first byte to the hello.
const GREET_MAX: Duration = Duration::from_secs(2);
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Limit for unsent bytes in the kernel: an urgent message must not wait behind a whole buffer of flows.
const UNSENT_MAX: u32 = 32 * 1024;

/// Bytes of one write.
const BATCH_MAX: usize = 64 * 1024;

/// How long the last messages of a link may take to be sent.
const LAST_WORDS_MAX: Duration = Duration::from_millis(300);

/// Limit for the length of any name and version.
const HELLO_TEXT_MAX: usize = 64;
const REFUSAL_SHOWN_MAX: usize = 300;

/// What links tell the hub.
#[derive(Debug)]
pub(super) enum Input {
    /// An instance with the key says hello.
    Greeted {
        hello: Hello,
        proof: Proof,
        version: Version,
        reply: oneshot::Sender<Result<Admitted, String>>,
    },
    Message {
        peer: InstanceName,
        link: u64,
        message: Message,
    },
    Lost {
        peer: InstanceName,
        link: u64,
        why: String,
    },
    /// A connection was not made.
    Failed {
        peer: InstanceName,
        why: String,
    },
    /// An accepted connection failed before its hello.
    Stranger {
        from: SocketAddr,
        why: String,
        /// It closed in order before it was one.
        said_nothing: bool,
    },
}

/// A link that the hub has admitted.
#[derive(Debug)]
pub(super) struct Admitted {
    pub link: u64,
    /// The messages to send. When the channel closes, the link ends once all are sent.
    pub messages: mpsc::Receiver<Message>,
    /// When the hub cancels it, the link ends at once.
    pub ended: CancellationToken,
}

/// The state that all links of an instance share.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub credentials: Credentials,
    pub hello: Hello,
    pub inputs: mpsc::Sender<Input>,
    /// Notified when a link has room for more messages.
    pub room: Arc<Notify>,
}

impl Site {
    /// Connects to `peer`, from the address by which the peer knows this instance, and serves the link until it ends.
    pub(super) async fn make(
        &self,
        own: SocketAddr,
        peer: &InstanceName,
        address: SocketAddr,
    ) -> Result<(), LinkError> {
        let mut made = Err(LinkError::Key);
        for proof in &self.credentials.toward(peer) {
            made = self.make_by(proof, own, peer, address).await;
            // The peer may not know this key yet; a release without keys of instances closes the connection.
            let is_unknown = match &made {
                Err(LinkError::Key | LinkError::Identity(_)) => true,
                Err(error) => proof.name().is_some() && error.is_hangup(),
                Ok(()) => false,
            };
            if !is_unknown {
                break;
            }
        }
        made
    }

    async fn make_by(
        &self,
        proof: &Proof,
        own: SocketAddr,
        peer: &InstanceName,
        address: SocketAddr,
    ) -> Result<(), LinkError> {
        let mut stream = timeout(CONNECT_MAX, connect(own, address)).await.map_err(|_| LinkError::TimedOut)??;
        let greeting = async {
            let (mut seals, mut opens) = secure::connect(&mut stream, &self.credentials, proof).await?;
            say(&mut stream, &mut seals, &Message::Hello(self.hello.clone())).await?;
            let hello = hear_hello(&mut stream, &mut opens).await?;
            if hello.name != *peer {
                let named: String = hello.name.0.chars().take(HELLO_TEXT_MAX).collect();
                return Err(LinkError::Name(named));
            }
            let admitted = self.admit(&mut stream, &mut seals, hello.clone(), proof.clone()).await?;
            Ok::<_, LinkError>((seals, opens, admitted))
        };
        let (seals, opens, admitted) = timeout(GREET_MAX, greeting).await.map_err(|_| LinkError::TimedOut)??;
        self.run(stream, (seals, opens), peer.clone(), admitted).await;
        Ok(())
    }

    /// Greets the instance that connected, then serves the link until it ends. Drops `greeted` once the instance has
    /// said its name.
    pub(super) async fn take(&self, mut stream: TcpStream, greeted: impl Sized) -> Result<(), LinkError> {
        let _ = stream.set_nodelay(true);
        let greeting = async {
            let ((mut seals, mut opens), proof) = secure::accept(&mut stream, &self.credentials).await?;
            let hello = hear_hello(&mut stream, &mut opens).await?;
            if let Some(key) = proof.name().filter(|key| **key != hello.name) {
                let why = format!("its key is that of {key}, and it says that it is {}", hello.name);
                say(&mut stream, &mut seals, &Message::Refuse(why.clone())).await?;
                return Err(LinkError::Refused(why));
            }
            let admitted = self.admit(&mut stream, &mut seals, hello.clone(), proof).await?;
            say(&mut stream, &mut seals, &Message::Hello(self.hello.clone())).await?;
            Ok::<_, LinkError>((seals, opens, hello.name, admitted))
        };
        let (seals, opens, peer, admitted) = timeout(GREET_MAX, greeting).await.map_err(|_| LinkError::TimedOut)??;
        drop(greeted);
        self.run(stream, (seals, opens), peer, admitted).await;
        Ok(())
    }

    /// Asks the hub for admission, and sends its refusal to the other end.
    async fn admit(
        &self,
        stream: &mut TcpStream,
        seals: &mut Sealer,
        hello: Hello,
        proof: Proof,
    ) -> Result<Admitted, LinkError> {
        let (reply, answer) = oneshot::channel();
        let asked = self.inputs.send(Input::Greeted { hello, proof, version: seals.version(), reply }).await;
        asked.map_err(|_| LinkError::Dropped)?;
        match answer.await.map_err(|_| LinkError::Dropped)? {
            Ok(admitted) => Ok(admitted),
            Err(why) => {
                say(stream, seals, &Message::Refuse(why.clone())).await?;
                Err(LinkError::Refused(why))
            }
        }
    }

    async fn run(&self, stream: TcpStream, (seals, opens): (Sealer, Opener), peer: InstanceName, admitted: Admitted) {
        let Admitted { link, messages, ended: cancelled } = admitted;
        let _ = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_MAX);
        let (mut reader, writer) = stream.into_split();
        let ended = tokio::select! {
            ended = self.read(&mut reader, opens, &peer, link) => ended,
            ended = self.write(writer, seals, messages) => {
                if ended.is_ok() {
                    // Closing with unread bytes would send a reset, which may overtake the last message.
                    let _ = timeout(LAST_WORDS_MAX, tokio::io::copy(&mut reader, &mut tokio::io::sink())).await;
                }
                ended
            }
            () = cancelled.cancelled() => Err(LinkError::Dropped),
        };
        let why = ended.map_or_else(|error| error.to_string(), |()| LinkError::Dropped.to_string());
        let _ = self.inputs.send(Input::Lost { peer, link, why }).await;
    }

    async fn read(
        &self,
        reader: &mut OwnedReadHalf,
        mut opens: Opener,
        peer: &InstanceName,
        link: u64,
    ) -> Result<(), LinkError> {
        let mut reader = tokio::io::BufReader::with_capacity(BATCH_MAX, reader);
        let mut frame = Vec::new();
        loop {
            read_frame(&mut reader, &mut frame).await?;
            let message = opens.read(&frame)?;
            let input = Input::Message { peer: peer.clone(), link, message };
            self.inputs.send(input).await.map_err(|_| LinkError::Dropped)?;
        }
    }

    async fn write(
        &self,
        mut writer: OwnedWriteHalf,
        mut seals: Sealer,
        mut messages: mpsc::Receiver<Message>,
    ) -> Result<(), LinkError> {
        let mut out = Vec::with_capacity(BATCH_MAX);
        while let Some(message) = messages.recv().await {
            seals.write(&message, &mut out)?;
            while out.len() < BATCH_MAX / 2
                && let Ok(message) = messages.try_recv()
            {
                seals.write(&message, &mut out)?;
            }
            self.room.notify_one();
            writer.write_all(&out).await?;
            out.clear();
        }
        Ok(writer.shutdown().await?)
    }
}

async fn connect(own: SocketAddr, address: SocketAddr) -> Result<TcpStream, LinkError> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_nodelay(true)?;
    socket.bind(SocketAddr::new(own.ip(), 0))?;
    Ok(socket.connect(address).await?)
}

async fn say(stream: &mut TcpStream, seals: &mut Sealer, message: &Message) -> Result<(), LinkError> {
    let mut out = Vec::new();
    seals.write(message, &mut out)?;
    Ok(stream.write_all(&out).await?)
}

async fn hear_hello(stream: &mut TcpStream, opens: &mut Opener) -> Result<Hello, LinkError> {
    let mut frame = Vec::new();
    read_frame(stream, &mut frame).await?;
    match opens.read(&frame)? {
        Message::Hello(hello) if hello.name.0.len().max(hello.version.len()) <= HELLO_TEXT_MAX => {
            let [name, version] = [&hello.name.0, &*hello.version].map(|text| printable(text).into_owned());
            Ok(Hello { name: InstanceName(name.into()), version, ..hello })
        }
        Message::Refuse(why) => {
            let why: String = why.chars().take(REFUSAL_SHOWN_MAX).collect();
            Err(LinkError::RefusedByIt(printable(&why).into_owned()))
        }
        _ => Err(LinkError::NoHello),
    }
}

async fn read_frame(reader: &mut (impl tokio::io::AsyncRead + Unpin), frame: &mut Vec<u8>) -> Result<(), LinkError> {
    let length = usize::from(reader.read_u16().await.map_err(closed)?);
    frame.resize(length, 0);
    reader.read_exact(frame).await.map_err(closed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{PeerKey, PrivateKey};
    use crate::model::fleet::Epoch;
    use tokio::net::TcpListener;

    fn name(text: &str) -> InstanceName {
        InstanceName(text.into())
    }

    fn site(credentials: Credentials) -> (Site, mpsc::Receiver<Input>) {
        let (inputs, received) = mpsc::channel(4);
        let hello = Hello { name: name("lb-a"), epoch: Epoch(1), slot: 0, version: "1".to_owned() };
        (Site { credentials, hello, inputs, room: Arc::default() }, received)
    }

    /// It closes the connection with the longer handshake unread, so that its kernel sends RST.
    #[tokio::test]
    async fn a_release_without_own_keys_is_linked_by_the_shared_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = vec![PeerKey([1; 32])];
        let pinned = vec![(PrivateKey([2; 32]).public(), name("lb-b"))];
        let (site, _inputs) = site(Credentials { shared: shared.clone(), own: Some(PrivateKey([3; 32])), pinned });
        let earlier = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(&crate::fleet::link::wire::VERSIONS.preamble()).await.unwrap();
            let mut preamble = [0; 8];
            stream.read_exact(&mut preamble).await.unwrap();
            assert_eq!(stream.read_u16().await.unwrap(), 96);
            stream.readable().await.unwrap();
            drop(stream);
            let (mut stream, _) = listener.accept().await.unwrap();
            let (_, proof) =
                secure::accept(&mut stream, &Credentials { shared, own: None, pinned: vec![] }).await.unwrap();
            assert!(matches!(proof, Proof::Shared(_)));
        };
        let own = "127.0.0.1:0".parse().unwrap();
        let lb_b = name("lb-b");
        let (made, ()) = tokio::join!(site.make(own, &lb_b, address), earlier);
        assert!(made.unwrap_err().is_hangup(), "it said no hello");
    }

    #[tokio::test]
    async fn what_a_member_calls_itself_cannot_steer_a_terminal() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Credentials { shared: vec![PeerKey([1; 32])], own: None, pinned: vec![] };
        let proof = Proof::Shared(PeerKey([1; 32]));
        let member = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let (mut seals, _) = secure::connect(&mut stream, &shared, &proof).await.unwrap();
            let hello = Hello { name: name("lb-b\u{1b}[2J"), epoch: Epoch(1), slot: 1, version: "1\n2".to_owned() };
            say(&mut stream, &mut seals, &Message::Hello(hello)).await.unwrap();
            say(&mut stream, &mut seals, &Message::Refuse("no\u{7}".to_owned())).await.unwrap();
            stream
        };
        let this = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let ((_, mut opens), _) = secure::accept(&mut stream, &shared).await.unwrap();
            let hello = hear_hello(&mut stream, &mut opens).await.unwrap();
            (hello, hear_hello(&mut stream, &mut opens).await.unwrap_err().to_string())
        };
        let (_stream, (hello, refused)) = tokio::join!(member, this);
        assert_eq!((&*hello.name.0, &*hello.version), ("lb-b\\u{1b}[2J", "1\\u{a}2"));
        assert_eq!(refused, "it refuses: no\\u{7}");
    }
}
