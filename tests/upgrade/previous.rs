//! The last release's side of an upgrade: its messages were recorded from the real one, and are in
//! `tests/upgrade/recorded`. That release must understand every message of this one.
//!
//! With the real one at hand, `BATON_PREVIOUS=/path/to/baton cargo nextest run -E 'test(previous::)' --run-ignored all`
//! upgrades to it and back, and with `RECORD_TO=/a/directory` records it anew.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use baton::sys::fd_passing;
use baton::table::flow_transfer::{FlowTransfer, Relayed, Stage};
use baton::upgrade::codec::{self, HEADER_BYTES, Header};
use baton::upgrade::message::{Batch, BatchNumber, Kind, Message};
use serde_json::{Value, json};

use super::backend::{self, ECHO, request};
use super::crowd::Crowd;
use super::frames::{Frame, record, recorded};
use super::instance::{BINARY, DEADLINE, Instance, wait_for};
use super::part;

/// The version of the upgrade that the release before speaks.
const PROTOCOL: u32 = 1;

fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upgrade/recorded/0.1.0")
}

fn decode(frame: &Frame) -> Message {
    let bytes = frame.bytes();
    let (head, body) = bytes.split_at(HEADER_BYTES);
    codec::decode(&Header::parse(head.try_into().unwrap()).unwrap(), body).unwrap()
}

/// The first message of `kind` in `conversation`.
fn said(conversation: &str, kind: Kind) -> Frame {
    let all = recorded(&recordings().join(conversation));
    all.into_iter().find(|(_, frame)| frame.kind == kind).unwrap_or_else(|| panic!("no {}", kind.name())).1
}

/// Panics unless `now` has all that `then` has, of the same types: the release before looks for all of it. Lists may be
/// empty; maps whose keys are data (`labels`) too.
fn has_all_of(now: &Value, then: &Value, at: &str) {
    match (now, then) {
        (Value::Object(now), Value::Object(then)) => {
            for (key, then) in then {
                let at = format!("{at}.{key}");
                let is_data = [".ended.", ".failures.", ".tallies."].iter().any(|of_labels| at.contains(of_labels));
                match now.get(key) {
                    Some(now) => has_all_of(now, then, &at),
                    None => assert!(is_data, "{at} is missing"),
                }
            }
        }
        (Value::Array(now), Value::Array(then)) => {
            let is_same = now.len() == then.len();
            for (index, now) in now.iter().enumerate() {
                // One after the other if they are the same list, else each as the first was.
                let like = if is_same { then.get(index) } else { then.first() };
                like.iter().for_each(|then| has_all_of(now, then, &format!("{at}[]")));
            }
        }
        // Where it can be absent it can be anything that it was once.
        (Value::Null, _) | (_, Value::Null) => {}
        // One of several words, or of several shapes with words of their own.
        (Value::String(_) | Value::Object(_), Value::String(_) | Value::Object(_)) => {}
        (now, then) => {
            let same = std::mem::discriminant(now) == std::mem::discriminant(then);
            assert!(same, "{at} is {now} and was {then}");
        }
    }
}

#[test]
fn every_message_of_the_release_before_reads_and_reads_back() {
    let mut kinds = Vec::new();
    for conversation in ["whole", "aborted", "refused"] {
        for (name, frame) in recorded(&recordings().join(conversation)) {
            let message = decode(&frame);
            assert!(name.ends_with(message.name()), "{name}");
            let again = Frame::parse(&codec::encode(&message, frame.descriptors).unwrap());
            match frame.kind {
                // Every byte has its place.
                Kind::Batch => assert_eq!(again, frame, "{name}"),
                _ if frame.body.is_empty() => assert_eq!(again, frame, "{name}"),
                _ => has_all_of(&again.value(), &frame.value(), &name),
            }
            kinds.push(frame.kind as u16);
        }
    }
    kinds.sort_unstable();
    kinds.dedup();
    // Those of a later version of the upgrade come last.
    let known: Vec<_> = Kind::ALL.iter().map(|kind| *kind as u16).filter(|kind| *kind < Kind::Peers as u16).collect();
    assert_eq!(kinds, known, "every kind was recorded");
}

/// The batch that was recorded has flows of all stages, and bytes on their way.
fn recorded_flows() -> Vec<FlowTransfer> {
    let conversation = recorded(&recordings().join("whole"));
    let batches = conversation.into_iter().filter(|(_, frame)| frame.kind == Kind::Batch);
    let flows = batches.flat_map(|(_, frame)| match decode(&frame) {
        Message::Batch(batch) => batch.flows,
        other => panic!("{other:?}"),
    });
    flows.collect()
}

#[test]
fn the_recording_has_flows_of_all_kinds() {
    let flows = recorded_flows();
    let some = |is: &dyn Fn(&FlowTransfer) -> bool| assert!(flows.iter().any(is), "{flows:#?}");
    some(&|flow| matches!(flow.stage, Stage::Header));
    some(&|flow| matches!(flow.stage, Stage::Connecting));
    some(&|flow| flow.client.ip().is_ipv6());
    some(&|flow| flow.held_bytes() > 0);
    let relayed = |is: &dyn Fn(&Relayed) -> bool| {
        some(&|flow| matches!(&flow.stage, Stage::Relaying(relayed) if is(relayed)));
    };
    relayed(&|relayed| relayed.first_fin == Some(baton::table::flow_transfer::FirstFin::Client));
    relayed(&|relayed| relayed.first_fin == Some(baton::table::flow_transfer::FirstFin::Backend));
}

/// The test plays the old process of the release before, with its words.
#[test]
fn this_release_upgrades_the_one_before() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let backend = runtime.block_on(backend::serve());
    let directory = tempfile::tempdir().unwrap();
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.set_reuse_port(true).unwrap();
    listener.bind(&super::instance::free_address().into()).unwrap();
    listener.listen(128).unwrap();
    listener.set_nonblocking(true).unwrap();
    let frontend = listener.local_addr().unwrap().as_socket().unwrap();
    let admin_path = directory.path().join("admin.sock");
    let admin = UnixListener::bind(&admin_path).unwrap();
    let config = directory.path().join("baton.toml");
    std::fs::write(&config, super::instance::text_of(directory.path(), frontend, &[backend], 2, "")).unwrap();

    // A flow as the release before has it: with the first half of what its backend said still to be delivered.
    let mut client = TcpStream::connect(frontend).unwrap();
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    wait_for("the client", || fd_passing::wait_readable(listener.as_fd(), Duration::ZERO).unwrap());
    let (accepted, _) = listener.accept().unwrap();
    accepted.set_nonblocking(true).unwrap();
    let mut leg = TcpStream::connect(backend).unwrap();
    leg.write_all(&request(ECHO, 0, 0)).unwrap();
    leg.write_all(b"second").unwrap();
    leg.set_nonblocking(true).unwrap();

    let (near, far) = UnixStream::pair().unwrap();
    let _new = Killed(
        Command::new(BINARY)
            .args(["run", "--upgrade", "-c"])
            .arg(&config)
            .stdin(Stdio::from(OwnedFd::from(far)))
            .spawn()
            .unwrap(),
    );
    let (hello, _) = Frame::expect(&near, Kind::Hello);
    has_all_of(&hello.value(), &said("whole", Kind::Hello).value(), "hello");
    assert!(hello.value()["protocol_min"].as_u64().unwrap() <= u64::from(PROTOCOL), "{}", hello.value());
    let mut welcome = said("whole", Kind::Welcome).value();
    welcome["pid"] = std::process::id().into();
    welcome["doors"] = 2.into();
    Frame::json(Kind::Welcome, &welcome, 0).send(&near, &[]);
    let doors = json!([{ "frontend": frontend }, { "admin_socket": admin_path }]);
    let were = said("whole", Kind::Doors).value();
    let forms: Vec<_> = were.as_array().unwrap().iter().flat_map(|door| door.as_object().unwrap().keys()).collect();
    assert!(["frontend", "admin_socket"].iter().all(|form| forms.iter().any(|was| was == form)), "{were}");
    Frame::json(Kind::Doors, &doors, 2).send(&near, &[listener.as_fd(), admin.as_fd()]);
    let mut state = said("whole", Kind::State).value();
    let known = state["backends"].as_array_mut().unwrap();
    known.retain(|known| known["frontend"] == "api");
    known[0]["address"] = backend.to_string().into();
    Frame::json(Kind::State, &state, 0).send(&near, &[]);
    Frame::expect(&near, Kind::Ready);
    said("whole", Kind::Begin).send(&near, &[]);
    Frame::expect(&near, Kind::Serving);

    let mut flow = recorded_flows().into_iter().find(|flow| flow.held_bytes() > 0).unwrap();
    flow.frontend = "api".to_owned();
    flow.client = baton::addr::ClientAddr::new(client.local_addr().unwrap());
    flow.vip = baton::addr::VipAddr::new(frontend);
    let Stage::Relaying(relayed) = &mut flow.stage else { panic!("{flow:?}") };
    relayed.backend_addr = baton::addr::BackendAddr::new(backend);
    relayed.down.held = b"first ".to_vec();
    let number = BatchNumber(1);
    let batch = codec::encode(&Message::Batch(Batch { number, flows: vec![flow.clone()] }), 2).unwrap();
    Frame::parse(&batch).send(&near, &[accepted.as_fd(), leg.as_fd()]);
    let (received, _) = Frame::expect(&near, Kind::Received);
    assert_eq!(received, said("whole", Kind::Received));
    said("whole", Kind::Commit).send(&near, &[]);
    let (imported, _) = Frame::expect(&near, Kind::Imported);
    assert_eq!(imported.value(), said("whole", Kind::Imported).value());
    drop((accepted, leg, listener));
    let done = said("whole", Kind::Done);
    done.send(&near, &[]);
    assert_eq!(Frame::expect(&near, Kind::Finished).0, said("whole", Kind::Finished));
    drop((near, admin));

    let mut back = [0; 12];
    client.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"first second");
    client.write_all(b"and more").unwrap();
    client.read_exact(&mut back[..8]).unwrap();
    assert_eq!(&back[..8], b"and more");
    let ask = |arguments: &[&str]| {
        let output = Command::new(BINARY).arg("--socket").arg(&admin_path).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let listed: Value = serde_json::from_str(&ask(&["--json", "flows"])).unwrap();
    assert_eq!(listed["id"], flow.id.to_string());
    let status: Value = serde_json::from_str(&ask(&["--json", "status"])).unwrap();
    let counted = done.value()["totals"]["frontends"][0]["accepted"].as_u64().unwrap();
    assert!(status["frontends"][0]["accepted_total"].as_u64().unwrap() >= counted, "{status}");
    assert!(ask(&["events"]).contains("this process imported"));
}

/// The test plays the new process of the release before, with its words.
#[test]
fn the_release_before_replaces_this_one() {
    let (_part, backends) = part::backends(2);
    let mut instance = Instance::start(&backends, 2);
    let mut streams: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(instance.frontend).unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            stream.write_all(&request(ECHO, 0, 0)).unwrap();
            stream
        })
        .collect();
    let mut echo = || {
        for stream in &mut streams {
            stream.write_all(b"word").unwrap();
            stream.read_exact(&mut [0; 4]).unwrap();
        }
    };
    echo();
    let successor = script(instance.directory.path(), "previous::plays_the_release_before", &[]);
    let upgraded = instance.upgrade_with(&["--binary", successor.to_str().unwrap()]).result;
    assert_eq!((&upgraded["moved"], &upgraded["not_moved"]), (&100.into(), &json!([])), "{upgraded}");
    echo();
}

#[test]
#[ignore = "a part of the test above, which starts it"]
fn plays_the_release_before() {
    if std::env::var("PART_OF").is_err() {
        return;
    }
    let old = stdin_socket();
    let mut hello = said("whole", Kind::Hello).value();
    hello["pid"] = std::process::id().into();
    Frame::json(Kind::Hello, &hello, 0).send(&old, &[]);
    let (welcome, _) = Frame::expect(&old, Kind::Welcome);
    has_all_of(&welcome.value(), &said("whole", Kind::Welcome).value(), "welcome");
    assert_eq!(welcome.value()["protocol"], PROTOCOL);
    let mut doors = 0;
    while doors < welcome.value()["doors"].as_u64().unwrap() as usize {
        let (frame, fds) = Frame::expect(&old, Kind::Doors);
        assert_eq!(frame.value().as_array().unwrap().len(), fds.len());
        doors += fds.len();
    }
    let (state, _) = Frame::expect(&old, Kind::State);
    has_all_of(&state.value(), &said("whole", Kind::State).value(), "state");
    said("whole", Kind::Ready).send(&old, &[]);
    Frame::expect(&old, Kind::Begin);
    said("whole", Kind::Serving).send(&old, &[]);
    let mut relays = Vec::new();
    for number in 1u64.. {
        let (frame, fds) = Frame::receive(&old).expect("more");
        if frame.kind == Kind::Done {
            has_all_of(&frame.value(), &said("whole", Kind::Done).value(), "done");
            said("whole", Kind::Finished).send(&old, &[]);
            break;
        }
        let Message::Batch(batch) = decode(&frame) else { panic!("{frame:?}") };
        assert_eq!(batch.number, BatchNumber(number));
        Frame::json(Kind::Received, &number.into(), 0).send(&old, &[]);
        assert_eq!(Frame::expect(&old, Kind::Commit).0.value(), json!(number));
        let mut fds = fds.into_iter();
        for flow in batch.flows {
            relays.push(relay(flow, fds.by_ref()));
        }
        let mut imported = said("whole", Kind::Imported).value();
        imported["number"] = number.into();
        Frame::json(Kind::Imported, &imported, 0).send(&old, &[]);
    }
    relays.into_iter().for_each(|relay| relay.join().unwrap());
}

/// Serves a flow, as simply as can be.
fn relay(flow: FlowTransfer, mut sockets: impl Iterator<Item = OwnedFd>) -> std::thread::JoinHandle<()> {
    let mut next = || {
        let stream = TcpStream::from(sockets.next().unwrap());
        stream.set_nonblocking(false).unwrap();
        stream
    };
    let (client, backend) = (next(), next());
    let Stage::Relaying(relayed) = flow.stage else { panic!("{flow:?}") };
    let (up_held, down_held) = (relayed.up.held, relayed.down.held);
    std::thread::spawn(move || {
        let (mut up, mut down) = (client.try_clone().unwrap(), backend.try_clone().unwrap());
        let (mut client, mut backend) = (client, backend);
        let upwards = std::thread::spawn(move || {
            backend.write_all(&up_held).unwrap();
            let _ = std::io::copy(&mut up, &mut backend);
            let _ = backend.shutdown(Shutdown::Write);
        });
        client.write_all(&down_held).unwrap();
        let _ = std::io::copy(&mut down, &mut client);
        upwards.join().unwrap();
    })
}

/// The real one, if it is at hand.
#[test]
#[ignore = "needs the binary of the release before, in BATON_PREVIOUS"]
fn the_real_release_before_replaces_this_one_and_is_replaced() {
    let previous = std::env::var("BATON_PREVIOUS").expect("BATON_PREVIOUS names the binary of the release before");
    let (mut backends_part, backends) = part::backends(3);
    let mut instance = Instance::start_as(&backends, 2, "user_timeout = \"10m\"");
    let mut crowd = Crowd::open(instance.frontend, 500);
    crowd.storm();
    for binary in [&*previous, BINARY, &previous, &previous, BINARY] {
        let check = instance.run(&["upgrade", "--check", "--binary", binary]);
        print!("{}", String::from_utf8_lossy(&check.stdout));
        assert!(check.status.success(), "{check:?}");
        let upgrade = instance.upgrade_with(&["--binary", binary]);
        println!("{}", upgrade.result);
        assert_eq!(upgrade.result["not_moved"], json!([]));
    }
    backends_part.ask::<()>("finish_drips");
    let report = crowd.finish();
    println!("{} flows failed, {} new connections meanwhile", report.failures.len(), report.served);
    assert!(report.failures.is_empty(), "{:#?}", report.failures);
}

/// Records the release before, for the tests above.
#[test]
#[ignore = "needs the binary of the release before, in BATON_PREVIOUS"]
fn record_the_release_before() {
    let Ok(to) = std::env::var("RECORD_TO").map(PathBuf::from) else { return };
    let previous = std::env::var("BATON_PREVIOUS").unwrap();
    let scene = Recorded::begin(&previous);
    let bad = scene.directory.path().join("bad.toml");
    std::fs::write(&bad, "[process]\nworkers = -1\n").unwrap();
    for (conversation, hold, config) in [("refused", "", Some(&bad)), ("aborted", "serving", None), ("whole", "", None)]
    {
        let files = to.join(conversation);
        std::fs::create_dir_all(&files).unwrap();
        let environment =
            [("RECORD_INTO", files.to_str().unwrap()), ("RECORD_HOLD", hold), ("BATON_PREVIOUS", &previous)];
        let successor = script(scene.directory.path(), "previous::writes_down_what_is_said", &environment);
        let mut upgrade = vec!["upgrade", "--binary", successor.to_str().unwrap()];
        upgrade.extend(config.iter().flat_map(|config| ["-c", config.to_str().unwrap()]));
        let output = scene.ask(&upgrade);
        assert_eq!(output.status.success(), conversation == "whole", "{output:?}");
    }
}

#[test]
#[ignore = "a part of the test above, which starts it"]
fn writes_down_what_is_said() {
    let Ok(into) = std::env::var("RECORD_INTO").map(PathBuf::from) else { return };
    let old = stdin_socket();
    let (near, far) = UnixStream::pair().unwrap();
    let mut new = Command::new(std::env::var("BATON_PREVIOUS").unwrap())
        .args(std::env::var("ARGUMENTS").unwrap().split_whitespace())
        .stdin(Stdio::from(OwnedFd::from(far)))
        .spawn()
        .unwrap();
    let hold = std::env::var("RECORD_HOLD").unwrap();
    record(&old, &near, &into, Kind::ALL.iter().copied().find(|kind| kind.name() == hold));
    drop((old, near));
    new.wait().unwrap();
}

/// The release before with one flow of each kind.
struct Recorded {
    directory: tempfile::TempDir,
    binary: String,
    old: Child,
    _flows: Vec<TcpStream>,
    _full: Vec<TcpStream>,
    _listeners: Vec<TcpListener>,
    _runtime: tokio::runtime::Runtime,
}

impl Recorded {
    fn begin(binary: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = runtime.block_on(backend::serve());
        let trickle = TcpListener::bind(super::instance::free_address()).unwrap();
        let trickles = trickle.local_addr().unwrap();
        // Clients that connect to it wait: its backlog is full.
        let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        full.bind(&super::instance::free_address().into()).unwrap();
        full.listen(0).unwrap();
        let full = TcpListener::from(full);
        let waits = full.local_addr().unwrap();
        let filling: Vec<_> =
            (0..4).filter_map(|_| TcpStream::connect_timeout(&waits, Duration::from_millis(200)).ok()).collect();

        let directory = tempfile::tempdir().unwrap();
        let [api, headers, slow, big] = [(); 4].map(|()| super::instance::free_address());
        let six = TcpListener::bind("[::1]:0").unwrap().local_addr().unwrap();
        let config = directory.path().join("baton.toml");
        let text = format!(
            "[admin]\nhttp = \"\"\nsocket = \"{}/admin.sock\"\n[process]\nworkers = 1\n[log]\nflows = \"off\"\n\
             [[frontend]]\nname = \"api\"\nlisten = [\"{api}\", \"{six}\"]\n\
             [[frontend.backend]]\nname = \"b0\"\naddress = \"{server}\"\n\
             [[frontend]]\nname = \"headers\"\nlisten = [\"{headers}\"]\naccept_proxy_from = [\"127.0.0.0/8\"]\n\
             proxy_header_timeout = \"60s\"\n[[frontend.backend]]\nname = \"b0\"\naddress = \"{server}\"\n\
             [[frontend]]\nname = \"slow\"\nlisten = [\"{slow}\"]\nconnect_timeout = \"100s\"\nhedge_after = \"0s\"\n\
             [[frontend.backend]]\nname = \"b0\"\naddress = \"{waits}\"\nhealth_address = \"{server}\"\n\
             [[frontend]]\nname = \"big\"\nlisten = [\"{big}\"]\n\
             [[frontend.backend]]\nname = \"b0\"\naddress = \"{trickles}\"\nhealth_address = \"{server}\"\n",
            directory.path().display()
        );
        std::fs::write(&config, text).unwrap();
        let old = Command::new(binary).args(["run", "-c"]).arg(&config).stdin(Stdio::null()).spawn().unwrap();
        wait_for("the release before to serve", || TcpStream::connect(api).is_ok());
        let mut scene = Self {
            directory,
            binary: binary.to_owned(),
            old,
            _flows: Vec::new(),
            _full: filling,
            _listeners: vec![full],
            _runtime: runtime,
        };
        for at in [api, six] {
            let mut stream = TcpStream::connect(at).unwrap();
            stream.write_all(&request(ECHO, 0, 0)).unwrap();
            stream.write_all(b"word").unwrap();
            stream.read_exact(&mut [0; 4]).unwrap();
            scene._flows.push(stream);
        }
        let mut half_closed = TcpStream::connect(api).unwrap();
        half_closed.write_all(&request(backend::DRIP, 0, 10_000)).unwrap();
        half_closed.shutdown(Shutdown::Write).unwrap();
        half_closed.read_exact(&mut [0; 1]).unwrap();
        let mut ended = TcpStream::connect(api).unwrap();
        ended.write_all(&request(backend::DOWN, 0, 10)).unwrap();
        ended.read_to_end(&mut Vec::new()).unwrap();
        let mut header = TcpStream::connect(headers).unwrap();
        header.write_all(b"PROXY TCP4 192.0.2.7 ").unwrap();
        let connecting = TcpStream::connect(slow).unwrap();
        // In small pieces until the receiver accepts no more, so that few bytes are held.
        let unread = TcpStream::connect(big).unwrap();
        let (mut leg, _) = trickle.accept().unwrap();
        leg.set_nonblocking(true).unwrap();
        socket2::SockRef::from(&leg).set_send_buffer_size(4096).unwrap();
        let mut stuck = 0;
        while stuck < 1000 {
            match leg.write(&[7; 1024]) {
                Ok(_) => stuck = 0,
                Err(_) => stuck += 1,
            }
            std::thread::sleep(Duration::from_micros(300));
        }
        scene._flows.extend([half_closed, ended, header, connecting, unread, leg]);
        scene
    }

    fn ask(&self, arguments: &[&str]) -> std::process::Output {
        let socket = self.directory.path().join("admin.sock");
        Command::new(&self.binary).arg("--socket").arg(socket).args(arguments).output().unwrap()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let version = self.ask(&["--json", "version"]);
        if let Ok(version) = serde_json::from_slice::<Value>(&version.stdout) {
            super::instance::signal(version["instance"]["pid"].as_u64().unwrap() as u32, rustix::process::Signal::KILL);
        }
        let _ = self.old.kill();
        let _ = self.old.wait();
    }
}

/// A process that does not outlive the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Our end of the conversation with the process that started this one.
fn stdin_socket() -> UnixStream {
    let socket = UnixStream::from(baton::sys::inherited::take_stdin().unwrap());
    socket.set_nonblocking(false).unwrap();
    socket
}

/// A program that Baton can start as its successor: a part of this one.
fn script(directory: &Path, part: &str, environment: &[(&str, &str)]) -> PathBuf {
    let path = directory.join("successor");
    let exports: String = environment.iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect();
    let this = std::env::current_exe().unwrap();
    let text = format!(
        "#!/bin/sh\nexport PART_OF=a_test ARGUMENTS=\"$*\"\n{exports}exec '{}' {part} --exact --ignored --nocapture\n",
        this.display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}
