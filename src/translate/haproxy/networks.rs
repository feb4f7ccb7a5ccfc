//! Sets of addresses, as networks.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Sorted, and without two that one network could be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NetworkSet(Vec<IpNet>);

impl NetworkSet {
    pub(super) fn new(networks: &[IpNet]) -> Self {
        let networks: Vec<_> = networks.iter().map(IpNet::trunc).collect();
        Self(IpNet::aggregate(&networks))
    }

    /// Every address of both families.
    pub(super) fn all() -> Self {
        Self(vec![IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())])
    }

    pub(super) fn is_all(&self) -> bool {
        *self == Self::all()
    }

    pub(super) fn networks(&self) -> &[IpNet] {
        &self.0
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn union(&self, other: &Self) -> Self {
        Self::new(&[&self.0[..], &other.0[..]].concat())
    }

    pub(super) fn minus(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        for network in &self.0 {
            let overlapping = other.0.iter().filter(|it| it.contains(network) || network.contains(*it));
            let rest = overlapping.fold(vec![*network], |pieces, cut| {
                let mut rest = Vec::new();
                pieces.into_iter().for_each(|piece| subtract(piece, *cut, &mut rest));
                rest
            });
            left.extend(rest);
        }
        Self::new(&left)
    }

    pub(super) fn complement(&self) -> Self {
        Self::all().minus(self)
    }

    pub(super) fn intersection(&self, other: &Self) -> Self {
        let mut both = Vec::new();
        for one in &self.0 {
            let inner = other.0.iter().filter(|two| one.contains(*two));
            both.extend(inner);
            both.extend(other.0.iter().filter(|two| two.contains(one)).map(|_| *one));
        }
        Self::new(&both)
    }
}

/// What of `network` is not in `cut`: of two networks one has the other, or they have nothing in common.
fn subtract(network: IpNet, cut: IpNet, left: &mut Vec<IpNet>) {
    if cut.contains(&network) {
        return;
    }
    match network.subnets(network.prefix_len() + 1) {
        Ok(halves) if network.contains(&cut) => halves.for_each(|half| subtract(half, cut, left)),
        _ => left.push(network),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> NetworkSet {
        NetworkSet::new(&text.split_whitespace().map(|it| it.parse().unwrap()).collect::<Vec<_>>())
    }

    #[test]
    fn sets_are_cut_joined_and_turned_around() {
        assert_eq!(set("10.0.0.0/8").minus(&set("10.64.0.0/10 11.0.0.0/8")), set("10.0.0.0/10 10.128.0.0/9"));
        assert_eq!(set("10.0.0.0/8").intersection(&set("10.1.0.0/16 fd00::/8")), set("10.1.0.0/16"));
        assert_eq!(set("10.1.0.0/16 fd00::/8").intersection(&set("10.0.0.0/8")), set("10.1.0.0/16"));
        assert_eq!(set("10.2.0.0/16").union(&set("10.3.1.2/16")), set("10.2.0.0/15"));
        assert_eq!(NetworkSet::all().complement(), NetworkSet::default());
        let networks = set("10.1.0.0/16 fd00::1/128");
        assert_eq!(networks.complement().complement(), networks);
        assert!(networks.complement().intersection(&networks).is_empty());
    }
}
