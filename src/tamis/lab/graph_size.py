"""What content lists cost in space, and what our labels do: real graphs, ODP-like ones, one as large as all of ODP."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from tamis.graph import ContentGraph
from tamis.graph.searches import closure, in_lists

from . import plots
from .experiment import COUNTS, ORDER, SIZE, Cell, Findings, Inexact, Judge, NotMeasured, Plot, Quantity, Setting, Table
from .graph_workload import GEONAMES, GO, PLACES, places, real, topics
from .graphs import SIZES, cpu, share
from .plots import Panel

REAL: Final = {"Gene Ontology": (GO, "topic"), "GeoNames": (GEONAMES, "place")}
WHOLE: Final = 600_000
PAIRS: Final = 100_000
INSERTIONS: Final = 400
FACTORS: Final = {"places": 4.0, "topics": 75.0}
"""How much longer content lists make subscriptions and notifications, as the paper says."""


def sizes(setting: Setting) -> Findings:
    """Space of content lists and of labels, and what labels cost to make, to ask and to change."""
    plots.needed()
    rng = np.random.default_rng(setting.seed)
    made = [share(size, setting.scale, 200 * (i + 1)) for i, size in enumerate(SIZES)]
    graphs: list[tuple[str, Any]] = [(f"{n:,} topics", lambda n=n: topics(n, rng)) for n in made]
    place = f"{share(PLACES, setting.scale, 60):,} places"
    graphs.append((place, lambda: places(share(PLACES, setting.scale, 60), rng)))
    large = f"{share(WHOLE, setting.scale, 2_000):,} topics"
    graphs.append((large, lambda: topics(share(WHOLE, setting.scale, 2_000), rng)))
    for shown, (what, name) in REAL.items():
        if setting.data is not None and (setting.data / what[0]).exists():
            graphs.append((shown, lambda what=what, name=name: real(setting.data, what, name)))
    facts: dict[str, dict[str, float]] = {}
    for i, (name, make) in enumerate(graphs):
        setting.progress(i, len(graphs), name)
        facts[name] = _facts(make, rng, setting.budget or 0.3)
    topic = f"{made[-1]:,} topics"

    def fact(name: str, what: str, factor: float = 1.0) -> Quantity:
        def value() -> float:
            if name not in facts:
                raise NotMeasured(f"{name} was not measured")
            return factor * facts[name][what]

        return Quantity(f"{factor:g} × {what}" if factor != 1 else what, value)

    judge = Judge(setting.scale)
    judge.at_least(
        "content lists make the topics of a notification some 75 times as many",
        fact(topic, "categories in a list"),
        Quantity("50", lambda: 50.0),
        scale=SIZE,
    )
    judge.at_most(
        "content lists make the places of a subscription some 4 times as many",
        fact(place, "categories in a list"),
        Quantity("4.5", lambda: 4.5),
        scale=COUNTS,
    )
    for name in facts:
        judge.at_least(
            f"ours takes at most a fifth of the space of content lists: {name}",
            fact(name, "list bytes"),
            fact(name, "our bytes", 5),
            scale=COUNTS if name in REAL else SIZE,
            unit="bytes",
            whose="tamis",
        )
    for name in facts:
        judge.at_most(
            f"a pair takes no longer by our labels than by content lists (10 % for noise): {name}",
            fact(name, "ns per pair, ours", 0.9),
            fact(name, "ns per pair, lists"),
            scale=ORDER,
            unit="ns",
            whose="tamis",
        )
    for words, figure, bound, unit in (
        ("the whole of ODP is labelled in less than a minute", "seconds to label", 60.0, "s"),
        ("the whole of ODP takes less than 500 MB while it is made", "MB at most", 500.0, "MB"),
        ("a pair takes less than a microsecond in the whole of ODP", "ns per pair, ours", 1_000.0, "ns"),
        ("an edge is added to the whole of ODP in less than 10 ms (median)", "ms to add an edge", 10.0, "ms"),
    ):
        limit = Quantity(f"{bound:g}", lambda bound=bound: bound)  # type: ignore[misc]
        judge.at_most(words, fact(large, figure), limit, scale=SIZE, unit=unit, whose="tamis")
    columns = list(next(iter(facts.values())))
    rows: list[list[Cell]] = [[what, *(one[what] for one in facts.values())] for what in columns]
    panel = Panel(
        "Space by topics",
        "topics",
        "bytes per topic",
        [
            (
                name,
                [facts[f"{n:,} topics"]["categories"] for n in made],
                [facts[f"{n:,} topics"][key] / facts[f"{n:,} topics"]["categories"] for n in made],
            )
            for name, key in (("content lists", "list bytes"), ("ours", "our bytes"))
        ],
        logx=True,
        ticks=made,
    )
    return Findings(
        {"pairs compared with plain reachability, per graph": PAIRS, "published factors": FACTORS},
        [{"graph": name, **one} for name, one in facts.items()],
        [Table("Content lists and labels", ["", *facts], rows)],
        judge.claims,
        [Plot("", "content lists and labels", plots.draw([panel], "graph-size", 3.8))],
        [
            "A list has all categories that match, 4 bytes each, and 4 bytes where it starts; ours is all that a test "
            "of reachability reads: 2 bytes per category in a tree, else also its level, its shelf and all shelves. "
            "The topics that we make have the paper's numbers of nodes and about two edges each; how deep they are "
            "was chosen so that lists come near the paper's factor."
        ],
    )


def _facts(make: Any, rng: np.random.Generator, seconds: float) -> dict[str, float]:
    before, highest = _resident(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.thread_time()
    graph: ContentGraph = make()
    built = time.thread_time() - start
    label = cpu(graph.relabel, 0.0)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    above, below = (rng.integers(0, graph.size, PAIRS, dtype=np.int32) for _ in range(2))
    # Half of the pairs are drawn along the edges, so that many are reachable.
    starts, rows = closure(graph, up=True)
    some = below[: PAIRS // 2]
    above[: PAIRS // 2] = rows[starts[some] + (rng.random(len(some)) * (starts[some + 1] - starts[some])).astype(int)]
    if not np.array_equal(graph.reach_many(above, below), in_lists(starts, rows, below, above)):
        raise Inexact(f"{graph.name}: labels and closure disagree about a pair")
    facts = {
        "categories": float(len(graph)),
        "edges": float(graph.edges),
        "categories in a list": starts[-1] / len(graph),
        "list bytes": float(4 * starts[-1] + 4 * len(graph)),
        "our bytes": float(graph.label_bytes()),
        "seconds to make": built,
        "seconds to label": label,
        "MB at most": most - before if most > highest else 0.0,  # else an earlier graph needed more
        **_race(
            {
                "ns per pair, ours": lambda: graph.reach_many(above, below),
                "ns per pair, lists": lambda: in_lists(starts, rows, below, above),
            },
            seconds,
        ),
    }
    added: list[tuple[int, int]] = []
    spent = []
    while len(added) < min(INSERTIONS, len(graph) // 4):
        a, b = (int(x) for x in rng.integers(0, graph.size, 2))
        if a == b or graph.reaches(a, b):
            continue
        a, b = (b, a) if graph.reaches(b, a) else (a, b)
        if graph.reaches(a, b):
            continue
        start = time.thread_time()
        graph.add_edge(a, b)
        spent.append(time.thread_time() - start)
        added.append((a, b))
    gone = []
    for edge in added[: len(added) // 2]:
        start = time.thread_time()
        graph.remove_edge(*edge)
        gone.append(time.thread_time() - start)
    graph.check(rng.choice(graph.size, min(graph.size, 2_000), replace=False).tolist())
    return {
        **facts,
        "ms to add an edge": float(np.median(spent[1:])) * 1e3,
        "ms to remove an edge": float(np.median(gone[1:])) * 1e3,
    }


def _race(works: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Nanoseconds per pair of each, in turns: the best of three, as neighbours take the cache away."""
    times = [{name: cpu(work, seconds / 3) / PAIRS * 1e9 for name, work in works.items()} for _ in range(3)]
    return {name: min(one[name] for one in times) for name in works}


def _resident() -> float:
    """Megabytes in memory now, where the system says so; else the most so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * resource.getpagesize() / 2**20
