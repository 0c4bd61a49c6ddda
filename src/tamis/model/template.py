"""Context templates: ``"{symbol}"`` names a context by attributes of the message.

Guarantees that a template is either read completely or refused with the place. Refuses to know tracks.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tamis.errors import UsageError


@dataclass(frozen=True, slots=True)
class Template:
    """Text with holes: ``parts`` alternates between text and attribute names, text first and last."""

    text: str
    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Reads ``"{symbol}@{venue}"``; ``{{`` and ``}}`` stand for braces."""
        if not isinstance(text, str) or not text:
            raise UsageError(f"context: expected a name or a template such as '{{symbol}}', got {text!r}")
        parts = [""]
        try:
            for literal, name, spec, conversion in string.Formatter().parse(text):
                parts[-1] += literal
                if name is None:
                    continue
                if not name or spec or conversion:
                    raise UsageError(f"context: {text!r}: a hole is {{attribute}}, without format or conversion")
                parts += [name, ""]
        except ValueError as error:
            raise UsageError(f"context: {text!r} is not a template: {error}") from None
        return cls(text, tuple(parts))

    @property
    def attributes(self) -> tuple[str, ...]:
        """The message attributes in the holes."""
        return self.parts[1::2]

    def fill(self, message: Mapping[str, Any]) -> str | None:
        """The context's name for a message of normalised values; ``None`` when an attribute is absent."""
        filled = list(self.parts)
        for k in range(1, len(filled), 2):
            value = message.get(filled[k])
            if value is None:
                return None
            filled[k] = str(value)
        return "".join(filled)
