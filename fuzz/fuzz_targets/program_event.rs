//! Any bytes as a record of the BPF program.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| baton::fuzzing::program_event(bytes));
