"""Namespaces and processes of one measurement, taken down whatever happens."""

import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# Another build than the one that hosts get: for .ci/run.
BUILT = pathlib.Path(os.environ.get("BATON_BUILT", TARGET / "release"))
LOAD = BUILT / "examples" / "load"
BATON = BUILT / "baton"

START_WITHIN_S = 15
STOP_WITHIN_S = 5

_numbers = itertools.count()


class Failed(Exception):
    """A measurement that could not be made."""


@dataclass(frozen=True)
class Frontend:
    name: str
    vip: str
    backends: list


class Stage:
    """One host in a namespace of its own, or three in a row: clients, proxy, backends. With `mortal` there is a second
    frontend, with one backend, which is a process of its own. With `realtime` nobody waits for another's time slice."""

    # Of its namespaces' names.
    prefix = "baton-bench"

    def __init__(self, hosts=1, mortal=False, realtime=False):
        self.scheduler = ["chrt", "--fifo", "1"] if realtime else []
        self.processes = []
        self.namespaces = []
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="baton-bench-"))
        try:
            self._lay_out(hosts)
            self.frontends = [Frontend("apiserver", self.vip, self.backends)]
            if mortal:
                self.frontends.append(Frontend("mortal", "127.0.1.2:6443", ["127.0.3.1:6443"]))
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _lay_out(self, hosts):
        if hosts == 1:
            host = self._namespace()
            self.client = self.proxy = self.server = host
            self.vip = "127.0.1.1:6443"
            self.backends = [f"127.0.2.{n}:6443" for n in (1, 2, 3)]
            self.direct = self.backends[0]
            return
        self.client, self.proxy, self.server = (self._namespace() for _ in range(3))
        self.vip = "10.77.0.1:6443"
        self.backends = [f"10.77.1.{n}:6443" for n in (2, 3, 4)]
        self.direct = None
        self._wire(self.client, ["10.77.0.2/24"], self.proxy, ["10.77.0.1/24"])
        self._wire(self.server, [f"10.77.1.{n}/24" for n in (2, 3, 4)], self.proxy, ["10.77.1.1/24"])
        for outside in (self.client, self.server):
            # Only the proxy's own way with TIME_WAIT is of interest: the other hosts keep none.
            self.sysctl(outside, "net.ipv4.tcp_max_tw_buckets=0")
        # For flows that backends see with the VIP or the client for their source.
        run("ip", "-n", self.server, "route", "add", "10.77.0.0/24", "via", "10.77.1.1")

    def _namespace(self):
        name = f"{self.prefix}-{os.getpid()}-{next(_numbers)}"
        run("ip", "netns", "add", name)
        self.namespaces.append(name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        # Congestion control differs from host to host, and BBR halves bulk on loopback.
        self.sysctl(name, "net.ipv4.tcp_congestion_control=reno")
        return name

    def beside(self, left, right):
        """One more host on a link with the proxy, which has the address `right` there; its namespace."""
        namespace = self._namespace()
        self._wire(namespace, [f"{left}/24"], self.proxy, [f"{right}/24"])
        return namespace

    def _wire(self, left, left_addresses, right, right_addresses):
        number = next(_numbers)
        ends = (f"veth{number}a", f"veth{number}b")
        run("ip", "link", "add", ends[0], "netns", left, "type", "veth", "peer", "name", ends[1], "netns", right)
        for namespace, end, addresses in ((left, ends[0], left_addresses), (right, ends[1], right_addresses)):
            for address in addresses:
                run("ip", "-n", namespace, "address", "add", address, "dev", end)
            run("ip", "-n", namespace, "link", "set", end, "up")

    def _bridge(self, addresses):
        """A host for each name, with its address, and a bridge between them; the hosts' namespaces by name, and the bridge's."""
        bridge, spaces = self._namespace(), {}
        run("ip", "-n", bridge, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", bridge, "link", "set", "br0", "up")
        for name, address in addresses.items():
            space = spaces[name] = self._namespace()
            run("ip", "link", "add", name, "netns", bridge, "type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "-n", bridge, "link", "set", name, "master", "br0", "up")
            run("ip", "-n", space, "address", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
        return spaces, bridge

    def sysctl(self, namespace, setting):
        run("ip", "netns", "exec", namespace, "sysctl", "-qw", setting)

    def rules(self, namespace, text):
        """Loads rules of nft(8)."""
        done = subprocess.run(["ip", "netns", "exec", namespace, "nft", "-f", "-"], input=text, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"nft: {done.stderr.strip()}")

    def start(self, namespace, *command, wait_for=None, aside=False):
        """Starts a process; with `wait_for`, returns when it has printed that line. `aside`: no packet waits for it, and it
        has no more priority than anybody."""
        name = pathlib.Path(str(command[0])).name
        log = open(self.directory / f"{name}-{len(self.processes)}.log", "wb")
        output = subprocess.PIPE if wait_for else log
        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, *([] if aside else self.scheduler), *map(str, command)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=log, cwd=self.directory,
        )
        self.processes.append(process)
        if wait_for and process.stdout.readline().decode().strip() != wait_for:
            raise Failed(f"{name} did not start: {self.logs()}")
        return process

    def serve(self):
        """Starts the backends, a process for each frontend; the last one's."""
        for frontend in self.frontends:
            process = self.start(self.server, LOAD, "serve", "--listen", ",".join(frontend.backends), wait_for="listening")
        return process

    def load(self, *arguments, within_s):
        """Runs the load generator as a client; its report."""
        command = ["ip", "netns", "exec", self.client, *self.scheduler, LOAD, *map(str, arguments)]
        try:
            done = subprocess.run(list(map(str, command)), capture_output=True, timeout=within_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"load {' '.join(map(str, arguments))} took more than {within_s} s")
        if done.returncode:
            raise Failed(f"load {arguments[0]}: {done.stderr.decode().strip()}\n{self.logs()}")
        return json.loads(done.stdout)

    def await_answers(self, target):
        """Returns when requests to `target` are answered."""
        deadline = time.monotonic() + START_WITHIN_S
        while True:
            try:
                probe = self.load("requests", "--target", target, "--connections", 6, "--warmup", 0,
                                  "--seconds", 0.05, within_s=10)
                if probe["requests"] and not probe["broken"]:
                    return
            except Failed as failure:
                last = failure
            else:
                last = Failed(f"no answers from {target}: {probe}\n{self.logs()}")
            if time.monotonic() > deadline:
                raise last
            time.sleep(0.05)

    def logs(self):
        texts = (log.read_text(errors="replace")[-2000:] for log in self.directory.glob("*.log"))
        return "\n".join(text for text in texts if text)

    def stop(self, process):
        if process.poll() is None:
            process.send_signal(signal.SIGKILL if process.args[4].endswith("load") else signal.SIGTERM)
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self):
        # Whoever serves goes last, or the proxies say so at length.
        for process in reversed(self.processes):
            family = descendants(process.pid) if process.poll() is None else []
            if process.poll() is None:
                process.kill()
                process.wait()
            for pid in family:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        for namespace in self.namespaces:
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def descendants(pid):
    """The children of `pid`, their children and so on."""
    found = []
    for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in map(int, children.read_text().split()):
                found += [child, *descendants(child)]
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def cpu_percent(pid, seconds):
    """Of one core."""
    def spent():
        tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
    began, before = time.monotonic(), spent()
    time.sleep(seconds)
    return (spent() - before) / (time.monotonic() - began) * 100
