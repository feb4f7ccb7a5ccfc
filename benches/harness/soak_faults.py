"""`benches/soak --faults`: random faults of all rows on two hosts with Baton, while clients say how long they wait."""

import collections
import csv
import json
import math
import os
import pathlib
import platform
import random
import re
import shutil
import statistics
import subprocess
import time

from . import faults as catalogue
from .fleet import BACKENDS, INSTANCES, NODE_PORT, PAIR, PORT, SPREAD, Fleet
from .plot import nice, panel
from .promise import BASE_S, NEWBORN_S, TAIL_S, Clients, Happening, Stalls, allowed, judge
from .report import DIRECTORY, cpu_model
from .stage import BATON, LOAD, Failed
from .svg import Drawing

# Between the end of one fault and the next.
PAUSE_S = (1.0, 5.0)
# How often another fault begins in the middle of one.
TWO_AT_ONCE = 0.25
SETTLE_S = 8
# Flows of which nobody saw the end: their ends are asked when nothing has come for twice user_timeout.
REST_WITHIN_S = 90
# Ends that may be cut off are told for a minute that they are reset, and packets that no record explains are forwarded as long.
EMPTY_WITHIN_S = 120
# A close that a host sees by halves is tracked for two minutes (FIN_WAIT) from when its ends were last told.
FORGOTTEN_WITHIN_S = 240
# Memory of a process that was not started anew, from its first quarter to its last.
GROWTH_MAX_MB = 6

PARTS = {"backend": "#d9822b", "network": "#a46bd0", "instance": "#cf4b4b", "config": "#8b949e", "attack": "#3f9a5f"}


def soak(arguments):
    random.seed(arguments.seed)
    with Fleet() as fleet:
        run = Run(fleet, arguments)
        try:
            run.go()
        except Failed as failure:
            run.failures.append(str(failure))
        finally:
            if arguments.logs:
                subprocess.run(["cp", "-r", fleet.directory, arguments.logs])
    return run.report()


class Run:
    def __init__(self, fleet, arguments):
        self.fleet, self.arguments = fleet, arguments
        self.seconds = round(arguments.minutes * 60)
        self.happenings, self.running, self.samples, self.failures = [], [], [], []
        self.faults = [it for it in catalogue.faults() if not arguments.only or any(word in it.name for word in arguments.only.split(","))]
        if not self.faults:
            raise Failed("no fault has such a name; there are: " + ", ".join(it.name for it in catalogue.faults()))
        # Each is had before any is had again.
        self.turns = []
        # What was left of each instance at rest, in words.
        self.left = {}

    def go(self):
        fleet = self.fleet
        fleet.begin()
        self.computed = computed(fleet.instances[INSTANCES[0]])
        self.stalls = Stalls()
        targets = [f"{PAIR}:{PORT}", f"{SPREAD}:{PORT}"]
        self.baseline = {name: self.look(name) for name in INSTANCES}
        self.began = time.monotonic()
        self.clients = Clients(fleet, LOAD, self.seconds, self.arguments.each, self.arguments.seed, targets, self.keep_evidence)
        next_at = self.began + SETTLE_S
        until = self.began + self.seconds - SETTLE_S - 10
        second = 0
        while time.monotonic() < self.began + self.seconds or self.running:
            now = time.monotonic()
            for fault, happening, ends_at in list(self.running):
                if now >= ends_at:
                    self.end(fault, happening)
            if now >= next_at and now < until:
                next_at = self.begin()
            if now - self.began >= second:
                self.sample(second)
                second += 1
            if self.clients.process.poll() is not None and now < self.began + self.seconds - 5:
                raise Failed("the clients ended early")
            time.sleep(0.05)
        try:
            self.clients.process.wait(60)
        except subprocess.TimeoutExpired:
            self.clients.process.kill()
            self.failures.append("clients still waited a minute after the end")
        self.clients.join(10)
        self.rest()
        self.stalls.over.set()

    def begin(self):
        """Begins a fault; when the next one may."""
        busy = {fault.part for fault, *_ in self.running}
        if not self.turns:
            self.turns = random.sample(self.faults, len(self.faults))
        free = [it for it in self.turns if it.part not in busy]
        if not free:
            return max(ends_at for *_, ends_at in self.running) + random.uniform(*PAUSE_S)
        fault = free[0]
        self.turns.remove(fault)
        lasts = random.uniform(*fault.lasts)
        happening = Happening(fault.name, fault.rows, fault.part, time.monotonic(), float("inf"), 0)
        fault.state.clear()
        try:
            fault.begin(self.fleet, fault.state)
        except (Failed, OSError, subprocess.SubprocessError) as error:
            self.failures.append(f"{fault.name}: {error}")
        # Some take a while to begin.
        happening.outage = fault.outage(max(lasts, time.monotonic() - happening.began), self.computed)
        self.happenings.append(happening)
        ends_at = time.monotonic() + lasts
        self.running.append((fault, happening, ends_at))
        self.say(f"{fault.name} {fault.state.get('which', '')} for {lasts:.1f} s")
        if random.random() < TWO_AT_ONCE:
            return time.monotonic() + random.uniform(0.1, lasts)
        return ends_at + random.uniform(*PAUSE_S)

    def end(self, fault, happening):
        self.running = [it for it in self.running if it[1] is not happening]
        try:
            fault.end(self.fleet, fault.state)
        except (Failed, OSError, subprocess.SubprocessError) as error:
            self.failures.append(f"{fault.name}, its end: {error}")
        happening.ended = time.monotonic()

    def say(self, words):
        if self.arguments.verbose:
            print(f"{time.monotonic() - self.began:7.1f}  {words}", flush=True)

    def keep_evidence(self, said):
        """What everybody knows of a connection whose client waits for long, into a file beside the logs."""
        self.say(f"{said['waiting']} {said['port']} of {said['at']} waits for {said['for']} since {said['from'] - self.began:.1f} s")
        port, fleet = said["port"], self.fleet
        with open(fleet.directory / f"waits-{port}.txt", "a") as file:
            looks = [("clients", [*fleet.enter("clients"), "ss", "-tnoimH", f"sport = :{port}"])]
            for name, instance in fleet.instances.items():
                looks += [(name, [*fleet.enter(name), BATON, words, "--json", "--socket", instance.socket]) for words in ("flows", "events")]
                if shutil.which("bpftool"):
                    looks.append((name, ["bpftool", "-j", "map", "dump", "pinned", instance.pins / "flows"]))
            looks += [(name, [*fleet.enter(name), "ss", "-tanoiH"]) for name in (*BACKENDS, *INSTANCES)]
            looks += [(name, [*fleet.enter(name), "ip", "-s", "neigh"]) for name in (*BACKENDS, *INSTANCES, "router")]
            for name, command in looks:
                done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=30)
                file.write(f"{time.monotonic() - self.began:.1f} s, {name}: {' '.join(map(str, command[-5:]))}\n{done.stdout}{done.stderr}\n")

    def look(self, name):
        instance = self.fleet.instances[name]
        pid = instance.pid()
        found = {"pid": pid or 0, "rss_mb": 0.0, "descriptors": 0, "tracked": 0}
        try:
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            found["rss_mb"] = int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024
            found["descriptors"] = sum(not is_pipe(entry) for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir())
        except (FileNotFoundError, ProcessLookupError, TypeError):
            pass
        found["tracked"] = self.tracked(name)
        return found

    def tracked(self, name):
        """Connections that the host tracks. Those that it saw the end of go within two minutes, and each probe leaves one: they
        are not counted."""
        return sum(" TIME_WAIT " not in line and " CLOSE " not in line for line in self.conntrack(name))

    def tracked_states(self, name):
        """How many there are of each protocol and state."""
        words = [line.split() for line in self.conntrack(name)]
        counts = collections.Counter(" ".join([line[2], *(line[5:6] if line[2] == "tcp" else [])]) for line in words)
        return ", ".join(f"{count} {state}" for state, count in counts.most_common())

    def conntrack(self, name):
        listed = subprocess.run([*self.fleet.enter(name), "cat", "/proc/net/nf_conntrack"], capture_output=True, text=True)
        return listed.stdout.splitlines()

    def sample(self, second):
        row = {"second": second}
        for name in INSTANCES:
            row |= {f"{name} {key}": value for key, value in self.look(name).items()}
        self.samples.append(row)

    def rest(self):
        """After the last client has gone: nothing is left of any of them."""
        for name, instance in self.fleet.instances.items():
            began, left = time.monotonic(), None

            def is_empty():
                nonlocal left
                status = instance.status()
                left = status and sum(status["totals"]["flows"].values())
                return left == 0

            try:
                self.fleet.await_true(is_empty, "no flow is left", REST_WITHIN_S)
                flows_s = time.monotonic() - began
                self.fleet.await_true(lambda: self.entries(instance) == 0, "no entry is left", EMPTY_WITHIN_S)
                said = f"no flow after {flows_s:.0f} s, no entry after {time.monotonic() - began:.0f} s"
            except Failed:
                said = f"{left} flows and {self.entries(instance)} entries left"
                self.failures.append(f"{name} at rest: {said}")
            base = self.baseline[name]
            try:
                self.fleet.await_true(lambda: self.tracked(name) <= base["tracked"] + 20, "few are tracked", FORGOTTEN_WITHIN_S)
            except Failed:
                pass
            end = self.look(name)
            for key, more in (("descriptors", 8), ("tracked", 20)):
                if end[key] > base[key] + more:
                    states = f" ({self.tracked_states(name)})" if key == "tracked" else ""
                    self.failures.append(f"{name} at rest: {end[key]} {key}, {base[key]} at the start{states}")
            self.left[name] = f"{said}; {end['descriptors']} descriptors ({base['descriptors']} at the start), " \
                f"{end['tracked']} tracked connections ({base['tracked']}), {end['rss_mb']:.0f} MB"
            self.growth(name)

    def entries(self, instance):
        done = instance.command("offload", "--pins", instance.pins, "status", "--json")
        try:
            return json.loads(done.stdout)["entries"]
        except (ValueError, KeyError):
            return -1

    def growth(self, name):
        """Of the process that lived longest."""
        by_pid = {}
        for sample in self.samples:
            by_pid.setdefault(sample[f"{name} pid"], []).append(sample[f"{name} rss_mb"])
        longest = max((values for pid, values in by_pid.items() if pid), key=len, default=[])
        if len(longest) > 400:
            quarter = len(longest) // 4
            grown = statistics.median(longest[-quarter:]) - statistics.median(longest[quarter:2 * quarter])
            if grown > GROWTH_MAX_MB:
                self.failures.append(f"{name} grew by {grown:.1f} MB within {len(longest)} s")

    def report(self):
        if not hasattr(self, "clients"):
            print("\n".join(self.failures))
            return 1
        broken, newborn, wrong = judge(self.clients, self.happenings, self.stalls)
        lines = self.text(broken, newborn, wrong)
        print("\n".join(lines))
        if not self.arguments.no_write:
            DIRECTORY.mkdir(exist_ok=True)
            (DIRECTORY / "soak-faults.md").write_text("\n".join(lines) + "\n")
            with open(DIRECTORY / "soak-faults.csv", "w", newline="") as file:
                writer = csv.DictWriter(file, self.samples[0])
                writer.writeheader()
                writer.writerows({key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()} for row in self.samples)
            plot(self, broken, DIRECTORY / "soak-faults.svg")
        return int(bool(broken or wrong or self.failures))

    def text(self, broken, newborn, wrong):
        clients = self.clients
        count = lambda key: sum(said[key] for said in clients.seconds)
        lines = [
            "# Random faults under load", "",
            f"`benches/soak --faults --minutes {self.arguments.minutes:g} --seed {self.arguments.seed}`: {len(self.happenings)} faults in "
            f"{self.seconds / 60:g} minutes, {count('answers'):,} answers, {count('connects'):,} connects, {len(clients.lost):,} connections lost.", "",
            f"Host: {host()}.", "",
            f"Waits longer than what the faults of that time explain: **{len(broken)}**. Bytes that were not what was sent: **{len(wrong)}**. "
            f"Connections younger than {NEWBORN_S * 1000:g} ms when their host died, of which no other had heard (docs/limits.md): {len(newborn)}.", "",
            "| fault | rows | times | longest wait that met it | of | allowed then |", "|---|---|---|---|---|---|",
        ]
        for fault in self.faults:
            times = [it for it in self.happenings if it.name == fault.name]
            met = [wait for wait in clients.waits for it in times if it.began <= wait["until"] and it.ended >= wait["from"]]
            if not times:
                continue
            if met:
                worst = max(met, key=lambda wait: wait["until"] - wait["from"])
                figures = f"{worst['until'] - worst['from']:.1f} s | {worst['wait']}: {worst['for']} | {allowed(worst, self.happenings, self.stalls):.1f} s"
            else:
                figures = "below 0.3 s | | "
            lines.append(f"| {fault.name} | {fault.rows} | {len(times)} | {figures} |")
        lines += ["", f"What is allowed: {BASE_S:g} s, and twice the time for which each fault up to {TAIL_S:g} s earlier may leave a client unserved, as `baton check` "
                  "computes it from the file's timers (or the fault's own length, where it cuts clients off): a connection that went unanswered for some time "
                  "sends its next retransmission at most as long after that again. Other faults of the same time count too, and so does one that a "
                  "retransmission met: the next comes after twice the time."]
        lines += ["", "Left at rest, after the last client has gone:", ""]
        lines += [f"- {name}: {left}" for name, left in self.left.items()]
        for wait, limit in broken[:20]:
            near = [it.name for it in self.happenings if it.began <= wait["until"] and it.ended + TAIL_S >= wait["from"]]
            lines.append(f"\nTOO LONG: at {wait['from'] - self.began:.1f} s {wait['wait']} {wait['port']} of {wait['at']} waited {wait['until'] - wait['from']:.1f} s for "
                         f"{wait['for']} ({wait['ended']}; {wait['age']:.1f} s old when it began), allowed {limit:.1f} s; faults: {', '.join(near) or 'none'}")
        for said in wrong[:20]:
            lines.append(f"\nWRONG: at {said['when'] - self.began:.1f} s {said['wrong']} {said['port']} of {said['at']}: {said['what']}")
        lines += [f"\nFAILED: {failure}" for failure in self.failures]
        return lines


def is_pipe(descriptor):
    """Workers keep pipes that they have used once."""
    try:
        return os.readlink(descriptor).startswith("pipe:")
    except OSError:
        return False


def host():
    return f"{os.cpu_count()} cores, {cpu_model()}, Linux {platform.release()}"


def computed(instance):
    """What `baton check` says of this file, with a heartbeat a second, which is taken off again."""
    file = instance.config.with_suffix(".check.toml")
    file.write_text(instance.config.read_text() + '\n[cluster]\nlease_renew = "1s"\nvrrp_advert_interval = "100ms"\nvrrp_track_time = "3s"\n')
    done = subprocess.run([BATON, "check", "-c", file], capture_output=True, text=True, timeout=30)
    found = {}
    for line in done.stdout.splitlines():
        if match := re.match(r"\s+pair\s+(\S.*?)\s+([\d.]+) ?(ms|s|m)\s", line + " "):
            found[match[1]] = float(match[2]) * {"ms": 0.001, "s": 1, "m": 60}[match[3]] - 1
    missing = [name for name in catalogue.COMPUTED if name not in found]
    if missing:
        raise Failed(f"`baton check` says nothing of {', '.join(missing)}:\n{done.stdout}{done.stderr}")
    return found


def plot(run, broken, path):
    width, left, right = 1000, 64, 30
    drawing = Drawing(width, 900, "Random faults under load")
    drawing.text(12, 22, "Random faults under load: how long clients waited, and what for", style="title")
    x = 12
    for part, colour in PARTS.items():
        drawing.curve([(x, 42), (x + 16, 42)], colour, 4)
        drawing.text(x + 22, 46, part, style="small")
        x += 50 + 6 * len(part)
    for label, colour, shape in (("a wait", "#2f81f7", "ring"), ("longer than allowed", "#cf222e", "diamond")):
        drawing.mark(x + 4, 42, colour, shape)
        drawing.text(x + 14, 46, label, style="small")
        x += 40 + 6 * len(label)
    span = max(run.seconds, 1)
    across = lambda at: left + min(max((at - run.began) / span, 0), 1) * (width - left - right)
    top, height = 80, 260
    waits = [(wait, wait["until"] - wait["from"]) for wait in run.clients.waits]
    most = max([length for _, length in waits] + [1])
    drawing.text(left, top - 8, "waits longer than 0.25 s, in s", style="strong")
    panel(drawing, top, height, [("none", [0] * len(run.samples), False), ("none", [most] * len(run.samples), False)], "s")
    step = nice(most / 4)
    highest = step * max(math.ceil(most / step), 1)
    bad = {id(wait) for wait, _ in broken}
    for wait, length in sorted(waits, key=lambda it: it[1])[-3000:]:
        mark = ("#cf222e", "diamond") if id(wait) in bad else ("#2f81f7", "ring")
        drawing.mark(across(wait["from"]), top + height - length / highest * height, *mark)
    lane = {part: top + height + 34 + 9 * index for index, part in enumerate(PARTS)}
    for it in run.happenings:
        drawing.curve([(across(it.began), lane[it.part]), (max(across(it.ended), across(it.began) + 1), lane[it.part])], PARTS[it.part], 6)
    series = (("tracked", "connections that the instances' hosts track"), ("rss_mb", "resident memory, MB; 0: not running"),
              ("descriptors", "descriptors"))
    for index, (key, title) in enumerate(series):
        at = 440 + index * 155
        drawing.text(left, at - 8, title, style="strong")
        panel(drawing, at, 100, [(colour, [sample[f"{name} {key}"] for sample in run.samples], False)
                                 for name, colour in zip(INSTANCES, ("#2f81f7", "#d9822b"))], "s")
    drawing.save(path)
