"""Emulated machines, the switches between them, and commands in them."""

import json
import os
import pathlib
import select
import shlex
import socket
import subprocess
import tempfile
import time

from harness.kernels import GUEST, Unavailable

BOOT_SECONDS = 240
# The model of each card in QEMU.
CARDS = {
    "virtio": "virtio-net-pci,mrg_rxbuf=on,guest_tso4=on,guest_tso6=on,guest_ufo=on,host_tso4=on,host_tso6=on",
    "e1000": "e1000",
    "e1000e": "e1000e",
    "igb": "igb",
    "vmxnet3": "vmxnet3",
    "rtl8139": "rtl8139",
}
DRIVERS = {"virtio": "virtio_net", "e1000": "e1000", "e1000e": "e1000e", "igb": "igb", "vmxnet3": "vmxnet3", "rtl8139": "8139cp"}


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, **options).stdout


def known_cards():
    """The cards that this QEMU emulates."""
    listed = run("qemu-system-x86_64", "-device", "help")
    return {card for card, device in CARDS.items() if f'name "{device.split(",")[0]}"' in listed}


def accelerator(kernel):
    """KVM where it can run this kernel: inside some virtual machines it stops at the first instruction that it must emulate."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    probe = ["timeout", "20", "qemu-system-x86_64", "-accel", "kvm", "-cpu", "host", "-m", "512", "-nodefaults", "-display", "none", "-no-reboot"]
    probe += ["-kernel", kernel.image, "-append", "panic=-1"]
    with subprocess.Popen(probe, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as trial:
        # Without a root the kernel ends the machine as soon as it has booted.
        for line in trial.stderr:
            if "internal error" in line:
                trial.terminate()
                return "tcg"
        return "kvm" if trial.wait() == 0 else "tcg"


class Network:
    """Two switches, a and b, in a namespace of their own, and the machines on them. A machine has each card twice: one on each switch."""

    def __init__(self, accel):
        self.name = f"bt-{os.getpid()}-machines"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        self.accel = accel
        self.machines = {}
        self.taps = 0
        run("ip", "netns", "add", self.name)
        for switch in "ab":
            self.ip(f"link add name {switch} type bridge forward_delay 0 stp_state 0 mcast_snooping 0")
            self.ip(f"link set dev {switch} mtu 9000 up")
        self.ip("link add between-a type veth peer name between-b")
        for switch in "ab":
            self.ip(f"link set between-{switch} master {switch} mtu 9000")
        self.join(True)

    def ip(self, words):
        run("ip", "-n", self.name, *words.split())

    def join(self, joined):
        """Whether the two switches are one network. Where both ends have a bond over both, they must not be."""
        for switch in "ab":
            self.ip(f"link set between-{switch} {'up' if joined else 'down'}")

    def tap(self, switch):
        self.taps += 1
        name = f"tap{self.taps}"
        self.ip(f"tuntap add name {name} mode tap vnet_hdr")
        self.ip(f"link set {name} master {switch} mtu 9000 up")
        # Both ends of a link in an aggregate (802.3ad) must hear each other.
        self.ip(f"link set {name} type bridge_slave group_fwd_mask 4")
        return name

    def machine(self, name, kernel, cards, memory=640):
        """The machine of this name; it is booted anew if it has another kernel or lacks a card."""
        found = self.machines.get(name)
        if found and found.is_alive() and found.kernel is kernel and set(cards) <= set(found.cards):
            return found
        if found:
            found.kill()
        machine = Machine(self, name, kernel, cards, memory)
        self.machines[name] = machine
        return machine

    def kill(self):
        for machine in self.machines.values():
            machine.kill()

    def remove(self):
        self.kill()
        subprocess.run(["ip", "netns", "delete", self.name], capture_output=True)
        subprocess.run(["rm", "-rf", self.folder])


class Machine:
    def __init__(self, network, name, kernel, cards, memory):
        self.network, self.name, self.kernel, self.cards = network, name, kernel, cards
        self.console = network.folder / f"{name}.console"
        self.socket = network.folder / f"{name}.socket"
        self.socket.unlink(missing_ok=True)
        number = 1 + len(network.machines) if name not in network.machines else list(network.machines).index(name) + 1
        self.macs, self.taps = {}, []
        words = []
        for place, card in enumerate(cards):
            for side, switch in enumerate("ab"):
                tap, mac = network.tap(switch), f"52:54:00:{number:02x}:{place:02x}:{side:02x}"
                self.taps.append(tap)
                self.macs[f"{card}-{switch}"] = mac
                words += ["-netdev", f"tap,id={tap},ifname={tap},script=no,downscript=no,vhost=off"]
                words += ["-device", f"{CARDS[card]},netdev={tap},mac={mac}"]
        append = f"console=ttyS0 panic=-1 quiet net.ifnames=0 mitigations=off nokaslr no_timer_check hostname={name} modules={kernel.modules} agent={GUEST / 'agent'}"
        command = ["ip", "netns", "exec", network.name, "qemu-system-x86_64", "-accel", network.accel, "-machine", "q35"]
        command += ["-cpu", "host" if network.accel == "kvm" else "max", "-m", str(memory), "-smp", "1", "-nodefaults", "-display", "none", "-no-reboot", "-nic", "none"]
        command += ["-kernel", kernel.image, "-initrd", kernel.initrd, "-append", append, "-serial", f"file:{self.console}"]
        command += ["-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap", "-device", "virtio-rng-pci"]
        command += ["-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,path={self.socket},server=on,wait=off"]
        command += ["-device", "virtserialport,chardev=agent,name=agent", *words]
        self.begun = time.monotonic()
        self.errors = open(network.folder / f"{name}.errors", "w")
        # ip-netns-exec(8) becomes the command, so the process is QEMU itself. It ends with this process.
        words = ["setpriv", "--pdeathsig", "KILL", *map(str, command)]
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=self.errors, stderr=self.errors)
        self.link, self.rest, self.number, self.answers = None, b"", 0, {}

    def is_alive(self):
        return self.process.poll() is None

    def wait_for_boot(self):
        """Returns once the machine takes commands. Machines boot beside each other, so this is not part of the beginning."""
        if self.link:
            return self
        deadline = self.begun + BOOT_SECONDS
        while self.link is None:
            try:
                link = socket.socket(socket.AF_UNIX)
                link.connect(str(self.socket))
                self.link = link
            except OSError:
                self.check(deadline)
                time.sleep(0.1)
        self.wait_for(0, deadline)
        self.boot_seconds = time.monotonic() - self.begun
        names = " ".join(f"{mac}={name}" for name, mac in self.macs.items())
        self.sh(f"""modprobe -a virtio_net {' '.join(DRIVERS[card] for card in self.cards)}
            sleep 0.5
            for name in {names}; do
                for each in /sys/class/net/*; do
                    [ "$(cat $each/address)" != ${{name%=*}} ] || ip link set ${{each##*/}} name ${{name#*=}}
                done
                ip link show ${{name#*=}} >/dev/null
            done""", 120)
        return self

    def check(self, deadline):
        if not self.is_alive():
            raise Unavailable(f"{self.name} has ended: {self.last_words()}")
        if time.monotonic() > deadline:
            raise Unavailable(f"{self.name} does not answer: {self.last_words()}")

    def last_words(self):
        console = self.console.read_text(errors="replace") if self.console.exists() else ""
        return " | ".join([*(self.network.folder / f"{self.name}.errors").read_text().splitlines()[-3:], *console.splitlines()[-8:]])

    def start(self, script, seconds=60):
        """Begins a command, and returns the number to wait for."""
        self.number += 1
        self.link.sendall(json.dumps({"id": self.number, "run": script, "seconds": seconds}).encode() + b"\n")
        return self.number

    def wait_for(self, number, deadline):
        while number not in self.answers:
            self.check(deadline)
            if not select.select([self.link], [], [], 0.5)[0]:
                continue
            data = self.link.recv(1 << 16)
            *lines, self.rest = (self.rest + data).split(b"\n")
            for line in lines:
                answer = json.loads(line)
                self.answers[answer["id"]] = answer
        return self.answers.pop(number)

    def finish(self, number, seconds=60):
        answer = self.wait_for(number, time.monotonic() + seconds + 20)
        return answer["code"], answer["said"]

    def try_sh(self, script, seconds=60):
        return self.finish(self.start(script, seconds), seconds)

    def sh(self, script, seconds=60):
        code, said = self.try_sh("set -e\n" + script, seconds)
        if code:
            raise Failed(f"on {self.name}: {script.strip().splitlines()[-1]}: {said.strip()[-400:] or code}")
        return said

    def write(self, path, text):
        self.sh(f"mkdir -p {pathlib.PurePath(path).parent}; printf %s {shlex.quote(text)} >{path}")

    def kill(self):
        """The host dies: no packet more, and no farewell."""
        if self.is_alive():
            self.process.kill()
        self.process.wait()
        if self.link:
            self.link.close()
            self.link = None
        for tap in self.taps:
            subprocess.run(["ip", "-n", self.network.name, "link", "delete", tap], capture_output=True)
        self.taps = []


class Failed(Exception):
    """A row shows something wrong."""
