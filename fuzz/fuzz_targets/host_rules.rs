//! Any bytes as the rules of this host: nft's, iptables', keepalived's.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| baton::fuzzing::host_rules(bytes));
