//! Why an attempt to connect failed.

use crate::model::end_reason::EndReason;

/// errno of a connect(2) that took too long: the kernel's own word, which an attempt that Baton gives up gets as well.
const ETIMEDOUT: i32 = 110;

/// Why one connect attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectFailure {
    Refused,
    TimedOut,
    Unreachable,
    Reset,
    OutOfFiles,
    OutOfPorts,
    Other,
}

impl ConnectFailure {
    pub const ALL: [ConnectFailure; 7] = [
        Self::Refused,
        Self::TimedOut,
        Self::Unreachable,
        Self::Reset,
        Self::OutOfFiles,
        Self::OutOfPorts,
        Self::Other,
    ];

    pub fn label(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::TimedOut => "timed_out",
            Self::Unreachable => "unreachable",
            Self::Reset => "reset",
            Self::OutOfFiles => "out_of_files",
            Self::OutOfPorts => "out_of_ports",
            Self::Other => "other",
        }
    }

    /// Whether it says something about the backend, and not about this host.
    pub fn blames_backend(self) -> bool {
        !matches!(self, Self::OutOfFiles | Self::OutOfPorts)
    }

    /// Of a flow whose last attempt failed so.
    pub(super) fn end_reason(self) -> EndReason {
        match self {
            Self::TimedOut => EndReason::ConnectTimedOut,
            Self::OutOfFiles => EndReason::OutOfFiles,
            Self::OutOfPorts => EndReason::OutOfPorts,
            Self::Refused | Self::Unreachable | Self::Reset | Self::Other => EndReason::ConnectFailed,
        }
    }
}

/// How one connect attempt failed, with its errno, or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedConnect {
    pub failure: ConnectFailure,
    pub errno: i32,
}

impl FailedConnect {
    /// Of an attempt that nobody answered in time.
    pub const TIMED_OUT: Self = Self { failure: ConnectFailure::TimedOut, errno: ETIMEDOUT };
}
