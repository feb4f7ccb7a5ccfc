//! Any bytes as a request at the admin socket.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| baton::fuzzing::admin_line(bytes));
