"""Two instances of Baton before two addresses at once, on hosts of their own: one address that real keepalived moves between them,
and one that both have, over which a router spreads flows. With what such hosts have besides: a firewall that tracks, the kernel settings
and the rules of deploy/, and a supervisor.

    clients ── router ──┬── bridge ──┬── lb-a, lb-b
                                     ├── b0, b1, b2     backends
                                     ├── pod            somebody else's service, behind a port of the moving address
                                     └── stranger       who may send what it likes
"""

import json
import os
import pathlib
import signal
import subprocess
import threading
import time

from .stage import BATON, LOAD, ROOT, Failed, Stage, run

PAIR = "10.77.0.100"
SPREAD = "10.99.0.1"
PORT = 6443
PEERS_PORT = 9471
NODE_PORT = 9000
ADDRESSES = {"lb-a": "10.77.0.1", "lb-b": "10.77.0.2", "b0": "10.77.0.11", "b1": "10.77.0.12", "b2": "10.77.0.13",
             "stranger": "10.77.0.66", "pod": "10.77.0.77", "router": "10.77.0.254"}
INSTANCES = ("lb-a", "lb-b")
# A member that the file names and that is not there yet.
THIRD = "lb-c", "10.77.0.3"
BACKENDS = ("b0", "b1", "b2")
CLIENT, CLIENTS_ROUTER = "10.78.0.2", "10.78.0.254"
# As a service manager would.
RESTART_AFTER_S = 0.5
# How often the router asks who may have the address that both have.
ROUTES_EVERY_S = 0.25


class Fleet(Stage):
    """Namespaces, links and processes. Everything that is started is started anew when it ends, until it is held back."""

    def __init__(self):
        self.spaces = {}
        self.instances = {}
        self.over = threading.Event()
        self.threads = []
        super().__init__()

    def _lay_out(self, _):
        self.spaces, self.bridge = self._bridge(ADDRESSES)
        self.client = self.spaces["clients"] = self._namespace()
        router = self.spaces["router"]
        self._wire(self.client, [f"{CLIENT}/24"], router, [f"{CLIENTS_ROUTER}/24"])
        self.clients_link = f"veth{self._last_wire()}"
        run("ip", "-n", self.client, "route", "add", "default", "via", CLIENTS_ROUTER)
        for setting in ("ip_forward=1", "conf.all.send_redirects=0", "conf.eth0.send_redirects=0", "fib_multipath_hash_policy=1"):
            self.sysctl(router, f"net.ipv4.{setting}")
        for name in (*BACKENDS, *INSTANCES, "pod", "stranger"):
            run("ip", "-n", self.spaces[name], "route", "add", "default", "via", ADDRESSES["router"])
        for name in BACKENDS:
            # Flows end here in their thousands, and it is not this host's way with TIME_WAIT that is looked at.
            self.sysctl(self.spaces[name], "net.ipv4.tcp_max_tw_buckets=0")
        self.vip, self.backends, self.direct = f"{PAIR}:{PORT}", [f"{ADDRESSES[name]}:{PORT}" for name in BACKENDS], None
        self.proxy = self.server = None

    def _last_wire(self):
        links = run("ip", "-n", self.client, "-o", "link", "show", "type", "veth")
        return links.split(":")[1].split("@")[0].strip().removeprefix("veth").rstrip("ab")

    def begin(self):
        (self.directory / "peers.key").write_text("07" * 32 + "\n")
        (self.directory / "peers.key").chmod(0o600)
        self.servers = {name: Kept(self, name, self.serve_command(name)) for name in BACKENDS}
        pod = [LOAD, "serve", "--listen", f"{ADDRESSES['pod']}:{PORT}"]
        self.servers["pod"] = Kept(self, "pod", pod)
        for name in INSTANCES:
            self.instances[name] = Instance(self, name)
        for instance in self.instances.values():
            instance.await_ready()
        for instance in self.instances.values():
            instance.follow_vip()
        self.in_background(self.route)
        self.await_answers(f"{PAIR}:{PORT}")
        self.await_answers(f"{SPREAD}:{PORT}")

    def serve_command(self, name):
        return [LOAD, "serve", "--listen", f"{ADDRESSES[name]}:{PORT}"]

    def in_background(self, work):
        thread = threading.Thread(target=work, daemon=True)
        self.threads.append(thread)
        thread.start()

    def route(self):
        """The router's part: who is ready and reachable gets flows of the address that both have."""
        before = None
        while not self.over.wait(ROUTES_EVERY_S):
            to = [name for name, instance in self.instances.items() if instance.is_routed()]
            if to == before:
                continue
            before = to
            hops = [word for name in to for word in ("nexthop", "via", ADDRESSES[name], "dev", "eth0")]
            command = ["replace", f"{SPREAD}/32", *hops] if hops else ["replace", "unreachable", f"{SPREAD}/32"]
            subprocess.run(["ip", "-n", self.spaces["router"], "route", *command], capture_output=True)

    def plug(self, name, up):
        """The host's link. Down: frames are lost both ways, and nobody is told."""
        run("ip", "-n", self.bridge, "link", "set", name, "up" if up else "down")

    def rules_of(self, name, table, text):
        """Replaces a table of nft(8) on a host; without text, takes it away."""
        lines = text.replace("{", "{\n").replace("}", "\n}\n")
        self.rules(self.spaces[name], f"table {table}\ndelete table {table}\n" + (f"table {table} {{\n{lines}\n}}\n" if text else ""))

    def in_space(self, name, *command):
        return run("ip", "netns", "exec", self.spaces[name], *command)

    def enter(self, name):
        """Words that make a command run on a host. Other than ip-netns(8) they leave the command this machine's /sys, so that what
        an instance pins outlives it."""
        return ["nsenter", f"--net=/run/netns/{self.spaces[name]}"]

    def await_true(self, told, what, within_s=60):
        deadline = time.monotonic() + within_s
        while not told():
            if time.monotonic() > deadline:
                raise Failed(f"not after {within_s} s: {what}\n{self.logs()}")
            time.sleep(0.05)

    def close(self):
        self.over.set()
        for thread in self.threads:
            thread.join(5)
        for kept in [*getattr(self, "servers", {}).values(), *self.instances.values()]:
            kept.hold_back()
        super().close()
        for instance in self.instances.values():
            instance.remove_pins()


class Kept:
    """A process of a host that is started again whenever it ends."""

    def __init__(self, fleet, name, command):
        self.fleet, self.name, self.words = fleet, name, list(map(str, command))
        self.wanted, self.starts = threading.Event(), 0
        self.lock = threading.Lock()
        self.process = None
        self.restart_after_s = RESTART_AFTER_S
        self.resume()
        fleet.in_background(self.supervise)

    def start(self):
        log = open(self.fleet.directory / f"{self.name}.log", "ab")
        self.process = subprocess.Popen([*self.fleet.enter(self.name), *self.words], stdin=subprocess.DEVNULL, stdout=log,
                                        stderr=log, cwd=self.fleet.directory)
        self.starts += 1

    def pid(self):
        """Of the process as it runs now, or None."""
        return self.process.pid if self.process and self.process.poll() is None else None

    def resume(self):
        with self.lock:
            self.wanted.set()
            if not self.pid():
                self.start()

    def hold_back(self, how=signal.SIGKILL):
        """Ends it for as long as nobody resumes it."""
        with self.lock:
            self.wanted.clear()
            self.signal(how)
            deadline = time.monotonic() + 60
            while self.pid() and time.monotonic() < deadline:
                time.sleep(0.01)

    def signal(self, number):
        if pid := self.pid():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def supervise(self):
        while not self.fleet.over.wait(0.05):
            if not self.wanted.is_set() or self.pid():
                continue
            if self.fleet.over.wait(self.restart_after_s):
                return
            with self.lock:
                if self.wanted.is_set() and not self.pid():
                    self.start()


class Instance(Kept):
    """Baton, and the keepalived of its host."""

    def __init__(self, fleet, name):
        self.fleet, self.name = fleet, name
        self.peer = next(other for other in INSTANCES if other != name)
        self.config = fleet.directory / f"{name}.toml"
        self.socket = fleet.directory / f"{name}.sock"
        self.key = fleet.directory / "peers.key"
        self.away = fleet.directory / f"{name}.away"
        self.pins = pathlib.Path(f"/sys/fs/bpf/{fleet.directory.name}-{name}")
        self.keepalived = None
        self.is_cut = False
        self.away.write_text("0\n")
        space = fleet.spaces[name]
        for line in (ROOT / "deploy/sysctl/90-baton.conf").read_text().splitlines():
            setting = line.split("#")[0].strip().replace(" ", "")
            if setting:
                subprocess.run(["ip", "netns", "exec", space, "sysctl", "-qw", setting.lstrip("-")], capture_output=not setting[0] == "-")
        fleet.sysctl(space, "net.ipv4.conf.eth0.rp_filter=2")
        run("ip", "-n", space, "address", "add", f"{SPREAD}/32", "dev", "lo")
        shipped = (ROOT / "deploy/nftables/baton.nft").read_text()
        for address in (PAIR, SPREAD):
            fleet.rules(space, shipped.replace("10.0.0.100", address).replace("baton_notrack", f"baton_notrack_{address.split('.')[1]}"))
        # A firewall as hosts have it: it drops what it has not seen begin.
        fleet.rules_of(name, "inet firewall", """            chain in { type filter hook input priority filter; ct state invalid drop }
            chain forward { type filter hook forward priority filter; ct state invalid drop }""")
        fleet.sysctl(space, "net.netfilter.nf_conntrack_tcp_loose=0")
        # Somebody else's service at a port of the address that moves.
        fleet.sysctl(space, "net.ipv4.ip_forward=1")
        fleet.rules_of(name, "ip pod", f"""
            chain pre {{ type nat hook prerouting priority dstnat; ip daddr {PAIR} tcp dport {NODE_PORT} dnat to {ADDRESSES['pod']}:{PORT} }}
            chain post {{ type nat hook postrouting priority srcnat; ip daddr {ADDRESSES['pod']} masquerade }}""")
        self.write_config()
        super().__init__(fleet, name, [BATON, "run", "-c", self.config])

    def write_config(self, third=False, change=lambda text: text):
        backends = lambda suffix: "".join(f'[[frontend.backend]]\nname = "{name}{suffix}"\naddress = "{ADDRESSES[name]}:{PORT}"\n'
                                          for name in BACKENDS)
        frontends = "".join(f"""
[[frontend]]
name = "{name}"
listen = ["{address}:{PORT}"]
balance = "least_conn"
[frontend.health]
kind = "http"
path = "/readyz"
slow_start = "0s"
{backends(suffix)}""" for name, address, suffix in (("pair", PAIR, ""), ("spread", SPREAD, "-s")))
        members = [(self.peer, ADDRESSES[self.peer]), *([THIRD] if third else [])]
        told = "".join(f'[[peers.peer]]\nname = "{name}"\naddress = "{address}:{PEERS_PORT}"\n' for name, address in members)
        text = f"""
[admin]
http = "127.0.0.1:9470"
socket = "{self.socket}"
[log]
flows = "errors"
[offload]
pins = "{self.pins}"
[instance]
name = "{self.name}"
slot = {INSTANCES.index(self.name)}
[peers]
listen = "{ADDRESSES[self.name]}:{PEERS_PORT}"
key_file = "{self.key}"
sync_deadline = "3s"
{told}
[failover]
track_file = "{self.away}"
{frontends}"""
        self.config.write_text(change(text))

    def pid(self):
        """An upgrade puts another process in the place of the one that was started."""
        if pid := super().pid():
            return pid
        if not self.starts:
            return None
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if str(self.config).encode() in words and b"run" in words and not (entry / "stat").read_text().rpartition(")")[2].startswith(" Z"):
                    return int(entry.name)
            except (FileNotFoundError, ProcessLookupError):
                pass
        return None

    def follow_vip(self):
        text = (ROOT / "deploy/keepalived/keepalived.conf").read_text()
        first = self.name == INSTANCES[0]
        for shipped, here in (("/usr/bin/baton ready", f"{BATON} ready --socket {self.socket}"), ("/run/baton-vip-away", str(self.away)),
                              ("10.0.0.21", ADDRESSES[self.name]), ("10.0.0.22", ADDRESSES[self.peer]), ("10.0.0.100", PAIR),
                              ("priority  100", f"priority  {100 if first else 90}")):
            if shipped not in text:
                raise Failed(f"{shipped} is not in the shipped keepalived.conf any more")
            text = text.replace(shipped, here)
        file = self.fleet.directory / f"{self.name}.keepalived"
        file.write_text(text)
        if not self.keepalived:
            command = ["keepalived", "--dont-fork", "--log-console", "--use-file", file, "--pid", f"{file}.pid",
                       "--vrrp_pid", f"{file}.vrrp", "--checkers_pid", f"{file}.check"]
            self.keepalived = Kept(self.fleet, self.name, command)
            if first:
                self.fleet.await_true(lambda: self.has_vip(), "the first host has the address")

    def has_vip(self):
        return PAIR in run("ip", "-n", self.fleet.spaces[self.name], "-4", "-o", "address", "show", "dev", "eth0")

    def command(self, *words, within_s=30):
        command = [*self.fleet.enter(self.name), BATON, *words, "--socket", self.socket]
        try:
            return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=within_s)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", "no answer")

    def status(self):
        done = self.command("status", "--json", within_s=5)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def is_ready(self):
        return self.command("ready", "--within", "500ms", within_s=3).returncode == 0

    def is_routed(self):
        return not self.is_cut and self.is_ready()

    def await_ready(self):
        self.fleet.await_true(self.is_ready, f"{self.name} is ready")

    def remove_pins(self):
        subprocess.run([BATON, "offload", "--pins", self.pins, "remove", "--yes"], capture_output=True, timeout=60)

    def hold_back(self, how=signal.SIGKILL):
        if self.keepalived and self.fleet.over.is_set():
            self.keepalived.hold_back(signal.SIGTERM)
        super().hold_back(how)
