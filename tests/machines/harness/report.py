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


def former(page):
    """Rows of the page by name, as they stand there, and the kernels and days that its head names."""
    head, *lines = [line for line in page.split(BEGIN)[1].split(END)[0].splitlines() if line]
    rows = {match[1]: line for line in lines if (match := re.match(r"\| (\d\S*/\S+) \|", line))}
    return rows, set(re.findall(r"\d\S*-amd64", head)), set(re.findall(r"\d{4}-\d\d-\d\d", head))


def write(names):
    """Puts the last result of each row into the page. A row that has not run on this machine stays as it is there."""
    kept, page = stage.load(), PAGE.read_text()
    rows, kernels, dates = former(page)
    for result in kept.values():
        rows[result.name] = "| " + " | ".join(cell.replace("|", "/") for cell in cells(result)).replace("\n", " ") + " |"
        kernels |= {result.kernel} if re.match(r"\d", result.kernel) else set()
        dates.add(result.date)
    lines = [f"| row | {' | '.join(COLUMNS)} | result |", "|---" * (len(COLUMNS) + 2) + "|"]
    lines += [rows[name] for name in names if name in rows]
    days = sorted(dates)
    head = f"Kernels: {', '.join(sorted(kernels))}. QEMU {stage.version()}. Run on {days[0]}{' to ' + days[-1] if days[0] != days[-1] else ''}."
    passed = [name for name in names if name in rows and rows[name].endswith("| passed |")]
    tail = remaining([name for name in names if name not in rows], passed)
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{head}\n\n" + "\n".join(lines) + f"{tail}\n{END}{rest.split(END)[1]}")
