//! Counters of the BPF program's actions, kept per CPU.

use std::io;

use serde::Serialize;

use crate::sys::bpf::Map;

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident $label:literal,)*) => {
        /// Packets since the program was loaded, by the action on them; summed over all CPUs.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Counters {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Counters {
            /// Number of counters.
            pub(crate) const COUNT: usize = [$($label),*].len();

            /// Each counter with its label in the metrics.
            pub(crate) fn labelled(&self) -> [(&'static str, u64); Self::COUNT] {
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
    /// Packets of an entry that the program rewrote and sent on.
    spliced "spliced",
    /// Sent to the owner.
    forwarded "forwarded",
    /// Dropped for a moment, so that TCP repeats them.
    guarded "guarded",
    /// Answered with RST.
    reset "reset",
    /// A SYN that matched an entry, left to the kernel: its ends begin another connection.
    reused "reused",
    /// A later fragment of a spliced packet, sent on as well.
    fragments "fragment",
    /// ICMP errors about a packet that was sent on: translated, and sent to that packet's sender.
    icmp "icmp",
    /// Would have gone back to the instance that it came from.
    loops "loop",
    /// TCP options that end in the middle; the packet was sent on, with the readable options rewritten.
    bad_options "bad_options",
    /// Too large for the outgoing interface: both ends were reset.
    oversized "oversized",
    /// Dropped: the time to live ran out.
    drop_ttl "drop_ttl",
    /// Dropped: shorter than its own headers say.
    drop_short "drop_short",
    /// Dropped: marked by a congested router, and the receiver has not negotiated ECN.
    drop_ecn "drop_ecn",
    /// Dropped: the kernel had no room for it, or no longer has the interface.
    drop_error "drop_error",
    /// Dropped: nothing may answer it, above all an RST.
    drop_rst "drop_rst",
    /// Dropped and reported to user space: no entry and no socket of this host matches it.
    asked "asked",
    /// Sent to the instance whose port range contains its port.
    forwarded_by_port "forwarded_by_port",
    /// Sent on, but not counted for its flow: no receiver would accept its numbers.
    unfit "unfit",
    /// Dropped: as `oversized`, but with numbers that no receiver would accept.
    drop_oversized "drop_oversized",
    /// Dropped and not reported: too many are unknown at once. TCP repeats them.
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
