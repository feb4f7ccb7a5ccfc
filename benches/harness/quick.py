"""The short form for CI: Baton's CPU beside haproxy's, with generous bounds, in about a minute."""

import statistics

from .peers import PEERS
from .rows import ROWS, measure, value

# (row, value, what Baton may have of haproxy's at most). A machine under CI is noisy: these find a blunder, not a percent.
BOUNDS = (
    ("requests-64-c64", "cpu_us_each", 1.10),
    ("connections", "cpu_us_each", 1.10),
    ("bulk-down-8", "cpu_s_per_gb", 0.60),
)
ROUNDS = 3
SECONDS = 2


def run():
    """0 if every bound is kept, else 1."""
    PEERS["haproxy"].install()
    runs = {}
    for _ in range(ROUNDS):
        for row, key, _ in BOUNDS:
            for peer in ("haproxy", "baton"):
                report = measure(ROWS[row], PEERS[peer], SECONDS)
                runs.setdefault((row, peer), []).append(value(report, key))
    worst = 0
    for row, key, bound in BOUNDS:
        pairs = zip(runs[row, "baton"], runs[row, "haproxy"])
        ratio = statistics.median(mine / theirs for mine, theirs in pairs)
        kept = ratio <= bound
        worst |= not kept
        print(f"{ROWS[row].title}: CPU {ratio:.2f} of haproxy's, at most {bound:.2f}: {'ok' if kept else 'TOO MUCH'}")
    return int(worst)
