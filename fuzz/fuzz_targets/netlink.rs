//! Any bytes as messages of rtnetlink(7).
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| baton::fuzzing::netlink(bytes));
