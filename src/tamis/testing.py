"""Random profiles and logs, and the comparison with the reference: for our tests and for yours.

Guarantees that the same generator state gives the same log, that values come from small domains (so that matches are
frequent and boundaries are hit), and that nothing hard is left out: NaN, infinities, integers around 2**53 and 2**63,
absent attributes, wrong kinds, malformed profiles, replaced ids. Refuses to know any engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from tamis.model import tree as t
from tamis.model.events import EventLog
from tamis.model.matches import Matches
from tamis.model.printer import to_text

T = TypeVar("T")

SMALL: Final = (-2, -1, 0, 1, 2, 3, 4, 0.5, 1.5, 2.5, 1.0, 2.0)
EDGES: Final[tuple[int | float, ...]] = (
    *(2**53 - 1, 2**53, 2**53 + 1, 2.0**53, -(2**53) - 1, 2**63 - 1, -(2**63), 2.0**63, -(2.0**63)),
    *(float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1e308, 5e-324),
)
TEXTS: Final = ("", "a", "ab", "abc", "b", "B", "a_b", "a%", "é", "a\nb", "😀", "ab😀")
START: Final = datetime(2024, 1, 1, tzinfo=UTC)
TIMES: Final = tuple(START + timedelta(microseconds=u) for u in (-1, 0, 1, 1_000_000, 5_000_000, 86_400_000_000))
LIKES: Final = ("%", "_", "a%", "%b", "a_b", r"a\_b", r"%\%", "a%b%", "", "__", "%😀")
REGEXES: Final = ("a", "^a.*b$", "[ab]+", "(?i)B", r"\x{1F600}", "^$", "a|b", "(?s)a.b")
OPS: Final = ("==", "!=", "<", "<=", ">", ">=")
MALFORMED: Final = ("a >", "a = = 1", "(a > 1", "a between 1", "a > 'x", "s matches '('", "a > {hole}", "abs('x') > 1")
WRONG: Final[tuple[Any, ...]] = (
    *("text", 7, True, b"bytes", {"no": 1}, 2**70, [1, "a"], [[1]], START, [], [True], float("nan")),
)


@dataclass(frozen=True)
class Vocabulary:
    """The names to use, by kind; each exists as a message attribute and as a context attribute."""

    numbers: tuple[str, ...] = ("a", "b", "c")
    texts: tuple[str, ...] = ("s", "u")
    booleans: tuple[str, ...] = ("f",)
    times: tuple[str, ...] = ("t",)
    points: tuple[str, ...] = ("p",)
    tags: tuple[str, ...] = ("g",)
    ids: tuple[str | int, ...] = (*(f"q{i}" for i in range(12)), *range(12))
    contexts: tuple[str, ...] = ("A", "B", "C", "D")
    edges: float = 0.15
    """The share of numbers taken from the edges of the number line."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return (*self.numbers, *self.texts, *self.booleans, *self.times, *self.points, *self.tags)

    def schema(self) -> dict[str, str]:
        """The kinds of all names, to declare them."""
        kinds = {
            **dict.fromkeys(self.numbers, "number"),
            **dict.fromkeys(self.texts, "text"),
            **dict.fromkeys(self.booleans, "boolean"),
            **dict.fromkeys(self.times, "time"),
            **dict.fromkeys(self.points, "list of number"),
            **dict.fromkeys(self.tags, "list of text"),
        }
        return {**kinds, **{f"ctx.{name}": kind for name, kind in kinds.items()}}

    def every_kind(self) -> str:
        """A profile that uses every name and so fixes every kind."""
        uses = []
        for prefix in ("", "ctx."):
            uses += [f"{prefix}{name} > 0" for name in self.numbers]
            uses += [f"{prefix}{name} == 'a'" for name in self.texts]
            uses += [f"{prefix}{name}" for name in self.booleans]
            uses += [f"{prefix}{name} > date '2024-01-01'" for name in self.times]
            uses += [f"distance({prefix}{name}, [0, 0]) < 1" for name in self.points]
            uses += [f"'a' in {prefix}{name}" for name in self.tags]
        return " and ".join(uses)

    def value(self, rng: np.random.Generator, name: str) -> Any:
        """A random value of the name's kind."""
        if name in self.numbers:
            return self.number(rng)
        if name in self.texts:
            return pick(rng, TEXTS)
        if name in self.booleans:
            return bool(rng.integers(2))
        if name in self.times:
            return pick(rng, TIMES)
        if name in self.points:
            return [self.number(rng) for _ in range(pick(rng, (0, 1, 2, 2, 2)))]
        return [pick(rng, TEXTS) for _ in range(int(rng.integers(0, 4)))]

    def number(self, rng: np.random.Generator) -> int | float:
        """A random number, mostly small."""
        return pick(rng, EDGES) if rng.random() < self.edges else pick(rng, SMALL)


def pick(rng: np.random.Generator, choices: Sequence[T]) -> T:
    """One of the choices, all equally likely."""
    return choices[int(rng.integers(len(choices)))]


# -- profiles --------------------------------------------------------------------------------------------------


def random_profile(
    rng: np.random.Generator, vocabulary: Vocabulary | None = None, *, context: bool = True, depth: int = 2
) -> str:
    """The text of a random well-formed profile; without ``context`` it uses no ``ctx.`` attributes."""
    words = _Words(rng, vocabulary or Vocabulary(), context)
    if rng.random() < 0.4:
        return words.common()
    return to_text(words.condition(depth))


def random_effects(rng: np.random.Generator, vocabulary: Vocabulary | None = None) -> str:
    """The text of one or two random effects."""
    v = vocabulary or Vocabulary()
    n, m, s, time = pick(rng, v.numbers), pick(rng, v.numbers), pick(rng, v.texts), pick(rng, v.times)
    point = pick(rng, v.points)
    choices = (
        *(f"ctx.{n} = {m}", f"ctx.{n} += 1", f"ctx.{n} = {m} / ctx.{n}", f"ctx.{n} -= {m}", f"ctx.{n} = abs({m} - 1)"),
        *(f"ctx.{s} = {s}", f"ctx.{v.booleans[0]} = true", f"ctx.{v.tags[0]} = {v.tags[0]}"),
        *(f"ctx.{time} = {time}", f"ctx.{time} = {time} + 1.5", f"ctx.{n} = distance({point}, ctx.{point})"),
    )
    return "; ".join(pick(rng, choices) for _ in range(int(rng.integers(1, 3))))


def random_tracks(rng: np.random.Generator, count: int, vocabulary: Vocabulary | None = None) -> list[dict[str, Any]]:
    """Arguments for ``track``: apply them to the filter and to the reference before comparing."""
    v = vocabulary or Vocabulary()
    tracks = []
    for _ in range(count):
        text, number = f"{{{pick(rng, v.texts)}}}", f"n{{{pick(rng, v.numbers)}}}"
        template = pick(rng, (text, number, pick(rng, v.contexts)))
        when = None if rng.random() < 0.5 else random_profile(rng, v, depth=1)
        tracks.append({"context": template, "set": random_effects(rng, v), "when": when})
    return tracks


class _Words:
    """One random profile's choices."""

    def __init__(self, rng: np.random.Generator, vocabulary: Vocabulary, context: bool) -> None:
        self.rng, self.v, self.context = rng, vocabulary, context

    def common(self) -> str:
        """Shapes that many profiles share and differ in constants only."""
        rng, v = self.rng, self.v
        a, b, s = v.numbers[0], v.numbers[-1], v.texts[0]
        k, j = pick(rng, SMALL), pick(rng, SMALL)
        text = pick(rng, TEXTS[1:6])
        shapes = [
            f"{a} between {min(k, j)} and {max(k, j)}",
            f"{s} == '{text}' and {a} > {k}",
            f"{a} >= {k} and {b} <= {j}",
            f"{s} in ['{text}', 'b'] and {a} != {k}",
        ]
        if self.context:
            shapes += [
                f"{a} between ctx.{a} - {abs(k)} and ctx.{a} + {abs(k)} and {b} < {j}",
                f"{s} == '{text}' and {b} <= ctx.{b}",
                f"abs({a} - ctx.{a}) <= {abs(k)} and {s} startswith '{text}'",
                f"ctx.{v.booleans[0]} and {a} == {k}",
            ]
        return pick(rng, shapes)

    def condition(self, depth: int) -> t.Condition:
        roll = self.rng.random()
        if depth == 0 or roll < 0.3:
            return self.predicate()
        if roll < 0.42:
            return t.Not(self.condition(depth - 1))
        group, other = (t.And, t.Or) if roll < 0.78 else (t.Or, t.And)
        items: list[t.Condition] = []
        for _ in range(int(self.rng.integers(2, 4))):
            item = self.condition(depth - 1)
            items.append(item if not isinstance(item, group) else other(item.items))
        return group(tuple(items))

    def predicate(self) -> t.Condition:
        makers: tuple[Callable[[], t.Condition], ...] = (
            *(self.numeric, self.numeric, self.numeric, self.between, self.between, self.textual, self.textual),
            *(self.pattern, self.pattern, self.member, self.member, self.time, self.near, self.truth, self.presence),
        )
        return pick(self.rng, makers)()

    def name(self, names: Sequence[str]) -> t.Attribute | t.Context:
        name = pick(self.rng, names)
        return t.Context(name) if self.context and self.rng.random() < 0.4 else t.Attribute(name)

    def number(self, depth: int = 1) -> t.Expression:
        roll = self.rng.random()
        if roll < 0.4:
            return self.name(self.v.numbers)
        if roll < 0.7 or depth == 0:
            return t.Literal(self.v.number(self.rng))
        if roll < 0.78:
            return t.Function("abs", (self.number(depth - 1),))
        if roll < 0.83:
            return t.Negative(self.name(self.v.numbers))
        return t.Arithmetic(pick(self.rng, ("+", "-", "*", "/")), self.number(depth - 1), self.number(depth - 1))

    def numeric(self) -> t.Condition:
        left: t.Expression = self.name(self.v.numbers) if self.rng.random() < 0.6 else self.number(2)
        return t.Compare(pick(self.rng, OPS), left, self.number())

    def between(self) -> t.Condition:
        if self.rng.random() < 0.3:
            texts = sorted((pick(self.rng, TEXTS), pick(self.rng, TEXTS)))
            return t.Between(self.name(self.v.texts), t.Literal(texts[0]), t.Literal(texts[1]))
        return t.Between(self.number(), self.number(), self.number())

    def textual(self) -> t.Condition:
        right = t.Literal(pick(self.rng, TEXTS)) if self.rng.random() < 0.6 else self.name(self.v.texts)
        return t.Compare(pick(self.rng, OPS), self.name(self.v.texts), right)

    def pattern(self) -> t.Condition:
        value = self.name(self.v.texts)
        roll = self.rng.random()
        if roll < 0.4:
            return t.Like(value, t.Literal(pick(self.rng, LIKES)))
        if roll < 0.7:
            return t.Matches(value, t.Literal(pick(self.rng, REGEXES)))
        prefix = t.Literal(pick(self.rng, TEXTS)) if roll < 0.9 else self.name(self.v.texts)
        return t.StartsWith(value, prefix)

    def member(self) -> t.Condition:
        roll = self.rng.random()
        if roll < 0.3:
            return t.Member(self.name(self.v.texts), self.name(self.v.tags))
        if roll < 0.4:
            return t.Member(self.number(), self.name(self.v.points))
        size = int(self.rng.integers(0, 4))
        if roll < 0.7:
            texts = tuple(t.Literal(pick(self.rng, TEXTS)) for _ in range(size))
            return t.Member(self.name(self.v.texts), t.Items(texts))
        numbers = [t.Literal(pick(self.rng, SMALL)) for _ in range(size)]
        items = tuple(self.number(0) if self.rng.random() < 0.2 else number for number in numbers)
        return t.Member(self.number(), t.Items(items))

    def time(self) -> t.Condition:
        left, right = self.name(self.v.times), t.Literal(pick(self.rng, TIMES))
        roll = self.rng.random()
        if roll < 0.4:
            return t.Compare(pick(self.rng, OPS), left, right)
        if roll < 0.7:
            return t.Compare(pick(self.rng, OPS), t.Arithmetic("-", left, right), t.Literal(pick(self.rng, SMALL)))
        later = t.Arithmetic(pick(self.rng, ("+", "-")), right, t.Literal(pick(self.rng, SMALL)))
        return t.Compare(pick(self.rng, OPS), left, later)

    def near(self) -> t.Condition:
        here = t.Items((t.Literal(0), t.Literal(pick(self.rng, SMALL))))
        there = self.name(self.v.points) if self.rng.random() < 0.7 else here
        distance = t.Function("distance", (t.Attribute(pick(self.rng, self.v.points)), there))
        return t.Compare(pick(self.rng, ("<", "<=", ">", "==")), distance, t.Literal(pick(self.rng, SMALL)))

    def truth(self) -> t.Condition:
        roll = self.rng.random()
        if roll < 0.1:
            return t.Truth(t.Literal(bool(self.rng.integers(2))))
        if roll < 0.4:
            return t.Compare(pick(self.rng, OPS[:2]), self.name(self.v.booleans), t.Literal(bool(self.rng.integers(2))))
        return t.Truth(self.name(self.v.booleans))

    def presence(self) -> t.Condition:
        return t.Has(self.name(self.v.names))


# -- logs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mix:
    """The shares of the four sorts of events, and how often something is absent or wrong."""

    messages: float = 0.45
    updates: float = 0.3
    subscribes: float = 0.2
    unsubscribes: float = 0.05
    absent: float = 0.15
    wrong: float = 0.02
    malformed: float = 0.04
    effects: float = 0.2
    open_kinds: float = 0.2
    """How often a log starts without a profile that fixes the kinds of all names."""


def random_message(
    rng: np.random.Generator, vocabulary: Vocabulary | None = None, *, absent: float = 0.15, wrong: float = 0.0
) -> dict[str, Any]:
    """A random message; ``wrong`` is the share of messages with one value of any kind at all."""
    v = vocabulary or Vocabulary()
    message = {name: v.value(rng, name) for name in v.names if rng.random() >= absent}
    if rng.random() < wrong:
        message[pick(rng, (*v.names, "unused"))] = pick(rng, WRONG)
    return message


def random_log(
    rng: np.random.Generator,
    events: int,
    vocabulary: Vocabulary | None = None,
    mix: Mix | None = None,
    *,
    columnar: bool = False,
) -> EventLog:
    """A random log of about ``events`` events, in one order.

    With ``columnar`` every message attribute has one Arrow type, as in real tables; without, rows mix types freely.
    """
    v, mix = vocabulary or Vocabulary(), mix or Mix()
    shares = np.array([mix.messages, mix.updates, mix.subscribes, mix.unsubscribes])
    builder = EventLog.builder()
    messages: list[dict[str, Any]] = []
    if rng.random() >= mix.open_kinds:
        builder.subscribe("every kind", v.every_kind(), v.contexts[0])
    for sort in rng.choice(4, size=events, p=shares / shares.sum()).tolist():
        if sort == 0:
            message = random_message(rng, v, absent=mix.absent, wrong=0.0 if columnar else mix.wrong)
            messages.append(message)
            builder.message(message)
        elif sort == 1:
            name = pick(rng, v.names)
            value = pick(rng, WRONG) if rng.random() < mix.wrong else v.value(rng, name)
            builder.update(pick(rng, v.contexts), {name: None if rng.random() < mix.absent else value})
        elif sort == 2:
            _subscribe(rng, builder, v, mix)
        else:
            builder.unsubscribe(pick(rng, v.ids))
    log = builder.build()
    return _columnar(log, messages, v) if columnar and messages else log


def _subscribe(rng: np.random.Generator, builder: Any, v: Vocabulary, mix: Mix) -> None:
    needs_context = rng.random() < 0.7
    context = pick(rng, v.contexts) if needs_context or rng.random() < 0.2 else None
    profile = random_profile(rng, v, context=needs_context, depth=int(rng.integers(0, 4)))
    if rng.random() < mix.malformed:
        profile = pick(rng, (*MALFORMED, f"{v.numbers[0]} == 'text'", f"{v.texts[0]} > ctx.{v.numbers[0]}"))
    effects = random_effects(rng, v) if needs_context and rng.random() < mix.effects else None
    builder.subscribe(pick(rng, v.ids), profile, context, effects)


def _columnar(log: EventLog, messages: list[dict[str, Any]], v: Vocabulary) -> EventLog:
    """The same log with typed message columns: the first number int64, the others float64."""
    columns: dict[str, Any] = {}
    for name in v.names:
        values = [message.get(name) for message in messages]
        if name in v.numbers:
            whole = name == v.numbers[0]
            plain = [None if value is None else _as_int(value) if whole else float(value) for value in values]
            columns[name] = pa.array(plain, pa.int64() if whole else pa.float64())
        elif name in v.points:
            floats = [None if value is None else [float(x) for x in value] for value in values]
            columns[name] = pa.array(floats, pa.list_(pa.float64()))
        else:
            columns[name] = values
    typed = EventLog.of_messages(columns)
    return EventLog(typed.messages, log.message_rows, log.updates, log.subscribes, log.unsubscribes, log.runs)


def _as_int(value: int | float) -> int:
    finite = value if abs(value) < 2.0**63 else 2**63 - 1
    return int(finite) if finite == finite else 0


# -- comparing -------------------------------------------------------------------------------------------------


def differences(filter: Any, reference: Any, log: EventLog, contexts: Sequence[str] = ()) -> list[str]:
    """Processes one log on both and says how the results differ; empty when they agree.

    Compares the matches of every message, the rejected events by kind and row, and then the state of every context
    that the log names, and of ``contexts``.
    """
    return [*compare(filter.process(log), reference.process(log)), *_states(filter, reference, _named(log, contexts))]


def compare(found: Matches, expected: Matches) -> list[str]:
    """How two results differ, message by message; empty when they are equal."""
    report = []
    mine, theirs = found.by_message(), expected.by_message()
    for row in sorted(mine.keys() | theirs.keys()):
        one, two = mine.get(row, []), theirs.get(row, [])
        extra, lost = set(one) - set(two), set(two) - set(one)
        if extra or lost:
            report.append(f"message {row}: too many {sorted(extra, key=repr)}, missing {sorted(lost, key=repr)}")
        elif len(one) != len(two):
            report.append(f"message {row}: a profile is reported more than once: {one}")
    for kind in ("message", "update", "subscribe", "unsubscribe", "effect"):
        ours = sorted((r.row, r.reason) for r in found.rejected if r.kind == kind)
        right = sorted((r.row, r.reason) for r in expected.rejected if r.kind == kind)
        if [row for row, _ in ours] != [row for row, _ in right]:
            rows = {row for row, _ in ours} ^ {row for row, _ in right}
            reasons = [f"{row}: {reason}" for row, reason in (*ours, *right) if row in rows]
            report.append(f"rejected {kind}s differ in rows {sorted(rows)} or their number: {reasons}")
    return report


def _named(log: EventLog, more: Sequence[str]) -> list[str]:
    names = dict.fromkeys(more)
    for kind, _, *event in log.events():
        name = event[0] if kind == "update" else event[2] if kind == "subscribe" else None
        if isinstance(name, str):
            names[name] = None
    return list(names)


def _states(filter: Any, reference: Any, names: Sequence[str]) -> list[str]:
    report = []
    for name in names:
        one, two = _plain(filter.context(name)), _plain(reference.context(name))
        if one != two:
            wrong = sorted(key for key in one.keys() | two.keys() if one.get(key) != two.get(key))
            report += [f"context {name!r}: {key} is {one.get(key)}, should be {two.get(key)}" for key in wrong]
    return report


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _comparable(value) for name, value in values.items()}


def _comparable(value: Any) -> Any:
    """NaN equals NaN, true is not 1, and 5 is 5.0."""
    if isinstance(value, list | tuple):
        return [_comparable(item) for item in value]
    if isinstance(value, bool | np.bool_):
        return ("boolean", bool(value))
    if isinstance(value, float | np.floating) and value != value:
        return "NaN"
    return value
