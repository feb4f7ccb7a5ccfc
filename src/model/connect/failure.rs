//! Why an attempt to connect failed.

use crate::model::end_reason::EndReason;

/// The errno of a connect(2) that timed out; also used for an attempt that Baton gives up.
const ETIMEDOUT: i32 = 110;

/// Why one connect attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ConnectFailure {
    Refused,
    TimedOut,
    Unreachable,
    Reset,
    OutOfFiles,
    OutOfPorts,
    Other,
}

impl ConnectFailure {
    pub(crate) const ALL: [ConnectFailure; 7] = [
        Self::Refused,
        Self::TimedOut,
        Self::Unreachable,
        Self::Reset,
        Self::OutOfFiles,
        Self::OutOfPorts,
        Self::Other,
    ];

    pub(crate) fn label(self) -> &'static str {
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

    /// Whether the backend is the cause, and not this host.
    pub(crate) fn blames_backend(self) -> bool {
        !matches!(self, Self::OutOfFiles | Self::OutOfPorts)
    }

    /// The end reason of a flow whose last attempt failed in this way.
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
pub(crate) struct FailedConnect {
    pub failure: ConnectFailure,
    pub errno: i32,
}

impl FailedConnect {
    /// An attempt that got no answer in time.
    pub(crate) const TIMED_OUT: Self = Self { failure: ConnectFailure::TimedOut, errno: ETIMEDOUT };
}
