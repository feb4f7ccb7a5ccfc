"""The figures that docs/costs.md shows, between two marks in it."""

from .peers import PEERS
from .stage import ROOT

PAGE = ROOT / "docs" / "costs.md"
BEGIN, END = "<!-- figures of benches/compare -->\n", "<!-- end of figures -->\n"

# (what, row, value)
LINES = (
    ("CPU of a request, 64 B, 64 connections", "requests-64-c64", "cpu_us_each"),
    ("CPU of a request, 64 B, 1000 connections", "requests-64-c1000", "cpu_us_each"),
    ("CPU of a request, 16 KiB, 64 connections", "requests-16k-c64", "cpu_us_each"),
    ("CPU of a request, 16 KiB, 1000 connections", "requests-16k-c1000", "cpu_us_each"),
    ("CPU of a short connection", "connections", "cpu_us_each"),
    ("CPU of a GB up, 8 flows", "bulk-up-8", "cpu_s_per_gb"),
    ("CPU of a GB down, 8 flows", "bulk-down-8", "cpu_s_per_gb"),
    ("Memory of an idle flow", "idle", "rss_per_flow_bytes"),
    ("Latency of requests, 64 B, 64 connections, p99", "requests-64-c64", "latency_us.p99"),
    ("Latency of requests, 64 B, 1000 connections, p99", "requests-64-c1000", "latency_us.p99"),
    ("A backend with 9,500 flows dies: until the last client knows", "death-rst", "last_told_ms"),
    ("... and p99 of other flows in that second", "death-rst", "p99_meanwhile_us"),
)
OTHERS = ("haproxy", "haproxy-splice", "nginx", "envoy")

# Of offloaded flows, with the CPU of everything on the machine: their packets are passed on in interrupts.
OFFLOADED_LINES = (
    ("CPU of a request, 64 B, 64 connections", "offloaded-requests-64-c64", "machine_us_each"),
    ("CPU of a GB up, 8 flows", "offloaded-bulk-up-8", "machine_s_per_gb"),
    ("CPU of a GB down, 8 flows", "offloaded-bulk-down-8", "machine_s_per_gb"),
    ("Latency at 20,000 requests a second, p99", "offloaded-rate-20k", "p99_us_of_seconds"),
)
OFFLOADED_OTHERS = ("dnat", "haproxy-splice", "nginx", "baton")

BETWEEN = """
Flows that have been [offloaded](offload.md), between three network namespaces, beside the same proxies, Baton without offload, and DNAT
by the kernel, which tracks connections and checks no backend. CPU is that of everything on the machine, clients and backends too:

"""


def update(results, judged):
    """Writes the table anew, if the page has its marks."""
    proxied = table(results, "baton", OTHERS, LINES)
    offloaded = table(results, "baton-offloaded", OFFLOADED_OTHERS, OFFLOADED_LINES)
    replace_between(PAGE, BEGIN, END, proxied + BETWEEN + offloaded + met(judged))


def replace_between(path, begin, end, words):
    """Puts `words` between two marks of a file, if it has them."""
    text = path.read_text()
    if begin in text and end in text:
        before, rest = text.split(begin, 1)
        path.write_text(before + begin + words + end + rest.split(end, 1)[1])


def table(results, peer, others, rows):
    heads = " | ".join(PEERS[other].label for other in others)
    lines = [f"| cost of {PEERS[peer].label}, divided by that of | {heads} |", "|---" * (len(others) + 1) + "|"]
    for what, row, key in rows:
        ratios = [results.ratio(row, key, peer, other) for other in others]
        if any(ratio is not None for ratio in ratios):
            lines.append(f"| {what} | {' | '.join('' if ratio is None else f'{ratio:.2f}' for ratio in ratios)} |")
    return "\n".join(lines) + "\n"


def met(judged):
    if not judged:
        return ""
    missed = [f"- {work}: {reached}, the goal is {goal}" for work, goal, reached, kept in judged if not kept]
    text = f"\n{len(judged) - len(missed)} of {len(judged)} [goals](../benches/results/compare.md#goals) are met."
    return text + (" These are not:\n\n" + "\n".join(missed) if missed else "") + "\n"
