//! A BPF program of a test's own: pinned under a name that tells whose it is, and taken away when dropped.

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use baton::offload::program::{self, OpenError, Program};
use baton::offload::settings::OffloadSettings;

const PREFIX: &str = "baton-test-";

/// Where one test pins.
#[derive(Debug)]
pub struct Pinned {
    pub directory: PathBuf,
}

impl Pinned {
    pub fn new() -> Self {
        static NUMBERS: AtomicU32 = AtomicU32::new(0);
        static SWEEP: Once = Once::new();
        SWEEP.call_once(sweep);
        let name = format!("{PREFIX}{}-{}", std::process::id(), NUMBERS.fetch_add(1, Relaxed));
        Self { directory: Path::new("/sys/fs/bpf").join(name) }
    }

    pub fn settings(&self, interfaces: &[&str]) -> OffloadSettings {
        let interfaces = interfaces.iter().map(ToString::to_string).collect();
        OffloadSettings { directory: self.directory.clone(), interfaces, flows_max: 1000 }
    }

    /// A fresh path on `interfaces`; `None` where this process may not load programs: `test` is then skipped.
    pub fn load(test: &str, interfaces: &[&str]) -> Option<(Self, Program)> {
        let pinned = Self::new();
        match pinned.open(interfaces) {
            Ok(program) => Some((pinned, program)),
            Err(error) => {
                assert!(!is_root(), "{error}");
                super::network::skip(test, &error.to_string());
                None
            }
        }
    }

    /// Where Baton itself is to pin; `None` as for [`Pinned::load`].
    pub fn unused(test: &str) -> Option<Self> {
        let (pinned, _) = Self::load(test, &[])?;
        program::remove(&pinned.directory).expect("what was just made goes");
        Some(pinned)
    }

    pub fn open(&self, interfaces: &[&str]) -> Result<Program, OpenError> {
        Program::open(&self.settings(interfaces))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Err(error) = program::remove(&self.directory) {
            eprintln!("{}: {error}", self.directory.display());
        }
    }
}

/// Whether this is the root of the whole machine, who may load programs, and not that of a user namespace.
fn is_root() -> bool {
    let all = std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.trim_end().ends_with("4294967295"));
    all && rustix::process::geteuid().is_root()
}

/// Takes away what killed test processes left.
fn sweep() {
    for entry in std::fs::read_dir("/sys/fs/bpf").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = program::remove(&entry.path());
        }
    }
}
