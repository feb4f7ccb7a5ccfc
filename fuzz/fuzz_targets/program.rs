//! Any bytes as packets towards a flow of the committed BPF program, run by the kernel (BPF_PROG_TEST_RUN): what no endpoint would take
//! changes nothing that decides. Does nothing where programs may not be loaded.
#![no_main]

#[path = "../../tests/net/program/hostile.rs"]
mod hostile;
#[allow(dead_code, reason = "what becomes of a packet is the tests' to see")]
#[path = "../../tests/net/program/reference.rs"]
mod reference;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex};

use baton::offload::program::{self, Program};
use baton::offload::settings::OffloadSettings;
use baton::sys::bpf;
use libfuzzer_sys::fuzz_target;

static LOADED: LazyLock<Option<(Mutex<Program>, OwnedFd)>> = LazyLock::new(|| {
    let directory = PathBuf::from(format!("/sys/fs/bpf/baton-fuzz-{}", std::process::id()));
    let settings = OffloadSettings { directory: directory.clone(), interfaces: Vec::new(), flows_max: 16 };
    match Program::open(&settings) {
        Ok(program) => {
            let fd = bpf::open_pinned(&directory.join("program")).expect("it is pinned");
            // The descriptors keep it; nothing is left behind however the fuzzer ends.
            program::remove(&directory).expect("it is ours");
            Some((Mutex::new(program), fd))
        }
        Err(error) => {
            eprintln!("nothing is tried: {error}");
            None
        }
    }
});

/// An input is many packets: said whenever there are so many more.
const SAY_EVERY: usize = 1_000;

static PACKETS: AtomicUsize = AtomicUsize::new(0);

fuzz_target!(|bytes: &[u8]| {
    if let Some((program, fd)) = &*LOADED {
        let program = program.lock().expect("one thread");
        let count: usize = hostile::Hostile::new(&program, fd).run(bytes).iter().sum();
        let before = PACKETS.fetch_add(count, Relaxed);
        if before / SAY_EVERY != (before + count) / SAY_EVERY {
            eprintln!("packets: {}", before + count);
        }
    }
});
