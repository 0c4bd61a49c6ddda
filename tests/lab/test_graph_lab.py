"""The experiments on content graphs at a tiny scale: contenders agree, figures are there, disagreement is an error."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from tamis import UsageError
from tamis.graph import Matched
from tamis.lab import experiment, graphs, registry
from tamis.lab.experiment import Inexact, Setting
from tamis.lab.graph_workload import GEONAMES, GO, Model, directory, places, topics
from tamis.lab.graphs import ALL, Field, chosen

TINY = Setting(scale=0.002, seed=3, budget=0.01)


def run(name: str, setting: Setting, out: Path) -> experiment.Result:
    (one,) = registry.find([name])
    return experiment.run(one, setting, out)


@pytest.mark.parametrize("name", ["graph-fig6", "graph-fig7", "graph-moves"])
def test_all_contenders_are_measured(name: str, tmp_path: Path) -> None:
    result = run(name, TINY, tmp_path)
    wanted = {*graphs.STRATEGIES, *graphs.ENGINE} if name == "graph-moves" else set(ALL)
    assert {entry["contender"] for entry in result.measurements} == wanted
    for entry in result.measurements:
        assert all(math.isfinite(value) and value >= 0 for value in entry.values() if isinstance(value, float))
    assert result.claims and result.plots and result.tables
    assert all(claim.value is not None and claim.bound is not None for claim in result.claims)


def test_sizes_with_real_graphs(tmp_path: Path) -> None:
    terms = ["b\ta\tisa", "c\ta\tisa", "d\tb\tisa", "d\tc\tpart", *(f"x{i}\tb\tisa" for i in range(20))]
    towns = ["W\t\tWorld\t\t", "AD\tW\tAD\t\t", *(f"x{i}\tAD\ttown\t1\t2" for i in range(20))]
    for what, rows in ((GO, terms), (GEONAMES, towns)):
        path = tmp_path / what[0]
        path.parent.mkdir(exist_ok=True)
        with gzip.open(path, "wt") as file:
            file.write("\n".join(rows) + "\n")
    result = run("graph-size", Setting(scale=0.002, seed=3, budget=0.01, data=tmp_path), tmp_path)
    found = {entry["graph"]: entry for entry in result.measurements}
    assert {"Gene Ontology", "GeoNames"} <= set(found)
    assert found["Gene Ontology"]["categories"] == 24 and found["GeoNames"]["categories"] == 22
    for entry in found.values():
        assert entry["list bytes"] > 0 and entry["our bytes"] > 0 and entry["ms to add an edge"] > 0


def test_a_contender_left_out_makes_its_claims_fail(tmp_path: Path) -> None:
    result = run("graph-fig6", Setting(scale=0.002, budget=0.01, contenders=("closure",)), tmp_path)
    assert not result.holds
    assert any("ours was not measured" in claim.reason for claim in result.claims)
    with pytest.raises(UsageError, match="there is no contender 'closur'; did you mean 'closure'"):
        chosen(Setting(contenders=("closur",)))


def test_a_wrong_answer_has_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    field = Field(Model(topics(300, rng), places(60, rng), rng), 50)
    right = Field.match

    def wrong(self: Field, name: str, count: int) -> Matched:
        found = right(self, name, count)
        return found if name != "ours" else Matched(found.event[:-1], found.user[:-1])

    monkeypatch.setattr(Field, "match", wrong)
    with pytest.raises(Inexact, match="ours and unoptimised gave different matches"):
        field.race(ALL, 0.001)


def test_made_graphs_have_the_size_that_was_asked_for() -> None:
    rng = np.random.default_rng(2)
    graph = directory(5_000, 7, 1.0, rng, "topic")
    assert len(graph) == 5_000 and 1.8 * 5_000 < graph.edges < 2.1 * 5_000
    assert len(graph.roots()) == 1
    tree = places(600, rng)
    assert len(tree) == 600 and tree.edges == 599
