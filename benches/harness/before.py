"""Baton beside another build or another setting of it: what a change did, as ratios within each round."""

import statistics

from .peers import PEERS
from .rows import measure, value


def run(rows, other, rounds, seconds):
    pair = (other, PEERS["baton"])
    runs = {}
    for number in range(rounds):
        for row in rows:
            # Who goes first changes: a machine that slows down within a round would favour one of them.
            for peer in pair if number % 2 else reversed(pair):
                runs.setdefault((row.key, peer.key), []).append(measure(row, peer, seconds))
    for row in rows:
        for key, title, unit, factor, _ in row.values:
            old, new = ([value(report, key) * factor for report in runs[row.key, peer.key]] for peer in pair)
            ratios = sorted(mine / theirs for mine, theirs in zip(new, old) if theirs)
            if ratios:
                print(f"{row.key:24} {title:20} {statistics.median(old):10.2f} -> {statistics.median(new):10.2f} {unit:8}"
                      f" x{statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f})", flush=True)
    return 0
