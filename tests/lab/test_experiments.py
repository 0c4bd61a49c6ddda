"""The experiments of two papers run at a tiny scale with all contenders, and disagreement is an error."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tamis import Filter, UsageError
from tamis.engine.filter import INDEXES, STRATEGIES
from tamis.lab import contenders, experiment, race, registry
from tamis.lab.agile_workload import World
from tamis.lab.contenders import ALL
from tamis.lab.experiment import Inexact, NotMeasured, Setting
from tamis.lab.race import Grid, Lap, Plan, Race, steady

KNOWN = {
    name: options
    for name, options in ALL.items()
    if options["strategy"] in STRATEGIES and options.get("index", "auto") in INDEXES
}
TINY = Setting(scale=0.001, contenders=tuple(KNOWN), budget=0.01)


@pytest.mark.parametrize("name", KNOWN)
def test_the_filter_accepts_every_contender_it_has_the_parts_of(name: str) -> None:
    assert isinstance(contenders.make(name, ALL[name]), Filter)


def test_two_contenders_exist_at_least() -> None:
    assert {"NOINDEX", "blocks"} <= set(KNOWN)


def test_a_refused_contender_is_named() -> None:
    with pytest.raises(UsageError, match=r"contender X: Filter\(strategy='nonsense'\) is refused: .*nonsense"):
        contenders.make("X", {"strategy": "nonsense"})
    with pytest.raises(UsageError, match="contender X"):
        contenders.make("X", {"no_such_option": 1})


def test_an_unknown_contender_gets_a_hint() -> None:
    with pytest.raises(UsageError, match="did you mean 'NOINDEX'"):
        contenders.chosen(Setting(contenders=("NOINDX",)))


HERE = [one for one in registry.EXPERIMENTS if one.paper in (registry.AGILE, registry.QOS)]


@pytest.mark.parametrize("one", HERE, ids=lambda one: one.name)
def test_experiments_run(one: experiment.Experiment, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    setting = Setting(
        TINY.scale, 3, None, TINY.contenders, TINY.budget, lambda done, total, what: steps.append((done, total))
    )
    result = experiment.run(one, setting, tmp_path)
    measured = {entry["contender"] for entry in result.measurements}
    assert measured == set(KNOWN) or one.paper == registry.QOS
    for entry in result.measurements:
        assert entry["messages"] > 0 and entry["seconds"] > 0
        if "messages per second" in entry:
            assert math.isfinite(entry["messages per second"]) and entry["warm-up"]["ended"]
    assert result.claims and result.plots and result.tables
    unmeasured = set(ALL) - set(KNOWN)
    for claim in result.claims:
        if claim.value is None or claim.bound is None:
            assert claim.verdict == "fails" and (unmeasured or "counter" in claim.reason), claim
        elif claim.scale > setting.scale:
            assert claim.verdict == "not judged"
    assert steps and all(0 <= done <= total for done, total in steps)
    assert steps == sorted(steps)
    assert json.loads((tmp_path / f"{one.name}.json").read_text(encoding="utf-8"))["seed"] == 3
    assert all((tmp_path / file).read_bytes().startswith(b"<?xml") for file in result.plots)


def test_with_contenders_left_out_their_claims_fail(tmp_path: Path) -> None:
    (burst,) = registry.find(["agile-exp4"])
    result = experiment.run(burst, Setting(scale=0.001, contenders=("NOINDEX",)), tmp_path)
    assert not result.holds
    assert {claim.verdict for claim in result.claims} == {"fails"}
    assert any("AGILE auto(3000) was not measured" in claim.reason for claim in result.claims)


# -- races -----------------------------------------------------------------------------------------------------


class Forgetful(World):
    """A world in which a filter with an index misses every other profile."""

    def subscribe(self, filter: Filter) -> None:
        super().subscribe(filter)
        if filter.strategy != "noindex":
            for id in range(0, self.profiles, 2):
                filter.unsubscribe(id)


def test_contenders_that_disagree_are_an_error() -> None:
    two = {name: KNOWN[name] for name in ("NOINDEX", "blocks")}
    with pytest.raises(Inexact, match=r"NOINDEX found [\d,]+ matches, blocks [\d,]+; .* of NOINDEX only: \(\d+, \d+\)"):
        Race(two, Forgetful(2_000, 1)).play(200, 1)


def test_one_contender_alone_is_compared_with_brute_force() -> None:
    class Wrong(World):
        def last(self):  # type: ignore[no-untyped-def]
            return super().last()[1:]

    racing = Race({"blocks": KNOWN["blocks"]}, Wrong(5_000, 1))
    with pytest.raises(Inexact, match="brute force"):
        for _ in range(20):
            racing.play(3, 1)


def test_a_steady_race_measures_everyone_and_says_how() -> None:
    racing = Race(KNOWN, World(1_000, 1, digits=3))
    plan = Plan(seconds=0.02, messages=300, warm=50, enough=2_000)
    done: list[str] = []
    found = steady(racing, 10, plan, done.append)
    assert set(found) == set(KNOWN) == set(done) and not racing.filters
    for name, one in found.items():
        assert one.logs >= 3 and one.messages >= 3 and one.updates == 10 * one.messages
        assert one.rate == pytest.approx(one.messages / one.seconds)
        if KNOWN[name].get("strategy", "agile") != "agile":
            assert one.warm_up == {"messages": 0, "updates": 0, "ended": "not needed"}
            continue
        assert one.warm_up["ended"] in ("settled", "out of time")
        assert one.warm_up["messages"] >= 50 or one.warm_up["ended"] == "out of time"
        assert one.counts["postfiltered"] >= 0


def test_a_warm_up_ends_when_its_last_quarters_are_alike() -> None:
    falling = race._Progress(Plan(seconds=1.0, warm=40))
    assert not any(falling.warm_up(Lap(0.9**k, 10, 0, {})) for k in range(3))
    assert falling.warm_up(Lap(5.0, 10, 0, {})) and falling.ended == "out of time"
    level = race._Progress(Plan(seconds=1.0, warm=40))
    ends = [level.warm_up(Lap(seconds, 10, 0, {})) for seconds in (0.4, 0.3, 0.2, 0.1, 0.1)]
    assert ends == [False, False, False, False, True] and level.ended == "settled"


def test_compiling_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from numba.core.compiler_lock import global_compiler_lock

    def work(seconds: float) -> None:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    class Slow:
        stats: dict[str, int] = {}  # noqa: RUF012

        def process(self, log: object) -> None:
            with global_compiler_lock, global_compiler_lock:
                work(0.2)
            work(0.02)
            time.sleep(0.2)  # nor is the time of others

    assert 0.015 < race.timed(Slow(), None)[2] < 0.15  # type: ignore[arg-type]


def test_a_grid_raises_for_what_it_does_not_have() -> None:
    grid = Grid("UP", (1, 10))
    with pytest.raises(NotMeasured, match="AGILE was not measured at UP = 1"):
        grid.rate("AGILE", 1)
    grid.standings["AGILE", 1] = race.Standing(5.0, 0.1, 1.0, 5, 0, 3, {"postfiltered": 2.0}, {})
    assert grid.rate("AGILE", 1) == 5 and grid.count("AGILE", 1, "postfiltered") == 2
    with pytest.raises(NotMeasured, match="no counter 'index_updates'"):
        grid.count("AGILE", 1, "index_updates")
    with pytest.raises(NotMeasured):
        grid.mean("AGILE")
