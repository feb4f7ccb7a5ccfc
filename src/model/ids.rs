//! Small names for things that outlive a reload.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// One flow, for as long as it lives; never given twice by one instance. 0 is never given.
    FlowId(u64)
}
id! {
    /// One backend of one frontend. The same name keeps its id across reloads.
    BackendId(u32)
}
id! {
    /// One frontend. The same name keeps its id across reloads.
    FrontendId(u32)
}

impl FromStr for FlowId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}
