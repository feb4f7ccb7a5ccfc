"""The plots of the comparison."""

import math

from .peers import PEERS
from .rows import ROWS
from .svg import Drawing

OTHERS = ("haproxy", "haproxy-splice", "nginx", "envoy")

# (colour, mark)
LOOKS = {
    "haproxy": ("#d9822b", "square"),
    "haproxy-splice": ("#d9822b", "ring"),
    "nginx": ("#3f9a5f", "triangle"),
    "envoy": ("#a46bd0", "diamond"),
    "baton": ("#2f81f7", "circle"),
}

RIGHT, STEP = 30, 25
# At most, of a letter of the rows' names.
LETTER = 6.8


def write_all(results, directory):
    cost = [(row.title, row.key, row.values[0][0]) for row in ROWS.values()
            if row.values and row.values[0][0] in ("cpu_us_each", "cpu_s_per_gb", "rss_per_flow_bytes")]
    tail = [(row.title, row.key, "latency_us.p99") for row in ROWS.values()
            if any(key == "latency_us.p99" for key, *_ in row.values)]
    ratios(results, cost, "What a unit of work costs: CPU time, and memory for idle flows", directory / "cost.svg")
    ratios(results, tail, "99th percentile of latency", directory / "latency.svg")
    two_minutes(results, directory / "two-minutes.svg")


def ratios(results, lines, title, path):
    """A line for each row; marks stand at what a proxy has over the best of the others."""
    table = []
    for name, row, key in lines:
        values = {peer: results.median(row, peer, key) for peer in LOOKS}
        values = {peer: value for peer, value in values.items() if value}
        others = [value for peer, value in values.items() if peer in OTHERS]
        if others and "baton" in values:
            table.append((name, {peer: value / min(others) for peer, value in values.items()}))
    if not table:
        return
    ends = [ratio for _, ratios in table for ratio in ratios.values()]
    low, high = math.log(min(*ends, 0.9) * 0.93), math.log(max(*ends, 1.1) * 1.07)
    width, top = 860, 66
    left = 24 + LETTER * max(len(name) for name, _ in table)
    bottom = top + STEP * len(table)
    drawing = Drawing(width, bottom + 40, title)

    def place(ratio):
        return left + (math.log(ratio) - low) / (high - low) * (width - left - RIGHT)

    drawing.text(12, 22, title, style="title")
    legend(drawing, 12, 44, [peer for peer in LOOKS if any(peer in ratios for _, ratios in table)])
    for tick in (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100):
        if low <= math.log(tick) <= high:
            drawing.line(place(tick), top - 6, place(tick), bottom, "axis" if tick == 1 else "grid")
            drawing.text(place(tick), bottom + 14, f"{tick:g}×", "middle", "small")
    drawing.text(width - RIGHT, bottom + 32, "of the best other proxy in that row; left is better", "end", "small")
    for index, (name, ratios_of_row) in enumerate(table):
        y = top + STEP * (index + 0.5)
        drawing.text(left - 12, y + 4, name, "end")
        for peer in [*(peer for peer in ratios_of_row if peer != "baton"), "baton"]:
            drawing.mark(place(ratios_of_row[peer]), y, *LOOKS[peer])
    drawing.save(path)


def two_minutes(results, path):
    """Connections a second over two minutes."""
    runs = results.runs.get("connections-two-minutes", {})
    series = {peer: runs[peer][-1]["by_second"] for peer in LOOKS if runs.get(peer)}
    if not series:
        return
    curves(path, "New connections a second between namespaces, default sysctls",
           {PEERS[peer].label: (LOOKS[peer][0], values) for peer, values in series.items()}, "s", 860)


def curves(path, title, series, unit, width):
    """Lines over time, one value a second; `series` maps a label to (colour, values)."""
    drawing = Drawing(width, 300, title)
    drawing.text(12, 22, title, style="title")
    x = 12
    for label, (colour, _) in series.items():
        drawing.curve([(x, 40), (x + 18, 40)], colour, 2.5)
        drawing.text(x + 24, 44, label, style="strong" if label == "Baton" else "")
        x += 44 + 7 * len(label)
    panel(drawing, 66, 200, [(colour, values, label == "Baton") for label, (colour, values) in series.items()], unit)
    drawing.save(path)


def panel(drawing, top, height, series, unit, marks=()):
    """Axes from zero with curves of (colour, values, thick), one value a second, and marks at some seconds."""
    left, bottom = 64, top + height
    longest = max(len(values) for _, values, _ in series)
    most = max(max(values) for _, values, _ in series)
    step = nice(most / 4)
    highest = step * max(math.ceil(most / step), 1)

    def across(second):
        return left + second / max(longest - 1, 1) * (drawing.width - left - RIGHT)

    def up(value):
        return bottom - value / highest * height

    for tick in range(round(highest / step) + 1):
        drawing.line(left, up(tick * step), drawing.width - RIGHT, up(tick * step), "axis" if tick == 0 else "grid")
        drawing.text(left - 8, up(tick * step) + 4, f"{tick * step:,.10g}", "end", "small")
    every = max(nice(longest / 10), 1)
    for tick in range(int((longest - 1) // every) + 1):
        drawing.text(across(tick * every), bottom + 16, f"{tick * every:g} {unit}", "middle", "small")
    for second, colour in marks:
        drawing.curve([(across(second), bottom), (across(second), bottom - 6)], colour, 2)
    for colour, values, thick in series:
        drawing.curve([(across(second), up(value)) for second, value in enumerate(values)], colour, 2 if thick else 1.5)


def legend(drawing, x, y, peers):
    for peer in peers:
        label = PEERS[peer].label
        drawing.mark(x + 5, y - 4, *LOOKS[peer])
        drawing.text(x + 16, y, label, style="strong" if peer == "baton" else "")
        x += 38 + 7 * len(label)


def nice(rough):
    """1, 2 or 5 times a power of ten, near `rough`."""
    if rough <= 0:
        return 1
    power = 10 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if rough <= factor * power)
