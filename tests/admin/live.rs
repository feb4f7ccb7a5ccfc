//! `/live`: the page's parts as server-sent events, and what a stranger who opens streams can take.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use baton::admin::http::{HttpLimits, HttpPages, open, serve};
use baton::sys::clock::now_ns;
use baton::table::journal::What;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::fake::FakeInstance;

const LONG: Duration = Duration::from_secs(20);

/// A server with these limits.
fn start(instance: &FakeInstance, limits: HttpLimits) -> (SocketAddr, JoinHandle<()>) {
    let listener = open("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    (address, tokio::spawn(serve(instance.admin.clone(), listener, HttpPages::All, limits)))
}

/// Asks for a stream from 127.0.0.`last`; the connection, and the answer's status.
fn stream_from(last: u8, address: SocketAddr) -> (TcpStream, u16) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, last], 0)).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(b"GET /live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").unwrap();
    let mut line = [0; 12];
    stream.read_exact(&mut line).unwrap();
    (stream, std::str::from_utf8(&line[9..]).unwrap().parse().unwrap())
}

/// Reads until `text` has come.
fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let (mut read, mut piece) = (Vec::new(), [0; 16 * 1024]);
    loop {
        // Megabytes are not looked through again for each piece.
        let new_from = read.len().saturating_sub(text.len());
        match stream.read(&mut piece) {
            Ok(0) => panic!("the stream ended: {}", String::from_utf8_lossy(&read)),
            Ok(length) => read.extend_from_slice(&piece[..length]),
            Err(error) => panic!("{error}: {}", String::from_utf8_lossy(&read)),
        }
        if read[new_from..].windows(text.len()).any(|it| it == text.as_bytes()) {
            return String::from_utf8_lossy(&read).into_owned();
        }
    }
}

/// Whether a new stream gets a place before the deadline.
fn gets_a_place(last: u8, address: SocketAddr) -> bool {
    let until_ns = now_ns() + LONG.as_nanos() as u64;
    std::iter::repeat_with(|| stream_from(last, address).1).take_while(|_| now_ns() < until_ns).any(|it| it == 200)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_all_parts_first_and_then_an_event_as_it_happens() {
    let instance = FakeInstance::start();
    let address = instance.doors.http_address().unwrap();
    let table = instance.table.clone();
    spawn_blocking(move || {
        let (mut stream, status) = stream_from(1, address);
        assert_eq!(status, 200);
        let first = read_until(&mut stream, "\"foot\":");
        let has = |part: &str| first.contains(&format!("\"{part}\":\"<"));
        assert!(["now", "charts", "past", "foot"].iter().all(|part| has(part)), "{first}");
        assert!(first.to_ascii_lowercase().contains("content-type: text/event-stream"), "{first}");
        table.journal.record(What::ReloadRefused { errors: vec!["line\r\n\"quoted\"".to_owned()] });
        let next = read_until(&mut stream, "quoted&quot;");
        assert!(next.contains("line\\r\\n&quot;quoted"), "no line end is in a message: {next}");
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_limited_and_leave_room_for_all_other_requests() {
    let instance = FakeInstance::start();
    let limits = HttpLimits { streams: 3, streams_of_source: 2, ..HttpLimits::default() };
    let (address, _server) = start(&instance, limits);
    spawn_blocking(move || {
        let mut open: Vec<_> = (0..2).map(|_| stream_from(1, address)).collect();
        assert!(open.iter().all(|(_, status)| *status == 200));
        assert_eq!(stream_from(1, address).1, 503, "a third one of one source");
        open.push(stream_from(2, address));
        assert_eq!((open[2].1, stream_from(2, address).1, stream_from(3, address).1), (200, 503, 503));
        let mut other = TcpStream::connect(address).unwrap();
        other.set_read_timeout(Some(LONG)).unwrap();
        other.write_all(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n").unwrap();
        assert!(read_until(&mut other, "</html>").starts_with("HTTP/1.1 200"));
        drop(open.remove(0));
        assert!(gets_a_place(3, address), "a closed tab leaves its place");
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_reads_nothing_loses_its_place_and_delays_no_other() {
    let instance = FakeInstance::start();
    // Time for the other reader, too, to take megabytes on a busy machine.
    let limits = HttpLimits { streams_of_source: 1, head: Duration::from_secs(2), ..HttpLimits::default() };
    let (address, _server) = start(&instance, limits);
    let table = instance.table.clone();
    spawn_blocking(move || {
        let (silent, status) = stream_from(1, address);
        assert_eq!(status, 200);
        let (mut other, _) = stream_from(2, address);
        for number in 0..30 {
            // More than any buffer holds.
            let errors = (0..20).map(|_| "x".repeat(20_000)).collect();
            table.journal.record(What::ReloadRefused { errors });
            table.journal.record(What::WorkerStuck { worker: number, for_ms: 7 });
            read_until(&mut other, &format!("worker {number} "));
            if stream_from(1, address).1 == 200 {
                drop(silent);
                return;
            }
        }
        panic!("it has kept its place");
    })
    .await
    .unwrap();
}

/// A stop, an upgrade, or a reload that moves the server.
#[tokio::test(flavor = "multi_thread")]
async fn streams_end_with_their_server() {
    let instance = FakeInstance::start();
    let (address, server) = start(&instance, HttpLimits::default());
    let (mut stream, _) = spawn_blocking(move || stream_from(1, address)).await.unwrap();
    server.abort();
    let ended = spawn_blocking(move || {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut rest = Vec::new();
        while !rest.ends_with(b"0\r\n\r\n") {
            let mut piece = [0; 16 * 1024];
            match stream.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => rest.extend_from_slice(&piece[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => break,
            }
        }
        true
    });
    assert!(ended.await.unwrap(), "the stream goes on");
}
