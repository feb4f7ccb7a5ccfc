//! Keys that have another name now.

pub(super) const KEYS: [(&str, &str); 5] = [
    ("path", "offload"),
    ("takeover", "failover"),
    ("offload.graduate", "mode"),
    ("failover.tickle", "challenge"),
    ("frontend.rebalance.balance_existing", "when"),
];

/// The name that `key`, dotted and without indices, has today.
pub(super) fn renamed(key: &str) -> Option<&'static str> {
    KEYS.iter().find(|(old, _)| *old == key).map(|(_, new)| *new)
}
