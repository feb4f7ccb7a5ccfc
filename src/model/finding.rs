//! The result of one check of a host, and the fix.

use std::fmt;

use serde::Serialize;

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub topic: String,
    pub verdict: Verdict,
    pub read: String,
    /// Empty if there is no fault.
    pub why: String,
    /// A command, or an instruction if no command does it. Empty if nothing needs to be done.
    pub fix: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Good,
    /// Everything works, but may be slower than expected, or different.
    Advice,
    /// No flow can be offloaded, or none of those concerned; they stay proxied.
    Hindrance,
    /// Clients may be left waiting, or reach no host at a VIP.
    Fault,
}

impl Verdict {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Advice => "note",
            Self::Hindrance => "hinders",
            Self::Fault => "fault",
        }
    }
}

impl Finding {
    pub(crate) fn good(topic: impl Into<String>, read: impl fmt::Display) -> Self {
        Self::new(Verdict::Good, topic, read, "", "")
    }

    pub(crate) fn advice(
        topic: impl Into<String>,
        read: impl fmt::Display,
        why: impl Into<String>,
        fix: impl fmt::Display,
    ) -> Self {
        Self::new(Verdict::Advice, topic, read, why, fix)
    }

    pub(crate) fn hindrance(
        topic: impl Into<String>,
        read: impl fmt::Display,
        why: impl Into<String>,
        fix: impl fmt::Display,
    ) -> Self {
        Self::new(Verdict::Hindrance, topic, read, why, fix)
    }

    pub(crate) fn fault(
        topic: impl Into<String>,
        read: impl fmt::Display,
        why: impl Into<String>,
        fix: impl fmt::Display,
    ) -> Self {
        Self::new(Verdict::Fault, topic, read, why, fix)
    }

    pub(crate) fn new(
        verdict: Verdict,
        topic: impl Into<String>,
        read: impl fmt::Display,
        why: impl Into<String>,
        fix: impl fmt::Display,
    ) -> Self {
        Self { topic: topic.into(), verdict, read: read.to_string(), why: why.into(), fix: fix.to_string() }
    }
}
