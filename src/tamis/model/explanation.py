"""Explanations: why a profile did, or did not, match a message.

Guarantees to say what the language means: verdicts come from :mod:`tamis.model.meaning`, one per condition, with the
values seen. Refuses to decide matches for anybody.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tamis.model import tree as t
from tamis.model.categories import Graphs
from tamis.model.meaning import NEGATED, Instant, Values, compare, holds, missing, outer, value
from tamis.model.printer import to_text
from tamis.model.values import Value, shown

_GROUP = {True: "all of", False: "any of"}


@dataclass(frozen=True)
class Verdict:
    """One condition: its text, whether it holds, why, and the verdicts on its parts.

    Negation is shown where it acts: ``not (a and b)`` is *any of* ``not a``, ``not b``.
    """

    text: str
    holds: bool
    why: str = ""
    parts: tuple[Verdict, ...] = ()

    def lines(self, indent: str = "") -> Iterator[str]:
        """The verdict and its parts, one line each."""
        why = f"   ({self.why})" if self.why else ""
        yield f"{indent}{_mark(self.holds)} {self.text}{why}"
        for part in self.parts:
            yield from part.lines(indent + "  ")

    def to_dict(self) -> dict[str, Any]:
        """The same content as plain values."""
        return {
            "text": self.text,
            "holds": self.holds,
            "why": self.why,
            "parts": [part.to_dict() for part in self.parts],
        }


@dataclass(frozen=True)
class Explanation:
    """Why a profile matched a message or not.

    ``verdict`` is the tree of conditions; ``message`` and ``context`` hold the values that the profile reads, as far
    as present. ``rejected`` is the reason when the message itself was refused; then there is no verdict.
    """

    id: str | int | None
    matched: bool
    verdict: Verdict | None
    message: Mapping[str, Value] = field(default_factory=dict)
    context: Mapping[str, Value] = field(default_factory=dict)
    context_name: str | None = None
    rejected: str | None = None

    def __bool__(self) -> bool:
        return self.matched

    def failing(self) -> list[Verdict]:
        """The predicates that do not hold, in reading order."""
        return [leaf for leaf in _leaves(self.verdict) if not leaf.holds]

    def __str__(self) -> str:
        name = "profile" if self.id is None else f"profile {self.id!r}"
        if self.verdict is None:
            return f"{_mark(False)} {name}: the message is rejected: {self.rejected}"
        head = f"{_mark(self.matched)} {name} {'matches' if self.matched else 'does not match'}"
        seen = []
        if self.message:
            seen.append(f"  message: {_pairs(self.message)}")
        if self.context_name is not None:
            seen.append(f"  context {self.context_name!r}: {_pairs(self.context) or 'nothing that the profile reads'}")
        return "\n".join([head, *seen, *self.verdict.lines("  ")])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """The same content as plain values; times are ISO texts."""
        return {
            "id": self.id,
            "matched": self.matched,
            "message": {name: _plain(one) for name, one in self.message.items()},
            "context": {name: _plain(one) for name, one in self.context.items()},
            "context_name": self.context_name,
            "rejected": self.rejected,
            "verdict": self.verdict.to_dict() if self.verdict is not None else None,
        }


def explain(
    tree: t.Condition,
    message: Values,
    context: Values,
    *,
    id: str | int | None = None,
    context_name: str | None = None,
    graphs: Graphs | None = None,
) -> Explanation:
    """Explains one profile on one message; values are normalised, absent ones left out."""
    leaves = list(dict.fromkeys(n for n in _reading(tree) if isinstance(n, t.Attribute | t.Context)))
    verdict = _verdict(tree, message, context, False, graphs or {})
    return Explanation(
        id=id,
        matched=verdict.holds,
        verdict=verdict,
        message={n.name: message[n.name] for n in leaves if isinstance(n, t.Attribute) and n.name in message},
        context={n.name: context[n.name] for n in leaves if isinstance(n, t.Context) and n.name in context},
        context_name=context_name,
    )


def _reading(node: t.Node) -> Iterator[t.Node]:
    yield node
    for child in t.children(node):
        yield from _reading(child)


def _verdict(node: t.Condition, message: Values, context: Values, negated: bool, graphs: Graphs) -> Verdict:
    while isinstance(node, t.Not):
        node, negated = node.item, not negated
    if isinstance(node, t.And | t.Or):
        every = isinstance(node, t.And) != negated
        parts = tuple(_verdict(item, message, context, negated, graphs) for item in node.items)
        verdicts = [part.holds for part in parts]
        return Verdict(_GROUP[every], all(verdicts) if every else any(verdicts), parts=parts)
    verdict = holds(node, message, context, negated, graphs)
    text = to_text(t.Not(node) if negated else node)
    return Verdict(text, verdict, _why(node, message, context, negated, verdict))


def _why(node: t.Predicate, message: Values, context: Values, negated: bool, verdict: bool) -> str:
    if isinstance(node, t.Has):
        return "present" if value(node.operand, message, context) is not None else "absent"
    sides: list[Any] = [side for side in t.children(node) if not isinstance(side, t.Items)]
    computed = [value(side, message, context) for side in sides]
    absent: Any = next((side for side, one in zip(sides, computed, strict=True) if one is None), None)
    if absent is None and isinstance(node, t.Member) and isinstance(node.collection, t.Items):
        absent = next((item for item in node.collection.items if value(item, message, context) is None), None)
    if absent is not None and not verdict:
        return missing(absent, message, context)
    seen = [f"{to_text(s)} = {_show(c)}" for s, c in zip(sides, computed, strict=True) if not _constant(s)]
    if isinstance(node, t.Compare) and not verdict:
        op = NEGATED[node.op] if negated else node.op
        if compare("==", computed[0], computed[0]) and compare("==", computed[1], computed[1]):
            seen.append(f"{_show(computed[0])} {op} {_show(computed[1])} is false")
        else:
            seen.append("NaN compares false")
    return ", ".join(seen)


def _constant(node: t.Node) -> bool:
    return not any(isinstance(n, t.Attribute | t.Context) for n in t.walk(node))


def _leaves(verdict: Verdict | None) -> Iterator[Verdict]:
    if verdict is not None and not verdict.parts:
        yield verdict
    elif verdict is not None:
        for part in verdict.parts:
            yield from _leaves(part)


def _mark(holds: bool) -> str:
    return "✓" if holds else "✗"


def _show(computed: Any) -> str:
    if isinstance(computed, Instant):
        try:
            return shown(outer(computed))
        except ValueError:
            return f"{computed.microseconds} µs"
    if isinstance(computed, tuple):
        return f"[{', '.join(_show(item) for item in computed)}]"
    return "nothing" if computed is None else shown(computed)


def _pairs(values: Mapping[str, Value]) -> str:
    return ", ".join(f"{name} = {shown(one)}" for name, one in values.items())


def _plain(one: Any) -> Any:
    if isinstance(one, tuple):
        return [_plain(item) for item in one]
    return one.isoformat() if isinstance(one, datetime) else one
