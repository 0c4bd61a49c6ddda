"""What an experiment is: a setting in, findings out; how claims are judged, and what is written.

Guarantees that a claim always ends in a verdict: it holds, it fails (also when a figure it needs is missing or is not
a number), it no longer holds (a claim of a paper that is known not to, with the reason), or it is not judged because
the run was smaller than the claim asks for. Refuses to know what is measured.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import tamis
from tamis import TamisError

COUNTS: Final = 0.0
"""Claims about counters are judged at every scale: they do not depend on the machine, nor much on the size."""
ORDER: Final = 0.1
"""Claims about who is faster are judged from a tenth of the paper's size on: below it, fixed costs decide."""
SIZE: Final = 1.0
"""Claims about factors and shares are judged at the paper's size."""

Whose: TypeAlias = Literal["paper", "tamis"]
Verdict: TypeAlias = Literal["holds", "fails", "no longer holds", "not judged"]
VERDICTS: Final[tuple[Verdict, ...]] = ("holds", "fails", "no longer holds", "not judged")


class Inexact(TamisError):
    """Two contenders gave different matches: no figure of the run counts."""


class NotMeasured(TamisError):
    """A claim asks for a figure that the run does not have."""


# -- settings --------------------------------------------------------------------------------------------------


def _quiet(done: int, total: int, what: str) -> None:
    """Nobody is watching."""


@dataclass(frozen=True)
class Setting:
    """How an experiment is to run.

    ``scale`` 1 is the paper's size. ``data`` is a folder of input files, for experiments that need one. ``contenders``
    names those that run, all when None. ``budget`` is the seconds that a contender may measure at each point, by
    default the experiment's own. ``progress(done, total, what)`` is called between measurements, never during one.
    """

    scale: float = 0.02
    seed: int = 1
    data: Path | None = None
    contenders: tuple[str, ...] | None = None
    budget: float | None = None
    progress: Callable[[int, int, str], None] = _quiet


# -- claims ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantity:
    """One side of a claim: what it is, and how to get it; ``value`` may raise :class:`NotMeasured`."""

    what: str
    value: Callable[[], float]


@dataclass(frozen=True)
class Claim:
    """``left sign right`` in words and figures, with a verdict; judged in runs of at least ``scale``."""

    words: str
    whose: Whose
    left: str
    value: float | None
    sign: Literal["≥", "≤"]
    right: str
    bound: float | None
    unit: str
    scale: float
    verdict: Verdict
    reason: str = ""


class Judge:
    """Collects the claims of one run."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.claims: list[Claim] = []

    def at_least(self, words: str, left: Quantity, right: Quantity, **more: Any) -> None:
        """``left`` is not below ``right``; ``today`` says why a paper's claim is known not to hold any longer."""
        self._judge(words, left, "≥", right, **more)

    def at_most(self, words: str, left: Quantity, right: Quantity, **more: Any) -> None:
        """``left`` is not above ``right``."""
        self._judge(words, left, "≤", right, **more)

    def _judge(
        self,
        words: str,
        left: Quantity,
        sign: Literal["≥", "≤"],
        right: Quantity,
        *,
        scale: float,
        unit: str = "",
        whose: Whose = "paper",
        today: str = "",
    ) -> None:
        value, reason = _measured(left)
        bound, also = _measured(right)
        reasons = list(dict.fromkeys(text for text in (reason, also) if text))
        verdict: Verdict
        if value is None or bound is None:
            verdict = "fails"
        elif self.scale < scale:
            verdict, reasons = "not judged", [f"judged from scale {scale:g} on"]
        elif value >= bound if sign == "≥" else value <= bound:
            verdict = "holds"
        elif today and whose == "paper":
            verdict, reasons = "no longer holds", [today]
        else:
            verdict = "fails"
        self.claims.append(
            Claim(words, whose, left.what, value, sign, right.what, bound, unit, scale, verdict, "; ".join(reasons))
        )


def _measured(quantity: Quantity) -> tuple[float | None, str]:
    """The figure, or None and why there is none."""
    try:
        value = float(quantity.value())
    except NotMeasured as error:
        return None, str(error)
    if not math.isfinite(value):
        return None, f"{quantity.what} is {value}"
    return value, ""


# -- findings --------------------------------------------------------------------------------------------------

Cell: TypeAlias = "str | float | int | None"


@dataclass(frozen=True)
class Table:
    """Figures for people: ``groups`` are headings over several columns, as (text, number of columns)."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    groups: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True)
class Plot:
    """A picture: ``suffix`` goes behind the experiment's name in the file name."""

    suffix: str
    caption: str
    svg: bytes


@dataclass(frozen=True)
class Findings:
    """What an experiment hands over: parameters and measurements are plain values, for JSON."""

    parameters: Mapping[str, Any]
    measurements: Sequence[Mapping[str, Any]]
    tables: Sequence[Table]
    claims: Sequence[Claim]
    plots: Sequence[Plot] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Experiment:
    """One exhibit of a paper (or beyond it): its name, where it stands, one line about it, and the run.

    ``compute`` names the function that measures, as ``"module:function"`` of this package: nothing is imported before
    it is needed.
    """

    name: str
    paper: str
    exhibit: str
    about: str
    compute: str


@dataclass(frozen=True)
class Result:
    """An experiment that has run, as it is written to ``NAME.json``."""

    name: str
    paper: str
    exhibit: str
    about: str
    scale: float
    seed: int
    parameters: Mapping[str, Any]
    machine: Mapping[str, str]
    date: str
    seconds: float
    tables: Sequence[Table]
    claims: Sequence[Claim]
    plots: Mapping[str, str]
    """File name: caption."""
    notes: Sequence[str]
    measurements: Sequence[Mapping[str, Any]]

    @property
    def holds(self) -> bool:
        """No claim fails: what is known not to hold any longer does not."""
        return all(claim.verdict != "fails" for claim in self.claims)

    def counted(self) -> dict[Verdict, int]:
        """How many claims ended in each verdict."""
        found = dict.fromkeys(VERDICTS, 0)
        for claim in self.claims:
            found[claim.verdict] += 1
        return found


def run(experiment: Experiment, setting: Setting, out: Path) -> Result:
    """Runs an experiment and writes ``OUT/NAME.json`` and its plots."""
    from importlib import import_module

    module, _, function = experiment.compute.partition(":")
    compute: Callable[[Setting], Findings] = getattr(import_module(f"{__package__}.{module}"), function)
    start = time.perf_counter()
    findings = compute(setting)
    result = Result(
        name=experiment.name,
        paper=experiment.paper,
        exhibit=experiment.exhibit,
        about=experiment.about,
        scale=setting.scale,
        seed=setting.seed,
        parameters=findings.parameters,
        machine=machine(),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        seconds=round(time.perf_counter() - start, 1),
        tables=findings.tables,
        claims=findings.claims,
        plots={f"{experiment.name}{plot.suffix}.svg": plot.caption for plot in findings.plots},
        notes=findings.notes,
        measurements=findings.measurements,
    )
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{experiment.name}*.svg"):
        if old.name == f"{experiment.name}.svg" or old.name.startswith(f"{experiment.name}-"):
            old.unlink()
    for plot in findings.plots:
        (out / f"{experiment.name}{plot.suffix}.svg").write_bytes(plot.svg)
    text = json.dumps(asdict(result), indent=1, ensure_ascii=False, allow_nan=False)
    (out / f"{experiment.name}.json").write_text(text + "\n", encoding="utf-8")
    return result


def read(path: Path) -> Result:
    """The result that :func:`run` wrote."""
    found = json.loads(path.read_text(encoding="utf-8"))
    found["tables"] = [Table(**table) for table in found["tables"]]
    found["claims"] = [Claim(**claim) for claim in found["claims"]]
    return Result(**found)


# -- the machine -----------------------------------------------------------------------------------------------


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory / 1e9:.0f} GB",
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "tamis": tamis.__version__,
        **{name: version(name) for name in ("numpy", "numba", "pyarrow")},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    speed = f", {float(facts['cpu MHz']) / 1000:.1f} GHz" if "cpu MHz" in facts else ""
    wide = next((f", {name.upper()}" for name in ("avx512f", "avx2") if name in facts.get("flags", "").split()), "")
    return f"{facts.get('model name', platform.machine())}{speed}{wide}"
