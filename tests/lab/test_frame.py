"""Claims end in verdicts, results are written and read back, and the page holds all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tamis import UsageError
from tamis.lab import experiment, markdown, page, plots, registry
from tamis.lab.experiment import (
    COUNTS,
    ORDER,
    SIZE,
    Experiment,
    Findings,
    Judge,
    NotMeasured,
    Plot,
    Quantity,
    Setting,
    Table,
)


def of(value: float, what: str = "a thing") -> Quantity:
    return Quantity(what, lambda: value)


def missing() -> Quantity:
    def value() -> float:
        raise NotMeasured("EAGER was not measured at UP = 1")

    return Quantity("EAGER", value)


def verdict(judge: Judge) -> str:
    return judge.claims[-1].verdict


@pytest.mark.parametrize(
    ("left", "right", "least", "most"),
    [(2.0, 1.0, "holds", "fails"), (1.0, 2.0, "fails", "holds"), (1.0, 1.0, "holds", "holds")],
)
def test_a_claim_is_an_inequality(left: float, right: float, least: str, most: str) -> None:
    judge = Judge(1.0)
    judge.at_least("w", of(left), of(right), scale=SIZE)
    assert verdict(judge) == least
    judge.at_most("w", of(left), of(right), scale=SIZE)
    assert verdict(judge) == most


@pytest.mark.parametrize(
    ("scale", "asked", "judged"),
    [(0.02, COUNTS, True), (0.02, ORDER, False), (0.1, ORDER, True), (0.1, SIZE, False), (1.0, SIZE, True)],
)
def test_a_claim_is_judged_from_its_scale_on(scale: float, asked: float, judged: bool) -> None:
    judge = Judge(scale)
    judge.at_least("w", of(1), of(2), scale=asked)
    assert verdict(judge) == ("fails" if judged else "not judged")
    assert judge.claims[0].value == 1 and judge.claims[0].bound == 2


@pytest.mark.parametrize("scale", [0.001, 1.0])
@pytest.mark.parametrize("absent", [missing(), of(float("nan")), of(float("inf"))], ids=["missing", "nan", "inf"])
def test_a_figure_that_is_missing_fails_the_claim_at_every_scale(scale: float, absent: Quantity) -> None:
    judge = Judge(scale)
    judge.at_least("w", of(5), absent, scale=SIZE)
    judge.at_most("w", absent, of(5), scale=SIZE)
    assert [claim.verdict for claim in judge.claims] == ["fails", "fails"]
    assert all(claim.reason for claim in judge.claims)


def test_a_claim_of_a_paper_that_no_longer_holds_says_why_and_fails_nothing() -> None:
    judge = Judge(1.0)
    judge.at_least("holds again", of(2), of(1), scale=SIZE, today="memory is slow")
    judge.at_least("gone", of(1), of(2), scale=SIZE, today="memory is slow")
    judge.at_least("too small a run", of(1), of(2), scale=2.0, today="memory is slow")
    judge.at_most("not measured", missing(), of(2), scale=SIZE, today="memory is slow")
    judge.at_least("ours", of(1), of(2), scale=SIZE, today="memory is slow", whose="tamis")
    found = [(claim.verdict, claim.reason) for claim in judge.claims]
    assert found == [
        ("holds", ""),
        ("no longer holds", "memory is slow"),
        ("not judged", "judged from scale 2 on"),
        ("fails", "EAGER was not measured at UP = 1"),
        ("fails", ""),
    ]


# -- runs ------------------------------------------------------------------------------------------------------

HOLDS = {"left": 3.0, "right": 2.0}


def toy(left: float, right: float, setting: Setting) -> Findings:
    judge = Judge(setting.scale)
    judge.at_least("three is <more> than two", of(left, "three"), of(right, "two"), scale=COUNTS, unit="msg/s")
    judge.at_least("only at the paper's size", of(left), of(right), scale=SIZE, whose="tamis")
    table = Table(
        "A & B", ["", "1", "1"], [["x", 1234.5, None], ["y", 0.0123, 0]], "a note", [("", 1), ("o", 1), ("p", 1)]
    )
    lines = [("AGILE", [1.0, 10.0], [5.0, None]), ("unknown", [1.0, 10.0], [5.0, 7.0])]
    drawn = plots.draw([plots.Panel("t", "x", "y", lines, logx=True, logy=True, spans=[(2, 3, "burst")])], "toy")
    return Findings(
        {"P": 500_000, "n": [1, 2]}, [{"rate": left}], [table], judge.claims, [Plot("-p", "two lines", drawn)]
    )


@pytest.fixture
def toy_experiment(monkeypatch: pytest.MonkeyPatch) -> Experiment:
    from tamis.lab import agile

    monkeypatch.setattr(agile, "toy", lambda setting: toy(HOLDS["left"], HOLDS["right"], setting), raising=False)
    return Experiment("toy", "A Paper", "Figure 0", "about <toys>", "agile:toy")


def test_a_result_is_written_and_read_back(toy_experiment: Experiment, tmp_path: Path) -> None:
    (tmp_path / "toy-old.svg").write_text("<svg/>")
    result = experiment.run(toy_experiment, Setting(scale=0.5, seed=9), tmp_path)
    assert result.holds and result.counted() == {"holds": 1, "fails": 0, "no longer holds": 0, "not judged": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["toy-p.svg", "toy.json"]
    plain = json.loads((tmp_path / "toy.json").read_text(encoding="utf-8"))
    assert plain["seed"] == 9 and plain["scale"] == 0.5 and plain["parameters"]["P"] == 500_000
    assert plain["measurements"] == [{"rate": 3.0}] and plain["machine"]["tamis"]
    assert [claim["verdict"] for claim in plain["claims"]] == ["holds", "not judged"]
    back = experiment.read(tmp_path / "toy.json")
    assert back.claims == result.claims and back.tables[0].title == "A & B" and back.holds


def test_the_page_holds_everything_in_one_file(toy_experiment: Experiment, tmp_path: Path) -> None:
    experiment.run(toy_experiment, Setting(scale=0.5), tmp_path)
    text = page.write(tmp_path).read_text(encoding="utf-8")
    for needed in (
        "three is &lt;more&gt; than two",
        "✓ holds",
        "· not judged",
        "1,234",
        "0.0123",
        "about &lt;toys&gt;",
    ):
        assert needed in text, needed
    assert "1 of 1 judged claims hold, 1 not judged" in text
    drawn = re.search(r"<svg.*?</svg>", text, re.DOTALL)
    assert drawn and 'aria-label="two lines"' in drawn[0]
    ElementTree.fromstring(drawn[0])
    assert not re.search(
        r"""(?:src|href)=["']?(?!#)(?:https?:)?//""", re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
    )


PLACE = "words\n\n<!-- tamis lab report --markdown writes {} from here -->\nof yore\n<!-- to here -->\n\nmore words\n"


def test_a_page_of_markdown_is_renewed_between_its_comments_only(toy_experiment: Experiment, tmp_path: Path) -> None:
    out, docs = tmp_path / "out", tmp_path / "docs"
    docs.mkdir()
    experiment.run(toy_experiment, Setting(scale=0.5), out)
    place = docs / "lab-results.md"
    place.write_text(PLACE.format("toy") + PLACE.format("another"), encoding="utf-8")
    for _ in range(2):  # what was written can be written again
        text = markdown.write(out, place).read_text(encoding="utf-8")
    first, second = text.split("more words\n", 1)
    assert first.startswith("words\n") and "of yore" not in first and second == PLACE.format("another")
    assert "| ✓ holds | three is <more> than two | 3 msg/s |" in first and "1,234" in first
    assert "1 of 1 judged claims hold" in first and "tamis lab run toy --scale 0.5 --seed 1" in first
    assert "![two lines](assets/lab/toy-p.svg)" in first and (docs / "assets/lab/toy-p.svg").exists()
    place.write_text(PLACE.format("another"), encoding="utf-8")
    with pytest.raises(UsageError, match="no place for toy"):
        markdown.write(out, place)
    broken = PLACE.format("toy").replace("<!-- to here -->\n", "") + PLACE.format("another")
    place.write_text(broken, encoding="utf-8")
    with pytest.raises(UsageError, match="the place for toy has no end"):
        markdown.write(out, place)
    assert place.read_text(encoding="utf-8") == broken


def test_an_empty_folder_makes_no_page(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no results"):
        page.write(tmp_path)


def test_the_same_figures_draw_the_same_picture() -> None:
    panel = plots.Panel("t", "x", "y", [("AGILE", [1.0, 2.0], [3.0, 4.0])])
    assert plots.draw([panel], "salt") == plots.draw([panel], "salt")


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), ("a", "a"), (0, "0"), (1234.6, "1,235"), (12.345, "12.3"), (0.00001, "1.0e-05")]
)
def test_cells_for_people(value: Any, text: str) -> None:
    assert page.shown(value) == text


# -- the registry ----------------------------------------------------------------------------------------------


def test_experiments_are_found_by_name_in_the_order_of_the_list() -> None:
    names = [one.name for one in registry.EXPERIMENTS]
    assert [one.name for one in registry.find(["all"])] == names
    assert [one.name for one in registry.find([names[2], names[0], names[2]])] == [names[0], names[2]]
    assert len(set(names)) == len(names)


def test_an_unknown_name_gets_a_hint() -> None:
    with pytest.raises(UsageError, match="did you mean 'agile-exp1'"):
        registry.find(["agile_exp1"])
