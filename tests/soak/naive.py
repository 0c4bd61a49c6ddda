"""The naive twin of large populations: every profile against every message, in plain NumPy.

Knows a handful of *shapes*: a prepared profile's text, and the same condition written as array expressions in double
precision. An absent value is NaN here, which compares false as absence does, so shapes use no ``!=`` and no ``has``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis import EventLog
from tamis.model.events import MESSAGE, SUBSCRIBE, UPDATE

Column = NDArray[np.float64]
Columns = Mapping[str, Column]

ATTRIBUTES = ("x0", "x1", "x2", "x3", "k")
CONTEXT_ATTRIBUTES = (*ATTRIBUTES, "on")
DOMAIN = 1_000.0
GAIN = 7.5  # all effects add the same, so that their order cannot change a sum


class Shape(NamedTuple):
    """A prepared profile and its twin: ``holds(message, contexts, parameters)``, one truth value per profile."""

    text: str
    parameters: tuple[str, ...]
    holds: Callable[[Mapping[str, float], Columns, Columns], NDArray[np.bool_]]
    effect: str | None = None

    @property
    def on_match(self) -> str | None:
        """The text of the effect: the attribute gains :data:`GAIN`."""
        return None if self.effect is None else f"ctx.{self.effect} += {GAIN}"


def _near(m: Mapping[str, float], c: Columns, p: Columns, name: str, width: str) -> NDArray[np.bool_]:
    return (c[name] - p[width] <= m[name]) & (m[name] <= c[name] + p[width])


NEAR = " and ".join(f"x{k} between ctx.x{k} - {{w{k}}} and ctx.x{k} + {{w{k}}}" for k in range(2))
SHAPES = (
    Shape(NEAR, ("w0", "w1"), lambda m, c, p: _near(m, c, p, "x0", "w0") & _near(m, c, p, "x1", "w1")),
    Shape(NEAR, ("w0", "w1"), lambda m, c, p: _near(m, c, p, "x0", "w0") & _near(m, c, p, "x1", "w1"), "x0"),
    Shape(
        "x0 > ctx.x0 - 7.5 and x0 <= ctx.x0 + 7.5 and x1 between ctx.x1 - 60.1 and ctx.x1 + 60.1 and k < ctx.k + 2",
        (),
        lambda m, c, p: (
            (m["x0"] > c["x0"] - 7.5)
            & (m["x0"] <= c["x0"] + 7.5)
            & (c["x1"] - 60.1 <= m["x1"])
            & (m["x1"] <= c["x1"] + 60.1)
            & (m["k"] < c["k"] + 2)
        ),
    ),
    Shape(
        "x0 between {l0} and {h0} and x1 between {l1} and {h1} and x2 between {l2} and {h2}",
        ("l0", "h0", "l1", "h1", "l2", "h2"),
        lambda m, c, p: (
            (p["l0"] <= m["x0"])
            & (m["x0"] <= p["h0"])
            & (p["l1"] <= m["x1"])
            & (m["x1"] <= p["h1"])
            & (p["l2"] <= m["x2"])
            & (m["x2"] <= p["h2"])
        ),
    ),
    Shape(
        "abs(x0 - ctx.x0) <= {w0} and x2 > ctx.x2 and x3 <= {h3}",
        ("w0", "h3"),
        lambda m, c, p: (np.abs(m["x0"] - c["x0"]) <= p["w0"]) & (m["x2"] > c["x2"]) & (m["x3"] <= p["h3"]),
    ),
    Shape(
        "k == {k} and x0 < ctx.x0 and x1 >= ctx.x1 - {w1}",
        ("k", "w1"),
        lambda m, c, p: (m["k"] == p["k"]) & (m["x0"] < c["x0"]) & (m["x1"] >= c["x1"] - p["w1"]),
    ),
    Shape(
        "k in [1, 2] and abs(x1 - ctx.x1) < {w1}",
        ("w1",),
        lambda m, c, p: ((m["k"] == 1) | (m["k"] == 2)) & (np.abs(m["x1"] - c["x1"]) < p["w1"]),
    ),
    Shape(
        "x0 between ctx.x0 - {w0} and ctx.x0 + {w0} and x3 > {l3} or x1 between ctx.x1 and ctx.x1 + {w1} and x2 < {h2}",
        ("w0", "l3", "w1", "h2"),
        lambda m, c, p: (
            (_near(m, c, p, "x0", "w0") & (m["x3"] > p["l3"]))
            | ((c["x1"] <= m["x1"]) & (m["x1"] <= c["x1"] + p["w1"]) & (m["x2"] < p["h2"]))
        ),
    ),
    Shape(
        "ctx.on > 0 and x2 * 2 + {b} <= ctx.x2 and x3 between {l3} and {h3}",
        ("b", "l3", "h3"),
        lambda m, c, p: (c["on"] > 0) & (m["x2"] * 2 + p["b"] <= c["x2"]) & (p["l3"] <= m["x3"]) & (m["x3"] <= p["h3"]),
    ),
    Shape(
        "k == ctx.k and x0 between ctx.x0 - {w0} and ctx.x0 + {w0}",
        ("w0",),
        lambda m, c, p: (m["k"] == c["k"]) & _near(m, c, p, "x0", "w0"),
    ),
    Shape(
        "not x0 > ctx.x0 + {w0} and ctx.x0 <= x0 and x1 <= {h1}",
        ("w0", "h1"),
        lambda m, c, p: (m["x0"] <= c["x0"] + p["w0"]) & (c["x0"] <= m["x0"]) & (m["x1"] <= p["h1"]),
        "x1",
    ),
)


@dataclass
class _Group:
    ids: NDArray[np.int64]
    context: NDArray[np.int64]
    parameters: dict[str, Column]
    alive: NDArray[np.bool_]


class NaiveFilter:
    """Profiles of the known shapes over numeric contexts; ids are integers. O(profiles) per message."""

    def __init__(self, contexts: int) -> None:
        self.values = {name: np.full(contexts, np.nan) for name in CONTEXT_ATTRIBUTES}
        self.groups = [_Group(_empty(np.int64), _empty(np.int64), {}, _empty(bool)) for _ in SHAPES]
        self.places: dict[int, tuple[int, int]] = {}
        self.texts: dict[str, tuple[int, dict[str, float]]] = {}
        """Single profiles by their text, so that a log of texts can be replayed: shape and parameters."""
        self.skipped = 0
        """Effects without a value so far: the attribute that was to gain is absent."""

    def subscribe_many(self, shape: int, ids: NDArray[np.int64], context: NDArray[np.int64], columns: Columns) -> None:
        """One profile per row; an id that exists is replaced."""
        for id in ids.tolist():
            if id in self.places:
                self.unsubscribe(id)
        group = self.groups[shape]
        start = len(group.ids)
        self.places.update((id, (shape, start + i)) for i, id in enumerate(ids.tolist()))
        group.ids = np.concatenate([group.ids, ids])
        group.context = np.concatenate([group.context, context])
        group.alive = np.concatenate([group.alive, np.ones(len(ids), bool)])
        for name in SHAPES[shape].parameters:
            old = group.parameters.get(name, _empty(np.float64))
            group.parameters[name] = np.concatenate([old, columns[name]])

    def unsubscribe(self, id: int) -> None:
        """Removes a profile."""
        shape, i = self.places.pop(id)
        self.groups[shape].alive[i] = False

    def process(self, log: EventLog, context_of: Callable[[Any], int]) -> list[NDArray[np.int64]]:
        """The ids that match, one array per message."""
        found: list[NDArray[np.int64]] = []
        rows = log.messages.rows() if log.messages is not None else iter(())
        updates = _update_columns(log)
        for kind, start, stop in log.runs.tolist():
            if kind == MESSAGE:
                found += [self.match(next(rows)) for _ in range(start, stop)]
            elif kind == UPDATE:
                self._store(*(column[start:stop] for column in updates))
            elif kind == SUBSCRIBE:
                for i in range(start, stop):
                    shape, given = self.texts[log.subscribes.profile[i]]
                    columns = {name: np.array([value]) for name, value in given.items()}
                    context = np.array([context_of(log.subscribes.context[i])])
                    self.subscribe_many(shape, np.array([log.subscribes.id[i]]), context, columns)
            else:
                for i in range(start, stop):
                    self.unsubscribe(log.unsubscribes.id[i])
        return found

    def _store(self, context: NDArray[np.int64], attribute: NDArray[np.int64], value: Column) -> None:
        for k, name in enumerate(CONTEXT_ATTRIBUTES):
            mine = attribute == k
            self.values[name][context[mine]] = value[mine]  # of several to one place the last one stays

    def match(self, message: Mapping[str, float]) -> NDArray[np.int64]:
        """The ids that match a message; applies the effects after that."""
        full = {name: message.get(name, np.nan) for name in ATTRIBUTES}
        found, gains = [], []
        with np.errstate(invalid="ignore", over="ignore"):
            for shape, group in zip(SHAPES, self.groups, strict=True):
                here = {
                    name: values[group.context] for name, values in self.values.items() if f"ctx.{name}" in shape.text
                }
                matching = shape.holds(full, here, group.parameters) & group.alive if len(group.ids) else group.alive
                found.append(group.ids[matching])
                if shape.effect is not None:
                    gains.append((shape.effect, group.context[matching]))
        for name, context in gains:
            self.skipped += int(np.isnan(self.values[name][context]).sum())
            np.add.at(self.values[name], context, GAIN)
        return np.concatenate(found)


def _empty(kind: Any) -> NDArray[Any]:
    return np.empty(0, kind)


def _update_columns(log: EventLog) -> tuple[NDArray[Any], ...]:
    """Contexts, positions in :data:`CONTEXT_ATTRIBUTES` and values, NaN for a removal."""
    if log.updates is None:
        return (_empty(np.int64), _empty(np.int64), _empty(np.float64))
    names = log.updates.attribute.dictionary.to_pylist()
    position = np.array([CONTEXT_ATTRIBUTES.index(name) for name in names], np.int64)
    attribute = position[log.updates.attribute.indices.to_numpy()]
    value = log.updates.value
    return log.updates.context, attribute, value.cast(pa.float64()).to_numpy(zero_copy_only=False)
