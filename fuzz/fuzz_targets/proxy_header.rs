//! The first bytes of a client as a header of the PROXY protocol.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| baton::fuzzing::proxy_header(bytes));
