//! Successors that are none: the old process goes on and says why.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use super::backend::{self, ECHO, request};
use super::instance::Instance;

#[test]
fn a_new_process_that_refuses_changes_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let backends = [runtime.block_on(backend::serve())];
    let instance = Instance::start(&backends, 2);
    let mut flow = TcpStream::connect(instance.frontend).unwrap();
    flow.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    flow.write_all(&request(ECHO, 0, 0)).unwrap();
    let pid = instance.pid().unwrap();
    let file = |name: &str, text: &str| {
        let path = instance.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let bad_config = file("bad.toml", "[process]\nworkers = -1\n");
    let not_a_program = file("text", "no program\n");
    let newer =
        file("newer", "#!/bin/sh\necho '{\"version\":\"9.0.0\",\"protocol_min\":7,\"protocol_max\":9,\"pid\":1}'\n");
    let silent = file("silent", "#!/bin/sh\nexec sleep 60\n");
    for (arguments, words) in [
        (vec!["upgrade", "--binary", "/nonexistent"], "cannot start"),
        (vec!["upgrade", "--binary", "/bin/true"], "closed the connection"),
        (vec!["upgrade", "--binary", &not_a_program], "cannot start"),
        (vec!["upgrade", "--binary", &silent], "did not answer for 10s"),
        (vec!["upgrade", "-c", &bad_config], "workers"),
        (vec!["upgrade", "--check", "--binary", &newer], "versions 7 to 9"),
        (vec!["upgrade", "--check", "--binary", "/bin/true"], "cannot take part in an upgrade"),
        (vec!["upgrade", "--check", "-c", &bad_config], "workers"),
    ] {
        let output = instance.run(&arguments);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(!output.status.success() && said.contains(words), "{arguments:?}: {said}");
        flow.write_all(b"still").unwrap();
        let mut back = [0; 5];
        flow.read_exact(&mut back).unwrap();
        assert_eq!((&back, instance.pid()), (b"still", Some(pid)));
    }
    let output = instance.run(&["upgrade", "--check"]);
    assert!(output.status.success(), "{output:?}");
    let events = String::from_utf8(instance.run(&["events"]).stdout).unwrap();
    assert_eq!(events.matches("upgrade failed, this process goes on").count(), 5, "{events}");
}
