"""Three control-plane nodes, each with an apiserver stand-in on *:6443 and a balancer, as kubeadm's guide has it, and one address that
moves between them. Clients are on two hosts of their own, and each node has a kubelet that uses the address, too.

    kubelets, clients ── bridge ── cp1, cp2, cp3     each: apiserver *:6443, balancer, keepalived
"""

import json
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

from .peers import debian
from .stage import BATON, ROOT, Failed, Stage, run

# As docs/stacked.md has them.
VIP = "10.0.0.100"
ADDRESSES = {"cp1": "10.0.0.11", "cp2": "10.0.0.12", "cp3": "10.0.0.13", "kubelets": "10.0.0.50", "clients": "10.0.0.60"}
NODES = ("cp1", "cp2", "cp3")
APISERVER_PORT = 6443
KUBELETS, FLOWS = 30, 300
# Between two heartbeats, and between two requests of a plain client. A kubelet's heartbeats are 10 s apart: add the difference to a gap.
EVERY_S = 2
# A client that has had no answer for so long on a connection, nor its end, hung: a kubelet's request has timed out by then.
HUNG_S = 10
GRACE_S = 40
EVACUATED_WITHIN_S = 10
START_WITHIN_S = 60
PINS = pathlib.Path("/sys/fs/bpf")
# A name of every command that the lab runs, and the Debian package that has it.
NEEDS = {"ip": "iproute2", "nft": "nftables", "sysctl": "procps", "nsenter": "util-linux", "keepalived": "keepalived", "haproxy": "haproxy",
         "curl": "curl", "ss": "iproute2"}


def install():
    debian(" ".join(sorted(set(NEEDS.values()))), all(map(shutil.which, NEEDS)))


class Stacked(Stage):
    """Namespaces and processes of one run."""

    prefix = "baton-stacked"

    def __init__(self, firewall):
        """With `firewall`, every node drops packets of connections that it has not tracked."""
        self.spaces, self.groups, self.firewall = {}, [], firewall
        super().__init__()

    def _lay_out(self, _):
        self.spaces, self.bridge = self._bridge(ADDRESSES)
        for name in NODES if self.firewall else ():
            chains = "\n".join(f"chain {hook} {{ type filter hook {hook} priority filter; ct state invalid drop; }}"
                               for hook in ("input", "forward", "output"))
            self.rules(self.spaces[name], f"table inet strict {{\n{chains}\n}}\n")
            self.sysctl(self.spaces[name], "net.netfilter.nf_conntrack_tcp_loose=0")
        self.vip, self.backends, self.direct = None, [], None
        self.client = self.proxy = self.server = None

    def spawn(self, name, label, *command, pipe=False):
        """Starts a process of a host, in a group of its own. Other than ip-netns(8), nsenter(1) leaves it this machine's /sys, so that
        what it pins outlives it."""
        log = open(self.directory / f"{name}-{label}.log", "ab")
        process = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{self.spaces[name]}", *map(str, command)], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipe else log, stderr=log, cwd=self.directory, start_new_session=True)
        self.processes.append(process)
        return process

    def on(self, name, *command, within_s=20):
        command = ["nsenter", f"--net=/run/netns/{self.spaces[name]}", *map(str, command)]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=within_s)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", "no answer")

    def apiservers(self):
        certificates = self.directory / "certs"
        certificates.mkdir()
        names = [word for address in ("kubernetes", VIP, *ADDRESSES.values()) for word in ("--san", address)]
        run(BATON, "stand-in", "--make-certs", certificates, *names)
        self.ca = certificates / "ca.crt"
        self.apiserver = {name: self.spawn(name, "apiserver", BATON, "stand-in", "--listen", f"[::]:{APISERVER_PORT}", "--name", name,
                                           "--cert", certificates / "server.crt", "--key", certificates / "server.key")
                          for name in NODES}

    def plug(self, name, up):
        """A node's link. Down: frames are lost both ways, and no other host is told."""
        run("ip", "-n", self.bridge, "link", "set", name, "up" if up else "down")

    def has_vip(self, name):
        return f"{VIP}/" in run("ip", "-n", self.spaces[name], "-4", "-o", "address", "show")

    def answers(self, name, port):
        done = self.on(name, "curl", "-sfk", "--max-time", "1", "-o", "/dev/null", f"https://{VIP}:{port}/readyz")
        return done.returncode == 0

    def await_true(self, told, what, within_s=START_WITHIN_S):
        deadline = time.monotonic() + within_s
        while not told():
            if time.monotonic() > deadline:
                raise Failed(f"not after {within_s} s: {what}\n{self.logs()}")
            time.sleep(0.1)

    def close(self):
        # Whoever serves is stopped at once, so that nothing is done about what ends meanwhile.
        for namespace in self.namespaces:
            end_processes(namespace, signal.SIGKILL)
        for name in NODES:
            if name in self.spaces:
                pins = self.pins(name)
                subprocess.run(["nsenter", f"--net=/run/netns/{self.spaces[name]}", BATON, "offload", "--pins", pins, "remove", "--yes"],
                               capture_output=True, timeout=60)
        for process in self.processes:
            if process.stdout:
                process.stdout.close()
        super().close()

    def pins(self, name):
        return PINS / f"{self.prefix}-{os.getpid()}-{self.directory.name}-{name}"


def end_processes(namespace, how):
    """All processes in a namespace, whoever started them: an upgrade starts one that nobody here knows."""
    for _ in range(50):
        pids = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True).stdout.split()
        if not pids:
            return
        for pid in map(int, pids):
            try:
                os.kill(pid, how)
            except ProcessLookupError:
                pass
        time.sleep(0.02)


def sweep():
    """Takes away what runs have left that were killed themselves."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.splitlines()
    spaces = [line.split()[0] for line in listed if line.startswith(f"{Stacked.prefix}-")]
    for space in spaces:
        if not of_the_living(space):
            end_processes(space, signal.SIGKILL)
            subprocess.run(["nsenter", f"--net=/run/netns/{space}", BATON, "offload", "remove", "--pins", PINS / f"{space}-none"],
                           capture_output=True, timeout=60)
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)
    for pins in PINS.glob(f"{Stacked.prefix}-*"):
        if not of_the_living(pins.name):
            subprocess.run([BATON, "offload", "--pins", pins, "remove", "--yes"], capture_output=True, timeout=60)


def of_the_living(name):
    return pathlib.Path(f"/proc/{name.removeprefix(f'{Stacked.prefix}-').split('-')[0]}").exists()


class Balancer:
    """What stands before the apiservers of a scene, and what moves the VIP."""

    key = label = None
    # Where clients connect.
    port = None

    def __init__(self, scene):
        self.scene = scene
        self.processes, self.keepalived = {}, {}

    def start(self):
        scene = self.scene
        for name in NODES:
            self.start_on(name)
        for name in NODES:
            self.await_up(name)
        for number, name in enumerate(NODES):
            self.start_mover(name, number)
            if number == 0:
                scene.await_true(lambda: scene.has_vip(NODES[0]), "the first node has the VIP")
        scene.await_true(lambda: scene.answers("clients", self.port), "the VIP is served")

    def start_mover(self, name, number):
        """Starts what moves the VIP."""
        file = self.scene.directory / f"{name}.keepalived"
        file.write_text(self.keepalived_text(name, number))
        self.keepalived[name] = self.scene.spawn(
            name, "keepalived", "keepalived", "--dont-fork", "--log-console", "--use-file", file, "--pid", f"{file}.pid",
            "--vrrp_pid", f"{file}.vrrp", "--checkers_pid", f"{file}.check")

    def signal(self, name, number):
        os.killpg(self.processes[name].pid, number)

    def await_settled(self):
        """Returns when the clients' connections are as they stay."""
        time.sleep(3)

    def evidence(self):
        """What the balancers say, by file name."""
        return {}

    def of_connections(self):
        """(address of the client, word) of each connection, where the balancer can say."""
        return {}


class Baton(Balancer):
    key, label, port = "baton", "Baton", 6443

    def start_on(self, name):
        config = self.scene.directory / f"{name}.toml"
        for line in (ROOT / "deploy/sysctl/90-baton.conf").read_text().splitlines():
            setting = line.split("#")[0].strip().replace(" ", "")
            if setting:
                self.scene.on(name, "sysctl", "-qw", setting.lstrip("-"))
        key = self.scene.directory / "peers.key"
        key.write_text("07" * 32 + "\n")
        key.chmod(0o600)
        config.write_text(self.text(name))
        self.away(name).write_text("0\n")
        self.run_on(name)

    def run_on(self, name):
        self.processes[name] = self.scene.spawn(name, "baton", BATON, "run", "-c", self.scene.directory / f"{name}.toml")

    def text(self, name):
        """The file of docs/stacked.md for this node, with the paths of this scene."""
        first, number = NODES[0], NODES.index(name)
        own, common = self.shipped()
        for one, other in ((first, name), (ADDRESSES[first], ADDRESSES[name])):
            if name != first:
                own = own.replace(f'"{one}', "\0").replace(f'"{other}', f'"{one}').replace("\0", f'"{other}')
        own = replaced(own, ("slot = 0", f"slot = {number}"), ("/etc/baton/peers.key", self.scene.directory / "peers.key"))
        common = replaced(common, ("/etc/kubernetes/pki/ca.crt", self.scene.ca), *self.changes(name))
        paths = f'[admin]\nsocket = "{self.socket(name)}"\n[offload]\nmode = "require"\npins = "{self.scene.pins(name)}"\n'
        return paths + own + common

    def shipped(self):
        """What differs between nodes, and what does not."""
        built_in, keepalived = shipped_files()
        own, _, rest = built_in.partition("[vip]")
        return own, f"{keepalived}\n[[frontend]]{rest.partition('[[frontend]]')[2]}"

    def changes(self, name):
        return ("/run/baton-vip-away", self.away(name)), ("[cluster]\n", f'[cluster]\nlease_renew = "{EVERY_S}s"\n')

    def socket(self, name):
        return self.scene.directory / f"{name}.sock"

    def away(self, name):
        return self.scene.directory / f"{name}.away"

    def ask(self, name, *words, within_s=20):
        return self.scene.on(name, BATON, "--socket", self.socket(name), *words, within_s=within_s)

    def await_up(self, name):
        self.scene.await_true(lambda: self.ask(name, "ready", within_s=5).returncode == 0, f"Baton of {name} is ready")

        def all_ready():
            done = self.ask(name, "--json", "status", within_s=5)
            if done.returncode:
                return False
            states = [it["health_state"] for it in json.loads(done.stdout)["frontends"][0]["backends"]]
            return states == ["ready"] * len(NODES)
        self.scene.await_true(all_ready, f"Baton of {name} finds all apiservers ready")

    def keepalived_text(self, name, number):
        text = shipped_keepalived(name, number, f"{BATON} ready --within 500ms --socket {self.socket(name)}", self.away(name))
        more = (ROOT / "docs/stacked.md").read_text().partition("```\n    notify_backup")
        notify = "".join(more[1:]).split("```")[1].lstrip("\n")
        return replaced(text, ("    track_script {\n        baton", f"{notify}\n    track_script {{\n        baton"))

    def flows(self, name):
        done = self.ask(name, "--json", "flows")
        return [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []

    def of_connections(self):
        told = {}
        for flow in self.flows(NODES[0]):
            told[flow["client"]] = " ".join(str(flow[it]) for it in ("backend", "state", "stays") if flow.get(it))
        return told

    def await_settled(self):
        """Every flow that can be offloaded is, and the peers know it."""
        deadline, before = time.monotonic() + 20, None
        while time.monotonic() < deadline:
            waiting = [it for it in self.of_connections().values() if "offloaded" not in it and "local" not in it]
            if not waiting and before == []:
                break
            before = waiting
            time.sleep(0.5)
        time.sleep(1)

    def evidence(self):
        return {f"{name}-{what}.json": self.ask(name, "--json", what, within_s=5).stdout for name in NODES for what in ("events", "flows", "peers")}

    def reload(self, name):
        file = self.scene.directory / f"{name}.toml"
        file.write_text(replaced(file.read_text(), ('share_port = "on"', 'share_port = "on"\ndrain_timeout = "100s"')))
        expect(self.ask(name, "reload"))

    def upgrade(self, name):
        expect(self.ask(name, "upgrade", within_s=60))

    def evacuate(self, name):
        # Its own apiserver's flows end at the deadline, which `baton evacuate` calls not clean.
        done = self.ask(name, "evacuate", "--deadline", f"{EVACUATED_WITHIN_S}s", within_s=60)
        if "this host may be switched off" not in done.stdout:
            expect(done)


class BatonVip(Baton):
    """Baton moves the VIP itself."""

    key, label = "baton-vip", "Baton without keepalived"

    def start_on(self, name):
        super().start_on(name)
        if name == NODES[0]:
            self.scene.await_true(lambda: self.scene.has_vip(name), "the first node has the VIP")

    def start_mover(self, name, number):
        pass

    def shipped(self):
        own, separator, rest = shipped_files()[0].partition("[vip]")
        return own, separator + rest

    def changes(self, name):
        return ("[[frontend]]\n", f'[cluster]\nlease_renew = "{EVERY_S}s"\n\n[[frontend]]\n'), ("10.0.0.100/32", f"{VIP}/32")


def shipped_files():
    """The tables of docs/stacked.md: a whole file with `[vip]`, and what stands in place of `[vip]` with keepalived."""
    return [block.split("```")[0] for block in (ROOT / "docs/stacked.md").read_text().split("```toml\n")[1:3]]


def expect(done):
    if done.returncode:
        raise Failed(f"{' '.join(done.args)}: {done.stdout}{done.stderr}")


def replaced(text, *pairs):
    """Fails if a text that is to be replaced is not there any more."""
    for shipped, here in pairs:
        if shipped not in text:
            raise Failed(f"{shipped} is not in the shipped file any more")
        text = text.replace(shipped, str(here))
    return text


def shipped_keepalived(name, number, script, away):
    """deploy/keepalived/keepalived.conf, changed as docs/stacked.md says."""
    others = "\n        ".join(ADDRESSES[other] for other in NODES if other != name)
    return replaced((ROOT / "deploy/keepalived/keepalived.conf").read_text(), ("/usr/bin/baton ready --within 500ms", script),
                    ("/run/baton-vip-away", away), ("10.0.0.21", ADDRESSES[name]), ("10.0.0.22 ", f"{others} "), ("10.0.0.100", VIP),
                    ("priority  100", f"priority  {100 - 10 * number}"))


class Haproxy(Balancer):
    """haproxy and keepalived with the settings of kubeadm's guide to high availability, as its static pods run them: on a port of its own,
    because the apiserver has 6443."""

    key, label, port = "haproxy", "haproxy, as in the guide", 8443
    server, check = "", "interval 3\n    weight -2\n    fall 10\n    rise 2"
    # As kubelet gives a pod until it kills it (terminationGracePeriodSeconds).
    stop_within_s = 30

    def start_on(self, name):
        self.config(name).write_text(self.text())
        self.run_on(name)

    def run_on(self, name):
        # The image of haproxy runs a master and a worker.
        self.processes[name] = self.scene.spawn(name, "haproxy", "haproxy", "-W", "-db", "-f", self.config(name))

    def config(self, name):
        return self.scene.directory / f"{name}.haproxy.cfg"

    def text(self):
        servers = "\n".join(f"    server {name} {ADDRESSES[name]}:{APISERVER_PORT} check verify none{self.server}" for name in NODES)
        return f"""
defaults
    mode tcp
    option redispatch
    retries 1
    timeout queue 20s
    timeout connect 5s
    timeout client 35s
    timeout server 35s
    timeout check 10s

frontend apiserver
    bind *:{self.port}
    default_backend apiservers

backend apiservers
    balance roundrobin
    option httpchk
    http-check connect ssl
    http-check send meth GET uri /readyz
    http-check expect status 200
{servers}
"""

    def await_up(self, name):
        served = ["curl", "-sfk", "--max-time", "1", "-o", "/dev/null", f"https://127.0.0.1:{self.port}/readyz"]
        self.scene.await_true(lambda: self.scene.on(name, *served).returncode == 0, f"haproxy of {name} serves")

    def keepalived_text(self, name, number):
        return f"""
global_defs {{
    router_id stacked
    script_user root
    enable_script_security
}}
vrrp_script check_apiserver {{
    script "{self.script(name)}"
    {self.check}
}}
vrrp_instance VI_1 {{
    state {"BACKUP" if number else "MASTER"}
    interface eth0
    virtual_router_id 51
    priority {100 if number else 101}
    authentication {{
        auth_type PASS
        auth_pass 42
    }}
    virtual_ipaddress {{
        {VIP}
    }}
    track_script {{
        check_apiserver
    }}
}}
"""

    def script(self, name):
        file = self.scene.directory / f"{name}.check_apiserver.sh"
        file.write_text(f"#!/bin/sh\nexec curl -sfk --max-time 2 -o /dev/null https://localhost:{self.port}/readyz\n")
        file.chmod(0o755)
        return file

    def await_settled(self):
        # The first checks of haproxy and keepalived are over.
        time.sleep(5)

    def reload(self, name):
        file = self.config(name)
        file.write_text(replaced(file.read_text(), ("timeout queue 20s", "timeout queue 21s")))
        self.processes[name].send_signal(signal.SIGUSR2)

    def soft_stop(self, name):
        """As kubelet stops the pod: the image's stop signal, and SIGKILL after a while."""
        process = self.processes[name]
        process.send_signal(signal.SIGUSR1)
        try:
            process.wait(self.stop_within_s)
        except subprocess.TimeoutExpired:
            self.signal(name, signal.SIGKILL)
            process.wait()

    def upgrade(self, name):
        """Another image in the pod's manifest."""
        self.soft_stop(name)
        self.run_on(name)

    def evacuate(self, name):
        self.keepalived[name].terminate()
        time.sleep(2)
        self.soft_stop(name)


class HaproxyTuned(Haproxy):
    """The same as an expert on both would have it: checks every second, flows of a dead server are ended, and keepalived's timers as in
    deploy/keepalived."""

    key, label = "haproxy-tuned", "haproxy, tuned"
    server = " inter 1s fall 2 rise 2 on-marked-down shutdown-sessions"

    def keepalived_text(self, name, number):
        away = self.scene.directory / f"{name}.away"
        away.write_text("0\n")
        return shipped_keepalived(name, number, str(self.script(name)), away)


BALANCERS = {it.key: it for it in (Haproxy, HaproxyTuned, Baton, BatonVip)}


@dataclass
class Connection:
    by: str
    port: str
    since: float
    answers: list = field(default_factory=list)
    until: float = None
    how: str = ""


class Clients(threading.Thread):
    """Kubelets and plain clients, and what they say."""

    def __init__(self, scene, port):
        super().__init__(daemon=True)
        self.scene, self.selector = scene, selectors.DefaultSelector()
        self.known, self.over, self.lock = {}, threading.Event(), threading.Lock()
        server = f"{VIP}:{port}"
        hosts = [*(("kubelets", ("kubelet", number)) for number in range(KUBELETS)), *((name, ("own kubelet", name)) for name in NODES)]
        for host, who in hosts:
            command = [BATON, "kubelet", "--json", "--watch", "--server", server, "--ca", scene.ca, "--name", f"node-{who[1]}",
                       "--renew-every", f"{EVERY_S}s"]
            self.hear(scene.spawn(host, "kubelet", *command, pipe=True), who)
        plain = [sys.executable, pathlib.Path(__file__).with_name("flows.py"), "--server", server, "--ca", scene.ca, "--count", FLOWS,
                 "--every", EVERY_S]
        self.hear(scene.spawn("clients", "flows", *plain, pipe=True), None)
        for number in range(FLOWS):
            self.known[("plain", number)] = []
        self.start()

    def hear(self, process, who):
        os.set_blocking(process.stdout.fileno(), False)
        self.selector.register(process.stdout, selectors.EVENT_READ, [who, b""])
        if who:
            self.known[who] = []

    def run(self):
        while not self.over.is_set():
            for key, _ in self.selector.select(0.2):
                try:
                    some = os.read(key.fd, 1 << 16)
                except (BlockingIOError, OSError):
                    continue
                if not some:
                    self.selector.unregister(key.fileobj)
                    continue
                now = time.monotonic()
                *lines, key.data[1] = (key.data[1] + some).split(b"\n")
                with self.lock:
                    for line in lines:
                        self.note(key.data[0], json.loads(line), now)

    def note(self, who, said, now):
        event = said.get("event")
        if who:
            event = {"connected": "served", "renewed": "answered", "disconnected": "ended"}.get(event, event)
            said |= {"at": now, "by": said.get("stand_in"), "port": said.get("local", ""), "how": said.get("error")}
        else:
            who = ("plain", said["client"])
            if "port" in said:
                said["port"] = f"{ADDRESSES['clients']}:{said['port']}"
        connections = self.known[who]
        if event == "served":
            connections.append(Connection(said["by"], said["port"], said["at"]))
        elif event == "answered" and connections:
            connections[-1].answers.append(said["at"])
        elif event == "ended" and connections:
            connections[-1].until, connections[-1].how = said["at"], said["how"]

    def are_served(self, gone=None):
        """Whether all but the kubelet of that node have had an answer within the last two intervals, on a connection that lives."""
        since = time.monotonic() - 2 * EVERY_S
        with self.lock:
            return all(it and it[-1].until is None and it[-1].answers[-1:] > [since] for who, it in self.known.items() if who[1] != gone)

    def close(self):
        self.over.set()
        self.join(5)


def judge(known, dead, gone, struck, ended):
    """What the fault cost, from what each client had when it struck until the end: counts of connections, and times in s. `gone`: the
    node that is gone with its own kubelet, which nobody asks any more."""
    known = {who: connections for who, connections in known.items() if who[1] != gone}
    found = {"clients": len(known), "kubelets": sum(kind != "plain" for kind, _ in known), "their_apiserver": 0, "theirs_hung": 0, "others_reset": 0, "others_hung": 0, "told_s": 0.0, "gap_s": 0.0,
             "plain_gap_s": 0.0, "not_ready": 0, "unserved": 0, "lost": []}
    for (kind, number), connections in known.items():
        at = [it for it in connections if it.since <= struck and (it.until is None or it.until > struck)]
        if not at:
            found["unserved"] += 1
            continue
        held = at[-1]
        # Times at which this connection had an answer, or its end.
        moments = [max([struck - EVERY_S, *(it for it in held.answers if it <= struck)])]
        moments += [it for it in held.answers if struck < it <= ended] + [held.until if held.until and held.until <= ended else ended]
        silent = max(after - before for before, after in zip(moments, moments[1:]))
        hung, is_over = silent > HUNG_S, bool(held.until and held.until <= ended)
        if held.by in dead:
            found["their_apiserver"] += 1
            found["theirs_hung"] += hung
            found["told_s"] = max(found["told_s"], moments[-1] - struck)
        else:
            found["others_hung"] += hung
            found["others_reset"] += is_over and not hung
            if hung or is_over:
                found["lost"].append({"client": f"{kind} {number}", "by": held.by, "port": held.port, "silent_s": round(silent, 2),
                                      "after_s": round(moments[-1] - struck, 2), "how": held.how if is_over else "still silent"})
        answers = sorted(time for it in connections for time in it.answers)
        before = max(it for it in answers if it <= struck)
        edges = [before, *(it for it in answers if struck < it <= ended), ended]
        gap = max(after - before for before, after in zip(edges, edges[1:]))
        key = "plain_gap_s" if kind == "plain" else "gap_s"
        found[key] = max(found[key], gap)
        found["not_ready"] += kind != "plain" and gap > GRACE_S
    return found
