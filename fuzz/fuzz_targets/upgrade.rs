//! Any bytes as a message of the upgrade: as they are, and with the checksum made right, so that the bodies are met too.
#![no_main]

use baton::upgrade::codec::{self, HEADER_BYTES, Header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((head, body)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return };
    read(head, body);
    let mut head = *head;
    head[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&head[..16]);
    checksum.update(body);
    head[16..].copy_from_slice(&checksum.finalize().to_le_bytes());
    read(&head, body);
});

/// What can be read can be written, and reads back the same.
fn read(head: &[u8; HEADER_BYTES], body: &[u8]) {
    let Ok(header) = Header::parse(head) else { return };
    let Ok(message) = codec::decode(&header, body) else { return };
    let Ok(frame) = codec::encode(&message, header.descriptors()) else { return };
    let (head, body) = frame.split_first_chunk().expect("a frame has a header");
    let again = codec::decode(&Header::parse(head).expect("it was just written"), body);
    assert_eq!(again.expect("it was just written"), message);
}
