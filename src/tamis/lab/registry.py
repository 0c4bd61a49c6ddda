"""All experiments by name. Refuses to know how they work: importing this costs nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from tamis.errors import UsageError

from .experiment import Experiment

AGILE: Final = "AGILE: Adaptive Indexing for Context-Aware Information Filters (SIGMOD 2005)"
GRAPHS: Final = "Efficient Matching in a Context-Aware Event Notification System for Mobile Users (Lee et al.)"

EXPERIMENTS: Final = (
    Experiment(
        "agile-exp1",
        AGILE,
        "Tables 3, 4, 5, Figure 11",
        "throughput in steady state, 1 to 10,000 updates per profile",
        "agile:updates_per_profile",
    ),
    Experiment(
        "agile-exp2",
        AGILE,
        "Figure 12",
        "the share of updates that hit indexed attributes",
        "agile:update_attributes",
    ),
    Experiment(
        "agile-exp3",
        AGILE,
        "Figure 13",
        "the locality of updates, from steps of 1 to a quarter of the domain",
        "agile:update_distance",
    ),
    Experiment(
        "agile-exp4",
        AGILE,
        "Figures 14, 15, Table 6",
        "a burst of updates: who adapts, how fast, and how fast back",
        "agile_burst:burst",
    ),
    Experiment(
        "agile-orders",
        AGILE,
        "beyond the paper (its future work: TPC-C)",
        "orders find warehouses with enough in stock and take it; deliveries refill",
        "agile_orders:orders",
    ),
    Experiment(
        "graph-fig6",
        GRAPHS,
        "Figure 6",
        "matching by content graphs: 100 to 100,000 users",
        "graphs:users",
    ),
    Experiment(
        "graph-fig7",
        GRAPHS,
        "Figure 7",
        "matching by content graphs: 4,000 to 44,506 topics",
        "graphs:event_model",
    ),
    Experiment(
        "graph-size",
        GRAPHS,
        "Section 6, sizes",
        "content lists and labels: space, building, pairs and changes, up to 600,000 topics",
        "graph_size:sizes",
    ),
    Experiment(
        "graph-moves",
        GRAPHS,
        "beyond the paper",
        "users who move about: AGILE on the tree of places against EAGER",
        "graphs:moves",
    ),
)


def find(names: Iterable[str]) -> list[Experiment]:
    """The experiments of that name, each once, in the order of the list; ``all`` is all of them."""
    known = {experiment.name: experiment for experiment in EXPERIMENTS}
    wanted: set[str] = set()
    for name in names:
        if name == "all":
            wanted |= set(known)
        elif name in known:
            wanted.add(name)
        else:
            near = difflib.get_close_matches(name, [*known, "all"], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"there is no experiment {name!r}{hint} (tamis lab list shows all)")
    return [experiment for name, experiment in known.items() if name in wanted]
