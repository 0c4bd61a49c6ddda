"""Shards together are one filter: for any number of them, across deltas and snapshots."""

from __future__ import annotations

import numpy as np
import pytest

from tamis import ReferenceFilter
from tamis.engine.shard import Shard, Track, shard_of
from tamis.model.events import EventLog
from tamis.model.matches import Matches, Rejected
from tamis.testing import Vocabulary, _comparable, compare, random_log, random_tracks

V = Vocabulary()


def together(shards: list[Shard], log: EventLog, start: int = 0) -> Matches:
    """One log through all shards, as one result."""
    names = [event[2] for event in log.events() if event[0] == "update"]
    rows = [] if log.updates is None else log.updates.rows.tolist()
    owner = np.zeros(len(rows), np.int64)
    for row, name in zip(rows, names, strict=True):
        owner[row] = shard_of(name, len(shards)) if isinstance(name, str) else 0
    pairs, rejected = [], []
    for shard in shards:
        found = shard.process(log, lambda row: start + row, owner != shard.number)
        ids = found.profile if isinstance(found.profile, list) else found.profile.to_pylist()
        pairs += list(zip(found.message.tolist(), found.rank.tolist(), ids, strict=True))
        rejected += found.rejected
    order = {row: at for at, row in enumerate(log.message_rows.tolist())}
    pairs.sort(key=lambda pair: (order[pair[0]], pair[1]))
    return Matches.of([(row, id) for row, _, id in pairs], Rejected(rejected))


def states(shards: list[Shard]) -> dict[str, dict[str, object]]:
    """All contexts of all shards; each in one place."""
    found: dict[str, dict[str, object]] = {}
    for shard in shards:
        for name, values in shard.contexts():
            assert name not in found
            found[name] = values
    return found


def plain(values: dict[str, object]) -> dict[str, object]:
    return {name: _comparable(value) for name, value in values.items()}


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(12))
def test_shards_equal_the_reference(shards: int, seed: int) -> None:
    """Also the order inside a message, deltas into a twin, and a restore from a snapshot in the middle."""
    rng = np.random.default_rng([seed, shards])
    tracks = [Track(**track) for track in random_tracks(rng, seed % 3)]
    reference = ReferenceFilter()
    for track in tracks:
        reference.track(track.context, track.set, track.when)
    mine = [Shard(k, shards, tracks) for k in range(shards)]
    twins = [Shard(k, shards, tracks) for k in range(shards)]
    start = 0
    for piece in range(8):
        log = random_log(rng, int(rng.integers(1, 80)), V, columnar=bool(piece % 2))
        expected = reference.process(log)
        source = mine if piece % 3 else twins
        target = twins if piece % 3 else mine
        found = together(source, log, start)
        start += len(log)
        assert compare(found, expected) == []
        assert list(found) == list(expected), "the order inside a message is that of subscription"
        for one, two in zip(source, target, strict=True):
            two.catch_up(one.delta())
            two.check()
        if piece == 4:
            mine = [Shard.restore(k, shards, shard.snapshot()) for k, shard in enumerate(mine)]
            for shard in twins:
                shard.delta()
        for both in (mine, twins):
            state = states(both)
            for name in set(reference._contexts) | set(state):
                assert plain(state.get(name, {})) == plain(reference.context(name)), name
