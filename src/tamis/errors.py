"""Every error of tamis, by whose fault it is.

One root, :class:`TamisError`. A subclass says who has to act: the subscriber (:class:`ProfileError`), the
publisher of a message or an update (:class:`EventError`), the caller (:class:`UsageError`), or we ourselves
(:class:`InvariantError`). Every message names the value and the place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


class TamisError(Exception):
    """The root of all errors raised by tamis."""


class UsageError(TamisError, ValueError):
    """The caller passed an argument that cannot work; the text says what was expected."""


class GraphError(UsageError):
    """A content graph that cannot be (a cycle), or a category that it does not have."""


class InvariantError(TamisError, AssertionError):
    """``check()`` found a structure that breaks its own rules: a bug in tamis, never the user's fault."""


class EventError(TamisError, ValueError):
    """One message, update, subscribe or unsubscribe is wrong; ``reason`` says which value and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(eq=False)
class ProfileError(TamisError, ValueError):
    """A profile that cannot be understood or accepted.

    ``code`` is stable and made for programs, the rest is made for people: ``str(error)`` shows the line with a
    caret below the column, what was expected and the nearest known word. ``to_json()`` carries the same content.
    """

    code: str
    message: str
    text: str = ""
    line: int = 1
    column: int = 1
    expected: tuple[str, ...] = field(default=())
    suggestion: str | None = None
    profile: str | int | None = None

    def __post_init__(self) -> None:
        Exception.__init__(self, self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            type(self),
            (
                self.code,
                self.message,
                self.text,
                self.line,
                self.column,
                self.expected,
                self.suggestion,
                self.profile,
            ),
        )

    def __str__(self) -> str:
        where = f"profile {self.profile!r}: " if self.profile is not None else ""
        parts = [f"{where}{self.message} [{self.code}]"]
        if self.text:
            shown, caret = _excerpt(self.text, self.line, self.column)
            parts.append(f"  line {self.line}, column {self.column}:")
            parts.append(f"    {shown}")
            parts.append(f"    {' ' * caret}^")
        if self.expected:
            parts.append(f"  expected: {', '.join(self.expected)}")
        if self.suggestion:
            parts.append(f"  did you mean {self.suggestion!r}?")
        return "\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """The same content as plain values."""
        return {
            "code": self.code,
            "message": self.message,
            "line": self.line,
            "column": self.column,
            "expected": list(self.expected),
            "suggestion": self.suggestion,
            "profile": self.profile,
            "text": self.text,
        }

    def to_json(self) -> str:
        """The same content as one JSON object."""
        return json.dumps(self.to_dict(), ensure_ascii=False)


def _excerpt(text: str, line: int, column: int, width: int = 100) -> tuple[str, int]:
    """The named line, cut around the column so that a huge profile still gives a readable error."""
    lines = text.splitlines() or [""]
    shown = lines[min(line, len(lines)) - 1].replace("\t", " ")
    caret = min(column - 1, len(shown))
    if len(shown) > width:
        start = max(0, min(caret - width // 2, len(shown) - width))
        shown, caret = shown[start : start + width], caret - start
    return shown, caret
