"""One row: a kernel, a card and a layout, and what becomes of flows there."""

import time

from harness.balancer import CONFIG, FLEET, PORT, Balancer, Ends, eventually
from harness.kernels import Unavailable
from harness.layouts import LAYOUTS
from harness.machine import Failed

FLOWS = 20
COLUMNS = ["offloaded", "bytes to the backend", "bytes to the client", "kill -9", "upgrade", "evacuation", "host death"]
# Removes all that a layout has made, and the addresses of the cards.
CLEAR = """for each in /sys/class/net/*; do
    name=${each##*/}
    # The module of bonds has a file there.
    [ -d $each ] && [ $name != lo ] && [ ! -e $each/device ] && ip link delete $name 2>/dev/null
done
for each in /sys/class/net/*; do
    [ -e $each/device ] || continue
    name=${each##*/}
    ip link set $name nomaster 2>/dev/null; ip address flush dev $name; ip link set $name down mtu 1500
    # The kernel turns LRO off for good where a VLAN has been on the card.
    ethtool -K $name lro on 2>/dev/null || true
done
true"""


class Addresses:
    """Of the hosts of a row, by their numbers."""

    def __init__(self, family):
        self.family = family

    def of(self, number):
        return f"10.78.0.{number}" if self.family == 4 else f"fd78::{number}"

    def with_port(self, number):
        return f"{self.of(number)}:{PORT}" if self.family == 4 else f"[{self.of(number)}]:{PORT}"

    def entries(self, numbers):
        return "".join(f"ip address add {self.of(number)}/{24 if self.family == 4 else '64'} dev $top {'' if self.family == 4 else 'nodad'}\n" for number in numbers)


def wire(machine, script, card, mtu, entries):
    """Builds one side's interfaces; returns the name of the one that has the addresses."""
    a, b = f"{card}-a", f"{card}-b"
    sizes = f"ip link set {a} mtu {mtu}; ip link set {b} mtu {mtu}" if mtu else ""
    size = f"ip link set $top mtu {mtu}" if mtu else ""
    script = script.replace("{a}", a).replace("{b}", b)
    return machine.sh(f"{CLEAR}\n{sizes}\n{script}\nip link set $top up\n{size}\n{entries}echo $top").split()[-1]


def reach(ends, address):
    eventually(lambda: ends.machine.try_sh(f"ping -c1 -W1 {address} || busybox ping -c1 -W1 {address}")[0] == 0, 40, f"{address} does not answer")


class Row:
    def __init__(self, series, card, layout, pair=False):
        self.series, self.card, self.layout, self.pair = series, card, layout, pair
        self.name = f"{series}/{card}/{'pair-' if pair else ''}{layout}"
        self.plan = LAYOUTS[layout]
        self.addresses = Addresses(self.plan.family)

    def measure(self, stage):
        """The cells of the row. Raises `Failed` with what is wrong, after which `stage.cells` has what came before."""
        return self.of_pair(stage) if self.pair else self.of_one(stage)

    def may_proxy(self):
        """Whether Baton is right not to offload here."""
        merges_for_good = self.card == "vmxnet3" and self.layout not in ("no-offloads", "lro-off", "vlan-lro-off")
        return merges_for_good or self.series in PROXYING

    def prepare_ends(self, stage):
        plan, ends = self.plan, stage.ends
        ends.remove()
        stage.network.join(plan.joined)
        top = wire(ends.machine, plan.ends, "virtio", plan.ends_mtu or plan.mtu, self.addresses.entries([10, 21, 22]))
        if plan.netem:
            ends.machine.sh(f"modprobe sch_netem; tc qdisc replace dev {top} root netem limit 10000 {plan.netem}")
        ends.serve([self.addresses.of(21), self.addresses.of(22)])

    def config(self, number, fleet=""):
        at = self.addresses.with_port
        return CONFIG.format(listen=at(number), b1=at(21), b2=at(22), fleet=fleet)

    def of_one(self, stage):
        plan, cells = self.plan, stage.cells
        ends, balancer = stage.ends, stage.balancers[0]
        self.prepare_ends(stage)
        balancer.remove()
        wire(balancer.machine, plan.balancer, self.card, plan.mtu, self.addresses.entries([2]))
        try:
            vip = self.addresses.of(2)
            reach(ends, vip)
            balancer.configure(self.config(2))
            balancer.start()
            self.see_offload(stage, balancer, vip)
            self.see_bytes(stage, vip)
            if plan.then:
                balancer.machine.sh(plan.then)
                live, reset = ends.after(FLOWS, 20)
                if reset:
                    raise Failed(f"{reset} of {FLOWS} flows were reset by: {plan.then}")
            balancer.kill()
            live, reset = ends.after(FLOWS, 30)
            cells["kill -9"] = f"{live} go on" + (f", {reset} reset" if reset else "")
            if live < stage.offloaded:
                raise Failed(f"{stage.offloaded} flows were offloaded, and {live} go on after kill -9")
            balancer.start()
            if reset:
                ends.begin_flows(vip, FLOWS)
            late = self.upgrade(balancer)
            live, reset = ends.after(FLOWS, 30)
            cells["upgrade"] = f"{live} go on" + (f", {reset} reset" if reset else "") + late
            if reset:
                raise Failed(f"{reset} of {FLOWS} flows were reset by an upgrade")
        finally:
            stage.keep_log(balancer)
            balancer.remove()
            balancer.machine.try_sh(plan.undo.replace("{a}", f"{self.card}-a") or "true")

    def upgrade(self, balancer):
        """Returns a remark for the cell: an emulated processor on a busy machine may need longer than an upgrade gives the new process. Then the old
        process goes on, and no flow may be lost either."""
        for tries in range(1, 4):
            code, said = balancer.machine.try_sh(f"{balancer.binary} upgrade", 120)
            if code == 0:
                return f" (try {tries})" if tries > 1 else ""
            if "did not answer for" not in said:
                raise Failed(f"upgrade: {said.strip().splitlines()[-1]}")
        return " in the old process: the new one was not ready in time"

    def see_offload(self, stage, balancer, vip):
        stage.ends.begin_flows(vip, FLOWS)
        deadline = time.monotonic() + 15
        while (count := balancer.offloaded()) < FLOWS and time.monotonic() < deadline:
            time.sleep(0.5)
        stage.offloaded = min(count, FLOWS)
        stage.why = "" if count >= FLOWS else balancer.why_proxied()
        stage.cells["offloaded"] = str(stage.offloaded) + (f" ({stage.why})" if stage.why else "")
        if stage.why == "no reason was given":
            raise Failed("flows stay proxied, and Baton gives no reason")
        if stage.why and not self.may_proxy():
            raise Failed(f"flows stay proxied, which this kernel and this card give no reason for: {stage.why}")

    def see_bytes(self, stage, vip):
        said = stage.ends.bulk(vip, self.plan.bulk)
        for way, column in [("up", "bytes to the backend"), ("down", "bytes to the client")]:
            seconds = said.get(f"{way}_seconds")
            stage.cells[column] = said[way] if seconds is None else f"{said[way]}, {self.plan.bulk / 1e6 / max(seconds, 0.01):.1f} MB/s"
        if said["up"] != "right" or said["down"] != "right":
            raise Failed(f"{self.plan.bulk} bytes each way: {said}")

    def of_pair(self, stage):
        """Two machines with a VIP that they move themselves: one is emptied, then the other one's power is cut."""
        plan, cells, ends = self.plan, stage.cells, stage.ends
        self.prepare_ends(stage)
        key = stage.balancers[0].command("genkey")
        names, vip = ["lb-a", "lb-b"], self.addresses.of(100)
        for place, balancer in enumerate(stage.balancers):
            balancer.remove()
            interface = wire(balancer.machine, plan.balancer, self.card, plan.mtu, self.addresses.entries([2 + place]))
            reach(ends, self.addresses.of(2 + place))
            balancer.machine.write("/run/peers.key", key)
            balancer.machine.sh("chmod 600 /run/peers.key")
            bits, brackets = (32, "{}") if plan.family == 4 else (128, "[{}]")
            own, others = (brackets.format(self.addresses.of(2 + each)) for each in (place, 1 - place))
            fleet = FLEET.format(name=names[place], other=names[1 - place], own=own, others=others, vip=vip, bits=bits, interface=interface)
            balancer.configure(self.config(100, fleet))
        try:
            for balancer in stage.balancers:
                balancer.start()
            first = eventually(lambda: self.holder(stage), 60, "no instance has the VIP")
            second = next(each for each in stage.balancers if each is not first)
            reach(ends, vip)
            self.see_offload(stage, first, vip)
            self.see_bytes(stage, vip)
            self.wait_until_synced(second)
            first.command("evacuate", 120)
            live, reset = ends.after(FLOWS, 30)
            cells["evacuation"] = f"{live} go on" + (f", {reset} reset" if reset else "")
            if reset:
                raise Failed(f"{reset} of {FLOWS} flows were reset by an evacuation")
            # The emptied host is switched on again, and knows the flows before the other one dies.
            first.machine.try_sh("kill $(busybox pidof baton); sleep 3")
            first.start()
            self.wait_until_synced(first)
            if not eventually(lambda: self.holder(stage), 30, "no instance has the VIP") is second:
                raise Failed("the VIP went back to the host that was emptied")
            second.machine.kill()
            live, reset = ends.after(FLOWS, 40)
            cells["host death"] = f"{live} go on" + (f", {reset} reset" if reset else "")
            if live < stage.offloaded:
                raise Failed(f"{stage.offloaded} flows were offloaded, and {live} go on after their host died")
        except Failed as error:
            starved = any(each.machine.is_alive() and "did not run for so long" in each.machine.try_sh("cat /run/baton.log")[1] for each in stage.balancers)
            if starved:
                raise Unavailable(f"the emulated processors stood still for longer than the 1.8 s after which Baton gives the VIP up ({error})") from error
            raise
        finally:
            for balancer in stage.balancers:
                if balancer.machine.is_alive():
                    stage.keep_log(balancer)
                    balancer.remove()

    def holder(self, stage):
        return next((each for each in stage.balancers if any(value for name, value in each.metrics().items() if name.startswith("baton_vip_held{"))), None)

    def wait_until_synced(self, balancer):
        def is_synced():
            rows = balancer.metrics()
            return [value for name, value in rows.items() if name.startswith("baton_peer_synced")] == [1.0]

        eventually(is_synced, 30, "the peers do not know each other's flows")


# Kernels that lack functions of the BPF program: one row shows that Baton says so and serves all flows by proxying them.
PROXYING = ["5.10"]


def all_rows(series):
    if series in PROXYING:
        return [Row(series, "virtio", "plain")]
    rows = [Row(series, card, layout) for layout, plan in LAYOUTS.items() for card in plan.cards]
    pairs = [Row(series, card, layout, pair=True) for layout, cards in PAIRS.items() for card in cards]
    return rows + pairs


PAIRS = {"plain": ("virtio", "e1000e"), "lro-off": ("vmxnet3",), "vlan": ("virtio",), "ipv6": ("virtio",), "bond-802.3ad": ()}
