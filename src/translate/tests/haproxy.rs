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
