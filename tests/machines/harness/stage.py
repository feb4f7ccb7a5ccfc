"""Boots what rows need, measures them one after another, and keeps what each has shown."""

import dataclasses
import datetime
import json
import re
import subprocess
import time

from harness import machine
from harness.balancer import Balancer, Ends
from harness.kernels import CACHE, Kernel, Unavailable, own_binary
from harness.machine import Failed, Network

ENDS_KERNEL = "6.12"
RESULTS = CACHE / "results.json"


@dataclasses.dataclass
class Result:
    name: str
    outcome: str  # "passed", "FAILED: ...", "not tried: ..."
    cells: dict
    kernel: str
    date: str
    seconds: float


class Stage:
    def __init__(self, rows):
        self.rows = rows
        self.kernels = {series: kernel_of(series) for series in dict.fromkeys([ENDS_KERNEL, *(row.series for row in rows)])}
        # Without this kernel no machine has the ends of any row.
        if isinstance(self.kernels[ENDS_KERNEL], str):
            raise Unavailable(self.kernels[ENDS_KERNEL])
        self.known = machine.known_cards()
        self.binary = own_binary()
        self.accel = machine.accelerator(self.kernels[ENDS_KERNEL])
        self.network = Network(self.accel)

    def remove(self):
        self.network.remove()

    def measure(self, row):
        begun = time.monotonic()
        self.cells, self.offloaded, self.why = {}, 0, ""
        kernel = self.kernels[row.series]
        outcome = "passed"
        try:
            if isinstance(kernel, str):
                raise Unavailable(kernel)
            if row.card not in self.known:
                raise Unavailable(f"QEMU {version()} does not emulate {row.card}")
            try:
                self.boot(row, kernel)
            except Unavailable:
                # On a busy machine an emulated one may miss its own clock and end; a second time is no accident.
                self.network.kill()
                self.boot(row, kernel)
            row.measure(self)
        except Unavailable as error:
            outcome = f"not tried: {error}"
        except Failed as error:
            outcome = f"FAILED: {error}"
        release = kernel if isinstance(kernel, str) else kernel.release
        return Result(row.name, outcome, self.cells, release, datetime.date.today().isoformat(), round(time.monotonic() - begun, 1))

    def boot(self, row, kernel):
        cards = sorted({each.card for each in self.rows if each.series == row.series and each.card in self.known})
        names = ["lb-a", "lb-b"] if row.pair else ["lb-a"]
        ends = self.network.machine("ends", self.kernels[ENDS_KERNEL], ["virtio"])
        machines = [self.network.machine(name, kernel, cards) for name in names]
        self.ends = Ends(ends.wait_for_boot())
        self.balancers = [Balancer(each.wait_for_boot(), self.binary) for each in machines]
        if not row.pair and (other := self.network.machines.get("lb-b")):
            # It would answer for addresses of its own, and costs time.
            other.kill()

    def keep_log(self, balancer):
        """The last row's log of Baton, for whoever looks for the cause of a failure."""
        log = balancer.machine.try_sh("cat /run/baton.log; ip -d address; dmesg | tail -n 20")[1]
        (CACHE / f"{balancer.machine.name}.log").write_text(log)


def kernel_of(series):
    """The kernel, or the reason for which there is none."""
    try:
        return Kernel(series)
    except Unavailable as error:
        return str(error)


def version():
    said = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True).stdout
    return re.search(r"version ([0-9.]+)", said)[1]


def load():
    return {each["name"]: Result(**each) for each in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}


def keep(results):
    RESULTS.write_text(json.dumps([dataclasses.asdict(each) for each in results.values()], indent=1))
