//! The probes of backends, as a server sees them that records its requests.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use super::*;

/// Answers 200 to every request on a port of `b1`; the heads of the requests.
fn answering(lab: &Lab, port: u16) -> Arc<Mutex<Vec<String>>> {
    let heads = Arc::<Mutex<Vec<String>>>::default();
    let listener = lab.b1.enter(|| TcpListener::bind(lab.b1.v4(port)).unwrap());
    let noted = heads.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 2048];
            let Ok(read) = stream.read(&mut head) else { continue };
            noted.lock().unwrap().push(String::from_utf8_lossy(&head[..read]).into_owned());
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    heads
}

#[test]
fn probes_follow_a_reload() {
    let Some(it) = Running::start("reloaded probes") else { return };
    let heads = answering(&it.lab, 8080);
    let asked = |what: &str| heads.lock().unwrap().iter().filter(|head| head.contains(what)).count();
    let config = it.config.clone().of_backend("b1", "health_address", it.lab.b1.v4(8080).to_string());
    let http = config.clone().health("kind", "http").health("path", "/livez").health("interval", "100ms");
    let http = http.health("fast_interval", "100ms").health("timeout", "100ms");
    it.reload(&http);
    eventually(LONG, "it asks by HTTP", || asked("GET /livez HTTP/1.1") > 2);
    it.reload(&http.clone().health("path", "/other").health("host", "cluster.example"));
    eventually(LONG, "another path and host", || asked("GET /other") > 2 && asked("ost: cluster.example") > 2);
    it.baton.wait_health("b1", "ready", LONG);

    // An interval of an hour is over at once.
    it.reload(&http.clone().health("interval", "1h").health("path", "/seldom"));
    eventually(LONG, "once more", || asked("GET /seldom") > 0);
    it.reload(&http.clone().health("path", "/often"));
    eventually(LONG, "often again", || asked("GET /often") > 3);

    // Who accepts and says nothing is waited for as long as the file says.
    let _silent = it.lab.b2.serve_on(it.lab.b2.v4(8081), Behaviour::Silent);
    let to_silent = |config: Config| config.of_backend("b2", "health_address", it.lab.b2.v4(8081).to_string());
    for timeout in [80, 333] {
        it.reload(&to_silent(http.clone().health("interval", "1s").health("timeout", format!("{timeout}ms"))));
        let said = || it.baton.backend("b2").is_some_and(|b2| b2["why"].to_string().contains(&format!("{timeout} ms")));
        eventually(LONG, "it says how long it waited", said);
    }
    it.reload(&it.config);
    for name in ["b1", "b2", "b3"] {
        it.baton.wait_health(name, "ready", LONG);
    }
    it.baton.rests();
}

#[test]
fn the_certificates_of_probes_follow_a_reload() {
    let Some(lab) = Lab::new("reloaded certificates") else { return };
    let certificates = Certificates::make(&lab);
    let _stand_in = StandIn::start(&lab, &certificates, &lab.b1);
    let tcp = lab.config().only(&["b1"]);
    let baton = lab.start(&tcp);
    let reload = |config: &Config| {
        baton.write_config(config);
        baton.order(&["reload"]);
    };
    let https = |config: Config| config.health("kind", "https").health("path", "/readyz");
    reload(&tcp.clone().https(&certificates.ca()));
    baton.wait_health("b1", "ready", LONG);
    reload(&tcp.clone().https(&certificates.ca()).health("server_name", "nobody.example"));
    eventually(LONG, "another name is asked for", || baton.health_state("b1") != "ready");
    reload(&https(tcp.clone()).health("insecure_skip_verify", true));
    baton.wait_health("b1", "ready", LONG);
    // Its own certificate is no CA's.
    let other = lab.directory().join("certs/wrong-name.crt");
    reload(&tcp.clone().https(&other));
    eventually(LONG, "another authority signs nothing here", || baton.health_state("b1") != "ready");
    reload(&tcp);
    baton.wait_health("b1", "ready", LONG);
}
