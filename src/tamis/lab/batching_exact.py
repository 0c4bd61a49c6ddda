"""Beyond the papers: batches with updates in them, as exact as one event at a time, at 1,000 updates per message.

The workload is that of the AGILE paper. One at a time means ``Filter.process`` on the same log, event by event on the
same index, which is told of every update that leaves its range before the next message; it is the strictest baseline,
as nothing but the order of work differs. The same events in a log for every message are shown beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from tamis import EventLog, Filter
from tamis.flow import Batching, fixed_size

from . import plots
from .agile_workload import Log, World, update_columns
from .batching import MINI
from .experiment import SIZE, Findings, Inexact, Judge, NotMeasured, Plot, Quantity, Setting, Table
from .plots import Panel
from .race import digest, rounded, timed

UPDATES: Final = 1_000  # per message
PROFILES: Final = 50_000  # at scale 1: every context is updated about once per 45 messages
WARM, LOGS = 5, 3
INDEXES: Final[dict[str, dict[str, Any]]] = {
    "AGILE skiplist": {"index": "skiplist", "strategy": "agile"},
    "EAGER skiplist": {"index": "skiplist", "strategy": "eager"},
    "blocks": {"index": "blocks"},
}
FACTOR: Final = 2.0


def single(log: Log) -> Iterator[EventLog]:
    """The events of a log as one log for every message and the updates before it."""
    context, attribute, value = log.moves
    for i, point in enumerate(log.points):
        part = slice(i * UPDATES, (i + 1) * UPDATES)
        moves = {**update_columns(context[part], attribute[part], value[part]), "seq": np.arange(UPDATES)}
        sent = {f"x{k}": [x] for k, x in enumerate(point.tolist())}
        yield EventLog.merge(messages={**sent, "seq": [UPDATES - 1]}, updates=moves)


def exact(setting: Setting) -> Findings:
    """Messages per second at 1,000 updates per message: one event at a time, a log per message, in batches."""
    plots.needed()
    profiles = max(1_000, round(PROFILES * min(1.0, setting.scale * 5)))
    messages = 2_048 if setting.scale >= 0.1 else max(32, round(12_800 * setting.scale))
    rates: dict[str, dict[str, float]] = {}
    names = [name for name in INDEXES if setting.contenders is None or name in setting.contenders]
    for done, name in enumerate(names):
        setting.progress(done, len(names), name)
        rates[name] = _compare(INDEXES[name], profiles, messages, setting.seed)
    judge = Judge(setting.scale)

    def ratio(over: str) -> Callable[[], float]:
        def value() -> float:
            if "AGILE skiplist" not in rates:
                raise NotMeasured("AGILE skiplist was not measured")
            return rates["AGILE skiplist"]["batched"] / rates["AGILE skiplist"][over]

        return value

    for over, words in (("one at a time", "one event at a time"), ("a log per message", "a log per message")):
        judge.at_least(
            f"exact batching of AGILE on skip lists is at least {FACTOR:g} × as fast as {words}, same index, same log",
            Quantity("batched / " + over, ratio(over)),
            Quantity(f"{FACTOR:g}", lambda: FACTOR),
            scale=SIZE,
            unit="×",
            whose="tamis",
        )
    ways = ("one at a time", "a log per message", "batched")
    rows: list[list[str | float]] = [
        [name, *(found[way] for way in ways), found["batched"] / found[ways[0]]] for name, found in rates.items()
    ]
    panel = Panel(
        "1,000 updates per message",
        "way to process the same log",
        "messages per second",
        [(name, range(len(ways)), [found[way] for way in ways]) for name, found in rates.items()],
        logy=True,
    )
    return Findings(
        {"P": profiles, "updates per message": UPDATES, "messages per log": messages, "logs": LOGS, "warm-up": WARM},
        [{"contender": name, **{way: rounded(rate) for way, rate in found.items()}} for name, found in rates.items()],
        [Table("Messages per second at 1,000 updates per message", ["", *ways, "batched / one at a time"], rows)],
        judge.claims,
        [Plot("", "One at a time (0), a log per message (1), batched (2)", plots.draw([panel], "batching-exact"))],
        [
            "All ways give the same matches of every log. Entries of blocks go to the root at this rate, where an "
            "update is a plain store: a batch has nothing to save, and such logs are replayed one event at a time."
        ],
    )


def _compare(options: dict[str, Any], profiles: int, messages: int, seed: int) -> dict[str, float]:
    world = World(profiles, seed)
    filters = {way: Filter(**options) for way in ("one at a time", "batched")}
    filters["batched"].batching = Batching(MINI, 2_048, fixed_size(64))
    for filter in filters.values():
        world.subscribe(filter)
    spent = dict.fromkeys((*filters, "a log per message"), 0.0)
    for i in range(WARM + LOGS):
        log = world.log(messages, float(UPDATES))
        marks = set()
        for way, filter in filters.items():
            matches, _, seconds = timed(filter, log.events)
            marks.add(digest(matches))
            spent[way] += seconds if i >= WARM else 0.0
        if len(marks) > 1:
            raise Inexact("batches and one event at a time gave different matches")
    few = world.log(max(16, messages // 16), float(UPDATES))
    logs = list(single(few))
    start = time.process_time()
    for one in logs:
        filters["one at a time"].process(one)
    found = {way: LOGS * messages / spent[way] for way in filters}
    return {**found, "a log per message": len(logs) / (time.process_time() - start)}
