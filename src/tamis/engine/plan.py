"""Which index a filter uses and why, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from tamis.index.choice import Option
from tamis.index.picture import Load, look

if TYPE_CHECKING:
    from .filter import Filter


@dataclass(frozen=True)
class Candidate:
    """An index that could be used: the attributes it would be on (none: all), and the work of a message there."""

    index: str
    attributes: tuple[str, ...]
    work: float

    def __str__(self) -> str:
        on = f" on {', '.join(self.attributes)}" if self.attributes else ""
        return f"{self.index}{on} {self.work:,.0f}"


@dataclass(frozen=True)
class Part:
    """The index of one shard.

    ``attributes`` are those that are indexed, each with the share of clauses that it lets through; ``messages`` says by
    how many messages that is judged, 0 means by the profiles alone. ``candidates`` come with the work of a message, and
    of the updates that go with it, in exact tests of a clause; the first is the one in use.
    """

    index: str
    chosen: bool
    clauses: int
    attributes: Mapping[str, float]
    messages: int
    candidates: tuple[Candidate, ...]
    reason: str
    changes: int
    changed_after: int

    def lines(self) -> list[str]:
        """The part as text."""
        how = f"chosen: {self.reason}" if self.chosen else self.reason
        found = [f"index {self.index}, {how}", f"  {self.clauses:,} clauses"]
        if self.attributes:
            by = f"{self.messages:,} messages" if self.messages else "the profiles, no message was seen yet"
            shares = ", ".join(f"{name} {share:.2%}" for name, share in self.attributes.items())
            found.append(f"  attributes, and the clauses that each lets through: {shares} (judged by {by})")
        if self.candidates:
            costs = "; ".join(str(candidate) for candidate in self.candidates)
            found.append(f"  work per message, in tests of a clause: {costs}")
        if self.changes:
            times = "once" if self.changes == 1 else f"{self.changes:,} times"
            found.append(f"  changed {times}, last after {self.changed_after:,} messages")
        return found


@dataclass(frozen=True)
class Plan:
    """The index of a filter, or of each of its shards, and why it is this one.

    ``str(plan)`` is for people, :meth:`to_dict` for programs.
    """

    strategy: str
    parts: tuple[Part, ...]

    @property
    def index(self) -> str:
        """The name of the index; several where shards differ."""
        return ", ".join(dict.fromkeys(part.index for part in self.parts))

    @property
    def attributes(self) -> tuple[str, ...]:
        """The indexed attributes, in the order in which they are asked."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.attributes))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"strategy": self.strategy, "index": self.index, "parts": [asdict(part) for part in self.parts]}

    def __str__(self) -> str:
        if len(self.parts) == 1:
            return "\n".join([f"strategy {self.strategy}", *self.parts[0].lines()])
        lines = [f"strategy {self.strategy}, {len(self.parts)} shards"]
        for number, part in enumerate(self.parts):
            lines += [f"shard {number}: {part.lines()[0]}", *part.lines()[1:]]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for part in self.parts:
            on = ", ".join(f"{name} ({share:.2%})" for name, share in part.attributes.items())
            costs = "<br>".join(escape(str(candidate)) for candidate in part.candidates)
            cells = (part.index, on, f"{part.clauses:,}", part.reason, f"{part.changes:,}")
            rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + f"<td>{costs}</td></tr>")
        heads = ("index", "attributes (clauses let through)", "clauses", "why", "changes", "work per message")
        head = "".join(f"<th>{name}</th>" for name in heads)
        caption = f"<caption>tamis.Filter, strategy {escape(self.strategy)}</caption>"
        return f"<table>{caption}<tr>{head}</tr>{''.join(rows)}</table>"


def plan_of(f: Filter) -> Plan:
    """The plan of a filter as it stands."""
    return Plan(f.strategy, tuple(_part(f, shard) for shard in range(f.threads)))


def _part(f: Filter, shard: int) -> Part:
    auto, index = f._auto, f._indexes[shard]
    names = list(f._compiler.attributes.column)
    ids = f._live(shard)
    slots = index.bundle.slot_attribute.tolist() if len(ids) else []
    load = Load() if auto is None else auto.load
    picture = look(ids, f._world(shard), len(names), load, f.threads, wanted=slots)
    share = dict(zip(picture.columns.tolist(), picture.passing.tolist(), strict=True))
    attributes = {names[slot]: share[slot] for slot in slots if slot in share}
    if auto is None:
        return Part(index.name, False, len(ids), attributes, picture.seen, (), "as asked for", 0, 0)
    chooser = auto.choosers[shard]
    ordered = sorted(chooser.costs.items(), key=lambda item: (item[0] != chooser.option, item[1]))
    candidates = tuple(Candidate(option.name, _names(option, names), cost) for option, cost in ordered)
    return Part(
        index.name,
        True,
        len(ids),
        attributes,
        picture.seen,
        candidates,
        chooser.reason,
        chooser.changes,
        chooser.changed_after,
    )


def _names(option: Option, names: list[str]) -> tuple[str, ...]:
    return tuple(names[column] for column in option.attributes)
