use proptest::prelude::*;

use super::*;
use crate::addr::{BackendAddr, ClientAddr, VipAddr};
use crate::model::fleet::testing::{record, saved_peer};
use crate::model::fleet::{
    BeatKey, Farewell, Liveness, PeerVitals, PortRange, SavedFlowState, SavedPeer, SavedPeerFlow, SavedPeerFlows,
    SavedTraits,
};
use crate::model::ids::FlowId;
use crate::table::flow_transfer::{FirstFin, FlowTransfer, HalfWay, Progress, Relayed, Stage};
use crate::upgrade::message::{Batch, BatchNumber, Hello, PROTOCOL, Reasons};

fn half_way() -> impl Strategy<Value = HalfWay> {
    let progress = prop_oneof![Just(Progress::Open), Just(Progress::Ending), Just(Progress::Done)];
    (progress, proptest::collection::vec(any::<u8>(), 0..300)).prop_map(|(progress, held)| HalfWay { progress, held })
}

fn transfer() -> impl Strategy<Value = FlowTransfer> {
    let fin = prop_oneof![Just(None), Just(Some(FirstFin::Client)), Just(Some(FirstFin::Backend))];
    let relayed = (half_way(), half_way(), fin, any::<[u64; 5]>(), any::<std::net::SocketAddr>());
    let relayed = relayed.prop_map(|(up, down, first_fin, words, address)| Relayed {
        backend: "cp1".to_owned(),
        backend_addr: BackendAddr::new(address),
        up,
        down,
        first_fin,
        bytes_to_backend: words[0],
        bytes_to_client: words[1],
        last_to_backend_ns: words[2],
        last_to_client_ns: words[3],
        connect_us: words[4],
        unanswered_since_ns: words[3] ^ words[4],
    });
    let stage = prop_oneof![
        Just(Stage::Header),
        Just(Stage::Connecting),
        relayed.prop_map(|relayed| Stage::Relaying(Box::new(relayed))),
    ];
    let addresses = any::<[std::net::SocketAddr; 2]>();
    (any::<u64>(), ".{0,20}", addresses, any::<u64>(), stage).prop_map(|(id, frontend, addresses, at, stage)| {
        FlowTransfer {
            id: FlowId(id),
            frontend,
            client: ClientAddr::new(addresses[0]),
            vip: VipAddr::new(addresses[1]),
            accepted_at_ns: at,
            stage,
        }
    })
}

fn read(frame: &[u8]) -> Result<Message, DecodeError> {
    let (head, body) = frame.split_at(HEADER_BYTES);
    decode(&Header::parse(head.try_into().unwrap())?, body)
}

proptest! {
    #[test]
    fn flows_survive_the_wire(flows in proptest::collection::vec(transfer(), 0..8), number: u64) {
        let number = BatchNumber(number);
        let message = Message::Batch(Batch { number, flows });
        prop_assert_eq!(read(&encode(&message, 3).unwrap()).unwrap(), message);
    }

    /// CRC-32 detects a single wrong bit at any place.
    #[test]
    fn a_wrong_bit_is_found(flow in transfer(), at: prop::sample::Index, bit in 0u8..8) {
        let message = Message::Batch(Batch { number: BatchNumber(1), flows: vec![flow] });
        let mut frame = encode(&message, 0).unwrap();
        let at = at.index(frame.len());
        frame[at] ^= 1 << bit;
        prop_assert!(read(&frame).is_err());
    }

    #[test]
    fn any_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), HEADER_BYTES..200)) {
        prop_assert!(read(&bytes).is_err());
    }
}

#[test]
fn a_body_that_is_too_long_is_refused_before_it_is_read() {
    let mut frame = encode(&Message::Ready, 0).unwrap();
    frame[8..12].copy_from_slice(&(BODY_MAX as u32 + 1).to_le_bytes());
    assert!(matches!(read(&frame), Err(DecodeError::TooLong(_))));
    let long = Message::Refuse(Reasons(vec!["x".repeat(BODY_MAX)]));
    assert!(encode(&long, 0).is_err());
}

#[test]
fn a_newer_release_may_add_keys() {
    let newer = br#"{"version":"9.9.9","protocol_min":1,"protocol_max":7,"pid":5,"colour":"red"}"#;
    let hello: Hello = json(newer).unwrap();
    assert_eq!(hello.common_protocol(), Some(PROTOCOL.1));
    assert_eq!(Hello { protocol_max: 1, ..hello.clone() }.common_protocol(), Some(1));
    assert_eq!(Hello { protocol_min: PROTOCOL.1 + 1, ..hello }.common_protocol(), None);
}

fn hex(frame: &[u8]) -> String {
    frame.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The layout of flows is part of each version of the protocol: if this fails, another version is needed.
#[test]
fn the_layout_of_a_batch_is_what_its_version_says() {
    let half = |byte| HalfWay { progress: Progress::Ending, held: vec![byte; 2] };
    let relayed = Relayed {
        backend: "b".to_owned(),
        backend_addr: BackendAddr::new("10.0.0.1:443".parse().unwrap()),
        up: half(7),
        down: half(8),
        first_fin: Some(FirstFin::Backend),
        bytes_to_backend: 300,
        bytes_to_client: 2,
        last_to_backend_ns: 3,
        last_to_client_ns: 4,
        connect_us: 5,
        unanswered_since_ns: 6,
    };
    let flow = FlowTransfer {
        id: FlowId(9),
        frontend: "f".to_owned(),
        client: ClientAddr::new("[::1]:80".parse().unwrap()),
        vip: VipAddr::new("10.0.0.2:6443".parse().unwrap()),
        accepted_at_ns: 1,
        stage: Stage::Relaying(Box::new(relayed)),
    };
    let message = Message::Batch(Batch { number: BatchNumber(6), flows: vec![flow] });
    insta::assert_snapshot!("version_1", hex(&encode(&message, 2).unwrap()));
}

fn peer_flows(states: &[SavedFlowState]) -> SavedPeerFlows {
    let flow = |(number, state): (usize, &SavedFlowState)| {
        let record = record(number as u64 + 1);
        let (id, ends, client) = (record.id, record.ends, record.client.ip());
        SavedPeerFlow { id, ends, client, accepted_unix_ms: 1_700_000_000_000, state: *state, told: number % 2 == 0 }
    };
    SavedPeerFlows { peer: saved_peer("lb-b").name, flows: states.iter().enumerate().map(flow).collect() }
}

const STATES: [SavedFlowState; 4] =
    [SavedFlowState::Proxied, SavedFlowState::Refused, SavedFlowState::Held, SavedFlowState::NoRoom];

#[test]
fn peers_and_their_flows_survive_the_wire_and_a_newer_release_may_add_keys_to_peers() {
    let heard = saved_peer("lb-c");
    let told = SavedPeer {
        public_key: Some([9; 32]),
        vitals: PeerVitals {
            liveness: Liveness::Left(Farewell::Succeeded),
            beat_key: Some(BeatKey([7; 32])),
            witnessed_ns: Some(u64::MAX),
            ..heard.vitals
        },
        known: SavedTraits { ports: vec![PortRange { first: 1, last: 2 }], ..SavedTraits::default() },
        ..heard
    };
    let peers = Message::Peers(vec![saved_peer("lb-b"), told]);
    assert_eq!(read(&encode(&peers, 0).unwrap()).unwrap(), peers);
    let mut newer = serde_json::to_value(saved_peer("lb-b")).unwrap();
    newer["colour"] = "red".into();
    assert_eq!(json::<SavedPeer>(newer.to_string().as_bytes()).unwrap(), saved_peer("lb-b"));
    let flows = Message::PeerFlows(peer_flows(&STATES));
    assert_eq!(read(&encode(&flows, 0).unwrap()).unwrap(), flows);
    // The longest part.
    let mut long = peer_flows(&[SavedFlowState::Held; 4096]);
    for flow in &mut long.flows {
        flow.ends.client = ClientAddr::new("[fd00:1234:5678:9abc:def0:1234:5678:9abc]:65535".parse().unwrap());
        flow.client = flow.ends.client.ip();
    }
    assert!(encode(&Message::PeerFlows(long), 0).unwrap().len() < BODY_MAX / 8);
}

/// As [`the_layout_of_a_batch_is_what_its_version_says`].
#[test]
fn the_layout_of_peers_flows_is_what_its_version_says() {
    insta::assert_snapshot!("version_2", hex(&encode(&Message::PeerFlows(peer_flows(&STATES)), 0).unwrap()));
}
