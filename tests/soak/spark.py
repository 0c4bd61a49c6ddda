"""Kills: streams of a million events, SIGKILL on Python workers, executors and the driver at random moments.

Nothing may be lost, doubled or out of order, and the contexts must be those of the reference at the end. The reference
is naive, so the million is made of many streams, each with its own profiles and its own seed, which repeats it. With
``--log`` a run that was stopped goes on after the last stream that ended.
"""

from __future__ import annotations

import argparse
import json
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

EVENTS, KILLS, STREAM, BATCHES = 1_000_000, 100, 100_000, 40
MASTERS = ("local[2,20]", "local-cluster[2,1,1024]")
MIX = Mix(subscribes=0.02, unsubscribes=0.01, open_kinds=0.0)


def story(seed: int, events: int, kills: int) -> dict[str, Any]:
    """One stream with its kills: what is wrong, who was killed, how many deliveries there were."""
    rng, dice, start = np.random.default_rng(seed), random.Random(seed), time.monotonic()
    master, shards = MASTERS[seed % len(MASTERS)], dice.choice((1, 2, 3))
    tracks = random_tracks(rng, seed % 3)
    rows = random_rows(rng, events, MIX)
    expected = Expected(tracks).add(rows)
    with tempfile.TemporaryDirectory(prefix="tamis-soak-") as place:
        where = Path(place)
        folder = Folder(where / "in")
        pieces = cut(rng, rows, BATCHES)
        for piece in pieces:
            folder.put(piece, rng, files=2)
        victim = Victim(where, shards, tracks, master)
        try:
            for after in sorted(dice.choices(range(len(pieces) - 1), k=kills)):
                what = dice.choice(("worker", "worker", "executor" if "cluster" in master else "worker", "driver"))
                victim.wait(lambda after=after: victim.batches() > after, 1200)
                time.sleep(dice.random())
                victim.wait(lambda what=what: victim.kill(dice, what), 600)
            victim.finish(1800)
        finally:
            victim.stop()
        wrong = judge(deliveries(where), expected.deliveries)
        wrong["contexts"] = contexts_wrong(where, expected)
    told = {"seed": seed, "master": master, "shards": shards, "events": events}
    told |= {"deliveries": len(expected.deliveries), "kills": dict(victim.kills), "wrong": wrong}
    return told | {"seconds": round(time.monotonic() - start, 1)}


def contexts_wrong(where: Path, expected: Expected) -> int:
    """How many contexts of the checkpoint differ from the reference's."""
    from tamis.spark import builder
    from tamis.spark.inspect import shards
    from tamis.testing import _comparable

    def plain(values: Any) -> dict[str, Any]:
        return {name: _comparable(value) for name, value in values.items()}

    spark = builder("local[2]", "tamis-soak").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
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
    parser.add_argument("--seed", type=int, help="of the first stream; the others count on")
    parser.add_argument("--log", type=Path, help="keeps what every stream gave; a run with the same log goes on")
    options = parser.parse_args()
    kept = options.log.read_text().splitlines() if options.log is not None and options.log.exists() else []
    done: list[dict[str, Any]] = [json.loads(line) for line in kept]
    first = done[0]["seed"] if done else options.seed
    first = random.SystemRandom().randrange(1_000_000) if first is None else first
    print(f"first seed {first}, {len(done)} streams are done", flush=True)
    while (left := options.events - sum(one["events"] for one in done)) > 0:
        alive = options.kills - _total(done, "kills").total()
        done.append(story(first + len(done), min(left, options.stream), -(-alive // -(-left // options.stream))))
        print(json.dumps(done[-1]), flush=True)
        if options.log is not None:
            with options.log.open("a") as log:
                log.write(json.dumps(done[-1]) + "\n")
    kills, wrong = _total(done, "kills"), _total(done, "wrong")
    print(
        f"{sum(one['events'] for one in done):,} events in {len(done)} streams, "
        f"{sum(one['deliveries'] for one in done):,} deliveries, {kills.total()} kills {dict(kills)}: "
        f"wrong {dict(wrong)}; {sum(one['seconds'] for one in done) / 60:.1f} minutes"
    )
    raise SystemExit(wrong.total() > 0 or kills.total() < options.kills)


def _total(streams: list[dict[str, Any]], name: str) -> Counter[str]:
    """The counts of all streams, noughts too."""
    total: Counter[str] = Counter()
    for one in streams:
        total.update(one[name])
    return total


if __name__ == "__main__":
    main()
