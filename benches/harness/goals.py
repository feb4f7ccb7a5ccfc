"""What Baton is to reach, each beside the best other proxy of the same run."""

import statistics

from .peers import PEERS
from .rows import PROXIES

OTHERS = ("haproxy", "haproxy-splice", "nginx", "envoy")

# How much worse than the best other proxy a tail may look before it counts: runs of a few seconds differ by as much.
NOISE = 1.05

# Probes every second cost a few times this, in percent of a core.
IDLE_CPU_NOISE = 0.1


def judge(results):
    """(work, goal, reached, met) for each goal whose rows were measured."""
    goals = []

    def ratio(work, row, key, other, bound, mine="baton"):
        reached = results.ratio(row, key, mine, other)
        if reached is not None:
            goals.append((work, f"≤ {bound:.2f} × {other}", f"{reached:.3f}", reached <= bound))

    for connections in (64, 1000):
        for name, size in (("64", "64 B"), ("16k", "16 KiB")):
            row = f"requests-{name}-c{connections}"
            work = f"requests {size}, C={connections}"
            ratio(f"{work}: CPU", row, "cpu_us_each", "haproxy", 0.90)
            tail(results, goals, work, row)
    ratio("connections, C=64: CPU", "connections", "cpu_us_each", "haproxy", 0.88)
    ratio("connections, C=64: CPU", "connections", "cpu_us_each", "nginx", 0.95)
    ratio("connections that may be offloaded, C=64: CPU", "connections", "cpu_us_each", "haproxy", 0.88, "baton-default")
    for way in ("up", "down"):
        for flows in (1, 8):
            row, work = f"bulk-{way}-{flows}", f"bulk {way}, {flows} flow{'s' if flows > 1 else ''}"
            ratio(f"{work}: CPU per GB", row, "cpu_s_per_gb", "haproxy-splice", 0.50)
            speed = results.ratio(row, "gbit_per_second", "baton", "direct")
            if speed is not None:
                goals.append((f"{work}: throughput", "≥ 0.93 × direct", f"{speed:.2f}", speed >= 0.93))
    for how in ("fin", "rst"):
        death(results, goals, f"death-{how}", how.upper())
    table(results, goals)
    idle(results, goals)
    two_minutes(results, goals)
    path(results, goals)
    return goals


def path(results, goals):
    """Offloaded flows beside the kernel's own DNAT and the best proxy, Baton as a proxy among them."""
    def beside(work, row, key, other, bound):
        reached = results.ratio(row, key, "baton-offloaded", other)
        if reached is not None:
            goals.append((work, f"≤ {bound:.2f} × {PEERS[other].label}", f"{reached:.3f}", reached <= bound))

    row = "offloaded-requests-64-c64"
    beside("offloaded, requests 64 B, C=64: CPU of everything", row, "machine_us_each", "dnat", 1.05)
    ratios = {other: results.ratio(row, "machine_us_each", "baton-offloaded", other) for other in PROXIES}
    ratios = {other: ratio for other, ratio in ratios.items() if ratio is not None}
    if ratios:
        best = max(ratios, key=ratios.get)
        goals.append(("offloaded, requests 64 B, C=64: CPU of everything", f"≤ 0.62 × the best proxy ({PEERS[best].label})",
                      f"{ratios[best]:.3f}", ratios[best] <= 0.62))
    for way in ("up", "down"):
        beside(f"offloaded, bulk {way}, 8 flows: CPU of everything", f"offloaded-bulk-{way}-8", "machine_s_per_gb", "dnat", 1.05)
    beside("offloaded, 20,000 requests a second: p99", "offloaded-rate-20k", "p99_us_of_seconds", "dnat", 1.20)


def tail(results, goals, work, row):
    beside_best(results, goals, f"{work}: p99", row, "latency_us.p99")


def beside_best(results, goals, work, row, key):
    """The best other is the one that Baton does worst beside, by the median of ratios within a round."""
    ratios = {other: results.ratio(row, key, "baton", other) for other in OTHERS}
    ratios = {other: ratio for other, ratio in ratios.items() if ratio is not None}
    if ratios:
        best = max(ratios, key=ratios.get)
        goals.append((work, f"≤ {NOISE:.2f} × the best ({best})", f"{ratios[best]:.2f}", ratios[best] <= NOISE))


def death(results, goals, row, how):
    last_ms = results.median(row, "baton", "last_told_ms")
    if last_ms is None:
        return
    work = f"9,500 flows ending at once, {how}"
    goals.append((f"{work}: last client told", "≤ 300 ms", f"{last_ms:.0f} ms", last_ms <= 300))
    beside_best(results, goals, f"{work}: other flows' p99", row, "p99_meanwhile_us")


def table(results, goals):
    each_ns = results.median("table", "baton", "insert_and_remove_ns")
    if each_ns is None:
        return
    goals.append(("table, 1,000,000 entries: insert and remove", "≤ 0.6 µs", f"{each_ns / 1000:.2f} µs", each_ns <= 600))
    slowest_ns = max(results.values("table", "baton", "delay_slowest_ns"))
    goals.append(("table, listed all the while: longest delay of an accept", "≤ 50 µs", f"{slowest_ns / 1000:.1f} µs",
                  slowest_ns <= 50_000))


def idle(results, goals):
    memory = results.median("idle", "baton", "rss_per_flow_bytes")
    if memory is not None:
        goals.append(("idle flow: resident memory", "≤ 1024 B", f"{memory:.0f} B", memory <= 1024))
    pairs = zip(results.values("idle", "baton", "cpu_percent"), results.values("idle", "baton", "cpu_without_percent"))
    added = [with_flows - without for with_flows, without in pairs]
    if added:
        added = statistics.median(added)
        goals.append(("9,500 idle flows: CPU beyond that of none", "0", f"{added:.2f} % of a core", added <= IDLE_CPU_NOISE))


def two_minutes(results, goals):
    runs = results.runs.get("connections-two-minutes", {})
    if not runs.get("baton"):
        return
    mine = runs["baton"][-1]["by_second"]
    kept = average(mine[-30:]) / max(average(mine[:30]), 1)
    goals.append(("connections, two minutes", "no decline", f"last 30 s at {kept:.2f} of the first", kept >= 0.9))
    if runs.get("haproxy"):
        theirs = average(runs["haproxy"][-1]["by_second"][60:])
        factor = average(mine[60:]) / max(theirs, 1)
        goals.append(("connections, second minute", "≥ 10 × haproxy", f"{factor:.1f} ×", factor >= 10))


def average(values):
    return sum(values) / len(values) if values else 0
