use super::*;

const S: u64 = 1_000_000_000;
const TIMERS: NodeTimers = NodeTimers { lease_renew_ns: 10 * S, grace_ns: 40 * S };

/// One node, which the cluster lists, at a clock that goes on by seconds.
struct Scene {
    watch: NodeWatch,
    now_ns: u64,
    sight: NodeSight,
}

impl Scene {
    fn new() -> Self {
        Self { watch: NodeWatch::default(), now_ns: 1000 * S, sight: NodeSight::All }
    }

    /// So many seconds with a look each. `flows`: by the time.
    fn pass(&mut self, seconds: u64, flows: impl Fn(u64) -> NodeFlows) -> NodeNews {
        let mut all = NodeNews::default();
        for _ in 0..seconds {
            self.now_ns += S;
            let found = HashMap::from([(Arc::from("worker-17"), flows(self.now_ns))]);
            let news = self.watch.handle_look(self.now_ns, &TIMERS, self.sight, found);
            all.silent.extend(news.silent);
            all.back.extend(news.back);
        }
        all
    }

    fn view(&self) -> NodeView<'_> {
        self.watch.views(self.now_ns, &TIMERS).next().unwrap()
    }

    fn silent_s(&self) -> Option<u64> {
        self.view().silence.map(|it| (self.now_ns - it.since_ns) / S)
    }

    fn budget_s(&self) -> Option<u64> {
        self.view().budget_ns.map(|ns| ns / S)
    }
}

fn none(_: u64) -> NodeFlows {
    NodeFlows::default()
}

fn at_peer(_: u64) -> NodeFlows {
    NodeFlows { here: None, at_peers: BTreeMap::from([(InstanceName("lb-b".into()), 2)]) }
}

/// A connection that is `age` old, with a byte each `every` seconds.
fn beats(every: u64) -> impl Fn(u64) -> NodeFlows {
    move |now_ns| speaks_at(now_ns / (every * S) * every * S)
}

fn speaks_at(last_byte_ns: u64) -> NodeFlows {
    let mut flows = NodeFlows::default();
    flows.add(NodeConnection { accepted_at_ns: 900 * S, last_byte_ns, backend: None });
    flows
}

#[test]
fn a_node_whose_connection_ended_is_silent_after_a_renewal_and_back_with_the_next_connection() {
    let mut scene = Scene::new();
    scene.pass(30, beats(10));
    assert_eq!(scene.pass(10, none), NodeNews::default(), "a renewal has not passed");
    let told = scene.pass(29, none);
    assert_eq!((told.silent.len(), scene.silent_s()), (1, Some(38)));
    assert_eq!(told.silent[0].1.kind, SilenceKind::NoConnection);
    assert_eq!(scene.budget_s(), Some(1), "it counts from the last byte, at most a second before the loss");
    let back = scene.pass(1, beats(1)).back;
    assert_eq!((back.len(), scene.silent_s(), scene.budget_s()), (1, None, Some(40)));
}

/// Regression: a node with one more connection, which was idle, was told as silent since that one's last byte, minutes ago, as soon as its
/// kubelet's connection ended; kubelets that had come back at once were, too.
#[test]
fn a_node_is_silent_since_its_last_byte_though_the_connection_of_that_byte_has_ended() {
    let idle = |_| speaks_at(900 * S);
    let both = |now_ns| {
        let mut flows = beats(10)(now_ns);
        flows.add(idle(now_ns).here.unwrap().latest);
        flows
    };
    let mut scene = Scene::new();
    assert_eq!(scene.pass(80, both), NodeNews::default());
    assert_eq!(scene.pass(19, idle), NodeNews::default(), "two renewals have not passed");
    assert_eq!(scene.budget_s(), Some(21));
    let told = scene.pass(2, idle).silent;
    assert_eq!((told.len(), scene.silent_s()), (1, Some(21)));
    assert_eq!(told[0].1.kind, SilenceKind::NoByte);
    // A kubelet that starts again.
    let mut scene = Scene::new();
    scene.pass(80, both);
    assert_eq!(scene.pass(3, idle), NodeNews::default());
    assert_eq!(scene.pass(60, both), NodeNews::default());
}

#[test]
fn a_node_that_never_had_a_connection_is_not_silent() {
    let mut scene = Scene::new();
    assert_eq!(scene.pass(600, none), NodeNews::default());
    assert_eq!((scene.view().state, scene.budget_s()), (&NodeState::NeverSeen, None));
}

#[test]
fn a_kubelet_that_sends_nothing_for_two_renewals_is_silent_while_its_connection_stands() {
    let mut scene = Scene::new();
    scene.pass(90, beats(10));
    let last_ns = scene.now_ns / (10 * S) * 10 * S;
    let told = scene.pass(25, |_| speaks_at(last_ns));
    assert!(told.silent.len() == 1 && told.silent[0].1.kind == SilenceKind::NoByte, "{told:?}");
    assert_eq!(scene.budget_s(), Some(15));
    assert_eq!(scene.pass(5, speaks_at).back.len(), 1);
}

#[test]
fn the_end_of_a_connection_does_not_end_the_silence_on_it() {
    let mut scene = Scene::new();
    scene.pass(90, beats(10));
    let last_ns = scene.now_ns / (10 * S) * 10 * S;
    scene.pass(25, |_| speaks_at(last_ns));
    assert_eq!(scene.pass(5, none), NodeNews::default());
    assert_eq!((scene.silent_s(), scene.budget_s()), (Some(30), Some(10)));
    let back = scene.pass(1, beats(1)).back;
    assert_eq!(back.iter().map(|(_, it)| it.kind).collect::<Vec<_>>(), [SilenceKind::NoByte]);
}

#[test]
fn a_client_without_a_kubelets_rhythm_is_not_silent_while_its_connection_stands() {
    let mut scene = Scene::new();
    assert_eq!(scene.pass(600, beats(30)), NodeNews::default(), "pings of an idle HTTP/2 connection");
    scene.pass(25, beats(10));
    assert_eq!(scene.pass(60, |_| speaks_at(1620 * S)), NodeNews::default(), "a rhythm of less than a minute");
    // One that was busy for a while, and then had nothing to say, raises one alarm at most.
    let mut scene = Scene::new();
    scene.pass(90, beats(1));
    assert_eq!(scene.pass(300, beats(40)).silent.len(), 1);
}

#[test]
fn a_node_whose_connection_is_at_a_peer_is_not_silent_and_its_bytes_are_not_known() {
    let mut scene = Scene::new();
    scene.pass(90, beats(10));
    assert_eq!(scene.pass(300, at_peer), NodeNews::default());
    assert_eq!((scene.silent_s(), scene.budget_s()), (None, None));
    let told = scene.pass(15, none).silent;
    // Regression: 26 s, as if its last byte had come when its connection ended.
    assert_eq!((told.len(), scene.silent_s(), scene.budget_s()), (1, Some(14), Some(16)), "less a renewal's interval");
}

#[test]
fn nothing_is_said_of_a_node_that_may_be_at_an_instance_which_is_not_heard() {
    let mut scene = Scene::new();
    scene.pass(30, at_peer);
    scene.sight = NodeSight::Own;
    assert_eq!(scene.pass(300, none), NodeNews::default());
    assert!(matches!(scene.view().state, NodeState::Unknown { .. }) && scene.budget_s().is_none());
    // Its silence counts from the moment when all instances are heard again.
    scene.sight = NodeSight::All;
    assert_eq!(scene.pass(10, none), NodeNews::default());
    assert_eq!(scene.pass(1, none).silent.len(), 1);
    // And what was told is neither told again nor taken back while nothing is known.
    scene.sight = NodeSight::Own;
    scene.pass(30, none);
    scene.sight = NodeSight::All;
    assert_eq!(scene.pass(30, none), NodeNews::default());
    assert_eq!(scene.pass(1, at_peer).back.len(), 1);
}

/// Regression: an instance that was cut off told all nodes silent, whose connections the new owner of the VIP carried on.
#[test]
fn an_instance_whose_connections_another_host_may_carry_on_tells_no_node_silent_for_want_of_bytes() {
    let mut scene = Scene::new();
    scene.pass(90, beats(10));
    let last_ns = scene.now_ns / (10 * S) * 10 * S;
    scene.sight = NodeSight::NotItsOwn;
    assert_eq!(scene.pass(60, |_| speaks_at(last_ns)), NodeNews::default());
    // Regression: its budget was 0 ms.
    assert!(matches!(scene.view().state, NodeState::Unknown { .. }) && scene.budget_s().is_none());
    scene.sight = NodeSight::All;
    assert_eq!(scene.pass(60, |_| speaks_at(last_ns)), NodeNews::default(), "nor when it is back");
    // One that it sees knows better: its peers are not heard, but it has the VIP.
    let mut scene = Scene::new();
    scene.pass(90, beats(10));
    scene.sight = NodeSight::Own;
    let last_ns = scene.now_ns;
    assert_eq!(scene.pass(25, |_| speaks_at(last_ns)).silent.len(), 1);
}

/// Regression: a process that had been stopped for 44 s told all nodes silent at once, before it had looked at their flows.
#[test]
fn a_process_that_did_not_run_tells_no_node_silent_for_that_time() {
    let mut scene = Scene::new();
    scene.pass(90, beats(10));
    let last_ns = scene.now_ns;
    scene.now_ns += 44 * S;
    assert_eq!(scene.pass(1, |_| speaks_at(last_ns)), NodeNews::default());
    assert_eq!(scene.pass(60, beats(10)), NodeNews::default());
    scene.pass(40, beats(10));
    let last_ns = scene.now_ns;
    assert_eq!(scene.pass(25, |_| speaks_at(last_ns)).silent.len(), 1, "its rhythm is known again");
}

/// Regression: a dead node had its whole budget again, and no alarm, each time a peer was not heard for a moment.
#[test]
fn a_node_that_is_silent_stays_so_when_a_peer_was_not_heard_for_a_moment() {
    let mut scene = Scene::new();
    scene.pass(90, beats(10));
    assert_eq!(scene.pass(28, none).silent.len(), 1);
    let blip = |scene: &mut Scene, seconds| {
        scene.sight = NodeSight::Own;
        scene.pass(seconds, none);
        scene.sight = NodeSight::All;
        scene.pass(1, none)
    };
    assert_eq!(blip(&mut scene, 3), NodeNews::default());
    assert_eq!((scene.silent_s(), scene.budget_s()), (Some(31), Some(8)));
    // Also for longer, as it was told, and across an upgrade within it.
    scene.sight = NodeSight::Own;
    scene.pass(30, none);
    let saved = scene.watch.save();
    scene.watch = NodeWatch::default();
    scene.watch.restore(scene.now_ns, saved);
    scene.sight = NodeSight::All;
    assert_eq!(scene.pass(1, none), NodeNews::default());
    assert_eq!((scene.silent_s(), scene.budget_s()), (Some(62), Some(0)));

    // One that lost its connection just before, or meanwhile.
    let mut scene = Scene::new();
    scene.pass(90, beats(10));
    scene.pass(4, none);
    blip(&mut scene, 2);
    assert_eq!(scene.pass(4, none).silent.len(), 1, "it has had none for a renewal");
    let mut scene = Scene::new();
    scene.pass(90, beats(10));
    blip(&mut scene, 2);
    assert_eq!(scene.pass(8, none).silent.len(), 1);
}

#[test]
fn another_process_knows_which_nodes_were_seen_and_since_when_they_are_silent() {
    let mut scene = Scene::new();
    scene.pass(90, beats(10));
    let moved = |scene: &mut Scene| {
        let saved = serde_json::to_string(&scene.watch.save()).unwrap();
        scene.watch = NodeWatch::default();
        scene.watch.restore(scene.now_ns, serde_json::from_str(&saved).unwrap());
        // Its list comes later.
        scene.watch.handle_no_list();
    };
    moved(&mut scene);
    let last_ns = scene.now_ns / (10 * S) * 10 * S;
    assert_eq!(scene.pass(25, |_| speaks_at(last_ns)).silent.len(), 1, "its rhythm is known");
    scene.pass(90, beats(10));
    scene.pass(30, none);
    moved(&mut scene);
    assert_eq!(scene.pass(9, none), NodeNews::default(), "it is not told again");
    assert_eq!(scene.silent_s(), Some(38));
    scene.watch.handle_no_list();
    assert_eq!(scene.watch.save(), [], "no source lists it any more");
    // One that was never seen is still that.
    scene.pass(30, none);
    moved(&mut scene);
    assert_eq!(scene.pass(30, none), NodeNews::default());
}

#[test]
fn a_node_that_the_cluster_no_longer_lists_is_forgotten() {
    let mut scene = Scene::new();
    scene.pass(30, beats(10));
    scene.pass(30, none);
    scene.watch.handle_look(scene.now_ns, &TIMERS, NodeSight::All, HashMap::new());
    assert_eq!(scene.watch.views(scene.now_ns, &TIMERS).count(), 0);
    scene.pass(1, none);
    assert_eq!(scene.view().state, &NodeState::NeverSeen);
}

#[test]
fn of_several_connections_the_one_with_the_last_byte_and_the_oldest_one_are_shown() {
    let mut flows = NodeFlows::default();
    for (accepted, last_byte, backend) in [(50, 70, 1), (40, 90, 2), (60, 80, 3)] {
        let backend = Some(BackendId(backend));
        flows.add(NodeConnection { accepted_at_ns: accepted * S, last_byte_ns: last_byte * S, backend });
    }
    let here = flows.here.unwrap();
    assert_eq!((here.connections, here.oldest_ns, here.latest.backend), (3, 40 * S, Some(BackendId(2))));
}
