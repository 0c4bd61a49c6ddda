"""``tamis lab`` as users run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tamis import UsageError
from tamis.lab import command, experiment
from tamis.lab.experiment import COUNTS, Findings, Inexact, Judge, Quantity, Setting
from tamis.lab.registry import EXPERIMENTS

RUNNER = CliRunner()


def test_list_shows_every_experiment() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tamis.cli", "lab", "list"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    for one in EXPERIMENTS:
        line = next(line for line in done.stdout.splitlines() if line.startswith(f"{one.name} "))
        assert one.exhibit in line and one.about in line


def test_an_unknown_name_is_a_usage_error_with_a_hint() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tamis.cli", "lab", "run", "agile-exp11"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 2
    assert "did you mean 'agile-exp1'?" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["report", "--help"]])
def test_help_teaches_by_examples(arguments: list[str]) -> None:
    done = RUNNER.invoke(command.app, arguments)
    assert done.exit_code == 0 and "tamis lab" in done.output


def outcome(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    def compute(setting: Setting) -> Findings:
        judge = Judge(setting.scale)
        judge.at_least("it is two", Quantity("it", lambda: value), Quantity("two", lambda: 2.0), scale=COUNTS)
        return Findings({"budget": setting.budget}, [], [], judge.claims)

    from tamis.lab import agile

    monkeypatch.setattr(agile, "updates_per_profile", compute)


@pytest.mark.parametrize(("value", "code", "word"), [(2.0, 0, "holds"), (1.0, 1, "fails")])
def test_the_exit_code_says_whether_claims_hold(
    value: float, code: int, word: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outcome(monkeypatch, value)
    done = RUNNER.invoke(command.app, ["run", "agile-exp1", "--seed", "4", "--budget", "0.5", "--out", str(tmp_path)])
    assert done.exit_code == code and f"{word}" in done.output and "it is two" in done.output
    written = json.loads((tmp_path / "agile-exp1.json").read_text(encoding="utf-8"))
    assert written["seed"] == 4 and written["parameters"] == {"budget": 0.5}
    made = RUNNER.invoke(command.app, ["report", "--out", str(tmp_path)])
    assert made.exit_code == 0 and Path(made.output.strip()).read_text(encoding="utf-8").count("it is two") == 1


def test_a_difference_between_contenders_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def differ(*_: object) -> None:
        raise Inexact("EAGER found 3 matches, AGILE 2")

    monkeypatch.setattr(experiment, "run", differ)
    done = RUNNER.invoke(command.app, ["run", "agile-exp1", "--out", str(tmp_path)])
    assert done.exit_code == 1 and "INEXACT: EAGER found 3 matches" in done.output


def test_a_real_run_with_one_contender(tmp_path: Path) -> None:
    arguments = ["run", "agile-exp4", "--scale", "0.001", "--contenders", "blocks, NOINDEX", "--out", str(tmp_path)]
    done = RUNNER.invoke(command.app, arguments)
    assert done.exit_code == 1  # the others were not measured
    assert "Table 6" in done.output and "was not measured" in done.output
    assert (tmp_path / "agile-exp4.json").exists() and (tmp_path / "agile-exp4.svg").exists()


def test_a_wrong_contender_is_a_usage_error(tmp_path: Path) -> None:
    done = RUNNER.invoke(command.app, ["run", "agile-exp4", "--contenders", "EGER", "--out", str(tmp_path)])
    assert isinstance(done.exception, UsageError) and "did you mean 'EAGER'?" in str(done.exception)
