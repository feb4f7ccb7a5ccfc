//! Any bytes as what a peer says: as messages, each behind its length, to an instance that is linked with it. Whatever it says, the
//! instance goes on, and what it makes of it holds together.
#![no_main]

use std::collections::HashSet;

use baton::fleet::link::wire::{self, Version, Versions};
use baton::model::fleet::{
    BeatSecret, Epoch, Exchange, Hello, InstanceName, InstanceSummary, Member, Message, Own, PortRange, Remote,
};
use libfuzzer_sys::fuzz_target;

const STEP_NS: u64 = 10_000_000;

fuzz_target!(|bytes: &[u8]| {
    if let Some((head, _)) = bytes.split_first_chunk() {
        let _ = Versions::parse(head).map(Versions::spoken);
    }
    let peer = InstanceName("b".into());
    let own = Own {
        name: InstanceName("a".into()),
        epoch: Epoch(1),
        slot: 0,
        ports: Some(PortRange { first: 32_768, last: 36_863 }),
        version: String::new(),
        sync_deadline_ns: 1_000_000_000,
        vips: Vec::new(),
        beat_secret: BeatSecret([1; 32]),
    };
    let member = Member { name: peer.clone(), address: "10.0.0.2:9471".parse().expect("an address") };
    let mut exchange = Exchange::new(own, &[member], 1);
    exchange.set_whole();
    let hello = Hello { name: peer.clone(), epoch: Epoch(1), slot: 1, version: String::new() };
    exchange.handle_link(&hello, 1).expect("a peer");
    exchange.tell_summaries(&peer, 1);
    exchange.set_summary(InstanceSummary::default().into(), 1);
    let (mut rest, mut now_ns, mut flows) = (bytes, 1, HashSet::new());
    while let Some((length, behind)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(*length)).min(behind.len());
        let (frame, next) = behind.split_at(length);
        (rest, now_ns) = (next, now_ns + STEP_NS);
        let Ok(message) = wire::decode(frame, Version::Three) else { continue };
        reads_back(&message);
        exchange.handle_message(&peer, message, now_ns);
        exchange.handle_time(now_ns);
        while exchange.poll_message(&peer, now_ns).is_some() {}
        while let Some(remote) = exchange.poll_remote() {
            match remote {
                Remote::Begin { .. } => flows.clear(),
                Remote::Flow { record, .. } => drop(flows.insert(record.fleet_id())),
                // Of a flow that it has claimed, the end may be all that it tells.
                Remote::Ended { id, .. } => drop(flows.remove(&id)),
                _ => {}
            }
        }
        let view = &exchange.members(now_ns)[0];
        assert_eq!(view.flows, flows.len());
        view.summary.iter().for_each(|said| is_bounded(&said.summary));
        while let Some(query) = exchange.poll_query() {
            exchange.handle_known(&query, false);
        }
        if let Some((peer, why)) = exchange.poll_drop() {
            exchange.handle_loss(&peer, &why, now_ns);
            return;
        }
    }
});

/// What is kept of a peer's words is short, and no terminal obeys it.
fn is_bounded(summary: &InstanceSummary) {
    assert!(summary.backends.len() <= 64 && summary.not_live.len() <= 4 && summary.not_ready.len() <= 4);
    let text = format!("{summary:?}");
    assert!(text.len() <= 128 * 1024, "{} bytes", text.len());
    let texts = summary.backends.iter().flat_map(|it| [&it.frontend, &it.name, &it.why]).chain(&summary.not_ready);
    let mut texts = texts.chain(&summary.not_live).chain(summary.worst_event.iter().map(|it| &it.sentence));
    assert!(texts.all(|text| !text.contains(|letter: char| letter.is_control() && letter != '\t')), "{text}");
}

/// What can be read can be written, and reads back the same.
fn reads_back(message: &Message) {
    if let Ok(bytes) = wire::encode(message, Version::Three) {
        assert_eq!(wire::decode(&bytes, Version::Three).as_ref(), Ok(message));
    }
}
