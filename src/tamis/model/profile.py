"""Profiles as they arrive: text, tree, JSON form or builder, made one thing.

Guarantees that a :class:`Profile` holds a well-formed tree without parameters left open, that it has a context when
it needs one, and that an error names the profile and, for text, the place. Refuses to know filters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tamis.errors import ProfileError, UsageError
from tamis.model import tree as t
from tamis.model.jsonform import from_json
from tamis.model.language import defect, locate, parse, parse_effects
from tamis.model.schema import Schema
from tamis.model.values import INT64_MAX, INT64_MIN, Kind, Value

_PREDICATE = (
    t.Compare | t.Between | t.Member | t.Like | t.StartsWith | t.Matches | t.Within | t.Covers | t.Has | t.Truth
)
_CONDITION = _PREDICATE | t.And | t.Or | t.Not
_COMPARISONS = frozenset(("==", "!=", "<", "<=", ">", ">="))


@dataclass(frozen=True, slots=True)
class Profile:
    """A condition and its effects; ``text`` and ``effects_text`` are what was written, empty when it was no text."""

    condition: t.Condition
    effects: tuple[t.Effect, ...] = ()
    text: str = ""
    effects_text: str = ""

    def nodes(self) -> Iterable[t.Node]:
        """All nodes of the condition and of the effects."""
        yield from t.walk(self.condition)
        for effect in self.effects:
            yield from t.walk(effect.value)

    def parameters(self) -> tuple[str, ...]:
        """The names of its ``{parameters}``, sorted."""
        return tuple(sorted({node.name for node in self.nodes() if isinstance(node, t.Parameter)}))

    def uses_context(self) -> bool:
        """Whether it reads or changes its context."""
        return bool(self.effects) or any(isinstance(node, t.Context) for node in self.nodes())

    def fill(self, values: Mapping[str, Value]) -> Profile:
        """The profile with its parameters replaced by constants; the text stays, to show where an error is."""
        effects = tuple(t.Effect(effect.target, _fill(effect.value, values)) for effect in self.effects)
        return Profile(_fill(self.condition, values), effects, self.text, self.effects_text)

    def ready(self, id: str | int, has_context: bool) -> None:
        """Raises :class:`ProfileError` when a parameter is open, a pattern wrong, or a context missing."""
        for node in self.nodes():
            if isinstance(node, t.Parameter):
                text = f"{{{node.name}}} is a parameter; give it a value, or use subscribe_many"
                raise self.located(_at(ProfileError("parameter", text, profile=id), node))
        if not has_context and self.uses_context():
            name = next((node for node in self.nodes() if isinstance(node, t.Context)), None)
            what = f"the profile uses ctx.{name.name}" if name else "the profile has effects"
            error = ProfileError("no-context", f"{what}; give it a context: subscribe(..., context=...)", profile=id)
            raise self.located(_at(error, name) if name else error)

    def admit(self, schema: Schema, id: str | int, parameters: Mapping[str, Kind] | None = None) -> None:
        """Takes the profile into the schema, all or nothing; an error shows the place in the text."""
        try:
            schema.admit(self.condition, self.effects, id, parameters)
        except ProfileError as error:
            raise self.located(error) from None

    def located(self, error: ProfileError) -> ProfileError:
        """The error with the place of its ``node`` in the text."""
        node = getattr(error, "node", None)
        if error.text or node is None:
            return error
        for text in (self.text, self.effects_text):
            if text:
                error.text = text
                error.line, error.column = locate(text, node)
                if (error.line, error.column) != (1, 1):
                    break
        return error


def read_profile(profile: Any, on_match: Any = None, id: str | int | None = None) -> Profile:
    """Reads text, a tree, the JSON form (a mapping) or anything with a ``tree``; effects are text or effects."""
    try:
        condition, text = _condition(profile)
        effects, effects_text = _effects(on_match)
    except ProfileError as error:
        error.profile = id if error.profile is None else error.profile
        raise
    return Profile(condition, effects, text, effects_text)


def checked_id(id: Any) -> str | int:
    """A profile's id: text, or an integer of 64 bits."""
    if isinstance(id, str):
        return str.__str__(id)
    if isinstance(id, bool) or not hasattr(id, "__index__"):
        raise UsageError(f"id: expected text or an integer, got {type(id).__name__} {id!r}")
    number = int(id)
    if not INT64_MIN <= number <= INT64_MAX:
        raise UsageError(f"id: {number} is out of 64-bit range")
    return number


def _condition(profile: Any) -> tuple[t.Condition, str]:
    if isinstance(profile, str):
        return parse(profile), profile
    if isinstance(profile, Mapping):
        return from_json(profile), ""
    tree = getattr(profile, "tree", profile)
    if not isinstance(tree, _CONDITION):
        raise ProfileError(
            "not-a-condition",
            f"expected a profile as text, tree, JSON form or builder, got {type(profile).__name__}",
        )
    well_formed(tree)
    return tree, ""


def _effects(on_match: Any) -> tuple[tuple[t.Effect, ...], str]:
    if on_match is None or on_match == "" or on_match == ():
        return (), ""
    if isinstance(on_match, str):
        return parse_effects(on_match), on_match
    single = isinstance(on_match, t.Effect)
    effects = (on_match,) if single else tuple(on_match) if isinstance(on_match, Iterable) else ()
    if not effects or not all(isinstance(effect, t.Effect) for effect in effects):
        raise ProfileError("not-an-effect", f"on_match: expected text or effects, got {type(on_match).__name__}")
    for effect in effects:
        well_formed(effect.value)
    return effects, ""


def well_formed(root: t.Node) -> None:
    """Raises :class:`ProfileError` for a tree that no text could have given."""
    for node in t.walk(root):
        wrong = defect(node)
        if wrong is None and isinstance(node, t.And | t.Or) and len(node.items) < 2:
            wrong = ("bad-tree", f"{type(node).__name__} needs at least two conditions")
        if wrong is None and isinstance(node, t.Compare) and node.op not in _COMPARISONS:
            wrong = ("bad-tree", f"unknown comparison {node.op!r}")
        if wrong is None and isinstance(node, t.Arithmetic) and node.op not in ("+", "-", "*", "/"):
            wrong = ("bad-tree", f"unknown arithmetic {node.op!r}")
        if wrong is not None:
            raise _at(ProfileError(*wrong), node)


def _fill(node: Any, values: Mapping[str, Value]) -> Any:
    if isinstance(node, t.Parameter):
        value = values[node.name]
        if isinstance(value, tuple):
            return t.Items(tuple(t.Literal(item) for item in value if item is not None))
        return t.Literal(value)
    if isinstance(node, tuple):
        return tuple(_fill(item, values) for item in node)
    if isinstance(node, t.Literal) or not hasattr(node, "__dataclass_fields__"):
        return node
    return type(node)(*(_fill(getattr(node, name), values) for name in node.__dataclass_fields__))


def _at(error: ProfileError, node: t.Node) -> ProfileError:
    error.node = node  # type: ignore[attr-defined]
    return error
