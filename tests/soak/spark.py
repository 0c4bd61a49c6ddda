"""Kills: streams of a million events, SIGKILL on Python workers, executors and the driver at random moments.

Nothing may be lost, doubled or out of order, and the contexts must be those of the reference at the end. The reference
is naive, so the million is made of many streams, each with its own profiles. A failure prints the seed that repeats it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "spark"))

from faults import Victim, deliveries, judge
from streams import VOCABULARY, Expected, Folder, cut, random_rows

from tamis.testing import Mix, random_tracks

EVENTS, KILLS, STREAM, BATCHES = 1_000_000, 100, 50_000, 40
MASTERS = ("local[2,20]", "local-cluster[2,1,1024]")
MIX = Mix(subscribes=0.02, unsubscribes=0.01, open_kinds=0.0)


def story(seed: int, events: int, kills: int) -> tuple[dict[str, int], Counter[str], int]:
    """One stream with its kills: what is wrong, who was killed, how many deliveries there were."""
    rng, dice = np.random.default_rng(seed), random.Random(seed)
    master, shards = MASTERS[seed % len(MASTERS)], dice.choice((1, 2, 3))
    tracks = random_tracks(rng, seed % 3)
    rows = random_rows(rng, events, MIX)
    expected = Expected(tracks).add(rows)
    with tempfile.TemporaryDirectory(prefix="tamis-soak-") as place:
        where = Path(place)
        folder = Folder(where / "in")
        for piece in cut(rng, rows, BATCHES):
            folder.put(piece, rng, files=2)
        victim = Victim(where, shards, tracks, master)
        try:
            for _ in range(kills):
                what = dice.choice(("worker", "worker", "executor" if "cluster" in master else "worker", "driver"))
                done = victim.batches()
                victim.wait(lambda done=done: victim.batches() > done or done >= BATCHES - 1, 300)
                time.sleep(dice.random())
                victim.wait(lambda what=what: victim.kill(dice, what), 120)
            victim.finish(900)
        finally:
            victim.stop()
        wrong = judge(deliveries(where), expected.deliveries)
        wrong["contexts"] = contexts_wrong(where, expected)
    return wrong, victim.kills, len(expected.deliveries)


def contexts_wrong(where: Path, expected: Expected) -> int:
    """How many contexts of the checkpoint differ from the reference's."""
    from tamis.spark import builder
    from tamis.spark.inspect import shards
    from tamis.testing import _comparable

    def plain(values: Any) -> dict[str, Any]:
        return {name: _comparable(value) for name, value in values.items()}

    spark = builder("local[2]", "tamis-soak").getOrCreate()
    try:
        state = {
            name: values for shard in shards(spark, str(where / "checkpoint")) for name, values in shard.contexts()
        }
    finally:
        spark.stop()
    names = {*VOCABULARY.contexts, *state}
    return sum(plain(state.get(name, {})) != plain(expected.reference.context(name)) for name in names)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--stream", type=int, default=STREAM, help="events of one stream")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    options = parser.parse_args()
    streams = -(-options.events // options.stream)
    total: Counter[str] = Counter()
    killed: Counter[str] = Counter()
    start = time.monotonic()
    for k in range(streams):
        seed = options.seed + k
        each = -(-(options.kills - sum(killed.values())) // (streams - k))
        wrong, kills, found = story(seed, options.stream, each)
        total.update(wrong)
        killed.update(kills)
        print(f"seed {seed}: {found:,} deliveries, kills {dict(kills)}, wrong {wrong}", flush=True)
    seconds = time.monotonic() - start
    print(
        f"{streams * options.stream:,} events, {sum(killed.values())} kills {dict(killed)}: "
        f"{dict(total)}; {seconds / 60:.1f} minutes"
    )
    raise SystemExit(bool(+total) or sum(killed.values()) < options.kills)


if __name__ == "__main__":
    main()
