"""What Section 5.4 of the QoS paper summarises: bounds from 100 ms to 10 s, limits on batch time, longer bursts.

The burst is as many times heavier as it takes to overload batches, too: 1.5 times what they can do. There batching
shows its sawtooth and its errors, and the hybrid has to shed. One at a time next to nothing of it can be done, whatever
the bound; what a bound does to shedding shows in the burst of the paper.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tamis.flow import Batch, Hybrid, Shed

from . import plots
from .experiment import COUNTS, SIZE, Claim, Findings, Plot, Quantity, Setting, Table
from .plots import Panel
from .qos import AGILE, EXACT, LOAD, NOTES, Claims, Room, figure_4, table_of
from .qos_clock import Contender, plain
from .qos_workload import COMBINED, DECAY, STEADY, Phase
from .race import rounded

OVERLOAD: Final = 1.5
QUICK: Final = 4.0
"""How slow the machine is made at most below the paper's size, and at that size not at all: where a bound is 100 ms a
log of a hundred messages, of which batches begin to pay, is a small part of that, and a hitch of the machine no large
one."""
LASTING: Final = 8.0
"""The same where a burst is long: the faster the machine, the more events there are."""
BOUNDS: Final = (0.1, 0.5, 2.0, 10.0)
LIMIT: Final = 6  # small logs that a bounded batch may take as long as
LENGTHS: Final = (5.0, 10.0, 20.0)
SHORT: Final = Phase(20, DECAY.messages, DECAY.updates)


def bounds(setting: Setting) -> Findings:
    """Latency bounds, and batches with and without a limit on their time."""
    quick = QUICK if setting.scale < SIZE else 1.0
    room = Room(setting, (STEADY, Phase(5, 800, 115_000), SHORT), OVERLOAD, slow=quick)
    limit = rounded(LIMIT * room.small)
    chosen = {
        "Batching": Contender(AGILE, Batch("no outdated state")),
        "Bounded batching": Contender(AGILE, Batch("no outdated state", limit=limit)),
        "Exact batching": Contender(EXACT, Batch()),
    }
    for bound in BOUNDS:
        chosen[f"Shed both, {bound:g} s"] = Contender(AGILE, Shed(bound))
        chosen[f"Hybrid, {bound:g} s"] = Contender(EXACT, Hybrid(bound))
    shedding = {name: one for name, one in chosen.items() if isinstance(one.policy, Shed)}
    room.run_all(chosen, after=len(shedding))
    claims = Claims(room)
    for bound in BOUNDS:
        claims.holds(f"Shed both, {bound:g} s", bound=bound)
        claims.hard(f"Hybrid, {bound:g} s", bound)
        claims.half(f"Hybrid, {bound:g} s", f"Shed both, {bound:g} s")
    milder = Room(setting, COMBINED)
    milder.run_all(shedding, before=len(chosen))
    low, high = f"Shed both, {BOUNDS[0]:g} s", f"Shed both, {BOUNDS[-1]:g} s"
    mild = Claims(milder)
    for bound in BOUNDS:
        mild.holds(f"Shed both, {bound:g} s", bound=bound)
    mild.judge.at_least(
        "the lower the bound, the more errors shedding makes", mild.errors(low), mild.errors(high), scale=COUNTS
    )
    claims.judge.at_most(
        f"batches limited to the time of {LIMIT} small logs, {limit:g} s, make fewer errors",
        claims.errors("Bounded batching"),
        claims.errors("Batching"),
        scale=COUNTS,
    )
    claims.judge.at_least(
        "their latency is worse than that of batches without a limit",
        claims.latency("Bounded batching"),
        claims.latency("Batching"),
        scale=COUNTS,
        unit="s",
    )
    claims.exact()
    lines = [
        (words, list(BOUNDS), [float(where.get(f"{name}, {bound:g} s").errors) for bound in BOUNDS])
        for words, where, name in (
            ("Shed both", room, "Shed both"),
            ("Hybrid", room, "Hybrid"),
            ("Shed both, the paper's burst", milder, "Shed both"),
        )
    ]
    panel = Panel("Errors by bound", "bound, s", "errors", lines, logx=True, logy=True, zero=True, ticks=BOUNDS)
    bursts = {f"{OVERLOAD:g} times what batches can do": room, f"{LOAD:g} times what one at a time can do": milder}
    pictures = [
        figure_4(room, ["Batching", "Bounded batching", "Exact batching"], "bounds"),
        Plot("-bounds", "Errors by the bound on latency", plots.draw([panel], "bounds", 3.6)),
    ]
    return Findings(
        room.parameters(bounds=list(BOUNDS), limit=limit, overload=OVERLOAD),
        [{"burst": words, **entry} for words, where in bursts.items() for entry in where.entries()],
        [table_of(where, f"A burst of {words}") for words, where in bursts.items()],
        [*claims.judge.claims, *(_named(claim, "the paper's burst") for claim in mild.judge.claims)],
        pictures,
        NOTES,
    )


def long(setting: Setting) -> Findings:
    """Bursts of 5, 10 and 20 seconds, of the same weight on the same machine."""
    bound = 2.0
    chosen = {
        "Shed both": Contender(AGILE, Shed(bound)),
        "Batching": Contender(AGILE, Batch("no outdated state")),
        "Exact batching": Contender(EXACT, Batch()),
        "Hybrid": Contender(EXACT, Hybrid(bound)),
    }
    rows: list[list[Any]] = []
    entries: list[dict[str, Any]] = []
    found: dict[tuple[str, float], int] = {}
    judged: list[Claim] = []
    room: Room | None = None
    for k, seconds in enumerate(LENGTHS):
        setting.progress(k, len(LENGTHS), f"{seconds:g} s")
        room = Room(setting, (STEADY, Phase(seconds, 800, 115_000), SHORT), OVERLOAD, slow=LASTING, like=room)
        for name, one in chosen.items():
            did = room.run(name, one)
            found[name, seconds] = did.errors
            rows.append([f"{name}, {seconds:g} s", did.worst, did.errors, did.shed, int(did.queued.max())])
            entries.append({"contender": name, "burst": seconds, **plain(did)})
        claims = Claims(room)
        claims.holds("Shed both", bound=bound)
        claims.hard("Hybrid", bound)
        claims.half("Hybrid", "Shed both")
        claims.exact()
        judged += [_named(claim, f"burst of {seconds:g} s") for claim in claims.judge.claims]
    assert room is not None
    claims = Claims(room)
    for name in ("Shed both", "Batching"):
        claims.judge.at_least(
            f"{name}: the longer the burst, the more errors",
            Quantity(f"{LENGTHS[-1]:g} s", lambda name=name: found[name, LENGTHS[-1]]),  # type: ignore[misc]
            Quantity(f"{LENGTHS[0]:g} s", lambda name=name: found[name, LENGTHS[0]]),  # type: ignore[misc]
            scale=COUNTS,
        )
    lines = [(name, list(LENGTHS), [float(found[name, seconds]) for seconds in LENGTHS]) for name in chosen]
    panel = Panel("Errors by length", "length of the burst, s", "errors", lines, logy=True, zero=True, ticks=LENGTHS)
    table = Table(
        f"Bursts of {OVERLOAD:g} times what batches can do (bound {bound:g} s)",
        ["", "longest latency, s", "errors", "shed messages", "longest queue"],
        rows,
    )
    pictures = [
        figure_4(room, list(chosen), "long"),
        Plot("-length", "Errors by the length of the burst", plots.draw([panel], "length", 3.6)),
    ]
    given = room.parameters(BD=list(LENGTHS), overload=OVERLOAD)
    return Findings(given, entries, [table], [*judged, *claims.judge.claims], pictures, NOTES)


def _named(claim: Claim, burst: str) -> Claim:
    return replace(claim, words=f"{burst}: {claim.words}")
