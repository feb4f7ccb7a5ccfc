"""Baton in a machine."""

import json
import re
import time

from harness.kernels import GUEST
from harness.machine import Failed

PORT = 6443
# Emulated processors share the machine with others: a probe of half a second would say nothing of the backend.
CONFIG = """[admin]
http = "127.0.0.1:9470"
[process]
shutdown_delay = "0s"
stop_timeout = "1s"
{fleet}
[[frontend]]
name = "apiserver"
listen = ["{listen}"]
[frontend.health]
kind = "tcp"
interval = "2s"
timeout = "2s"
fall = 3
slow_start = "0s"
[[frontend.backend]]
name = "b1"
address = "{b1}"
[[frontend.backend]]
name = "b2"
address = "{b2}"
"""
FLEET = """
[instance]
name = "{name}"
[peers]
listen = "{own}:9471"
key_file = "/run/peers.key"
[[peers.peer]]
name = "{other}"
address = "{others}:9471"
[vip]
addresses = ["{vip}/{bits}"]
interface = "{interface}"
"""


def eventually(condition, seconds, what):
    """The first true result of the condition."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise Failed(f"after {seconds} s: {what()}" if callable(what) else f"after {seconds} s: {what}")
        time.sleep(0.3)
    return result


class Balancer:
    def __init__(self, machine, binary):
        self.machine, self.binary = machine, binary

    def configure(self, text):
        self.machine.write("/etc/baton/baton.toml", text)

    def start(self):
        self.machine.sh(f"""ulimit -n 65536
            setsid {self.binary} run -c /etc/baton/baton.toml >>/run/baton.log 2>&1 &""")
        eventually(lambda: self.machine.try_sh("busybox wget -qO- http://127.0.0.1:9470/readyz")[0] == 0, 60, self.last_words)

    def last_words(self):
        return "Baton is not ready: " + self.machine.try_sh("tail -n 3 /run/baton.log")[1].strip()

    def kill(self):
        self.machine.sh("kill -9 $(busybox pidof baton)")

    def command(self, words, seconds=60):
        return self.machine.sh(f"{self.binary} {words}", seconds)

    def metrics(self):
        page = self.machine.sh("busybox wget -qO- http://127.0.0.1:9470/metrics")
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))}

    def offloaded(self):
        return int(self.metrics().get("baton_flows_offloaded_total", 0))

    def why_proxied(self):
        """The reasons for which flows stay proxied now; if there is none, because Baton cannot offload here, its own word on that."""
        flows = [json.loads(line) for line in self.command("flows --json").splitlines()]
        reasons = sorted({flow["stays"] for flow in flows if flow.get("stays")})
        if reasons:
            return ", ".join(reasons)
        if not self.metrics().get("baton_offload_open"):
            said = re.findall(r"(?:offload|BPF)[^\n]*", self.machine.try_sh("grep -i 'offload' /run/baton.log | head -n 1")[1])
            return f"cannot offload here: {said[0][:160] if said else 'no reason was logged'}"
        return "no reason was given"

    def remove(self):
        self.machine.try_sh(f"""kill -9 $(busybox pidof baton) 2>/dev/null
            {self.binary} offload remove --yes >/dev/null 2>&1
            rm -rf /run/baton /run/baton.log /var/lib/baton""")


class Ends:
    """The clients and the backends, on a machine of their own."""

    def __init__(self, machine):
        self.machine = machine

    def serve(self, addresses):
        self.machine.sh(f"""setsid {GUEST / 'ends'} serve {PORT} {' '.join(addresses)} >/run/serve.log 2>&1 &
            for n in $(seq 100); do [ "$(ss -Hltn sport = {PORT} | wc -l)" = {len(addresses)} ] && exit 0; sleep 0.2; done; cat /run/serve.log; exit 1""")

    def begin_flows(self, address, count):
        self.end_flows()
        self.machine.sh(f"rm -f /run/flows; setsid {GUEST / 'ends'} flows {address} {PORT} {count} /run/flows >/run/flows.log 2>&1 & echo $! >/run/flows.pid")
        eventually(lambda: self.state()["live"] >= count, 60, lambda: f"{self.state()} of {count} flows are open; {self.machine.try_sh('cat /run/flows.log')[1][-300:]}")

    def state(self):
        said = self.machine.try_sh("cat /run/flows")[1]
        return json.loads(said) if said.startswith("{") else {"live": 0, "reset": 0, "wrong": 0, "answers": 0, "waiting": 0, "longest": 0}

    def end_flows(self):
        self.machine.try_sh("kill -9 $(cat /run/flows.pid); rm -f /run/flows.pid")

    def after(self, count, seconds):
        """How the flows are once each has an end or an answer: `(live, reset)`. Waits for as long as one waits, but not for ever."""
        before = self.state()["answers"]
        deadline = time.monotonic() + seconds
        while True:
            time.sleep(1)
            state = self.state()
            settled = state["waiting"] == 0 and (state["live"] == 0 or state["answers"] >= before + 3 * state["live"])
            if settled:
                break
            if time.monotonic() > deadline:
                raise Failed(f"{state['waiting'] or state['live']} of {count} flows hang")
        if state["wrong"]:
            raise Failed(f"{state['wrong']} answers were wrong")
        return state["live"], state["reset"]

    def bulk(self, address, length):
        said = self.machine.sh(f"{GUEST / 'ends'} bulk {address} {PORT} {length}", 100).strip().splitlines()[-1]
        return json.loads(said)

    def remove(self):
        self.end_flows()
        # By the brackets the pattern is not in the words of this shell, which would end with the ends and leave the rest undone.
        self.machine.sh("""pkill -9 -f '[g]uest/ends ' || true
            for each in virtio-a virtio-b; do tc qdisc del dev $each root 2>/dev/null || true; done
            ! tc qdisc show | grep netem""")
