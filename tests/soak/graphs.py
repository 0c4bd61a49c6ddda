"""Content graphs at length: labels against plain search, and the matcher against brute force while users move.

``python tests/soak/graphs.py [--data DIR] [--events N] [--seed N]``: 100,000 random pairs on made graphs and on those
of the folder, before and after random changes of edges; then ``--events`` events and updates, interleaved, both
strategies against a table of all users. Exit code 0 only when nothing differed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

import numpy as np

from tamis.graph import ContentGraph, GraphError, Matcher
from tamis.graph.searches import closure, in_lists
from tamis.lab.graph_workload import GEONAMES, GO, directory, places, real, topics

PAIRS, CHANGES = 100_000, 2_000


def pairs(graph: ContentGraph, rng: np.random.Generator) -> int:
    """How many of the random pairs labels and closure disagree about; half of them are drawn along edges."""
    starts, rows = closure(graph, up=True)
    alive = np.array(list(graph), np.int32)
    above, below = rng.choice(alive, PAIRS), rng.choice(alive, PAIRS)
    half = below[: PAIRS // 2]
    above[: PAIRS // 2] = rows[starts[half] + (rng.random(len(half)) * np.diff(starts)[half]).astype(np.int64)]
    return int((graph.reach_many(above, below) != in_lists(starts, rows, below, above)).sum())


def change(graph: ContentGraph, rng: np.random.Generator, count: int) -> None:
    """Random edges and categories come and go."""
    for _ in range(count):
        a, b = (int(x) for x in rng.choice(np.flatnonzero(graph.alive()[: graph.size]), 2))
        what = rng.random()
        try:
            if what < 0.6:
                graph.add_edge(a, b)
            elif what < 0.9 and graph.parents(b):
                graph.remove_edge(int(rng.choice(graph.parents(b))), b)
            elif what < 0.95:
                graph.add_node(f"new {graph.version}", [a])
            elif len(graph.children(b)) < 5:
                graph.remove_node(b)
        except GraphError as error:
            if "cycle" not in str(error):
                raise


def moving(events: int, seed: int, strategy: str, tree: bool) -> int:
    """How many events had other users than brute force says, among interleaved events and updates.

    Places are a ``tree``, or have several parents each.
    """
    rng = np.random.default_rng(seed)
    topic, place = (
        directory(400, 5, 0.7, rng, "topic"),
        places(300, rng) if tree else directory(300, 4, 0.5, rng, "p"),
    )
    users, most = 300, (3, 2)
    sizes = topic.size, place.size
    now = [rng.integers(0, size, (users, each), dtype=np.int32) for size, each in zip(sizes, most, strict=True)]
    matcher = Matcher([(topic, "within"), (place, "covers")], most=3, strategy=strategy)
    matcher.insert(np.arange(users), *now)
    reach = [_matrix(topic), _matrix(place)]
    wrong = done = 0
    while done < events:
        rate = int(rng.choice([0, 1, 10, 200]))
        count = 200 if rate <= 10 else 20
        log = (
            rng.integers(0, sizes[0], (count, 2), dtype=np.int32),
            rng.integers(0, sizes[1], (count, 2), dtype=np.int32),
        )
        k, g = rng.integers(0, users, count * rate), rng.integers(0, 2, count * rate)
        j = rng.integers(0, np.array(most)[g]) if len(g) else g
        c = rng.integers(0, np.array(sizes)[g]) if len(g) else g
        found = matcher.process(matcher.moves(k, g, j, c), np.arange(count + 1) * rate, *log)
        for i in range(count):
            for u in range(i * rate, (i + 1) * rate):
                now[g[u]][k[u], j[u]] = c[u]
            asked = reach[0][now[0]][:, :, log[0][i]].any(axis=(1, 2))
            there = reach[1][log[1][i]][:, now[1]].any(axis=(0, 2))
            wrong += set(np.flatnonzero(asked & there)) != set(found.user[found.event == i])
        done += count * (rate + 1)
        matcher.check()
    return wrong


def _matrix(graph: ContentGraph) -> np.ndarray:
    """[above, below]: reachability by plain search."""
    found = np.zeros((graph.size, graph.size), np.bool_)
    for i in graph:
        found[graph.ancestors(i), i] = True
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path)
    options.add_argument("--events", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    rng = np.random.default_rng(given.seed)
    graphs = [
        topics(44_506, rng),
        places(6_905, rng),
        real(given.data, GO, "go"),
        real(given.data, GEONAMES, "geonames"),
    ]
    failed = 0
    for graph in graphs:
        if graph is not None:
            before = pairs(graph, rng)
            change(graph, rng, CHANGES)
            after = pairs(graph, rng)
            graph.check(rng.choice(np.array(list(graph)), 2_000).tolist())
            print(f"{graph}: of {PAIRS:,} pairs {before} wrong, {after} after {CHANGES:,} changes", flush=True)
            failed += before + after
    part = given.events // 4
    for seed, (strategy, tree) in enumerate(itertools.product(("agile", "eager"), (True, False)), given.seed):
        wrong = moving(part, seed, strategy, tree)
        shape = "a tree" if tree else "no tree"
        print(f"{strategy}, places {shape}: {part:,} events and updates, {wrong} events with other users", flush=True)
        failed += wrong
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
