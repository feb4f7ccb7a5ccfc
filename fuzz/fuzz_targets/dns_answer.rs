//! Any bytes as what a name server answers.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| baton::fuzzing::dns_answer(bytes));
