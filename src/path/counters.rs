//! What the program did, counted per CPU.

use serde::Serialize;

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
            pub fn from_words(words: [u64; Self::COUNT]) -> Self {
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
    /// Of an entry, and left to the kernel: its ends have begun another connection.
    reused "reused",
    /// A later fragment of a packet that was spliced, sent on as well.
    fragment "fragment",
    /// ICMP errors about a packet that was sent on, translated and sent to its sender.
    icmp "icmp",
    /// TCP options that end in the middle; sent on with what could be read rewritten.
    bad_options "bad_options",
    /// Dropped: the time to live ran out.
    drop_ttl "ttl",
    /// Dropped: too large for the interface it would leave through.
    drop_mtu "mtu",
    /// Dropped: shorter than its own headers say.
    drop_short "short",
    /// Dropped: marked by a congested router, and the receiver has not negotiated ECN.
    drop_ecn "ecn",
    /// Dropped: the kernel could not make room or send it on.
    drop_error "error",
    /// Dropped: an RST has no answer.
    drop_reset "rst",
    /// Dropped: a fragment whose first one was not seen.
    drop_fragment "lost_fragment",
    /// Dropped: it came from the instance that it would have to be sent to.
    drop_loop "loop",
}
