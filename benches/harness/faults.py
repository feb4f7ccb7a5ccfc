"""What is done to a fleet while clients watch: a fault each, with how it begins and ends, and for how long a client may go unserved
because of it."""

import os
import random
import signal
import subprocess
import threading
from dataclasses import dataclass, field

from .fleet import ADDRESSES, BACKENDS, INSTANCES, PAIR, PEERS_PORT, PORT, SPREAD
from .stage import Failed

# What `baton check` computes, without the time between two heartbeats; the harness reads it from there.
COMPUTED = ("apiserver killed", "apiserver hung", "apiserver's host gone", "Baton killed", "Baton hung", "Baton's host gone",
            "host evacuated", "Baton upgraded")


@dataclass
class Fault:
    """`rows`: of the matrix in docs. `lasts`: between its begin and its end, in s. `outage(lasts, computed)`: for so long clients may be
    unserved. Two faults of one `part` never meet."""

    name: str
    rows: str
    part: str
    lasts: tuple
    outage: object
    begin: object
    end: object = lambda fleet, state: None
    state: dict = field(default_factory=dict)


def each(names, state):
    state["which"] = random.choice(names)
    return state["which"]


def backend(fleet, name):
    return fleet.servers[name]


def instance(fleet, name):
    return fleet.instances[name]


def keepalived(fleet, name):
    return fleet.instances[name].keepalived


def killed(names, process):
    """`process(fleet, name)` is gone for as long as the fault lasts."""

    def begin(fleet, state):
        process(fleet, each(names, state)).hold_back()

    def end(fleet, state):
        process(fleet, state["which"]).resume()

    return begin, end


def stopped(names, process):
    """As `killed`, but it only stands still."""

    def begin(fleet, state):
        process(fleet, each(names, state)).signal(signal.SIGSTOP)

    def end(fleet, state):
        process(fleet, state["which"]).signal(signal.SIGCONT)

    return begin, end


def unplugged(names):
    def begin(fleet, state):
        fleet.plug(each(names, state), False)
        if state["which"] in fleet.instances:
            # BFD tells the router.
            threading.Timer(0.3, lambda: setattr(fleet.instances[state["which"]], "is_cut", True)).start()

    def end(fleet, state):
        fleet.plug(state["which"], True)
        if state["which"] in fleet.instances:
            threading.Timer(0.5, lambda: setattr(fleet.instances[state["which"]], "is_cut", False)).start()

    return begin, end


def rules(names, text):
    """Rules of nft(8) on a host for as long as the fault lasts."""

    def begin(fleet, state):
        fleet.rules_of(each(names, state), "inet fault", text)

    def end(fleet, state):
        fleet.rules_of(state["which"], "inet fault", "")

    return begin, end


def slow(fleet, state):
    name = each(BACKENDS, state)
    fleet.in_space(name, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "4mbit", "burst", "16k", "latency", "100ms")


def fast(fleet, state):
    fleet.in_space(state["which"], "tc", "qdisc", "del", "dev", "eth0", "root")


def all_killed(fleet, _):
    for name in BACKENDS:
        fleet.servers[name].hold_back()


def all_started(fleet, _):
    for name in BACKENDS:
        fleet.servers[name].resume()


def flapping(fleet, state):
    name = each(BACKENDS, state)

    def flap():
        for _ in range(4):
            fleet.servers[name].hold_back()
            if fleet.over.wait(0.7):
                return
            fleet.servers[name].resume()
            if fleet.over.wait(1.2):
                return

    state["thread"] = threading.Thread(target=flap, daemon=True)
    state["thread"].start()


def joined(_, state):
    state["thread"].join()


def clients_cut(fleet, _):
    fleet.in_space("router", "ip", "link", "set", fleet.clients_link + "b", "down")


def clients_back(fleet, _):
    fleet.in_space("router", "ip", "link", "set", fleet.clients_link + "b", "up")


def crash_loop(fleet, state):
    instance = fleet.instances[each(INSTANCES, state)]

    def crash():
        for _ in range(6):
            instance.signal(signal.SIGKILL)
            if fleet.over.wait(1.0):
                return

    state["thread"] = threading.Thread(target=crash, daemon=True)
    state["thread"].start()


def rebooted(fleet, state):
    """Power is lost: the host is gone at once, and what was in its kernel with it."""
    name = each(INSTANCES, state)
    instance = fleet.instances[name]
    fleet.plug(name, False)
    threading.Timer(0.3, lambda: setattr(instance, "is_cut", True)).start()
    instance.keepalived.hold_back()
    instance.hold_back()
    subprocess.run(["ip", "-n", fleet.spaces[name], "address", "del", f"{PAIR}/32", "dev", "eth0"], capture_output=True)
    subprocess.run(["ip", "-n", fleet.spaces[name], "address", "del", f"{PAIR}/32", "dev", "lo"], capture_output=True)
    # With nobody there who could still send something about them. So with the sockets: a kernel that is no more repeats no FIN.
    instance.remove_pins()
    fleet.in_space(name, "ss", "-K", "-t", "-a")


def booted(fleet, state):
    instance = fleet.instances[state["which"]]
    fleet.plug(state["which"], True)
    instance.resume()
    instance.keepalived.resume()
    threading.Timer(0.5, lambda: setattr(instance, "is_cut", False)).start()


def evacuated(fleet, state):
    instance = fleet.instances[each(INSTANCES, state)]
    state["said"] = instance.command("evacuate", "--deadline", "5s", within_s=40)


def cancelled(fleet, state):
    fleet.instances[state["which"]].command("evacuate", "--cancel")


def upgraded(fleet, state):
    instance = fleet.instances[each(INSTANCES, state)]
    state["said"] = instance.command("upgrade", within_s=40)


def reloads(change, count=1):
    def begin(fleet, state):
        instance = fleet.instances[each(INSTANCES, state)]
        for number in range(count):
            instance.write_config(change=lambda text: change(text, number))
            if instance.command("reload", within_s=3).returncode == 124:
                break  # Another fault has stopped it.

    def end(fleet, state):
        instance = fleet.instances[state["which"]]
        instance.write_config()
        instance.command("reload", within_s=3)

    return begin, end


def added(fleet, _):
    """A member that is not there yet, as where a fleet grows."""
    for instance in fleet.instances.values():
        instance.write_config(third=True)
        reloaded(instance)


def taken_out(fleet, _):
    for instance in fleet.instances.values():
        instance.write_config()
        reloaded(instance)


def reloaded(instance):
    done = instance.command("reload")
    if done.returncode != 0:
        raise Failed(f"{instance.name} refuses a reload: {done.stderr or done.stdout}")


def other_key(fleet, state):
    instance = fleet.instances[each(INSTANCES, state)]
    instance.key = fleet.directory / "other.key"
    instance.key.write_text("08" * 32 + "\n")
    instance.key.chmod(0o600)
    instance.write_config()
    instance.command("reload")


def same_key(fleet, state):
    instance = fleet.instances[state["which"]]
    instance.key = fleet.directory / "peers.key"
    instance.write_config()
    instance.command("reload")


def few_descriptors(fleet, state):
    pid = state["pid"] = fleet.instances[each(INSTANCES, state)].pid()
    limit = len(os.listdir(f"/proc/{pid}/fd")) + 8
    state["before"] = subprocess.run(["prlimit", "--pid", str(pid), "--nofile", "--output", "SOFT", "--noheadings", "--raw"],
                                     capture_output=True, text=True).stdout.strip()
    subprocess.run(["prlimit", "--pid", str(pid), f"--nofile={limit}:"], capture_output=True)


def many_descriptors(_, state):
    subprocess.run(["prlimit", "--pid", str(state["pid"]), f"--nofile={state['before']}:"], capture_output=True)


def narrow(fleet, _):
    fleet.in_space("router", "ip", "link", "set", fleet.clients_link + "b", "mtu", "1300")


def wide(fleet, _):
    fleet.in_space("router", "ip", "link", "set", fleet.clients_link + "b", "mtu", "1500")


def cut_off(to, both):
    """The instances' own traffic: the link, or everything."""

    def begin(fleet, state):
        names = list(INSTANCES) if both else [each(INSTANCES, state)]
        state["names"] = names
        for name in names:
            peer = ADDRESSES[fleet.instances[name].peer]
            fleet.rules_of(name, "inet fault", f"chain in {{ type filter hook input priority -300; ip saddr {peer} {to} drop }}")

    def end(fleet, state):
        for name in state["names"]:
            fleet.rules_of(name, "inet fault", "")

    return begin, end


# Sends segments from a host of its own, with sources that are not its own: of clients' connections, or of nobody's.
STRANGER = r"""
import os, random, socket, struct, sys, time
rate, until = float(sys.argv[1]), time.monotonic() + float(sys.argv[2])
targets = [word.split(":") for word in sys.argv[3].split(",")]
clients = [(word.split(":")[0], int(word.split(":")[1])) for word in sys.argv[4].split(",") if word]
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
kinds = (0x04, 0x14, 0x11, 0x10, 0x18)  # RST, RST+ACK, FIN+ACK, ACK, data
began, sent = time.monotonic(), 0
while time.monotonic() < until:
    due = int((time.monotonic() - began) * rate)
    for _ in range(due - sent):
        vip, port = random.choice(targets)
        if clients and random.random() < 0.8:
            source, sport = random.choice(clients)
        else:
            source, sport = f"10.78.{random.randrange(1, 250)}.{random.randrange(1, 250)}", random.randrange(1024, 65535)
        flags = random.choice(kinds)
        data = os.urandom(random.choice((1, 100))) if flags == 0x18 else b""
        tcp = struct.pack(">HHIIBBHHH", sport, int(port), random.randrange(2**32), random.randrange(2**32), 5 << 4, flags, 65535, 0xbad, 0)
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40 + len(data), 0, 0, 64, 6, 0, socket.inet_aton(source), socket.inet_aton(vip))
        try:
            raw.sendto(ip + tcp + data, (vip, 0))
        except OSError:
            pass
    sent = max(sent, due)
    time.sleep(0.005)
"""


def stranger(rate, knows):
    def begin(fleet, state):
        ports = ""
        if knows:
            # The worst stranger: one who knows every connection's addresses and ports, and lacks only its numbers.
            listed = fleet.in_space("clients", "ss", "-Htn", "state", "established")
            ports = ",".join(line.split()[2] for line in listed.splitlines())[:100_000]
        targets = f"{PAIR}:{PORT},{SPREAD}:{PORT}"
        command = ["ip", "netns", "exec", fleet.spaces["stranger"], "python3", "-c", STRANGER, str(rate), "60", targets, ports]
        state["process"] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        fleet.processes.append(state["process"])

    def end(_, state):
        state["process"].kill()
        state["process"].wait()

    return begin, end


def none(*_):
    return 0


def whole(lasts, _):
    return lasts


def computed(name, more=0):
    return lambda _, figures: figures[name] + more


def faults():
    """All of them."""
    drop = lambda match: f"chain in {{ type filter hook input priority -300; {match} drop }}"
    web = f"tcp dport {PORT}"
    return [
        Fault("backend killed", "1", "backend", (2, 6), computed("apiserver killed"), *killed(BACKENDS, backend)),
        Fault("backend stopped", "2", "backend", (4, 10), computed("apiserver hung"), *stopped(BACKENDS, backend)),
        Fault("backend's host gone", "4", "backend", (4, 12), computed("apiserver's host gone"), *unplugged(BACKENDS)),
        # Two attempts that get no answer, and the third is another backend's.
        Fault("backend drops SYN", "5", "backend", (3, 8), lambda *_: 1, *rules(BACKENDS, drop(f"{web} tcp flags & (syn|ack) == syn"))),
        Fault("backend refuses", "6", "backend", (3, 8), none,
              *rules(BACKENDS, f"chain in {{ type filter hook input priority 0; {web} tcp flags & (syn|ack) == syn reject with tcp reset }}")),
        Fault("one-way loss to a backend", "7", "backend", (4, 10), computed("apiserver's host gone"), *rules(BACKENDS, drop(web))),
        Fault("a fifth of a backend's packets lost", "8", "backend", (3, 6), whole, *rules(BACKENDS, drop(f"{web} numgen random mod 100 < 20"))),
        Fault("a backend's link is slow", "9", "backend", (3, 6), whole, slow, fast),
        Fault("all backends killed", "10", "backend", (2, 4), none, all_killed, all_started),
        Fault("backend flaps", "11", "backend", (1, 2), none, flapping, joined),
        Fault("clients' link out", "14, 38", "network", (1, 10), whole, clients_cut, clients_back),
        Fault("path MTU falls", "46", "network", (5, 10), none, narrow, wide),
        Fault("instance killed", "15, 33", "instance", (0.2, 4), computed("Baton killed"), *killed(INSTANCES, instance)),
        Fault("instance stopped", "16", "instance", (1, 8), computed("Baton hung"), *stopped(INSTANCES, instance)),
        Fault("instance crashes again and again", "48", "instance", (2, 3), computed("Baton killed", 4), crash_loop, joined),
        Fault("instance's host gone", "17, 35, 36", "instance", (4, 12), computed("Baton's host gone"), *unplugged(INSTANCES)),
        Fault("instance's host reboots", "41", "instance", (4, 10), computed("Baton's host gone"), rebooted, booted),
        Fault("instance evacuated", "18", "instance", (1, 3), computed("host evacuated"), evacuated, cancelled),
        Fault("instance upgraded", "27", "instance", (1, 2), computed("Baton upgraded"), upgraded),
        Fault("keepalived killed", "22", "instance", (2, 6), computed("Baton's host gone"), *killed(INSTANCES, keepalived)),
        Fault("instances parted", "21", "instance", (3, 8), computed("Baton's host gone"), *cut_off(to="", both=True)),
        Fault("peer link cut", "23, 42", "instance", (3, 8), none, *cut_off(to=f"tcp dport {PEERS_PORT}", both=True)),
        Fault("peer link cut one way", "42", "instance", (3, 8), none, *cut_off(to=f"tcp sport {PEERS_PORT}", both=False)),
        Fault("another key on one host", "42", "instance", (3, 8), none, other_key, same_key),
        Fault("members change", "40", "instance", (2, 5), none, added, taken_out),
        Fault("bad file, reloaded", "25", "config", (1, 2), none, *reloads(lambda text, _: text.replace('balance = "least_conn"', 'balanse = 1'))),
        Fault("reloads", "26", "config", (1, 2), none,
              *reloads(lambda text, n: text.replace("least_conn", ("round_robin", "random_two")[n % 2]), 20)),
        Fault("few descriptors", "28", "config", (2, 5), lambda *_: 1, few_descriptors, many_descriptors),
        Fault("NAT towards a backend", "37", "config", (5, 12), none,
              *rules(INSTANCES, f"chain post {{ type nat hook postrouting priority srcnat; ip daddr {ADDRESSES['b2']} masquerade }}")),
        Fault("spoofed segments", "39", "attack", (3, 8), none, *stranger(2000, True)),
        Fault("flood of unknown packets", "49", "attack", (3, 8), none, *stranger(1000, False)),
    ]
