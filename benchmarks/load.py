"""How long it takes to load profiles, and how much memory they need."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from measure import Result, clock, main, progress, same
from tamis import EventLog, Filter
from tamis.reference import ReferenceFilter
from workloads import NAMES, TEXT, ProgressiveScan, message_table, messages, ranges

PREPARED = 1_000_000
TEXTS = 200_000
RESIDENT = 500_000
SECONDS = 15
MEGABYTES = 350
SAMPLE = 2_000  # textual profiles that the reference filter also gets

NUMBERS = tuple(f"n{k}" for k in range(13))
WORDS = tuple(f"w{k}" for k in range(7))


# -- textual profiles ------------------------------------------------------------------------------------------


def random_texts(rng: np.random.Generator, count: int) -> list[str]:
    """Three predicates each, over thirteen numbers and seven texts; attributes, operators and constants are random."""
    attribute = rng.integers(0, len(NUMBERS) + len(WORDS), (count, 3)).tolist()
    operator = rng.integers(0, 8, (count, 3)).tolist()
    numbers = rng.integers(0, 1_000_000, (count, 3, 2)).tolist()
    texts = []
    for names, operators, constants in zip(attribute, operator, numbers, strict=True):
        pieces = (_predicate(*one) for one in zip(names, operators, constants, strict=True))
        texts.append(" and ".join(pieces))
    return texts


def _predicate(attribute: int, operator: int, numbers: list[int]) -> str:
    one, two = sorted(numbers)
    if attribute < len(NUMBERS):
        name = NUMBERS[attribute]
        if operator >= 6:
            return f"{name} between {one} and {two}.5"
        return f"{name} {('==', '!=', '<', '<=', '>', '>=')[operator]} {one / 4 if operator % 2 else one}"
    name = WORDS[attribute - len(NUMBERS)]
    if operator >= 6:
        return f"{name} startswith 'k{one % 10}'"
    if operator >= 4:
        return f"{name} in ['k{one}', 'k{two}', 'k{one % 100}']"
    return f"{name} {('==', '!=', '<', '>=')[operator]} 'k{one % 1000}'"


def random_message(rng: np.random.Generator) -> dict[str, Any]:
    """A message with all attributes of the textual profiles."""
    numbers = {name: int(rng.integers(0, 1_000_000)) for name in NUMBERS}
    return {**numbers, **{name: f"k{rng.integers(0, 1_000)}" for name in WORDS}}


def by_table(filter: Filter, table: pa.Table, message: pa.Table) -> None:
    """One prepared profile, and a first match so that the index is there."""
    filter.subscribe_many(TEXT, table)
    filter.match_many(message)


def by_calls(filter: Filter, texts: list[str], message: dict[str, Any]) -> None:
    """One subscribe after the other, and the first match."""
    for id, text in enumerate(texts):
        filter.subscribe(id, text)
    filter.match(message)


def by_log(filter: Filter, texts: list[str], message: dict[str, Any]) -> None:
    """One log of subscribes, and the first match."""
    filter.process(EventLog.merge(subscribes={"id": np.arange(len(texts)), "profile": texts}))
    filter.match(message)


# -- memory ----------------------------------------------------------------------------------------------------


def resident_above_imports(count: int) -> dict[str, float]:
    """Megabytes of a fresh process for that many profiles of eight ranges, above those after the imports."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profiles.arrow"
        table = ranges(np.random.default_rng(1), count).table()
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        command = [sys.executable, __file__, "--resident", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def _resident(path: str) -> None:
    """The fresh process: maps the table, so that the caller's own copy is not counted."""
    process = psutil.Process()
    start = process.memory_info().rss
    table = pa.ipc.open_file(pa.memory_map(path)).read_all()
    filter = Filter()
    filter.subscribe_many(TEXT, table)
    del table
    filter.match(dict.fromkeys(NAMES, 5e5))
    gc.collect()
    pa.default_memory_pool().release_unused()
    print(json.dumps({"start": start / 1e6, "filter": (process.memory_info().rss - start) / 1e6}))


# -- all -------------------------------------------------------------------------------------------------------


def run(scale: float = 1.0, repeats: int = 3) -> dict[str, Any]:
    """Loads of a fresh filter each; the first load of a sort is repeated, the kernels are compiled before."""
    rng = np.random.default_rng(2)
    prepared, count = max(1_000, int(PREPARED * scale)), max(1_000, int(TEXTS * scale))
    resident = max(1_000, int(RESIDENT * scale))
    repeats = min(repeats, 3)
    result = Result(
        "load",
        "Load: time and memory",
        f"{prepared:,} prepared profiles of eight ranges; {count:,} different texts of three predicates over twenty "
        f"attributes; memory of {resident:,} profiles of eight ranges in a fresh process; {repeats} repeats.",
        scale,
    )
    profiles = ranges(rng, prepared)
    table = profiles.table()
    first = message_table(messages(rng, 1))
    texts, message = random_texts(rng, count), random_message(rng)
    with progress("load", 3 * repeats + 3) as advance:
        for warm in (by_calls, by_log):
            warm(Filter(), texts[:500], message)
        seconds: dict[str, list[float]] = {"prepared": [], "calls": [], "log": []}
        for _ in range(repeats):
            advance(f"{prepared:,} prepared profiles")
            filter = Filter()
            seconds["prepared"].append(clock(lambda f=filter: by_table(f, table, first))[1])
            loaded = filter
            for name, way in (("calls", by_calls), ("log", by_log)):
                advance(f"{count:,} texts by {name}")
                filter = Filter()
                seconds[name].append(clock(lambda f=filter, way=way: way(f, texts, message))[1])
        advance("exactness")
        exact = _check(rng, loaded, profiles, filter, texts)
        advance("memory in a fresh process")
        memory = [resident_above_imports(resident) for _ in range(repeats)]
        advance("done")
    labels = {
        "prepared": f"{prepared:,} prepared profiles, first match",
        "calls": f"{count:,} texts, one subscribe each, first match",
        "log": f"{count:,} texts in one log, first match",
    }
    for name, found in seconds.items():
        spread = (max(found) - min(found)) / 2 / float(np.median(found))
        rate = (prepared if name == "prepared" else count) / float(np.median(found))
        note = f"{rate:,.0f} profiles/s"
        result.add(labels[name], float(np.median(found)), "s", SECONDS, more_is_better=False, spread=spread, note=note)
    above = [one["filter"] for one in memory]
    each = float(np.median(above)) * 1e6 / resident
    note = f"{each:,.0f} bytes per profile; the imports alone take {memory[0]['start']:.0f} MB"
    spread = (max(above) - min(above)) / 2 / float(np.median(above))
    what = f"resident memory of {resident:,} × 8 ranges"
    result.add(what, float(np.median(above)), "MB", MEGABYTES, more_is_better=False, spread=spread, note=note)
    result.exact = exact
    return result.to_dict()


def _check(rng: np.random.Generator, loaded: Filter, profiles: Any, textual: Filter, texts: list[str]) -> str:
    """Both loads answer as their baselines: the scan, and the reference filter on a sample of the profiles."""
    scan = ProgressiveScan(*profiles)
    for row, values in enumerate(messages(rng, 20)):
        found = loaded.match(dict(zip(NAMES, values.tolist(), strict=True)))
        same(found, scan.match(values).tolist(), f"prepared profiles, message {row}")
    reference = ReferenceFilter()
    chosen = rng.choice(len(texts), min(SAMPLE, len(texts)), replace=False).tolist()
    for id in chosen:
        reference.subscribe(id, texts[id])
    wanted, matches = set(chosen), 0
    for row in range(20):
        message = random_message(rng)
        expected = reference.match(message)
        matches += len(expected)
        same([id for id in textual.match(message) if id in wanted], expected, f"texts, message {row}")
    return f"20 messages equal to the scan; 20 messages, {matches:,} matches, equal to the reference filter"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--resident"]:
        _resident(sys.argv[2])
    else:
        main(run)
