//! The verifier's log of a program that the kernel refuses.

use std::fmt;
use std::io;

use aya::programs::ProgramError;

/// Why a program cannot be loaded or attached.
#[derive(Debug, thiserror::Error)]
pub enum ProgramFault {
    #[error(transparent)]
    Refused(LoadRefusal),
    #[error(transparent)]
    Other(Box<ProgramError>),
}

impl From<ProgramError> for ProgramFault {
    fn from(error: ProgramError) -> Self {
        match error {
            ProgramError::LoadError { io_error, verifier_log } => {
                Self::Refused(LoadRefusal::new(io_error, &verifier_log.to_string()))
            }
            other => Self::Other(Box::new(other)),
        }
    }
}

/// Why the kernel refused to load a program, as bpf(2) and its verifier say.
#[derive(Debug, thiserror::Error)]
pub struct LoadRefusal {
    source: io::Error,
    /// `None`: the kernel refused the program before it verified it.
    verdict: Option<String>,
}

impl LoadRefusal {
    /// `log`: up to megabytes, with a line for each instruction that the verifier walked through.
    fn new(source: io::Error, log: &str) -> Self {
        Self { source, verdict: verdict(log).map(str::to_owned) }
    }
}

impl fmt::Display for LoadRefusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the kernel refuses it: {}", self.source)?;
        self.verdict.as_ref().map_or(Ok(()), |verdict| write!(formatter, "; its verifier says: {verdict}"))
    }
}

/// The last line that is no statistic: the verifier stops at the first fault (kernel/bpf/verifier.c, `print_verification_stats`).
fn verdict(log: &str) -> Option<&str> {
    const STATISTICS: [&str; 3] = ["verification time ", "stack depth ", "processed "];
    log.trim_end_matches('\0')
        .lines()
        .map(str::trim)
        .rfind(|line| !line.is_empty() && !STATISTICS.iter().any(|start| line.starts_with(start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: on a kernel without a function of the program, `baton check --host` and the log printed all that the verifier had said.
    #[test]
    fn a_refusal_has_one_line_of_the_verifier_s_log() {
        let log = "func#0 @0\n0: R1=ctx(off=0,imm=0) R10=fp0\n; return bpf_check_mtu(skb, ifindex, &mtu, 0, 0);\n7: (85) call bpf_check_mtu#163\n\
                   invalid func unknown#163\nverification time 87 usec\nstack depth 8+0\nprocessed 8 insns (limit 1000000) max_states_per_insn 0 \
                   total_states 0 peak_states 0 mark_read 0\n\n\0";
        let refusal = LoadRefusal::new(io::Error::from_raw_os_error(22), log).to_string();
        assert_eq!(
            refusal,
            "the kernel refuses it: Invalid argument (os error 22); its verifier says: invalid func unknown#163"
        );
    }

    #[test]
    fn a_refusal_without_the_verifier_has_the_system_s_reason_alone() {
        let refusal = LoadRefusal::new(io::Error::from_raw_os_error(1), "\0").to_string();
        assert_eq!(refusal, "the kernel refuses it: Operation not permitted (os error 1)");
    }
}
