"""As many connections as the machine makes, one in ten of them malformed: the others are served, and nothing is left behind."""

import json
import os
import pathlib
import subprocess
import time

from .peers import Default
from .report import DIRECTORY
from .stage import BATON, Failed, Stage

MALFORMED = 10
# A malformed one in seven waits for the whole of `proxy_header_timeout`; the others must not wait for them.
CONNECTIONS = 1024
# The first storm grows buffers and tables to what a storm needs.
WARM_S = 10
# For what a malformed connection may hold: the header's time, and the reset after it.
CALM_S = 30
# Buffers keep the room of the moment at which most waited, which differs from storm to storm. At 10,000 connections a second, 28 bytes that each
# of them leaves behind are more.
GROWTH_MAX_MB = 16
# Probes come and go: one for each of three backends may be under way.
PROBES = 3


class Trusting(Default):
    """The clients' host is a load balancer: each connection of it begins with a PROXY header."""

    def config(self, stage):
        balance = 'balance = "least_conn"'
        return super().config(stage).replace(balance, f'{balance}\naccept_proxy_from = ["10.77.0.2/32"]')


def storm(arguments):
    with Stage(3) as stage:
        stage.serve()
        baton = Trusting().start(stage)
        run = Storm(stage, baton)
        run.await_answers()
        run.connect(WARM_S)
        before = run.rest()
        report = run.connect(round(arguments.minutes * 60))
        after = run.rest()
    checks = judge(report, before, after)
    for what, reached, kept in checks:
        print(f"{what}: {reached}: {'ok' if kept else 'TOO MUCH'}")
    if not arguments.no_write:
        write(report, checks)
    return int(not all(kept for _, _, kept in checks))


class Storm:
    def __init__(self, stage, baton):
        self.stage, self.baton = stage, baton

    def connect(self, seconds):
        """The storm, and what its clients say."""
        return self.stage.load("connect", "--target", self.stage.vip, "--connections", CONNECTIONS, "--seconds", seconds,
                               "--header", "--malformed", MALFORMED, "--pids", self.baton.pid, within_s=seconds + 60)

    def await_answers(self):
        for _ in range(50):
            try:
                if self.connect(0.1)["connections"]:
                    return
            except Failed:
                pass
            time.sleep(0.1)
        raise Failed(f"no answers\n{self.stage.logs()}")

    def rest(self):
        """What Baton holds once it has no flow."""
        for _ in range(CALM_S * 5):
            time.sleep(0.2)
            held = self.held()
            if not held["flows"]:
                # Sockets of ended flows wait for the last acknowledgement.
                time.sleep(2)
                return self.held()
        raise Failed(f"{held['flows']} flows are left after {CALM_S} s")

    def held(self):
        if self.baton.poll() is not None:
            raise Failed(f"Baton ended\n{self.stage.logs()}")
        proc = pathlib.Path(f"/proc/{self.baton.pid}")
        fields = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        status = subprocess.run([BATON, "status", "--json", "--socket", self.stage.directory / "admin.sock"],
                                capture_output=True, text=True, timeout=10, check=True)
        return {"flows": sum(json.loads(status.stdout)["totals"]["flows"].values()),
                "descriptors": len(os.listdir(proc / "fd")), "threads": int(fields["Threads"]),
                "rss_mb": int(fields["VmRSS"].split()[0]) / 1024}


def judge(report, before, after):
    """Each with what was reached, and whether that is enough."""
    more = {key: after[key] - before[key] for key in before}
    return (
        ("clients that were not served", report["failed"], report["failed"] == 0),
        ("flows left", after["flows"], after["flows"] == 0),
        ("descriptors more than before", more["descriptors"], more["descriptors"] <= PROBES),
        ("threads more than before", more["threads"], more["threads"] <= 0),
        ("MB more than before", round(more["rss_mb"], 2), more["rss_mb"] <= GROWTH_MAX_MB),
    )


def write(report, checks):
    DIRECTORY.mkdir(exist_ok=True)
    served, malformed = report["connections"], report["malformed"]
    seconds = served / report["per_second"]
    rows = "".join(f"| {what} | {reached} |\n" for what, reached, _ in checks)
    (DIRECTORY / "soak-storm.md").write_text(f"""# A storm of connections

`benches/soak --storm`: {CONNECTIONS} clients connect again and again for {seconds:.0f} s, each behind a PROXY header; one connection in {MALFORMED} is malformed, in seven ways by turns: reset or
closed at once, garbage, a header that ends too early, is too long or claims an impossible length, and a reset after a good header.

{served + malformed:,} connections, {(served + malformed) / seconds:,.0f} a second, {malformed:,} of them malformed. Connect, 64 bytes and 64 bytes back took the others
{report["latency_us"]["p50"] / 1000:.1f} ms in the median and {report["latency_us"]["p99"] / 1000:.1f} ms in p99.

| | |
|---|---:|
{rows}""")
