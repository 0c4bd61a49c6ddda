"""The options of a filter, and names, as callers give them: read, or refused with what was expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tamis.errors import EventError, UsageError
from tamis.index.slots import MAX_SLOTS
from tamis.model.values import shown


def known(what: str, given: Any, known: tuple[str, ...]) -> None:
    """Raises unless a name is one of those that are known."""
    if given not in known:
        raise UsageError(f"{what}: expected one of {', '.join(known)}, got {given!r}")


def read_indexed(given: Any) -> int | str | tuple[str, ...]:
    """What ``Filter(indexed=...)`` asks for: a number of attributes, their names, or ``auto``."""
    if isinstance(given, str) and given == "auto":
        return given
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= MAX_SLOTS:
        return given
    if isinstance(given, Sequence) and not isinstance(given, str) and given and all(isinstance(n, str) for n in given):
        return tuple(given)
    raise UsageError(
        f"indexed: expected a number of attributes from 1 to {MAX_SLOTS}, their names, or 'auto', got {given!r}"
    )


def read_scope(given: Mapping[str, tuple[float, float]] | None, strategy: str) -> dict[str, tuple[float, float]]:
    """What ``Filter(scope=...)`` asks for."""
    if given and strategy != "partial":
        raise UsageError(f"scope: only strategy 'partial' has one, not {strategy!r}")
    scope: dict[str, tuple[float, float]] = {}
    for name, ends in (given or {}).items():
        try:
            low, high = (float(end) for end in ends)
        except (TypeError, ValueError):
            raise UsageError(f"scope: expected {{'{name}': (low, high)}}, got {ends!r}") from None
        if not low <= high:
            raise UsageError(f"scope: expected low <= high for {name!r}, got {ends!r}")
        scope[attribute_name(name)] = (low, high)
    return scope


def attribute_name(name: object) -> str:
    """The name of a context attribute; :class:`EventError` when it cannot be one."""
    if not isinstance(name, str) or not name:
        raise EventError(f"update: expected the name of an attribute, got {shown(name)}")
    return name
