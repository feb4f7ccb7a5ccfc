"""Results, and how they are told: Markdown, JSON and plots in benches/results/."""

import datetime
import json
import os
import platform
import statistics

from . import costs, plot
from .goals import judge
from .peers import PEERS
from .rows import BEHAVIOUR, ROWS, value
from .stage import ROOT, Failed

DIRECTORY = ROOT / "benches" / "results"


class Results:
    """Reports of the load generator by row and peer, in order. Each knows its round: one that failed is missing."""

    def __init__(self, runs=None, versions=None):
        self.runs = runs or {}
        self.versions = versions or {}

    @classmethod
    def load(cls):
        try:
            stored = json.loads((DIRECTORY / "compare.json").read_text())
        except FileNotFoundError:
            return cls()
        return cls(stored["runs"], stored["versions"])

    def forget(self, row, peers):
        for peer in peers:
            self.runs.get(row, {}).pop(peer, None)
        failures = self.runs.get("failures", [])
        self.runs["failures"] = [failure for failure in failures if failure[0] != row or failure[1] not in peers]

    def add(self, row, peer, number, outcome):
        if peer not in self.versions:
            self.versions[peer] = PEERS[peer].version()
        self.runs.setdefault(row, {}).setdefault(peer, []).append(outcome | {"round": number})

    def next_round(self, row):
        """After those that are there already."""
        numbers = [number for peer in self.peers(row) for number in self.by_round(row, peer, "round")]
        return max(numbers, default=-1) + 1

    def add_failure(self, row, peer, why):
        self.runs.setdefault(row, {}).setdefault(peer, [])
        self.runs.setdefault("failures", []).append([row, peer, why[-500:]])

    def peers(self, row):
        return [peer for peer in PEERS if self.runs.get(row, {}).get(peer)]

    def values(self, row, peer, key):
        """Results kept from an older form of a row may lack a value."""
        return [value for value in self.by_round(row, peer, key).values() if value is not None]

    def by_round(self, row, peer, key):
        """Of results that were kept from before rounds had numbers, the place in the list is the round."""
        runs = self.runs.get(row, {}).get(peer, [])
        return {run.get("round", place): value(run, key) for place, run in enumerate(runs)}

    def pairs(self, row, key, peer, other):
        """What `peer` and `other` have of the same rounds."""
        mine, theirs = self.by_round(row, peer, key), self.by_round(row, other, key)
        both = ((mine[number], theirs[number]) for number in mine.keys() & theirs.keys())
        return [pair for pair in both if None not in pair]

    def median(self, row, peer, key):
        values = self.values(row, peer, key)
        return statistics.median(values) if values else None

    def added(self, row, peer, key):
        """What `peer` adds to the direct way of the same round; the median."""
        pairs = self.pairs(row, key, peer, "direct")
        return statistics.median(mine - direct for mine, direct in pairs) if pairs else None

    def ratio(self, row, key, peer, other):
        """The median of what `peer` has over what `other` has in the same round."""
        ratios = [mine / theirs for mine, theirs in self.pairs(row, key, peer, other) if theirs]
        return statistics.median(ratios) if ratios else None


def brief(row, outcome):
    if row.key == "behaviour":
        return " ".join(key for key in BEHAVIOUR if not outcome[key]) or "all as it should be"
    parts = [f"{title} {figure(value(outcome, key) * factor)} {unit}".strip() for key, title, unit, factor, _ in row.values]
    if not parts:
        by_second = outcome["by_second"]
        parts = [f"first 10 s {sum(by_second[:10]) // 10}/s, last 10 s {sum(by_second[-10:]) // 10}/s"]
    return ", ".join(parts + [f"{key} {outcome[key]}" for key in ("broken", "failed", "unanswered") if outcome.get(key)])


def write(results):
    DIRECTORY.mkdir(exist_ok=True)
    host = {
        "date": datetime.date.today().isoformat(),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu_model(),
    }
    stored = {"host": host, "versions": results.versions, "runs": results.runs}
    (DIRECTORY / "compare.json").write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
    path = DIRECTORY / "compare.md"
    path.write_text(markdown(results, host))
    plot.write_all(results, DIRECTORY)
    costs.update(results, judge(results))
    return path


def markdown(results, host):
    versions = ", ".join(f"{PEERS[peer].label} {version}" for peer, version in results.versions.items() if version)
    parts = [f"""# Comparison

Made by `benches/compare` on {host["date"]}: {host["cores"]} cores ({host["cpu"]}) shared by clients, proxy and backends,
Linux {host["kernel"]}, congestion control reno. {versions}. benches/README.md tells what the rows mean.

Each figure is the median of the rounds, with the lowest and the highest behind it. A machine's speed drifts: compare
figures of one row with each other, not with those of another run. CPU is the time of all threads of the proxy.
"""]
    judged = judge(results)
    if judged:
        lines = [f"| {work} | {goal} | {reached} | {'yes' if met else '**no**'} |" for work, goal, reached, met in judged]
        parts.append("## Goals\n\n| work | goal | reached | met |\n|---|---|---|---|\n" + "\n".join(lines) + "\n")
    for row in ROWS.values():
        if row.key in results.runs:
            parts.append(section(results, row))
    if results.runs.get("failures"):
        lines = [f"- {ROWS[row].title}, {PEERS[peer].label}: {why.splitlines()[0]}" for row, peer, why in results.runs["failures"]]
        parts.append("## Runs that failed\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def section(results, row):
    peers = results.peers(row.key)
    head = f"## {row.title}\n\n"
    if row.key == "behaviour":
        lines = ["| | " + " | ".join(PEERS[peer].label for peer in peers) + " |", "|---" * (len(peers) + 1) + "|"]
        for key, title in BEHAVIOUR.items():
            words = ["yes" if results.runs[row.key][peer][-1][key] else "**no**" for peer in peers]
            lines.append(f"| {title} | {' | '.join(words)} |")
        return head + "\n".join(lines) + "\n"
    if row.key == "connections-two-minutes":
        lines = ["| | first 10 s | second minute | last 10 s | failed | CPU µs each |", "|---|---|---|---|---|---|"]
        for peer in peers:
            run = results.runs[row.key][peer][-1]
            by_second = run["by_second"]
            lines.append(f"| {PEERS[peer].label} | {figure(mean(by_second[:10]))} | {figure(mean(by_second[60:]))} | "
                         f"{figure(mean(by_second[-10:]))} | {run['failed']} | {figure(run['cpu_us_each'])} |")
        return head + "Connections a second.\n\n" + "\n".join(lines) + "\n"
    adds = [value for value in row.values if row.key == "rate-10k" and value[0].startswith("latency_us")]
    titles = [f"{title}, {unit}" if unit else title for _, title, unit, _, _ in row.values]
    titles = " | ".join(titles + [f"added {title}, {unit}" for _, title, unit, _, _ in adds])
    lines = [f"| | {titles} | |", "|---" * (len(row.values) + len(adds) + 2) + "|"]
    for peer in peers:
        cells = []
        for key, _, _, factor, _ in row.values:
            values = [value * factor for value in results.values(row.key, peer, key)]
            if not values or peer == "direct" and key in ("cpu_us_each", "cpu_s_per_gb"):
                cells.append("–")
            else:
                spread = f" ({figure(min(values))}–{figure(max(values))})" if len(values) > 1 else ""
                cells.append(figure(statistics.median(values)) + spread)
        cells += ["–" if peer == "direct" else figure(results.added(row.key, peer, key)) for key, *_ in adds]
        remarks = {key: sum(run.get(key, 0) for run in results.runs[row.key][peer]) for key in ("broken", "failed", "unanswered")}
        remark = ", ".join(f"{count} {key}" for key, count in remarks.items() if count)
        lines.append(f"| {PEERS[peer].label} | {' | '.join(cells)} | {remark} |")
    return head + "\n".join(lines) + "\n"


def figure(number):
    """Three digits that matter."""
    if number is None:
        return "–"
    if abs(number) >= 1000:
        return f"{number:,.0f}"
    if abs(number) >= 100:
        return f"{number:.0f}"
    if abs(number) >= 10:
        return f"{number:.1f}"
    if abs(number) >= 1 or number == 0:
        return f"{number:.2f}"
    return f"{number:.3f}"


def mean(values):
    return sum(values) / len(values) if values else 0


def cpu_model():
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
