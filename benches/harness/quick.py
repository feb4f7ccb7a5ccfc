"""The short form for CI: Baton's CPU beside haproxy's, with generous bounds, in about a minute."""

import statistics
from dataclasses import dataclass

from .peers import PEERS
from .rows import ROWS, measure, value
from .stage import Failed


@dataclass(frozen=True)
class Bound:
    row: str
    key: str
    # What Baton may have of haproxy's. A machine under CI is noisy: these find a blunder, not a percent.
    most: float


BOUNDS = (
    Bound("requests-64-c64", "cpu_us_each", 1.20),
    Bound("connections", "cpu_us_each", 1.25),
    Bound("bulk-down-8", "cpu_s_per_gb", 0.40),
)
PAIRS = 3
SECONDS = 1.5


def run():
    """0 if every bound is kept, else 1. Who exceeds one is measured once more, since a neighbour may have been loud."""
    ratios = {bound: [] for bound in BOUNDS}
    for number in range(PAIRS):
        for bound in BOUNDS:
            ratios[bound].append(pair(bound, number))
    return int(not all([judge(bound, ratios[bound]) for bound in BOUNDS]))


def cannot_run():
    """Why there is nothing to compare with, or nothing."""
    try:
        PEERS["haproxy"].install()
    except Failed as failure:
        return str(failure)
    return ""


def pair(bound, number):
    """What Baton has of haproxy's, one after the other; every second time the other way round."""
    used = {}
    for peer in ("haproxy", "baton") if number % 2 else ("baton", "haproxy"):
        used[peer] = value(measure(ROWS[bound.row], PEERS[peer], SECONDS), bound.key)
    return used["baton"] / used["haproxy"]


def judge(bound, ratios):
    title = f"{ROWS[bound.row].title}: CPU"
    kept = tell(title, bound, ratios)
    if kept:
        return True
    return tell(f"{title}, once more", bound, [pair(bound, number) for number in range(PAIRS)])


def tell(title, bound, ratios):
    ratio = statistics.median(ratios)
    kept = ratio <= bound.most
    print(f"{title} {ratio:.2f} of haproxy's ({min(ratios):.2f}-{max(ratios):.2f}), at most {bound.most:.2f}: "
          f"{'ok' if kept else 'TOO MUCH'}", flush=True)
    return kept
