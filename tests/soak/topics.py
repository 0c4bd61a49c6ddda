"""Predicates on content graphs at length: the engine against the reference while categories move and graphs change.

``python tests/soak/topics.py [--events N] [--seed N] [--strategy NAME]``: worlds of a few thousand interleaved events
each, random graphs, profiles, updates, subscriptions and changes of edges, until ``--events`` are done; every fourth
world is eager unless a strategy is given. A difference prints its seed. Exit code 0 only when nothing differed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from random_topics import CONTEXTS, Scene
from tamis import EventLog, Filter, ReferenceFilter
from tamis.testing import differences

ROUNDS, LOG, ROWS = 20, 150, 50
EVERY = 60.0  # seconds between two lines about the progress


def world(seed: int, strategy: str) -> list[str]:
    """One world; how the engine and the reference differ."""
    scene = Scene(np.random.default_rng(seed), nodes=300 if seed % 5 == 4 else 6 + seed % 30)
    threads = 1 + seed % 3
    f = Filter(graphs=scene.graphs, strategy=strategy, threads=threads, history=40)
    reference = ReferenceFilter(graphs=scene.graphs, history=40)
    for round in range(ROUNDS):
        found = differences(f, reference, scene.log(LOG, updates=scene.pick((0.2, 0.5, 0.8))), CONTEXTS)
        found += differences(f, reference, EventLog.of_messages(scene.columns(ROWS)))
        f.check()
        if found:
            return [f"seed {seed}, round {round}: {one}" for one in found]
        for _ in range(int(scene.rng.integers(0, 4))):
            scene.change()
    return []


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first world")
    parser.add_argument("--strategy", choices=("agile", "eager"))
    options = parser.parse_args()
    done, seed, failures = 0, options.seed, 0
    told = time.monotonic()
    while done < options.events:
        for failure in world(seed, options.strategy or ("eager" if seed % 4 == 3 else "agile")):
            print(failure, flush=True)
            failures += 1
        done += ROUNDS * (LOG + ROWS)
        seed += 1
        if time.monotonic() - told >= EVERY:
            told = time.monotonic()
            print(f"{done:,} of {options.events:,} events, {failures} differences, at seed {seed}", flush=True)
    print(f"{done:,} events in {seed - options.seed} worlds, {failures} differences")
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
