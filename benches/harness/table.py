"""Figures of the flow table at a million flows, from its Criterion bench."""

import json
import re
import subprocess

from .stage import ROOT, TARGET, Failed

COMMAND = ("cargo", "bench", "--bench", "table")
SIZE = 1_000_000
LINE = re.compile(rf"{SIZE} live, listing all the while: p50 \d+ ns, p99\.99 (\d+) ns, slowest (\d+) ns of (\d+)")


def measure():
    """One run of the bench, as a report."""
    done = subprocess.run([*COMMAND, "--", "insert_and_remove"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(COMMAND)}: {done.stderr.strip()[-500:]}")
    estimates = TARGET / "criterion" / "insert_and_remove" / str(SIZE) / "new" / "estimates.json"
    each = json.loads(estimates.read_text())["mean"]["point_estimate"]
    told = LINE.search(done.stdout)
    if not told:
        raise Failed(f"{' '.join(COMMAND)} said nothing of {SIZE} flows")
    p9999, slowest, count = map(int, told.groups())
    return {"insert_and_remove_ns": each, "delay_p9999_ns": p9999, "delay_slowest_ns": slowest, "delays": count}
