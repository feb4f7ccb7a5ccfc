//! The form of the recorder's files: a header, then records, each with its length and checksum.
//!
//! ```text
//! header   "batonrec", format (u32)
//! record   length of kind and body (u32), CRC-32 of both (u32), kind (u8), body
//! ```
//! All numbers are little-endian. A process that was killed leaves half a record at the end, and a host that lost power may
//! leave a gap: a reader goes on at the next record whose checksum is right, and counts the bytes between.

use thiserror::Error;

const MAGIC: [u8; 8] = *b"batonrec";

/// Of header and records. The body of a kind never changes: a new body gets a new kind, and a reader skips kinds that it does
/// not know.
const FORMAT: u32 = 1;

/// Limit for a body. A longer one is not recorded.
pub(crate) const BODY_MAX: usize = 48 * 1024;

const HEADER_BYTES: usize = MAGIC.len() + 4;
const PREFIX_BYTES: usize = 8;

/// Why a file is none that this version can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unreadable {
    #[error("this is no file of a recorder")]
    NoRecorder,
    #[error("its format is {0}, and this Baton reads format {FORMAT}")]
    Format(u32),
}

pub(crate) fn header() -> Vec<u8> {
    [&MAGIC[..], &FORMAT.to_le_bytes()].concat()
}

/// Adds a record to `file`. False: the body is too long.
pub(crate) fn append(file: &mut Vec<u8>, kind: u8, body: &[u8]) -> bool {
    if body.len() > BODY_MAX {
        return false;
    }
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&[kind]);
    checksum.update(body);
    file.extend_from_slice(&(body.len() as u32 + 1).to_le_bytes());
    file.extend_from_slice(&checksum.finalize().to_le_bytes());
    file.push(kind);
    file.extend_from_slice(body);
    true
}

/// The records of a file: kind and body, in their order.
#[derive(Clone, Debug)]
pub(crate) struct RecordsIn<'f> {
    rest: &'f [u8],
    skipped: u64,
}

impl<'f> RecordsIn<'f> {
    /// # Errors
    /// [`Unreadable`]. A file that ends within its header has no record, and is none.
    pub(crate) fn new(file: &'f [u8]) -> Result<Self, Unreadable> {
        let whole = header();
        let Some((head, rest)) = file.split_at_checked(HEADER_BYTES) else {
            let begins = whole.starts_with(file);
            return if begins {
                Ok(Self { rest: &[], skipped: file.len() as u64 })
            } else {
                Err(Unreadable::NoRecorder)
            };
        };
        match head.split_at(MAGIC.len()) {
            (magic, _) if magic != MAGIC => Err(Unreadable::NoRecorder),
            (_, format) if format != FORMAT.to_le_bytes() => {
                Err(Unreadable::Format(u32::from_le_bytes(format.try_into().expect("four bytes"))))
            }
            _ => Ok(Self { rest, skipped: 0 }),
        }
    }

    /// Bytes so far that belong to no whole record.
    pub(crate) fn skipped(&self) -> u64 {
        self.skipped
    }
}

impl<'f> Iterator for RecordsIn<'f> {
    type Item = (u8, &'f [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            if let Some((kind, body, rest)) = first(self.rest) {
                self.rest = rest;
                return Some((kind, body));
            }
            self.rest = &self.rest[1..];
            self.skipped += 1;
        }
        None
    }
}

/// The record at the beginning of `bytes`, if there is a whole one, and what follows it.
fn first(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (prefix, rest) = bytes.split_at_checked(PREFIX_BYTES)?;
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    let (length, checksum) = (number(&prefix[..4]) as usize, number(&prefix[4..]));
    if !(1..=BODY_MAX + 1).contains(&length) {
        return None;
    }
    let (record, rest) = rest.split_at_checked(length)?;
    (crc32fast::hash(record) == checksum).then(|| (record[0], &record[1..], rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Records = Vec<(u8, Vec<u8>)>;

    /// A file with `records`, and the end of each in it.
    fn file(records: &[(u8, Vec<u8>)]) -> (Vec<u8>, Vec<usize>) {
        let mut file = header();
        let mut ends = Vec::new();
        for (kind, body) in records {
            assert!(append(&mut file, *kind, body));
            ends.push(file.len());
        }
        (file, ends)
    }

    fn read(file: &[u8]) -> Records {
        RecordsIn::new(file).unwrap().map(|(kind, body)| (kind, body.to_vec())).collect()
    }

    fn some_records() -> impl Strategy<Value = Records> {
        proptest::collection::vec((any::<u8>(), proptest::collection::vec(any::<u8>(), 0..200)), 1..20)
    }

    proptest! {
        #[test]
        fn a_file_cut_anywhere_has_the_whole_records_before_the_cut(records in some_records(), at in any::<prop::sample::Index>()) {
            let (file, ends) = file(&records);
            let cut = at.index(file.len() + 1);
            let whole = ends.iter().filter(|end| **end <= cut).count();
            let mut found = RecordsIn::new(&file[..cut]).unwrap();
            let seen: Records = found.by_ref().map(|(kind, body)| (kind, body.to_vec())).collect();
            prop_assert_eq!(&seen[..], &records[..whole]);
            let used = if whole == 0 { HEADER_BYTES.min(cut) } else { ends[whole - 1] };
            let torn = if cut < HEADER_BYTES { cut } else { cut - used };
            prop_assert_eq!(found.skipped(), torn as u64);
        }

        #[test]
        fn a_damaged_byte_costs_the_record_that_has_it_and_no_other(
            records in some_records(), at in any::<prop::sample::Index>(), bit in 0..8u32,
        ) {
            let (mut file, ends) = file(&records);
            let place = HEADER_BYTES + at.index(file.len() - HEADER_BYTES);
            file[place] ^= 1 << bit;
            let hit = ends.iter().position(|end| place < *end).unwrap();
            let mut expected = records.clone();
            expected.remove(hit);
            prop_assert_eq!(read(&file), expected);
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            if let Ok(records) = RecordsIn::new(&bytes) {
                records.for_each(drop);
            }
            let behind = [header(), bytes].concat();
            RecordsIn::new(&behind).unwrap().for_each(drop);
        }
    }

    #[test]
    fn a_gap_of_zeros_in_the_middle_is_skipped() {
        let records: Records = (0..3).map(|kind| (kind, vec![kind; 50])).collect();
        let (file, ends) = file(&records);
        let gap = [&file[..ends[0]], &[0; 4096], &file[ends[0]..]].concat();
        assert_eq!(read(&gap), records);
    }

    #[test]
    fn another_format_and_another_file_are_told_apart() {
        let mut other = header();
        other[8] = 9;
        assert_eq!(RecordsIn::new(&other).err(), Some(Unreadable::Format(9)));
        assert_eq!(RecordsIn::new(b"PK\x03\x04 a file of another program").err(), Some(Unreadable::NoRecorder));
        assert_eq!(RecordsIn::new(b"PK").err(), Some(Unreadable::NoRecorder));
        assert!(RecordsIn::new(&header()).unwrap().next().is_none());
    }

    #[test]
    fn too_long_a_body_is_refused() {
        let mut file = header();
        assert!(append(&mut file, 1, &vec![0; BODY_MAX]) && !append(&mut file, 1, &vec![0; BODY_MAX + 1]));
        assert_eq!(read(&file).len(), 1);
    }
}
