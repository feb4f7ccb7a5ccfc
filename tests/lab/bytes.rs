//! Bytes that can be checked without being kept: a generator and a hash.

/// An endless stream of bytes, fixed by its seed (splitmix64; Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Pattern {
    state: u64,
    word: [u8; 8],
    used: usize,
}

impl Pattern {
    pub fn new(seed: u64) -> Self {
        Self { state: seed, word: [0; 8], used: 8 }
    }

    pub fn fill(&mut self, buffer: &mut [u8]) {
        for byte in buffer {
            if self.used == 8 {
                self.word = self.next_word().to_le_bytes();
                self.used = 0;
            }
            *byte = self.word[self.used];
            self.used += 1;
        }
    }

    fn next_word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// What went past: how many bytes, and their FNV-1a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    pub bytes: u64,
    pub hash: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Self { bytes: 0, hash: 0xcbf2_9ce4_8422_2325 }
    }
}

impl Tally {
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.hash = bytes.iter().fold(self.hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    }

    /// The tally of the first `bytes` bytes of the pattern of `seed`.
    pub fn of_pattern(seed: u64, bytes: u64) -> Self {
        let mut tally = Self::default();
        let mut pattern = Pattern::new(seed);
        let mut buffer = vec![0; 64 * 1024];
        while tally.bytes < bytes {
            let part = buffer.len().min((bytes - tally.bytes) as usize);
            pattern.fill(&mut buffer[..part]);
            tally.add(&buffer[..part]);
        }
        tally
    }
}
