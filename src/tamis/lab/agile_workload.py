"""The workload of the AGILE paper (Section 6.2, Table 2): profiles around moving contexts, and logs of their moves.

Every profile has a range on each of eight attributes; nine in ten lie around their own context (CB), the tenth around
constants. Widths differ by attribute, so that there is a global order of selectivity: the first two attributes are the
ones to index (AttI). Messages are uniform. Guarantees the same logs for the same seed, whatever the filters do, and
costs no Python step per event. Refuses to know contenders and clocks.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numba as nb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis import EventLog, Filter

from .experiment import Inexact

PROFILES: Final = 500_000  # P
MESSAGES: Final = 10_000  # Msg
DOMAIN: Final = 10_000.0  # Val
STEP: Final = 150.0  # ΔU
SHARE: Final = 0.25  # UpdAtt: uniform over the attributes
DIGITS: Final = 3  # Q
NAMES: Final = tuple(f"x{k}" for k in range(8))  # Att
INDEXED: Final = 2  # AttI
HALF: Final = np.array([0.03, 0.083, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0]) * DOMAIN / 2
"""Half the width of each range. The two indexed attributes leave 0.25 % of the profiles, as in the paper's Table 5."""

Moves = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float64]]


@nb.njit(cache=True)
def quantise(value: NDArray[np.float64], digits: int) -> None:
    """Rounds positive numbers to so many relevant digits, in place; 0 digits: as they are."""
    if digits == 0:
        return
    for i in range(len(value)):
        x = value[i]
        if x <= 0.0:
            continue
        power = digits - 1 - int(np.floor(np.log10(x)))
        step = 1.0
        for _ in range(abs(power)):
            step *= 10.0
        # Integers times or over an exact power of ten: the double nearest to the decimal number.
        value[i] = np.rint(x * step) / step if power >= 0 else np.rint(x / step) * step


@nb.njit(cache=True)
def walk(
    state: NDArray[np.float64],
    context: NDArray[np.int64],
    attribute: NDArray[np.int32],
    step: NDArray[np.float64],
    value: NDArray[np.float64],
) -> None:
    """Moves ``state[context[i], attribute[i]]`` by ``step[i]``, reflected into the domain; ``value``: the new place."""
    for i in range(len(context)):
        x = state[context[i], attribute[i]] + step[i]
        if x < 0.0:
            x = -x
        if x > DOMAIN:
            x = 2 * DOMAIN - x
        state[context[i], attribute[i]] = x
        value[i] = x


class Log(NamedTuple):
    """One log, and the arrays it was made of: ``points`` has the shape (messages, 8)."""

    events: EventLog
    points: NDArray[np.float64]
    moves: Moves


class World:
    """The profiles, and a generator of their logs; knows where every context is after the last log it gave.

    ``step`` is ΔU, ``share`` UpdAtt as a share of 1, ``digits`` the relevant digits of every value (0: all). Contexts
    walk on exact values and are seen quantised, so that steps below the last digit still lead somewhere.
    """

    def __init__(self, profiles: int, seed: int, *, step: float = STEP, share: float = SHARE, digits: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.profiles, self.step, self.share, self.digits = profiles, step, share, digits
        self.moving = profiles * 9 // 10
        self.names = [f"c{i}" for i in range(self.moving)]
        self.place = self.rng.uniform(0, DOMAIN, (self.moving, len(NAMES)))
        self.fixed = self._seen(self.rng.uniform(0, DOMAIN, (profiles - self.moving, len(NAMES))))
        self._point = np.zeros(len(NAMES))
        self._owed = 0.0  # the part of an update that the next message is due

    @property
    def state(self) -> NDArray[np.float64]:
        """What the contexts hold now, shape (contexts, 8)."""
        return self._seen(self.place.copy())

    def _seen(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        quantise(values.reshape(-1), self.digits)
        return values

    def subscribe(self, filter: Filter) -> None:
        """Contexts and profiles into a filter, as they are now; ids are 0 to profiles - 1.

        Contexts come first: an index is then built around their values instead of following them there.
        """
        indices = filter.context_index(self.names)
        if not np.array_equal(indices, np.arange(self.moving)):
            raise Inexact("contexts are not numbered in the order of their names")
        state = self.state
        for k, name in enumerate(NAMES):
            filter.update_many(indices, name, state[:, k])
        pieces = zip(NAMES, HALF.tolist(), strict=True)
        around = " and ".join(f"{name} between ctx.{name} - {half} and ctx.{name} + {half}" for name, half in pieces)
        filter.subscribe_many(around, {"id": np.arange(self.moving), "context": indices})
        constant = " and ".join(f"{name} between {{{name}lo}} and {{{name}hi}}" for name in NAMES)
        columns: dict[str, Any] = {"id": np.arange(self.moving, self.profiles)}
        for k, name in enumerate(NAMES):
            columns[f"{name}lo"], columns[f"{name}hi"] = self.fixed[:, k] - HALF[k], self.fixed[:, k] + HALF[k]
        filter.subscribe_many(constant, columns)

    def updates(self, count: int) -> Moves:
        """Contexts, attributes and new values of the next updates."""
        context = self.rng.integers(0, self.moving, count)
        hit = self.rng.random(count) < self.share
        attribute = np.where(
            hit,
            self.rng.integers(0, INDEXED, count, np.int32),
            self.rng.integers(INDEXED, len(NAMES), count, np.int32),
        )
        value = np.empty(count)
        walk(self.place, context, attribute, self.rng.uniform(-self.step, self.step, count), value)
        return context, attribute, self._seen(value)

    def log(self, messages: int, updates: float) -> Log:
        """A log with that many updates before every message; fractions add up over messages and logs."""
        ends = np.floor(self._owed + updates * np.arange(1, messages + 1) + 1e-9).astype(np.int64)
        self._owed += updates * messages - int(ends[-1])
        moves = self.updates(int(ends[-1]))
        points = self._seen(self.rng.uniform(0, DOMAIN, (messages, len(NAMES))))
        sent = {name: np.ascontiguousarray(points[:, k]) for k, name in enumerate(NAMES)}
        ordered = {**update_columns(*moves), "seq": np.arange(len(moves[0]), dtype=np.int64)}
        # At equal order the update comes first, so a message stands right behind the last of its updates.
        self._point = points[-1]
        return Log(EventLog.merge(messages={**sent, "seq": ends - 1}, updates=ordered), points, moves)

    def events(self, messages: int, updates: float) -> EventLog:
        """The next log, without the arrays."""
        return self.log(messages, updates).events

    def now(self) -> EventLog:
        """What all contexts hold now, as updates."""
        context = np.repeat(np.arange(self.moving), len(NAMES))
        attribute = np.tile(np.arange(len(NAMES), dtype=np.int32), self.moving)
        return EventLog.merge(updates=update_columns(context, attribute, self.state.reshape(-1)))

    def last(self) -> NDArray[np.int64]:
        """The ids that match the last message of the last log, by brute force."""
        return self.matching(self._point)

    def columns(self) -> NDArray[np.float64]:
        """The middles of all ranges, one row per attribute, as they are now."""
        return np.ascontiguousarray(np.concatenate([self.state, self.fixed]).T)

    def matching(self, message: NDArray[np.float64]) -> NDArray[np.int64]:
        """The ids that match now, by brute force; the bounds are computed as the profiles say."""
        found = []
        for middles, digits in ((self.place, self.digits), (self.fixed, 0)):
            rows = np.arange(len(middles))
            for k, half in enumerate(HALF.tolist()):
                middle = middles[rows, k]
                quantise(middle, digits)
                rows = rows[(middle - half <= message[k]) & (message[k] <= middle + half)]
            found.append(rows)
        return np.concatenate([found[0], self.moving + found[1]])


def update_columns(
    context: NDArray[np.int64], attribute: NDArray[np.int32], value: NDArray[np.float64]
) -> dict[str, Any]:
    """The three columns of an update table: indices, dictionary codes and numbers, the fast way."""
    names = pa.DictionaryArray.from_arrays(pa.array(attribute), pa.array(NAMES))
    return {"context": context, "attribute": names, "value": value}


def updates_per_message(updates_per_profile: float, profiles: int) -> float:
    """The paper's unit UP, updates per profile over a run of 10,000 messages, as updates before every message."""
    return updates_per_profile * profiles / MESSAGES
