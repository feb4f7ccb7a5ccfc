//! A server whose behaviour each client chooses with its first byte.

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Echoes all bytes.
pub const ECHO: u8 = b'E';
/// Sends so many bytes of [`piece`], then FIN.
pub const DOWN: u8 = b'D';
/// Takes bytes of [`piece`] until FIN, then answers [`verdict`].
pub const UP: u8 = b'U';
/// Sends a byte of [`piece`] now and then, so many, though the client has sent FIN.
pub const DRIP: u8 = b'H';

/// Bytes of one piece at most.
pub const PIECE_MAX: usize = 64 * 1024;

/// A prime: no buffer that is lost, doubled or swapped has a multiple of it.
const PERIOD: usize = 1_000_003;

const DRIP_EVERY: Duration = Duration::from_millis(100);

/// Only a small part of a download fits into the kernel, so the rest waits in the process that relays it.
const SEND_BUFFER: usize = 64 * 1024;

static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = fastrand::Rng::with_seed(1);
    let mut bytes: Vec<u8> = (0..PERIOD).map(|_| random.u8(..)).collect();
    bytes.extend_from_within(..PIECE_MAX);
    bytes
});

/// Drips go to their end at once.
static FINISH: AtomicBool = AtomicBool::new(false);

/// `count` bytes from byte number `at` on of what both ends of a transfer know.
pub fn piece(seed: u32, at: u64, count: usize) -> &'static [u8] {
    let start = (u64::from(seed) * 7919 + at) as usize % PERIOD;
    &BYTES[start..start + count]
}

/// The first bytes of a client.
pub fn request(kind: u8, seed: u32, length: u64) -> Vec<u8> {
    [&[kind][..], &seed.to_le_bytes(), &length.to_le_bytes()].concat()
}

/// The server's verdict on an upload: whether all its bytes were right, and their number.
pub fn verdict(right: bool, count: u64) -> [u8; 9] {
    let mut verdict = [u8::from(right); 9];
    verdict[1..].copy_from_slice(&count.to_le_bytes());
    verdict
}

/// Serves for as long as the runtime lives.
pub async fn serve() -> SocketAddr {
    let listener = TcpListener::bind(super::instance::free_address()).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move { drop(answer(stream).await) });
        }
    });
    address
}

/// Has every drip end soon.
pub fn finish_drips() {
    FINISH.store(true, Relaxed);
}

async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head = [0; 13];
    stream.read_exact(&mut head).await?;
    let seed = u32::from_le_bytes(head[1..5].try_into().unwrap());
    let length = u64::from_le_bytes(head[5..].try_into().unwrap());
    match head[0] {
        ECHO => {
            // Small at first: most flows never need more, and there are thousands.
            let mut buffer = vec![0; 256];
            loop {
                match stream.read(&mut buffer).await? {
                    0 => return Ok(()),
                    count => {
                        stream.write_all(&buffer[..count]).await?;
                        if count == buffer.len() {
                            buffer.resize(PIECE_MAX, 0);
                        }
                    }
                }
            }
        }
        DOWN => {
            socket2::SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER)?;
            let mut at = 0;
            while at < length {
                let count = (length - at).min(PIECE_MAX as u64) as usize;
                stream.write_all(piece(seed, at, count)).await?;
                at += count as u64;
            }
            finish(stream).await
        }
        UP => {
            let mut buffer = vec![0; PIECE_MAX];
            let (mut at, mut right) = (0, true);
            loop {
                match stream.read(&mut buffer).await? {
                    0 => break,
                    count => {
                        right &= buffer[..count] == *piece(seed, at, count);
                        at += count as u64;
                    }
                }
            }
            stream.write_all(&verdict(right, at)).await?;
            finish(stream).await
        }
        DRIP => {
            for at in 0..length {
                stream.write_all(piece(seed, at, 1)).await?;
                if !FINISH.load(Relaxed) {
                    tokio::time::sleep(DRIP_EVERY).await;
                }
            }
            finish(stream).await
        }
        other => panic!("a client asked for {other}"),
    }
}

/// Sends FIN, and stays until the client has closed too: the kernel gives the remaining bytes of a closed socket only a
/// short time (tcp_orphan_retries).
async fn finish(mut stream: TcpStream) -> std::io::Result<()> {
    stream.shutdown().await?;
    while stream.read(&mut [0; 64]).await? > 0 {}
    Ok(())
}
