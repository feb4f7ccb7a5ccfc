//! Lines of haproxy.cfg that were taken for others.

use super::{config, listen, missing, read};

/// Regression: `server c *:6443` became `address = "*:6443"`, which `baton check` rejects.
#[test]
fn a_server_at_the_client_s_own_destination_is_not_written() {
    for address in ["*:6443", ":6443", "*", "ipv4@*:6443", "0.0.0.0:6443", "[::]:6443"] {
        let translation = read(&listen(&format!("server c {address} check\n")));
        let [(why, true)] = &missing(&translation, 3)[..] else {
            panic!("{address}: {:?}", missing(&translation, 3));
        };
        assert!(why.starts_with(address) && why.contains("where the client did"), "{why}");
        assert_eq!(config(&translation).frontends[0].backends.len(), 2, "{address}");
    }
    let probed = read(&listen("server c 10.0.0.3:6443 check addr * port 6444\n"));
    assert!(!probed.toml.contains("health_address"), "{}", probed.toml);
}

/// Regression: a frontend whose only rule was `use_backend X if TRUE` was dropped: "Baton reads no bytes of a connection".
#[test]
fn a_rule_that_always_applies_leads_to_its_backend() {
    let with = |rules: &str| {
        let backends = "backend x\nserver x 10.0.0.1:6443\nbackend y\nserver y 10.0.0.2:6443\n";
        read(&format!("frontend api\nbind 10.0.0.100:6443\n{rules}{backends}"))
    };
    for rule in ["", " if TRUE", " if { always_true }", " unless FALSE", " if !FALSE", " if TRUE or { nbsrv(y) gt 0 }"]
    {
        let translation = with(&format!("acl z always_false\nuse_backend x{rule}\nuse_backend y if z\n"));
        let is_known = !rule.contains("nbsrv");
        assert_eq!(translation.toml.contains("10.0.0.1:6443"), is_known, "{rule}: {}", translation.toml);
        assert_eq!(translation.changes_behaviour(), !is_known, "{rule}: {:#?}", translation.ledgers);
    }
    for never in ["if FALSE", "if { always_false }", "unless TRUE", "if z"] {
        let translation = with(&format!("acl z always_false\nuse_backend x {never}\ndefault_backend y\n"));
        assert!(translation.toml.contains("10.0.0.2:6443") && !translation.toml.contains("10.0.0.1:6443"), "{never}");
        assert_eq!(missing(&translation, 4), [], "{never}");
    }
    // It applies to some connections.
    let translation = with("use_backend x if { src 10.0.0.0/8 }\ndefault_backend y\n");
    assert_eq!(missing(&translation, 3).len(), 1);
}
