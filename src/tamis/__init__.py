"""tamis: a context-aware information filter.

>>> from tamis import Filter
>>> f = Filter()
>>> f.subscribe("w-A", "quantity <= ctx.stock", context="A")
>>> f.update("A", stock=12)
>>> f.match({"quantity": 7})
['w-A']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import EventError, InvariantError, ProfileError, TamisError, UsageError

if TYPE_CHECKING:
    from .engine.filter import Filter
    from .engine.plan import Plan
    from .model.builder import attr, ctx
    from .model.events import EventLog
    from .model.explanation import Explanation
    from .model.language import parse
    from .model.matches import Matches, Rejected
    from .model.printer import to_text
    from .reference import ReferenceFilter

__version__ = "0.1.0"

__all__ = [
    "EventError",
    "EventLog",
    "Explanation",
    "Filter",
    "InvariantError",
    "Matches",
    "Plan",
    "ProfileError",
    "ReferenceFilter",
    "Rejected",
    "TamisError",
    "UsageError",
    "attr",
    "ctx",
    "parse",
    "to_text",
]

# What costs to import is imported when it is asked for: the command line shows its help without loading a compiler.
_ROOMS = {
    "Filter": "engine.filter",
    "EventLog": "model.events",
    "Explanation": "model.explanation",
    "Matches": "model.matches",
    "Plan": "engine.plan",
    "Rejected": "model.matches",
    "ReferenceFilter": "reference",
    "attr": "model.builder",
    "ctx": "model.builder",
    "parse": "model.language",
    "to_text": "model.printer",
}


def __getattr__(name: str) -> Any:
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module 'tamis' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{room}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_ROOMS])
