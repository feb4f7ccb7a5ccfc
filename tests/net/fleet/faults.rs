//! Links that are slow, cut or old: the traffic does not notice.

use super::*;

#[test]
fn a_cut_link_is_told_anew_as_a_whole_and_the_traffic_goes_on() {
    let Some(scene) = Scene::new("a_cut_link_is_told_anew_as_a_whole_and_the_traffic_goes_on", 2) else { return };
    let _servers = scene.serve();
    let all = scene.start();
    let (a, b) = (&all[0], &all[1]);
    let mut conns: Vec<_> = (0..20).map(|_| scene.lab.client.connect(a.listens_at())).collect();
    conns.iter_mut().for_each(|conn| conn.echo(1, 100));
    b.wait_sees("lb-a", "flows", 20);
    b.host.drop_packets("input", &format!("ip saddr {}", a.host.v4(0).ip()));
    a.wait_sees("lb-b", "pulse", "dead");
    b.wait_sees("lb-a", "pulse", "dead");
    conns.truncate(5);
    conns.extend((0..10).map(|_| scene.lab.client.connect(a.listens_at())));
    conns.iter_mut().for_each(|conn| conn.echo(2, 10_000));
    assert_eq!(b.sees("lb-a")["flows"], 20);
    b.host.nft_clear();
    a.wait_synced("lb-b");
    b.wait_synced("lb-a");
    b.wait_sees("lb-a", "flows", 15);
    conns.iter_mut().for_each(|conn| conn.echo(3, 100));
}
