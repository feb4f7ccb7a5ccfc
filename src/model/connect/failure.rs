//! Why an attempt to connect failed.

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
}
