//! A server whose manner each client chooses with its first byte.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Sends back what comes.
pub const ECHO: u8 = b'E';
/// Sends so many bytes of [`pattern`], then FIN.
pub const DOWN: u8 = b'D';
/// Takes so many bytes of [`pattern`] and FIN, then answers [`FINE`].
pub const UP: u8 = b'U';
/// Sends a byte of [`pattern`] every few milliseconds, so many, though the client has sent FIN.
pub const DRIP: u8 = b'H';

pub const FINE: &[u8] = b"fine";

/// Byte number `at` of what both ends of a bulk transfer know.
pub fn pattern(seed: u32, at: u64) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 9).wrapping_mul(7) ^ u64::from(seed)) as u8
}

/// `count` bytes of the pattern from `at` on.
pub fn piece(seed: u32, at: u64, count: usize) -> Vec<u8> {
    (0..count as u64).map(|offset| pattern(seed, at + offset)).collect()
}

/// What a client sends first.
pub fn request(kind: u8, seed: u32, length: u64) -> Vec<u8> {
    [&[kind][..], &seed.to_le_bytes(), &length.to_le_bytes()].concat()
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

async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = [0; 13];
    stream.read_exact(&mut head).await?;
    let seed = u32::from_le_bytes(head[1..5].try_into().unwrap());
    let length = u64::from_le_bytes(head[5..].try_into().unwrap());
    let mut buffer = vec![0; 32 * 1024];
    match head[0] {
        ECHO => loop {
            match stream.read(&mut buffer).await? {
                0 => return Ok(()),
                count => stream.write_all(&buffer[..count]).await?,
            }
        },
        DOWN => {
            let mut at = 0;
            while at < length {
                let count = (length - at).min(buffer.len() as u64) as usize;
                stream.write_all(&piece(seed, at, count)).await?;
                at += count as u64;
            }
            stream.shutdown().await
        }
        UP => {
            let mut at = 0;
            let mut fine = true;
            loop {
                match stream.read(&mut buffer).await? {
                    0 => break,
                    count => {
                        fine &= buffer[..count] == piece(seed, at, count);
                        at += count as u64;
                    }
                }
            }
            stream.write_all(if fine && at == length { FINE } else { b"bad!" }).await?;
            stream.shutdown().await
        }
        DRIP => {
            for at in 0..length {
                stream.write_all(&[pattern(seed, at)]).await?;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            stream.shutdown().await
        }
        other => panic!("a client asked for {other}"),
    }
}
