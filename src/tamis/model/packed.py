"""Trees and values as JSON, for saving: every node by its name and fields, without the checks of the JSON form.

Guarantees ``unpack(pack(x)) == x`` for values and trees, also for trees that no text can produce.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from tamis.model import tree as t
from tamis.model.values import from_microseconds, to_microseconds

_NODES: dict[str, Callable[..., Any]] = {
    cls.__name__: cls
    for cls in (
        *(t.Literal, t.Attribute, t.Context, t.Parameter, t.Items, t.Negative, t.Arithmetic, t.Function),
        *(t.Compare, t.Between, t.Member, t.Like, t.StartsWith, t.Matches, t.Within, t.Covers, t.Has, t.Truth),
        *(t.And, t.Or, t.Not, t.Effect),
    )
}


def pack(value: Any) -> Any:
    """JSON for a value or a tree: times and nodes are tagged, lists stay lists."""
    if isinstance(value, datetime):
        return {"time": to_microseconds(value)}
    if isinstance(value, tuple):
        return [pack(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {type(value).__name__: [pack(getattr(value, name)) for name in value.__dataclass_fields__]}
    return value


def unpack(packed: Any) -> Any:
    if isinstance(packed, list):
        return tuple(unpack(item) for item in packed)
    if isinstance(packed, dict):
        ((tag, content),) = packed.items()
        return from_microseconds(content) if tag == "time" else _NODES[tag](*unpack(content))
    return packed
