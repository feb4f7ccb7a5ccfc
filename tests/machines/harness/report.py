"""The table, for the terminal and for the page."""

import re

from harness import stage
from harness.kernels import ROOT
from harness.rows import COLUMNS

PAGE = ROOT / "docs/kernels-and-cards.md"
BEGIN, END = "<!-- written by tests/machines/run -->", "<!-- end -->"
NONE = "–"


def line(result):
    said = "; ".join(f"{column}: {cell}" for column, cell in result.cells.items())
    return f"{result.name} ({result.seconds:.0f} s): {said or NONE}: {result.outcome}"


def cells(result):
    return [result.name, *(result.cells.get(column, NONE) for column in COLUMNS), in_short(result.outcome)]


def in_short(outcome):
    """One line: of what a command said, the last."""
    kind, _, sentence = outcome.partition(": ")
    return f"{kind}: {sentence.splitlines()[-1]}" if sentence else kind


def table(results):
    rows = [["row", *COLUMNS, "result"], *map(cells, results)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def remaining(missing, passed):
    """What is to be said of the rows that have not run."""
    parts = lambda name: set(enumerate(name.split("/")))
    shown = set().union(*map(parts, passed))
    known = [name for name in missing if parts(name) <= shown]
    unknown = sorted({part for name in missing for place, part in parts(name) - shown})
    tail = ""
    if known:
        tail += f"\n\n{len(known)} of the rows that `tests/machines/run --list` prints have not run, because all take more than an hour. The kernel, the card and the layout of "
        tail += "each have passed in other rows."
    if unknown:
        tail += f"\n\n{len(missing) - len(known)} more have not run, and have a part that no row has shown to be right: {', '.join(unknown)}."
    return tail


def write(names):
    """Puts the last result of each row into the page."""
    kept = stage.load()
    lines = [f"| row | {' | '.join(COLUMNS)} | result |", "|---" * (len(COLUMNS) + 2) + "|"]
    results = [kept[name] for name in names if name in kept]
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in cells(result)).replace("\n", " ") + " |" for result in results]
    kernels = ", ".join(sorted({result.kernel for result in results if re.match(r"\d", result.kernel)}))
    dates = sorted({result.date for result in results})
    head = f"Kernels: {kernels}. QEMU {stage.version()}. Run on {dates[0]}{' to ' + dates[-1] if dates[0] != dates[-1] else ''}."
    tail = remaining([name for name in names if name not in kept], [result.name for result in results if result.outcome == "passed"])
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{head}\n\n" + "\n".join(lines) + f"{tail}\n{END}{rest.split(END)[1]}")
