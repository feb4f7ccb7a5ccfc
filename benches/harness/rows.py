"""The rows of the comparison: what is measured, for how long, and what counts."""

import statistics
import time
from dataclasses import dataclass

from . import noise, table
from .peers import family
from .stage import Failed, Stage


@dataclass(frozen=True)
class Row:
    key: str
    title: str
    # Arguments of the load generator, without what every row has.
    load: tuple
    seconds: float = 3.0
    warmup: float = 0.7
    # Values shown: (key in the report, title, unit, factor, which is better).
    values: tuple = ()
    hosts: int = 1
    without: tuple = ()
    # Who runs it, if not everybody that a connection to this host can be measured with.
    only: tuple = ()
    # Who runs it besides those that run all rows.
    also: tuple = ()
    # Rounds at most; the report says how many there were.
    rounds_max: int = 99
    # Has a second frontend, whose backend is a process of its own.
    mortal: bool = False
    # Clients, proxy and backends have real-time priority.
    realtime: bool = False

    def has(self, peer):
        if peer in self.also:
            return True
        return peer in self.only if self.only else peer not in self.without and peer not in APART


# The first three are measured from namespace to namespace, by what everything together uses. Flows that last leave the process of
# the fourth.
APART = ("routed", "dnat", "baton-offloaded", "baton-default")
BETWEEN_HOSTS = ("routed", "dnat", "haproxy", "haproxy-splice", "nginx", "baton", "baton-offloaded")
PROXIES = ("haproxy", "haproxy-splice", "nginx", "baton")

CPU_REQUEST = ("cpu_us_each", "CPU per request", "µs", 1, "lower")
P50 = ("latency_us.p50", "p50", "µs", 1, "lower")
P99 = ("latency_us.p99", "p99", "µs", 1, "lower")
# Where the host of a virtual machine stops it for some 50 ms, one such pause decides the p99 of seconds.
P99_OF_SECONDS = ("p99_us_of_seconds", "median of the seconds' p99", "µs", 1, "lower")
PER_SECOND = ("per_second", "a second", "", 1, "higher")
BULK = (
    ("cpu_s_per_gb", "CPU per GB", "s", 1, "lower"),
    ("gbit_per_second", "throughput", "Gbit/s", 1, "higher"),
)


def _requests(name, size, connections):
    return Row(
        f"requests-{name}-c{connections}", f"Requests, {size}, C={connections}",
        ("requests", "--connections", connections, "--bytes", 64 if name == "64" else 16384),
        values=(CPU_REQUEST, PER_SECOND, P50, P99),
    )


def _bulk(way, flows):
    plural = "s" if flows > 1 else ""
    return Row(f"bulk-{way}-{flows}", f"Bulk {way}, {flows} flow{plural}",
               ("bulk", "--direction", way, "--flows", flows), values=BULK)


def _between_hosts(name, title, load, *values, realtime=False):
    # The time before the window is for offload, too.
    return Row(f"offloaded-{name}", f"Between namespaces: {title}", load, hosts=3, only=BETWEEN_HOSTS, warmup=1.0, values=values,
               realtime=realtime)


MACHINE_REQUEST = ("machine_us_each", "CPU of everything per request", "µs", 1, "lower")
MACHINE_GB = ("machine_s_per_gb", "CPU of everything per GB", "s", 1, "lower")


def _death(name, title, arguments):
    return Row(f"death-{name}", title, ("death", "--flows", 9500, *arguments), seconds=0, warmup=0, mortal=True,
               without=("haproxy-splice",), values=(
                   ("last_told_ms", "last client told", "ms", 1, "lower"),
                   ("half_told_ms", "half of them told", "ms", 1, "lower"),
                   ("p99_meanwhile_us", "other flows' p99 in that second", "ms", 1e-3, "lower"),
                   ("p99_before_us", "in the second before", "ms", 1e-3, "lower"),
                   ("resets", "told by RST", "", 1, "higher")))


ROWS = {row.key: row for row in (
    *(_requests(name, size, c) for name, size in (("64", "64 B"), ("16k", "16 KiB")) for c in (1, 64, 1000)),
    Row("rate-10k", "10,000 requests a second, 64 B, C=64",
        ("requests", "--connections", 64, "--rate", 10000), values=(CPU_REQUEST, P50, P99)),
    Row("connections", "Connections, C=64", ("connect", "--connections", 64), also=("baton-default",),
        values=(("cpu_us_each", "CPU per connection", "µs", 1, "lower"), PER_SECOND, P50, P99)),
    *(_bulk(way, flows) for way in ("up", "down") for flows in (1, 8)),
    Row("idle", "9,500 idle flows", ("idle", "--flows", 9500), seconds=3, warmup=0, rounds_max=2, without=("direct", "haproxy-splice"),
        values=(("rss_per_flow_bytes", "resident memory per flow", "B", 1, "lower"),
                ("cpu_percent", "CPU meanwhile", "% of a core", 1, "lower"),
                ("cpu_without_percent", "CPU without flows", "% of a core", 1, "lower"))),
    Row("stall", "A stalled reader", ("stall",), seconds=4, warmup=0, rounds_max=1, without=("direct",),
        values=(("taken_bytes", "bytes taken from the backend", "MB", 1e-6, "lower"),
                ("rss_grown_bytes", "memory grown", "MB", 1e-6, "lower"))),
    _death("fin", "Death of a backend with 9,500 flows, FIN", ()),
    _death("rst", "Death of a backend with 9,500 flows, RST", ("--unread",)),
    Row("table", "Flow table, 1,000,000 entries", ("table",), without=("direct", "haproxy", "haproxy-splice", "nginx", "envoy"),
        values=(("insert_and_remove_ns", "insert and remove", "µs", 1e-3, "lower"),
                ("delay_p9999_ns", "the same while the table is listed, p99.99", "µs", 1e-3, "lower"),
                ("delay_slowest_ns", "slowest", "µs", 1e-3, "lower"))),
    Row("behaviour", "Behaviour", ("behave",), seconds=20, warmup=0, rounds_max=1, without=("direct",)),
    _between_hosts("requests-64-c64", "requests, 64 B, C=64", ("requests", "--connections", 64), MACHINE_REQUEST, PER_SECOND, P50, P99),
    # Else its tail is that of time slices: on two cores clients and backends wait for each other for milliseconds.
    _between_hosts("rate-20k", "20,000 requests a second, 64 B, C=64", ("requests", "--connections", 64, "--rate", 20000, "--threads", 1),
          MACHINE_REQUEST, P50, P99, P99_OF_SECONDS, realtime=True),
    *(_between_hosts(f"bulk-{way}-8", f"bulk {way}, 8 flows", ("bulk", "--direction", way, "--flows", 8, "--settle", 0.8), MACHINE_GB, BULK[1])
      for way in ("up", "down")),
    Row("connections-two-minutes", "Connections between namespaces, two minutes", ("connect", "--connections", 64),
        seconds=120, hosts=3, rounds_max=1, without=("direct", "haproxy-splice")),
)}

BEHAVIOUR = {
    "client_half_close": "client sends FIN, the answer still comes",
    "backend_half_close": "backend sends FIN, the client's bytes still arrive",
    "client_rst": "client's RST reaches the backend as RST",
    "backend_rst": "backend's RST reaches the client as RST",
    "content_up": "256 MB up arrive as they were",
    "content_down": "256 MB down arrive as they were",
}


def measure(row, peer, seconds=None, calm=False):
    """One measurement in namespaces of its own, with everything started anew. With `calm`, it waits for others to leave
    the machine alone, and is made again if they did not; the best of a few tries counts then."""
    best = None
    for _ in range(noise.TRIES if calm else 1):
        if calm:
            noise.await_calm()
        report = measure_once(row, peer, seconds or row.seconds)
        if best is None or report["others"] < best["others"]:
            best = report
        if best["others"] <= noise.TOLERATED or row.seconds > 60:
            break
    return best


def measure_once(row, peer, seconds):
    if row.key == "table":
        watch = noise.Watch()
        return table.measure() | {"others": watch.others(), "at": round(time.time())}
    # Before anything of this run is there: what the machine does anyway is not the run's.
    idle = noise.share_at_rest() if row.key.startswith("offloaded-") else 0
    if idle > noise.TOLERATED / 2:
        raise Failed(f"others use {idle:.0%} of the machine, whose CPU is what is measured")
    with Stage(row.hosts, row.mortal, row.realtime) as stage:
        last_server = stage.serve()
        process = peer.start(stage)
        targets = [peer.target(stage, number) for number in range(len(stage.frontends))]
        for target in targets:
            stage.await_answers(target)
        arguments = [*row.load, "--target", targets[-1]]
        match row.load[0]:
            case "behave":
                arguments += ["--witness", stage.backends[0]]
            case "stall":
                arguments += ["--witness", stage.backends[0], "--seconds", seconds]
            case "death":
                arguments += ["--others", targets[0], "--victim", last_server.pid]
            case _:
                arguments += ["--seconds", seconds, "--warmup", row.warmup]
        pids = family(process)
        if pids and row.load[0] != "behave":
            arguments += ["--pids", ",".join(map(str, pids))]
        watch = noise.Watch([pid for started in stage.processes for pid in family(started)])
        report = stage.load(*arguments, within_s=seconds + 40)
        others = watch.others()
        if row.key.startswith("offloaded-"):
            add_machine(report, idle, seconds)
        if report.get("p99_us_by_second"):
            report["p99_us_of_seconds"] = statistics.median(report["p99_us_by_second"])
        peer.check(stage, report)
        return report | {"others": others, "at": round(time.time())}


def add_machine(report, idle, seconds):
    """What all processes and all interrupts used for each unit of work, beyond what the machine does anyway."""
    used_ns = report["machine_ns"] - idle * noise.CORES * seconds * 1e9
    report["idle_share"] = round(idle, 4)
    if "requests" in report:
        report["machine_us_each"] = used_ns / 1e3 / max(report["units"], 1)
    else:
        report["machine_s_per_gb"] = used_ns / max(report["bytes"], 1)


def value(report, key):
    """`a.b` of a report, or None."""
    for part in key.split("."):
        report = (report or {}).get(part)
    return report
