//! A host of its own, as a new machine is.

use std::path::{Path, PathBuf};

use super::baton::BINARY;
use super::process::Process;
use super::{Host, LONG, Lab};

/// A host with its own /etc, /run, /var and BPF file system.
#[derive(Debug)]
pub struct BareHost<'a> {
    pub host: &'a Host,
    directory: PathBuf,
}

impl<'a> BareHost<'a> {
    pub fn new(lab: &Lab, host: &'a Host) -> Self {
        let directory = lab.directory().join(host.name);
        for folder in ["etc", "run", "var"] {
            std::fs::create_dir_all(directory.join(folder)).unwrap();
        }
        Self { host, directory }
    }

    pub fn etc(&self, file: &str) -> PathBuf {
        self.directory.join("etc").join(file)
    }

    /// Where `path`, which begins with /etc, /run or /var, really is.
    pub fn place_of(&self, path: &str) -> PathBuf {
        self.directory.join(path.trim_start_matches('/'))
    }

    /// Writes a file of this host; `path` as for [`BareHost::place_of`].
    pub fn write(&self, path: &str, text: &str) {
        let place = self.place_of(path);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(place, text).unwrap();
    }

    /// Types `command` and returns what it printed; panics with it if the command fails.
    #[track_caller]
    pub fn type_and_read(&self, command: &str) -> String {
        self.try_to_type(command).unwrap_or_else(|said| panic!("{}: {command}\n{said}", self.host.name))
    }

    /// Types `command` and returns what it printed, as an error if the command fails.
    pub fn try_to_type(&self, command: &str) -> Result<String, String> {
        let log = self.directory.join("typed.log");
        let before = std::fs::read_to_string(&log).map_or(0, |text| text.len());
        let typed = self.type_into(&log, command);
        let succeeded = typed.wait(LONG).success();
        let said = typed.log_text().split_off(before);
        if succeeded { Ok(said) } else { Err(said) }
    }

    /// A shell on this host runs `command`, where `baton` is the binary.
    #[track_caller]
    pub fn typed(&self, command: &str) -> Process {
        self.type_into(&self.directory.join("log"), command)
    }

    fn type_into(&self, log: &Path, command: &str) -> Process {
        let directory = self.directory.display();
        let script = format!(
            "for folder in etc run var; do mount --bind {directory}/$folder /$folder; done; mkdir -p /run/baton\n\
             mount -t bpf bpf /sys/fs/bpf\nbaton() {{ {BINARY} \"$@\"; }}\n{command}\n"
        );
        self.host.spawn(&["unshare", "--mount", "sh", "-euc", &script], log)
    }

    /// The words of the unit that `baton init` has written.
    pub fn unit(&self, key: &str) -> String {
        self.unit_of("baton", key)
    }

    /// The words of the unit of `service` in its /etc.
    pub fn unit_of(&self, service: &str, key: &str) -> String {
        let unit = std::fs::read_to_string(self.etc(&format!("systemd/system/{service}.service"))).unwrap();
        command_of(&unit, key).unwrap_or_else(|| panic!("no {key} in {unit}"))
    }
}

/// The first command of a unit behind `key` that its own user runs: what systemd runs as root (`+`) belongs to the host of a test.
pub fn command_of(unit: &str, key: &str) -> Option<String> {
    let commands = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    commands.map(str::to_owned).find(|command| !command.starts_with(['+', '-']))
}
