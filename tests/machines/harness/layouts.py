"""What stands between a card and the address: VLANs, bonds, bridges, sizes, and what the network does to packets.

`{a}` and `{b}` are the two cards, of which most layouts use the first; a layout leaves the interface that gets the address in `$top`.
"""

import dataclasses

PLAIN = "top={a}"
# LACP uses only links whose speed is known, and virtio says none.
SPEED = "for each in {a} {b}; do ethtool -s $each speed 1000 duplex full 2>/dev/null || true; done; "
BOND = SPEED + "modprobe bonding; ip link add bond0 type bond mode {mode} miimon 100; ip link set {a} down master bond0; ip link set {b} down master bond0; ip link set bond0 up; top=bond0"
VLAN = "modprobe 8021q; ip link set {a} up; ip link add link {a} name v7 type vlan id 7; top=v7"


def bond(mode):
    return BOND.replace("{mode}", mode)


@dataclasses.dataclass(frozen=True)
class Layout:
    about: str
    balancer: str = PLAIN
    ends: str = PLAIN
    cards: tuple = ("virtio", "e1000e")
    mtu: int = 1500
    ends_mtu: int = 0  # the balancer's own
    joined: bool = True
    family: int = 4
    # What the ends' interface does to each packet that it sends (tc-netem(8)).
    netem: str = ""
    bulk: int = 4_000_000
    # Brings the card back to its defaults.
    undo: str = ""
    # During the row's flows, on the balancer.
    then: str = ""


ALL = ("virtio", "e1000e", "e1000", "igb", "vmxnet3", "rtl8139")
LAYOUTS = {
    "plain": Layout("the address on the card itself", cards=ALL),
    "vlan": Layout("a VLAN on the card", VLAN, VLAN, ALL),
    "ipv6": Layout("IPv6", cards=ALL, family=6),
    "no-offloads": Layout(
        "checksums, segments and merging by the kernel alone",
        "for each in rx tx tso gso gro rxvlan txvlan; do ethtool -K {a} $each off 2>/dev/null || true; done; top={a}",
        cards=("virtio", "e1000e", "vmxnet3"),
        undo="for each in rx tx tso gso gro rxvlan txvlan; do ethtool -K {a} $each on 2>/dev/null || true; done",
    ),
    "vlan-tag-in-packet": Layout(
        "a VLAN whose tags the card leaves in the packet",
        "ethtool -K {a} rxvlan off txvlan off 2>/dev/null || true; " + VLAN,
        VLAN,
        ("e1000e", "vmxnet3"),
        undo="ethtool -K {a} rxvlan on txvlan on 2>/dev/null || true",
    ),
    # QEMU's rtl8139 makes no sum in a packet with a tag: without this no TCP of the kernel's own passes there either.
    "vlan-tag-no-sums": Layout(
        "a VLAN whose tags the card leaves in the packet, and whose sums the kernel makes",
        "ethtool -K {a} rxvlan off txvlan off tx off tso off; " + VLAN,
        VLAN,
        ("rtl8139",),
        undo="ethtool -K {a} rxvlan on txvlan on tx on 2>/dev/null || true",
    ),
    "gro-hw-off": Layout("the card merges no packets", "ethtool -K {a} rx-gro-hw off; top={a}", cards=("virtio",), undo="ethtool -K {a} rx-gro-hw on"),
    "lro-off": Layout("the card merges no packets", "ethtool -K {a} lro off; top={a}", cards=("vmxnet3",), undo="ethtool -K {a} lro on"),
    "vlan-lro-off": Layout("a VLAN on a card that merges no packets", "ethtool -K {a} lro off; " + VLAN, VLAN, ("vmxnet3",), undo="ethtool -K {a} lro on"),
    "bond-active-backup": Layout(
        "a bond of two cards, one of them in use; its cable is pulled later", bond("active-backup"), then="ip link set $(cat /sys/class/net/bond0/bonding/active_slave) down"
    ),
    "bond-802.3ad": Layout("a bond of two cards with LACP, at both ends", bond("802.3ad"), bond("802.3ad"), joined=False),
    "vlan-on-bond": Layout(
        "a VLAN on a bond with LACP",
        bond("802.3ad") + "; modprobe 8021q; ip link add link bond0 name v7 type vlan id 7; top=v7",
        bond("802.3ad") + "; modprobe 8021q; ip link add link bond0 name v7 type vlan id 7; top=v7",
        joined=False,
    ),
    "bridge": Layout(
        "the card in a bridge that has the address", "ip link add name br0 type bridge forward_delay 0; ip link set {a} master br0 up; ip link set br0 up; top=br0"
    ),
    "bridge-vlan": Layout(
        "the card in a bridge that knows VLANs, and a VLAN on the bridge",
        "modprobe 8021q; ip link add name br0 type bridge forward_delay 0 vlan_filtering 1; ip link set {a} master br0 up; bridge vlan add dev {a} vid 7; "
        "bridge vlan add dev br0 vid 7 self; ip link set br0 up; ip link add link br0 name v7 type vlan id 7; top=v7",
        VLAN,
        ("virtio",),
    ),
    "macvlan": Layout("a macvlan on the card", "ip link set {a} up; ip link add link {a} name m0 type macvlan mode bridge; top=m0"),
    "vxlan": Layout(
        "a VXLAN tunnel over the card",
        "ip link set {a} up; ip address add 10.79.0.2/24 dev {a}; ip link add x0 type vxlan id 9 remote 10.79.0.9 dstport 4789 dev {a}; ip link set x0 mtu 1450; top=x0",
        "ip link set {a} up; ip address add 10.79.0.9/24 dev {a}; ip link add x0 type vxlan id 9 remote 10.79.0.2 dstport 4789 dev {a}; ip link set x0 mtu 1450; top=x0",
        mtu=0,
    ),
    "mtu-9000": Layout("frames of 9,000 bytes", cards=("virtio", "e1000e", "vmxnet3"), mtu=9000),
    "mtu-1400": Layout("packets of 1,400 bytes at the balancer, of 1,500 at the ends", mtu=1400, ends_mtu=1500),
    "netem-loss": Layout("1 % of the packets of both ends are lost", cards=("virtio",), netem="loss 1%", bulk=1_000_000),
    "netem-delay": Layout("50 ms from both ends", cards=("virtio",), netem="delay 50ms", bulk=1_000_000),
    "netem-reorder": Layout("a quarter of the packets overtake others", cards=("virtio",), netem="delay 10ms reorder 25% 50%", bulk=1_000_000),
    "netem-duplicate": Layout("5 % of the packets come twice", cards=("virtio",), netem="duplicate 5%"),
    "netem-corrupt": Layout("1 % of the packets have a wrong bit", cards=("virtio", "e1000e", "vmxnet3"), netem="corrupt 1%", bulk=1_000_000),
}
