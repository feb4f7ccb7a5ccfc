//! Any bytes as an haproxy.cfg and a keepalived.conf: each line has its outcome, and what comes out is TOML.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| baton::fuzzing::import(bytes));
