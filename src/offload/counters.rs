//! What the program did, counted per CPU.

use std::io;

use serde::Serialize;

use crate::sys::bpf::Map;

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident $label:literal,)*) => {
        /// Packets since the program was loaded, by what was done with them; summed over all CPUs.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Counters {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Counters {
            /// How many there are.
            pub const COUNT: usize = [$($label),*].len();

            /// With what metrics call each.
            pub fn labelled(&self) -> [(&'static str, u64); Self::COUNT] {
                [$(($label, self.$field)),*]
            }

            /// From the map, in the order of `enum counter` in `bpf/entry.h`.
            fn from_words(words: [u64; Self::COUNT]) -> Self {
                let [$($field),*] = words;
                Self { $($field),* }
            }
        }
    };
}

counters! {
    /// Packets of an entry that were rewritten and sent on.
    spliced "spliced",
    /// Sent to the owner.
    forwarded "forwarded",
    /// Dropped for a moment, so that TCP sends them again.
    guarded "guarded",
    /// Answered with RST.
    reset "reset",
    /// A SYN of an entry, left to the kernel: its ends begin another connection.
    reused "reused",
    /// A later fragment of a packet that was spliced, sent on as well.
    fragments "fragment",
    /// ICMP errors about a packet that was sent on, translated and sent to its sender.
    icmp "icmp",
    /// Not sent back to the instance that it came from.
    loops "loop",
    /// TCP options that end in the middle; sent on with what could be read rewritten.
    bad_options "bad_options",
    /// Too large for the interface that it would leave through: both ends were reset.
    oversized "oversized",
    /// Dropped: the time to live ran out.
    drop_ttl "drop_ttl",
    /// Dropped: shorter than its own headers say.
    drop_short "drop_short",
    /// Dropped: marked by a congested router, and the receiver has not negotiated ECN.
    drop_ecn "drop_ecn",
    /// Dropped: the kernel could not make room for it or has no such interface any more.
    drop_error "drop_error",
    /// Dropped: it has no answer, an RST above all.
    drop_rst "drop_rst",
    /// Dropped, and told to user space: nobody here knows its flow.
    asked "asked",
    /// Sent to the instance whose backend legs come from the port that it goes to.
    forwarded_by_port "forwarded_by_port",
    /// Sent on, but counted for nothing: no receiver would take its numbers.
    unfit "unfit",
    /// Dropped: as `oversized`, but with numbers that no receiver would take.
    drop_oversized "drop_oversized",
    /// Dropped, and shown to nobody: too many are unknown at once. TCP sends them again.
    unasked "unasked",
}

impl Counters {
    pub(super) fn read(map: &Map) -> io::Result<Self> {
        let mut words = [0; Self::COUNT];
        let mut raw = vec![0; map.value_size()];
        for (index, word) in words.iter_mut().enumerate() {
            map.look_up(&(index as u32).to_ne_bytes(), &mut raw)?;
            *word = raw.as_chunks().0.iter().map(|lane| u64::from_ne_bytes(*lane)).sum();
        }
        Ok(Self::from_words(words))
    }
}
