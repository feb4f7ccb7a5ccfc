//! Bytes whose order shows: a random block of prime length, over and over. Loss, doubling, reordering and corruption
//! all make a difference, and checking costs one memcmp.

use std::sync::LazyLock;

const BLOCK: usize = 1_048_573;

static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = fastrand::Rng::with_seed(7);
    std::iter::repeat_with(|| random.u8(..)).take(BLOCK).collect()
});

/// As much of the pattern from `offset` on as is at hand, at most `most` bytes.
pub fn at(offset: u64, most: usize) -> &'static [u8] {
    let start = (offset % BLOCK as u64) as usize;
    let end = BLOCK.min(start + most);
    &PATTERN[start..end]
}

/// Whether `bytes` are what follows `offset`.
pub fn matches(mut offset: u64, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let expected = at(offset, bytes.len());
        if bytes[..expected.len()] != *expected {
            return false;
        }
        offset += expected.len() as u64;
        bytes = &bytes[expected.len()..];
    }
    true
}
