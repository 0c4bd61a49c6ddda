"""SIGKILL on Python workers, on the driver and on an executor: every delivery once, in order."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from faults import Victim, deliveries, judge
from streams import Expected, Folder, cut, random_rows

from tamis.testing import random_tracks


@pytest.mark.parametrize(
    ("master", "story"),
    [
        ("local[2,20]", ("worker", "driver")),
        ("local-cluster[2,1,1024]", ("executor",)),
    ],
)
def test_deliveries_are_exact_whatever_dies(tmp_path: Path, master: str, story: tuple[str, ...]) -> None:
    """One kill after another while the stream runs; then everything is delivered, once and in order."""
    rng, dice = np.random.default_rng(21), random.Random(21)
    tracks = random_tracks(rng, 1)
    rows = random_rows(rng, 600)
    expected = Expected(tracks).add(rows)
    folder = Folder(tmp_path / "in")
    pieces = cut(rng, rows, 3 * len(story) + 1)
    victim = Victim(tmp_path, 2, tracks, master)
    try:
        for k, piece in enumerate(pieces):
            folder.put(piece, rng, files=2)
            if k % 3 == 2 and k // 3 < len(story):
                victim.wait(lambda seen=k - 1: victim.batches() >= seen, 300)
                victim.wait(lambda what=story[k // 3]: victim.kill(dice, what), 120)
        victim.finish(180)
    finally:
        victim.stop()
    assert judge(deliveries(tmp_path), expected.deliveries) == {"lost": 0, "doubled": 0, "misplaced": 0}
    assert sum(victim.kills.values()) == len(story)
    assert len(expected.deliveries) > 50
