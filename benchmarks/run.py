"""Runs the benchmarks, each in a fresh process, and writes their results.

At full scale the results go to ``benchmarks/results.json``, ``docs/results.md`` and ``docs/assets/results/``; at any
other scale to ``.cache/benchmarks/``, because figures of small runs are no results. A run of some benchmarks keeps the
earlier results of the others.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from measure import cells
from report import ORDER, write
from tamis.lab.experiment import machine

HERE = Path(__file__).parent
ROOT = HERE.parent
DEFAULT = tuple(name for name in ORDER if name != "peers")
QUICK = 0.02


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(ORDER)} (default: all but peers)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the profiles and messages (default: 1)")
    parser.add_argument("--repeats", type=int, help="repeats per measurement (default: each benchmark's own)")
    parser.add_argument("--quick", action="store_true", help=f"a few minutes: --scale {QUICK} --repeats 3")
    parser.add_argument("--report", action="store_true", help="measure nothing: write the page from results.json again")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed, too")
    options = parser.parse_args()
    if unknown := set(options.names) - set(ORDER):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(ORDER)}")
    if options.quick:
        options.scale, options.repeats = QUICK, options.repeats or 3
    full = options.scale >= 1
    home = HERE if full else ROOT / ".cache" / "benchmarks"
    docs = ROOT / "docs" if full else home
    home.mkdir(parents=True, exist_ok=True)
    store = home / "results.json"
    results: dict[str, Any] = json.loads(store.read_text(encoding="utf-8")) if store.exists() else {}

    console, failed = Console(), []
    for name in () if options.report else options.names or DEFAULT:
        found = measure(name, options.scale, options.repeats)
        if found is None:
            failed.append(name)
            continue
        results[name] = found
        store.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if results:
        summary(results, console)
        console.print(f"written: {write(results, docs).relative_to(ROOT)}, {store.relative_to(ROOT)}")
    if failed:
        raise SystemExit(f"no figures, because of an error or a wrong answer: {', '.join(failed)}")
    missed = [f for one in results.values() if one["scale"] >= 1 for f in one["figures"] if f["met"] is False]
    if missed and options.strict:
        raise SystemExit(f"{len(missed)} targets missed")


def measure(name: str, scale: float, repeats: int | None) -> dict[str, Any] | None:
    """One benchmark in a fresh process; ``None`` when it fails."""
    arguments = [f"--scale={scale:g}"] if scale != 1 else []
    arguments += [f"--repeats={repeats}"] if repeats else []
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "result.json"
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, str(HERE / f"{name}.py"), *arguments, "--json", str(target)], check=False
        )
        if done.returncode or not target.exists():
            return None
        result = json.loads(target.read_text(encoding="utf-8"))
    command = " ".join(["python benchmarks/run.py", name, *arguments])
    return {**result, "seconds": time.perf_counter() - start, "command": command, "machine": machine()}


def summary(results: dict[str, Any], console: Console) -> None:
    """All figures that have a target."""
    table = Table("benchmark", "figure", "value", "spread", "target", "verdict", title="targets", title_justify="left")
    for name in ORDER:
        for figure in results.get(name, {"figures": ()})["figures"]:
            if figure["target"] is not None:
                row = cells(figure, results[name]["scale"])
                style = {"met": "green", "missed": "red"}.get(row[-1], "")
                table.add_row(name, *row, style=style)
    console.print(table)


if __name__ == "__main__":
    main()
