"""Holds what clients waited against what they may: nobody waits longer than the faults of that time explain."""

import json
import subprocess
import threading
import time
from dataclasses import dataclass

# Without any fault: a segment that is lost in the middle of something, and a machine that is shared.
BASE_S = 2.0
# A connection that was without an answer for so long sends its next retransmission at most as long after that again.
BACKOFF = 2.0
# What a fault sets off goes on for so long after its end: probes, claims, an address that moves back.
TAIL_S = 6.0
# Retransmissions of Linux after the first 0.2 s (TCP_RTO_MIN), each after twice the time before; measured times vary by so much.
RTO_S, SOONER, LATER = 0.2, 0.9, 1.35
# A connection that is as young as this when its instance's host loses power may be one that no other instance has heard of. Its client is
# reset at its next packet (docs/limits.md), and one whose request has arrived sends none. A host that was only cut off still has it.
NEWBORN_S = 0.05
HOST_DIES = ("instance's host reboots",)
# Of the time for which the machine itself stood still, as a thread that only sleeps sees it.
STALL_FACTOR = 2.0


@dataclass
class Happening:
    """One fault as it was: seconds of the monotonic clock, and the outage that it explains."""

    name: str
    rows: str
    part: str
    began: float
    ended: float
    outage: float


class Clients(threading.Thread):
    """Reads what `load promise` says."""

    def __init__(self, fleet, load, seconds, each, seed, targets, alarm):
        """`alarm` is called with what a client says that has waited for long and waits still."""
        super().__init__(daemon=True)
        self.alarm = alarm
        command = [*fleet.enter("clients"), load, "promise", "--targets", ",".join(targets), "--seconds", seconds, "--each", each,
                   "--seed", seed]
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        fleet.processes.append(self.process)
        self.waits, self.lost, self.wrong, self.seconds = [], [], [], []
        self.start()

    def run(self):
        for line in self.process.stdout:
            said = json.loads(line)
            if "waiting" in said:
                threading.Thread(target=self.alarm, args=[said], daemon=True).start()
            for word, kept in (("wait", self.waits), ("lost", self.lost), ("wrong", self.wrong), ("second", self.seconds)):
                if word in said:
                    kept.append(said)


class Stalls(threading.Thread):
    """When this machine gave nobody any time."""

    STEP_S = 0.05

    def __init__(self):
        super().__init__(daemon=True)
        self.seen, self.over = [], threading.Event()
        self.start()

    def run(self):
        before = time.monotonic()
        while not self.over.wait(self.STEP_S):
            now = time.monotonic()
            if now - before > 4 * self.STEP_S:
                self.seen.append((before, now))
            before = now

    def within(self, began, ended):
        return sum(max(0, min(ended, until) - max(began, since)) for since, until in self.seen)


def allowed(wait, happenings, stalls):
    """For how long this client could have been unserved, in s."""
    relevant = [it for it in happenings if it.began <= wait["until"] and it.ended + TAIL_S >= wait["from"]]
    once = BASE_S + BACKOFF * sum(it.outage for it in relevant)
    return max(once, BASE_S + met_again(wait["from"], relevant)) + STALL_FACTOR * stalls.within(wait["from"], wait["until"])


def met_again(began, happenings):
    """After how many s at the latest a segment that was sent at `began` comes at a time that no fault explains, if all before met one: what
    several faults cost together may be longer than the sum, for who has waited long sends seldom."""
    windows = [(it.began, it.began + it.outage) for it in happenings if it.outage]
    # An instance that returns gets its addresses back.
    windows += [(it.ended, it.ended + it.outage) for it in happenings if it.outage and it.part == "instance" and it.ended < float("inf")]
    for number in range(10):
        after = RTO_S * (2**number - 1)
        latest = after * LATER + RTO_S
        if not any(since <= began + latest and until >= began + after * SOONER - RTO_S for since, until in windows):
            return latest
    return latest


def is_newborn(wait, happenings):
    return wait["age"] < NEWBORN_S and any(it.name in HOST_DIES and abs(wait["from"] - it.began) < 2 * NEWBORN_S for it in happenings)


def judge(clients, happenings, stalls):
    """(wait, what was allowed) of those that waited longer, the newborn among them apart, and bytes that were wrong though no backend was
    killed."""
    over = [(wait, limit) for wait in clients.waits if (limit := allowed(wait, happenings, stalls)) < wait["until"] - wait["from"]
            or wait["ended"] == "hung"]
    newborn = [it for it in over if is_newborn(it[0], happenings)]
    broken = [it for it in over if it not in newborn]
    # A backend that is killed amid an answer ends it with FIN, and so does the kernel for an instance that still had its sockets.
    killers = [it for it in happenings if it.part == "backend" or it.name in ("instance killed", "instance crashes again and again")]
    wrong = [said for said in clients.wrong if not (said["what"] == "FIN before the last byte" and any(
        it.began - 0.5 <= said["when"] and it.ended + TAIL_S >= said["since"] for it in killers))]
    return broken, newborn, wrong
