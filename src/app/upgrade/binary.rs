//! Another Baton binary as a process: the new one of an upgrade, or one that answers a question. The broker starts it if this process has one,
//! so that it has the rights that this process lacks.

use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::sys::broker::{BinaryTask, Broker, BrokerRequest, broker};
use crate::sys::fd_passing;
use crate::sys::process::ProcessHandle;

/// A process with this binary.
#[derive(Debug)]
pub(super) enum BinaryProcess {
    Own(Child),
    Brokered {
        pid: u32,
        handle: ProcessHandle,
        /// Its wait status comes here.
        end: OwnedFd,
    },
}

/// After a kill its end takes no longer, unless the kernel hangs.
const END_MAX: Duration = Duration::from_secs(5);

/// Limit for each output of a binary that answers a question; a multiple of all page sizes.
const OUTPUT_MAX: u64 = 1024 * 1024;

impl BinaryProcess {
    /// Starts the new process of an upgrade. Its standard input is its end of the upgrade's socket, which needs no name that another process
    /// could find.
    pub(super) fn successor(binary: &Path, config: &Path, far: OwnedFd) -> io::Result<Self> {
        match broker() {
            Some(broker) => {
                let out = [io::stdout().as_fd().try_clone_to_owned()?, io::stderr().as_fd().try_clone_to_owned()?];
                let [stdout, stderr] = out;
                Self::brokered(broker, binary, config, BinaryTask::Upgrade, [far, stdout, stderr])
            }
            // The command is dropped here, and with it our copy of the other end: otherwise the child's end would go unnoticed.
            None => command(binary, config, BinaryTask::Upgrade).stdin(Stdio::from(far)).spawn().map(Self::Own),
        }
    }

    fn brokered(
        broker: &Broker,
        binary: &Path,
        config: &Path,
        task: BinaryTask,
        stdio: [OwnedFd; 3],
    ) -> io::Result<Self> {
        let (binary, config) = (binary.to_owned(), config.to_owned());
        let fds: Vec<_> = stdio.iter().map(AsFd::as_fd).collect();
        let (pid, came) = broker.ask(&BrokerRequest::StartBinary { binary, config, task }, &fds)?;
        let [handle, end] = <[OwnedFd; 2]>::try_from(came).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(Self::Brokered { pid, handle: handle.into(), end })
    }

    pub(super) fn id(&self) -> u32 {
        match self {
            Self::Own(child) => child.id(),
            Self::Brokered { pid, .. } => *pid,
        }
    }

    pub(super) fn kill(&mut self) -> io::Result<()> {
        match self {
            Self::Own(child) => child.kill(),
            Self::Brokered { handle, .. } => handle.kill(),
        }
    }

    /// Its status if it has ended.
    pub(super) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        match self {
            Self::Own(child) => child.try_wait(),
            Self::Brokered { handle, end, .. } => match handle.ends_within(Duration::ZERO) {
                true => status(end).map(Some),
                false => Ok(None),
            },
        }
    }

    fn ends_within(&self, limit: Duration) -> io::Result<bool> {
        match self {
            Self::Own(child) => Ok(ProcessHandle::open(child.id())?.ends_within(limit)),
            Self::Brokered { handle, .. } => Ok(handle.ends_within(limit)),
        }
    }

    pub(super) fn wait(&mut self) -> io::Result<ExitStatus> {
        match self {
            Self::Own(child) => child.wait(),
            Self::Brokered { handle, end, .. } => {
                while !handle.ends_within(END_MAX) {}
                status(end)
            }
        }
    }
}

/// The output of a binary that answers a question. It blocks, but no longer than `limit`.
pub(super) fn answer(binary: &Path, config: &Path, task: BinaryTask, limit: Duration) -> io::Result<Output> {
    let (stdout, stderr) = (output_file()?, output_file()?);
    let (out, err) = (stdout.try_clone()?, stderr.try_clone()?);
    let mut process = match broker() {
        Some(broker) => {
            let stdin = File::open("/dev/null")?.into();
            BinaryProcess::brokered(broker, binary, config, task, [stdin, out.into(), err.into()])?
        }
        None => {
            let mut command = command(binary, config, task);
            BinaryProcess::Own(command.stdin(Stdio::null()).stdout(out).stderr(err).spawn()?)
        }
    };
    let ended = process.ends_within(limit);
    if !matches!(ended, Ok(true)) {
        let _ = process.kill();
    }
    let status = process.wait()?;
    match ended? {
        true => Ok(Output { status, stdout: written(&stdout)?, stderr: written(&stderr)? }),
        false => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// A file in memory for the output of a process. It has its size from the start and cannot grow (fcntl(2), F_SEAL_GROW): what a process writes
/// beyond that is refused.
fn output_file() -> io::Result<File> {
    let create = |more| memfd_create("output", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | more);
    // Kernels before Linux 6.3 do not know this flag, and later ones may insist on it (sysctl vm.memfd_noexec).
    let file = create(MemfdFlags::NOEXEC_SEAL).or_else(|_| create(MemfdFlags::empty()))?;
    ftruncate(&file, OUTPUT_MAX)?;
    fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(file.into())
}

/// What was written to an [`output_file`], whose position is that of all processes.
fn written(file: &File) -> io::Result<Vec<u8>> {
    let mut file = file;
    let mut bytes = vec![0; file.stream_position()?.min(OUTPUT_MAX) as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn command(binary: &Path, config: &Path, task: BinaryTask) -> Command {
    let mut command = Command::new(binary);
    task.arguments(&mut command, config);
    command
}

/// The broker tells it once it has waited for the process.
fn status(end: &OwnedFd) -> io::Result<ExitStatus> {
    let mut raw = [0; size_of::<i32>()];
    if !fd_passing::wait_readable(end, END_MAX)? {
        return Err(io::ErrorKind::TimedOut.into());
    }
    match fd_passing::receive(end, &mut raw, &mut Vec::new())? {
        length if length == raw.len() => Ok(ExitStatus::from_raw(i32::from_ne_bytes(raw))),
        _ => Err(io::Error::new(io::ErrorKind::BrokenPipe, "the process that started it has ended")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn answer_of(script: &str, limit: Duration) -> io::Result<Output> {
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("baton");
        fs::write(&binary, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&binary, PermissionsExt::from_mode(0o755)).unwrap();
        answer(&binary, Path::new("baton.toml"), BinaryTask::Check, limit)
    }

    #[test]
    fn the_answer_of_a_binary_is_what_it_wrote_and_how_it_ended() {
        let Output { status, stdout, stderr } =
            answer_of("echo \"$@\"; echo fault >&2; exit 3", Duration::from_secs(10)).unwrap();
        assert_eq!((status.code(), &*stdout, &*stderr), (Some(3), &b"check -c baton.toml\n"[..], &b"fault\n"[..]));
    }

    #[test]
    fn a_binary_that_writes_without_end_gets_a_bounded_part_of_memory_and_time() {
        // It ends at its first error.
        let output = answer_of("exec yes", Duration::from_secs(10)).unwrap();
        assert!(!output.status.success());
        assert_eq!(output.stdout.len() as u64, OUTPUT_MAX);
        let error = answer_of("while :; do echo y 2>/dev/null; done", Duration::from_millis(300)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
