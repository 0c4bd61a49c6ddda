"""Messages of the past: what ``recall`` gives back, and what may be asked of it.

Guarantees that both filters number messages alike: from 0, in the order in which they were accepted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tamis.errors import UsageError


class Past(NamedTuple):
    """A message of the history and its number."""

    number: int
    message: dict[str, Any]


def history_room(history: Any) -> int:
    """How many messages ``Filter(history=...)`` asks to keep."""
    if isinstance(history, bool) or not isinstance(history, int) or history < 0:
        raise UsageError(f"history: expected how many messages to keep, 0 for none, got {history!r}")
    return history


def recall_bounds(since: Any, limit: Any, room: int) -> tuple[int, int | None]:
    """The checked arguments of ``recall``."""
    if not room:
        raise UsageError("recall: this filter keeps no history; make it with history=, the number of messages to keep")
    if isinstance(since, bool) or not isinstance(since, int):
        raise UsageError(f"recall: since= is the number of a message, as stats['messages'] counts them, got {since!r}")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise UsageError(f"recall: limit= is a number of messages, got {limit!r}")
    return since, limit
