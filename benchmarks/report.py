"""Results for people: ``docs/results.md`` and its plots, out of ``results.json``.

Guarantees that the page shows nothing that was not measured, and says on what machine, when, how often, and with which
command.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from measure import cells

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter

ORDER = ("ranges", "agile", "topics", "points", "auto", "load", "small", "start", "growth", "peers")
TEAL, GREY, ORANGE, LIGHT = "#00796b", "#8a8a8a", "#c65d00", "#b7d7d3"
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "svg.hashsalt": "tamis",
    "svg.fonttype": "path",
    "figure.facecolor": "white",
    "legend.frameon": False,
}
EXPLAINED = {
    "ranges": "HEM's workload (DASFAA 2022). The scan keeps every bound in a NumPy column and tests one message at a "
    "time: the first attribute in full, every further one on the survivors.",
    "agile": "The workload of the AGILE paper (SIGMOD 2005), Table 2. *noindex* is tamis itself with "
    '`strategy="noindex"`: it looks at the two most selective attributes first and leaves a profile that fails there. '
    "The *plain scan* is a compiled loop that compares every message with all eight attributes of all profiles, and "
    "stores updates into its columns. Bare stores write the same numbers to the same places of a plain array.",
    "topics": "The event model of *Efficient Matching in a Context-Aware Event Notification System for Mobile Users*: "
    'topics form a graph, places a tree. *EAGER* is tamis itself with `strategy="eager"`: every list is exact after '
    "every update.",
    "points": "Workload PQ of the batching paper (ICDE 2005). The scan tests the attributes that all "
    "profiles share first.",
    "auto": 'What `index="auto"` chose, beside the best of what it could have chosen: 1 is as fast as the best. In the '
    "last line the price of building indexes is part of the time.",
    "load": "A load ends with the first match, when the index is built. Memory is the resident set of a fresh process "
    "after the load, above what it was after the imports; the caller's table is mapped from a file and not counted.",
    "small": "The cost of crossing from Python into the filter and back, once per event.",
    "start": "Kernels are compiled at first use and kept on disk.",
    "growth": "The same profiles as in the first section, every tenth of them around a context of its own.",
    "peers": "The same profiles and messages in general-purpose engines.",
}


# -- the page --------------------------------------------------------------------------------------------------


def write(results: Mapping[str, Mapping[str, Any]], docs: Path) -> Path:
    """Writes ``results.md`` and its plots into the folder of the documentation."""
    assets = docs / "assets" / "results"
    assets.mkdir(parents=True, exist_ok=True)
    page = docs / "results.md"
    page.write_text(_page(results, draw(results, assets)), encoding="utf-8")
    return page


def _missing(names: Sequence[str]) -> list[str]:
    """Say which benchmarks this page knows nothing of, so that the count of targets is not taken for all of them."""
    missing = [name for name in ORDER if name not in names and name != "peers"]
    return [f"Not measured on this machine yet, and not counted: {', '.join(missing)}.", ""] if missing else []


def _page(results: Mapping[str, Mapping[str, Any]], pictures: Mapping[str, tuple[str, str]]) -> str:
    names = [name for name in ORDER if name in results]
    full = [results[name] for name in names if results[name]["scale"] >= 1]
    judged = [figure["met"] for result in full for figure in result["figures"] if figure["met"] is not None]
    lines = [
        "# Results",
        "",
        "This page is written by `make bench` (`python benchmarks/run.py`); every number on it was measured, except "
        "where it says *published*.",
        "",
        f"{sum(judged)} of {len(judged)} targets are met."
        if judged
        else "A run at a smaller scale: nothing is judged.",
        "",
        *_missing(names),
        *_conditions([results[name] for name in names]),
    ]
    for name in names:
        lines += ["", *_section(results[name], pictures.get(name))]
    return "\n".join(lines) + "\n"


def _conditions(results: Sequence[Mapping[str, Any]]) -> list[str]:
    spreads = [figure["spread"] for one in results for figure in one["figures"] if figure["spread"] is not None]
    machines = list({tuple(one["machine"].items()): one["machine"] for one in results}.values())
    lines = ["## How it was measured", ""]
    for one in machines:
        text = "; ".join(f"{name} {value}" for name, value in one.items() if name not in ("processor", "cores"))
        lines += [f"- {one['processor']}; {one['cores']} cores; {text}."]
    lines += [
        "- Both sides of a comparison run in one process, on one thread, in turns; a ratio is the median over the "
        "repeats, each repeat against its neighbour. Ids are materialised (`Matches.to_arrow()`).",
        "- *Spread* is half the distance between the slowest and the fastest repeat, as a share of the median. "
        f"Here its median is {sorted(spreads)[len(spreads) // 2]:.0%}, and its maximum {max(spreads):.0%}: "
        "differences below that are noise.",
        "- Answers are compared with those of the baseline in the same run; one wrong match, and there are no figures.",
    ]
    return lines


def _section(result: Mapping[str, Any], picture: tuple[str, str] | None) -> list[str]:
    lines = [f"## {result['title']}", "", EXPLAINED[result["name"]], ""]
    lines += ["| | value | spread | target | verdict |", "|---|---:|---:|---:|---|"]
    for figure in result["figures"]:
        lines += ["| " + " | ".join(cells(figure, result["scale"])) + " |"]
    notes = [f"- {figure['what']}: {figure['note']}." for figure in result["figures"] if figure["note"]]
    if notes:
        lines += ["", *notes]
    if picture:
        lines += ["", f"![{picture[1]}]({picture[0]})"]
    facts = f"{result['date']}, `{result['command']}`, {result['seconds']:.0f} s"
    return [*lines, "", f"Workload: {result['workload']}", "", f"Exactness: {result['exact']}. Measured {facts}."]


# -- the plots -------------------------------------------------------------------------------------------------


def draw(results: Mapping[str, Mapping[str, Any]], folder: Path, kind: str = "svg") -> dict[str, tuple[str, str]]:
    """One picture per benchmark that has one: its place, relative to the page, and what it shows."""
    pictures = {}
    with plt.rc_context(STYLE):
        for name, (plot, shows) in PLOTS.items():
            if name in results and results[name]["data"]:
                figure = plot(results[name])
                # A date in the file would make every run a change.
                figure.savefig(folder / f"{name}.{kind}", dpi=110, metadata={"Date": None} if kind == "svg" else None)
                plt.close(figure)
                pictures[name] = (f"assets/results/{name}.{kind}", shows)
    return pictures


def _bars(result: Mapping[str, Any]) -> Any:
    bars = dict(sorted(result["data"]["bars"].items(), key=lambda item: item[1]))
    figure, axes = plt.subplots(figsize=(8, 0.55 * len(bars) + 1.1), layout="constrained")
    colours = [TEAL if name == "tamis" else ORANGE if "published" in name else GREY for name in bars]
    drawn = axes.barh(list(bars), list(bars.values()), color=colours, height=0.62)
    axes.bar_label(drawn, [f"{value:,.0f}" for value in bars.values()], padding=4)
    axes.set_xlabel("messages per second (more is better)")
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return figure


def _agile(result: Mapping[str, Any]) -> Any:
    curves, paper = result["data"]["curves"], result["data"]["paper"]
    rates = curves["updates per message"]
    figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
    axes.plot(rates, curves["tamis"], "o-", color=TEAL, linewidth=2, label="tamis")
    axes.plot(rates, curves["noindex"], "s-", color=GREY, linewidth=2, label="tamis, noindex")
    axes.plot(rates, curves["plain"], "^:", color=GREY, linewidth=1.2, label="plain scan")
    for (name, values), style in zip(paper.items(), ("o--", "s--"), strict=True):
        axes.plot(
            rates, values, style, color=ORANGE, alpha=0.75, linewidth=1.2, markersize=4, label=f"{name}, published"
        )
    for x, value in zip(rates, curves["tamis"], strict=True):
        axes.annotate(f"{value:,.0f}", (x, value), xytext=(0, 7), textcoords="offset points", ha="center", color=TEAL)
    axes.set(xscale="log", yscale="log", xlabel="context updates between two messages", ylabel="messages per second")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xticks(rates)
    axes.minorticks_off()
    axes.margins(y=0.12)
    axes.legend()
    return figure


def _growth(result: Mapping[str, Any]) -> Any:
    rows = result["data"]["rows"]
    sizes = [row["profiles"] for row in rows]
    figure, grid = plt.subplots(2, 2, figsize=(9, 6.4), layout="constrained", sharex=True)
    panels = (
        ("time per message (µs)", "seconds per message", 1e6),
        ("time per update (ns)", "seconds per update", 1e9),
        ("memory (MB)", "megabytes", 1),
        ("time to load and build (s)", "seconds to build", 1),
    )
    for axes, (label, column, factor) in zip(grid.flat, panels, strict=True):
        axes.plot(sizes, [row[column] * factor for row in rows], "o-", color=TEAL, linewidth=2, label="tamis")
        if column == "seconds per message":
            scan = [row["seconds per message, scan"] * factor for row in rows]
            axes.plot(sizes, scan, "s-", color=GREY, linewidth=1.5, markersize=4, label="NumPy progressive scan")
            axes.legend()
        axes.set(xscale="log", yscale="log", ylabel=label)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        low, high = axes.get_ylim()
        axes.set_ylim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))
        if column == "seconds per update":
            axes.set(yscale="linear", ylim=(0, 1.25 * max(row[column] * factor for row in rows)))
    for axes in grid[-1]:
        axes.set_xlabel("profiles")
    return figure


PLOTS = {
    "ranges": (_bars, "Messages per second on eight ranges, tamis and others"),
    "agile": (_agile, "Messages per second against updates per message, with and without an index, and the paper's"),
    "points": (_bars, "Messages per second on four equalities, tamis and NumPy scans"),
    "growth": (
        _growth,
        "Time per message and update, memory and build time from ten thousand to five million profiles",
    ),
    "peers": (_bars, "Messages per second on eight ranges, tamis and general-purpose engines"),
}
