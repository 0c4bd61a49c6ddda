"""From nothing to the first answer: the import, the first match with compiled kernels on disk, and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from measure import Result, main, progress

IMPORT = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"
FIRST = """
import json, time
start = time.perf_counter()
from tamis import EventLog, Filter
imported = time.perf_counter()
f = Filter()
f.subscribe("w-A", "item == 'bolt' and quantity <= ctx.stock and price between 1 and 9.5", context="A")
f.update("A", stock=12)
found = f.match({"item": "bolt", "quantity": 7, "price": 3.5})
first = time.perf_counter()
log = EventLog.builder().update("A", stock=5).message({"item": "bolt", "quantity": 7, "price": 3.5}).build()
later = list(f.process(log))
done = time.perf_counter()
print(json.dumps({"import": imported - start, "match": first - start, "log": done - start,
                  "right": found == ["w-A"] and later == []}))
"""


def child(code: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    environment = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return done.stdout


def run(scale: float = 1.0, repeats: int = 5) -> dict[str, Any]:
    """Every measurement in a fresh interpreter; an empty cache is a fresh folder."""
    result = Result(
        "start",
        "Start: from nothing to the first answer",
        f"fresh interpreters; the time of a first match includes the import; {repeats} repeats, {min(2, repeats)} with "
        "an empty kernel cache.",
        scale,
    )
    cold: list[dict[str, Any]] = []
    warm: list[dict[str, Any]] = []
    with progress("start", 2 + repeats + min(2, repeats)) as advance:
        imports: list[list[float]] = []
        for statement in ("import tamis", "from tamis import Filter"):
            child(IMPORT.format(statement))
            imports.append([float(child(IMPORT.format(statement))) for _ in range(repeats)])
            advance(statement)
        for _ in range(min(2, repeats)):
            with tempfile.TemporaryDirectory() as folder:
                cold.append(json.loads(child(FIRST, NUMBA_CACHE_DIR=folder)))
                advance("first match, empty kernel cache")
                if len(cold) == 1:
                    for _ in range(repeats):
                        warm.append(json.loads(child(FIRST, NUMBA_CACHE_DIR=folder)))
                        advance("first match, warm kernel cache")
    for what, found, target in (
        ("import tamis", imports[0], 0.5),
        ("from tamis import Filter", imports[1], None),
        ("first match, warm kernel cache", [one["match"] for one in warm], 3),
        ("first match, empty kernel cache", [one["match"] for one in cold], 60),
    ):
        spread = (max(found) - min(found)) / 2 / float(np.median(found))
        result.add(what, float(np.median(found)), "s", target, more_is_better=False, spread=spread)
    for what, runs in (("first log as well, warm", warm), ("first log as well, empty cache", cold)):
        result.add(what, float(np.median([one["log"] for one in runs])), "s")
    right = all(one["right"] for one in (*warm, *cold))
    if not right:
        raise SystemExit("INEXACT: a fresh interpreter gave a wrong first answer")
    result.exact = f"{len(warm) + len(cold)} first answers as expected"
    return result.to_dict()


if __name__ == "__main__":
    main(run)
