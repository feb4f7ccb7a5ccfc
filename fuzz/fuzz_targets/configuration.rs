//! Any bytes as a configuration file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| baton::fuzzing::configuration(bytes));
