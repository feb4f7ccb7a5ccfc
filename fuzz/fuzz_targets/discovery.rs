//! Any bytes as what the sources of backends answer.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| baton::fuzzing::discovery(bytes));
