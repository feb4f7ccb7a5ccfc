//! Ids that outlive a reload.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

    };
}

/// Displayed as a number.
macro_rules! plain {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

plain!(BackendId);
plain!(FrontendId);

id! {
    /// One flow, until its end; no process gives an id twice, and none gives 0. The upper 16 bits are the tag of the
    /// instance that accepted the flow, 0 without a fleet; see `InstanceName::tag`. With a tag no later process gives
    /// the id again either, even if the map is lost: see [`FlowId::first_count`].
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

/// The lower bits of a flow's id, which count the flows of its instance.
const COUNT_BITS: u32 = 48;

impl FlowId {
    /// The flow with this number, of the instance with this tag.
    pub(crate) fn of(tag: u16, count: u64) -> Self {
        Self(u64::from(tag) << COUNT_BITS | count & ((1 << COUNT_BITS) - 1))
    }

    /// The first number of a process that starts at this time, in seconds since 1970: above all numbers of a process
    /// that started earlier, up to 65,536 flows per second; until 2106.
    pub(crate) fn first_count(unix_s: u64) -> u64 {
        (unix_s & u64::from(u32::MAX)) << 16
    }

    pub(crate) fn tag(self) -> u16 {
        (self.0 >> COUNT_BITS) as u16
    }

    /// The flow's number within its instance.
    pub(crate) fn count(self) -> u64 {
        self.0 & ((1 << COUNT_BITS) - 1)
    }
}

/// `b41f-6921a3f00007`: tag and number, both hexadecimal; without a tag the number alone, decimal.
impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tag() {
            0 => self.0.fmt(f),
            tag => f.pad(&format!("{tag:04x}-{:012x}", self.count())),
        }
    }
}

/// Parses the displayed form, or the whole number.
impl FromStr for FlowId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = match text.split_once('-') {
            Some((tag, count)) => {
                let (tag, count) = (u16::from_str_radix(tag, 16), u64::from_str_radix(count, 16));
                tag.ok().zip(count.ok()).map(|(tag, count)| Self::of(tag, count))
            }
            None => text.parse().ok().map(Self),
        };
        read.ok_or_else(|| {
            "expected a flow's number as `baton flows` shows it, such as 42 or 6066-6b0ae07f000e".to_owned()
        })
    }
}

/// A flow's id as its displayed form, for readers of JSON: many of them round whole numbers of more than 53 bits, as jq 1.6 does, to the
/// id of another flow. Reads the number, too, which releases before wrote.
pub(crate) mod flow_as_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::FlowId;

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Spelled {
        Text(String),
        Number(u64),
    }

    pub(crate) fn serialize<S: Serializer>(id: &FlowId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(id)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FlowId, D::Error> {
        match Spelled::deserialize(deserializer)? {
            Spelled::Text(text) => text.parse().map_err(D::Error::custom),
            Spelled::Number(number) => Ok(FlowId(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: `baton kill` of an id that jq had read from `baton flows --json` reset another client's connection.
    #[test]
    fn an_id_in_json_is_text_that_no_reader_rounds_and_numbers_are_read() {
        #[derive(PartialEq, Debug, Serialize, Deserialize)]
        struct Row {
            #[serde(with = "flow_as_text")]
            id: FlowId,
        }
        let row = Row { id: FlowId::of(0x6066, 0x6b0a_79fc_07f0) };
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(text, "{\"id\":\"6066-6b0a79fc07f0\"}");
        for spelled in [text, format!("{{\"id\":{}}}", row.id.0)] {
            assert_eq!(serde_json::from_str::<Row>(&spelled).unwrap(), row);
        }
    }

    #[test]
    fn a_process_that_starts_later_begins_above_all_that_was_given() {
        let (then, now) = (FlowId::first_count(1_763_785_000), FlowId::first_count(1_763_785_060));
        assert_eq!(now - then, 60 << 16);
        assert_eq!(FlowId::of(0x0b1f, now + 7).to_string(), "0b1f-692139640007");
        assert_eq!(FlowId::of(1, FlowId::first_count(u64::MAX)).tag(), 1);
    }

    #[test]
    fn both_spellings_of_a_flow_are_understood() {
        let tagged = FlowId::of(0x0b1f, 77);
        assert_eq!((tagged.to_string().as_str(), tagged.tag(), tagged.count()), ("0b1f-00000000004d", 0x0b1f, 77));
        assert_eq!("0b1f-4d".parse(), Ok(tagged));
        assert_eq!(tagged.to_string().parse(), Ok(tagged));
        assert_eq!(tagged.0.to_string().parse(), Ok(tagged));
        assert_eq!(FlowId(77).to_string(), "77");
        assert!("x-1".parse::<FlowId>().is_err() && "1-".parse::<FlowId>().is_err());
    }
}
