"""How much of the machine others use while a measurement runs."""

import os
import pathlib
import resource
import time

HZ = os.sysconf("SC_CLK_TCK")
CORES = os.cpu_count()

# Above this share of all cores a measurement says more of the others than of the proxy.
TOLERATED = 0.10
# Waiting for a calmer machine, in s for one measurement, and how often a disturbed one is made again.
PATIENCE_S = 20
TRIES = 3


class Watch:
    """From its making to `others()`, which counts everything but this process's children and `processes`."""

    def __init__(self, processes=()):
        self.processes = processes
        self.began = time.monotonic()
        self.busy, self.own = busy_s(), self._own_s()

    def others(self):
        """The share of all cores, 0 to 1."""
        elapsed = time.monotonic() - self.began
        used = (busy_s() - self.busy) - (self._own_s() - self.own)
        return max(0.0, round(used / (elapsed * CORES), 3))

    def _own_s(self):
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = resource.getrusage(resource.RUSAGE_SELF)
        times = ended.ru_utime + ended.ru_stime + own.ru_utime + own.ru_stime
        return times + sum(map(cpu_s, self.processes))


def share_at_rest():
    """The least share of all cores that is busy over some moments: the kernel is still taking down what the last run made."""
    shares = []
    while len(shares) < 12 and (not shares or shares[-1] > 0.03):
        shares.append(share_now(0.4))
    return min(shares)


def share_now(seconds):
    """The share of all cores that are busy for so long, 0 to 1."""
    began, rest = time.monotonic(), rest_s()
    time.sleep(seconds)
    return max(0.0, 1 - (rest_s() - rest) / ((time.monotonic() - began) * CORES))


def await_calm():
    """Returns when others leave the machine alone, or after a while."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        watch = Watch()
        time.sleep(0.4)
        if watch.others() <= TOLERATED:
            return


def busy_s():
    user, nice, system, _, _, irq, softirq, steal = map(int, pathlib.Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / HZ


def rest_s():
    """Time that cores had nothing to do, or were another machine's: the kernel measures it, where it samples what is busy."""
    fields = list(map(int, pathlib.Path("/proc/stat").read_text().split()[1:9]))
    return (fields[3] + fields[4] + fields[7]) / HZ


def cpu_s(pid):
    """CPU time of a process, with that of its threads that have ended."""
    try:
        # Behind the name, which may hold anything: utime and stime are fields 14 and 15 of the line.
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / HZ
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
