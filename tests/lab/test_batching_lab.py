"""The experiments of the batching paper run at a tiny scale; what does not depend on the machine holds there, too."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tamis import EventLog, Filter
from tamis.lab import batching_exact, batching_latency, experiment, registry
from tamis.lab.agile_workload import World
from tamis.lab.batching import PAPER, contenders
from tamis.lab.batching_race import BLOCKS, Race
from tamis.lab.batching_workload import PointQueries, Ranges
from tamis.lab.experiment import Inexact, Setting

TINY = 0.002
BATCHING = [one for one in registry.EXPERIMENTS if one.paper == registry.BATCHING]


@pytest.mark.parametrize("one", BATCHING, ids=lambda one: one.name)
def test_experiments_run(one: experiment.Experiment, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    setting = Setting(TINY, 3, None, None, 0.001, lambda done, total, what: steps.append((done, total)))
    result = experiment.run(one, setting, tmp_path)
    assert result.measurements and result.claims and result.plots and result.tables
    assert [claim for claim in result.claims if claim.verdict == "fails"] == []
    assert all(claim.verdict == "not judged" for claim in result.claims if claim.scale > TINY)
    assert steps and all(0 <= done <= total for done, total in steps)
    assert json.loads((tmp_path / f"{one.name}.json").read_text(encoding="utf-8"))["seed"] == 3
    for entry in result.measurements:
        if "messages per second" in entry:
            assert math.isfinite(entry["messages per second"]) and entry["messages per second"] > 0


def test_ranges_match_as_many_as_in_the_paper() -> None:
    world = Ranges(20_000, 1)
    f = Filter()
    world.subscribe(f)
    for distribution in "ZGU":
        columns = world.columns(400, distribution)
        found = f.match_many(columns)
        assert 0.0005 < len(found) / 400 / 20_000 < 0.004
        last = np.array([column[-1] for column in columns.values()])
        assert sorted(id for row, id in found if row == 399) == world.matching(last).tolist()
    assert len(np.unique(world.columns(500, "Z")["x0"])) <= 50


def test_points_have_four_attributes_two_of_them_the_same_for_all() -> None:
    world = PointQueries(2_000, 1)
    f = Filter()
    world.subscribe(f)
    assert len(f) == 2_000
    assert sum(len(ids) for _, ids in world.shapes) == 2_000
    pair, ids = world.shapes[0]
    wanted = dict(zip((*world.indexed, *pair), world.wanted[ids[0]].tolist(), strict=True))
    assert int(ids[0]) in f.match(wanted)


def test_strategies_that_disagree_are_an_error() -> None:
    race = Race(Ranges(1_000, 1), Setting(TINY))
    race.filters[BLOCKS].subscribe(0, "x0 < 0")
    with pytest.raises(Inexact, match="blocks and Unbatched/PIx gave different matches"):
        who = contenders("skiplist", 50, batching_latency.GROUPINGS["Z"])
        race.run({name: who[name] for name in (PAPER[0], BLOCKS)}, race.workload.messages(2_000, "U"), 0.0)


def test_a_burst_is_worked_off_in_order_and_completely() -> None:
    arrivals = [0.0, 0.0, 0.5, 3.0]
    assert batching_latency.burst(arrivals, lambda n: 1.0 * n, 1) == [1.0, 2.0, 2.5, 1.0]
    assert batching_latency.burst(arrivals, lambda n: 1.0, 10) == [1.0, 1.0, 1.5, 1.0]


def test_logs_of_single_messages_are_the_same_events() -> None:
    world, f, g = World(300, 1), Filter(strategy="noindex"), Filter(strategy="noindex")
    for one in (f, g):
        world.subscribe(one)
    log = world.log(5, float(batching_exact.UPDATES))
    whole = f.process(log.events)
    parts = [g.process(one) for one in batching_exact.single(log)]
    assert [sorted(part.profile) for part in parts] == [
        sorted(id for row, id in whole if row == i) for i in range(len(parts))
    ]
    assert isinstance(world.now(), EventLog) and f.context("c0") == g.context("c0")
