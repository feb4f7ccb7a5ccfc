//! Parts of a scene that are processes of their own, so that none takes descriptors or time from another: the backends,
//! and the crowd of clients. It is this very test program that plays them. Their standard input is a socket, over
//! which they are asked, a line of JSON each time, and answer with another.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::backend;
use super::crowd;

/// A running part, which ends with this.
pub struct Part {
    child: Child,
    lines: BufReader<UnixStream>,
}

impl Part {
    pub fn start(name: &str) -> Self {
        let (near, far) = UnixStream::pair().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["part::play", "--exact", "--ignored", "--nocapture"])
            .env("PART", name)
            .stdin(Stdio::from(OwnedFd::from(far)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, lines: BufReader::new(near) }
    }

    /// Asks, and waits for the answer.
    pub fn ask<T: DeserializeOwned>(&mut self, what: impl Serialize) -> T {
        let mut line = serde_json::to_string(&what).unwrap();
        line.push('\n');
        self.lines.get_mut().write_all(line.as_bytes()).unwrap();
        line.clear();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("a part has failed: {line:?}, {error}"))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `count` backends in one process of their own.
pub fn backends(count: usize) -> (Part, Vec<SocketAddr>) {
    let mut part = Part::start("backends");
    let addresses = part.ask(json!({ "serve": count }));
    (part, addresses)
}

#[test]
#[ignore = "a part of other tests, which start it"]
fn play() {
    let Ok(name) = std::env::var("PART") else { return };
    baton::sys::process::raise_file_limit();
    let socket = UnixStream::from(baton::sys::inherited::take_stdin().unwrap());
    let mut answers = socket.try_clone().unwrap();
    let mut answer: Box<dyn FnMut(Value) -> Value> = match name.as_str() {
        "backends" => Box::new(backends_answer()),
        "crowd" => Box::new(crowd::answers()),
        other => panic!("there is no part of {other}"),
    };
    // Ends with the process that started it.
    for line in BufReader::new(socket).lines().map_while(Result::ok) {
        let said = answer(serde_json::from_str(&line).unwrap());
        answers.write_all(format!("{said}\n").as_bytes()).unwrap();
    }
}

fn backends_answer() -> impl FnMut(Value) -> Value {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    move |asked| match asked["serve"].as_u64() {
        Some(count) => {
            let addresses: Vec<_> = (0..count).map(|_| runtime.block_on(backend::serve())).collect();
            json!(addresses)
        }
        None => {
            backend::finish_drips();
            Value::Null
        }
    }
}
