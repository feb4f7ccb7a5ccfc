//! The kernel's random numbers.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Bytes for a secret (getrandom(2)).
pub(crate) fn secret<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_secret_comes_twice() {
        let secrets: std::collections::HashSet<[u8; 32]> = (0..100).map(|_| super::secret().unwrap()).collect();
        assert_eq!(secrets.len(), 100);
    }
}
