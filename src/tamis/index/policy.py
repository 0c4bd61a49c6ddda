"""Deescalation policies by name (paper 000, section 5.5)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tamis.errors import UsageError
from tamis.kernels import entries

POLICIES: Final = ("cost", "always", "fixed(FP)", "auto(C)")
_KNOWN: Final = {
    "always": (entries.FIXED, 1.0),
    "fixed": (entries.FIXED, 1000.0),
    "auto": (entries.AUTO, 3000.0),
    "cost": (entries.COST, 0.0),
}


class Policy(NamedTuple):
    """When AGILE makes an entry more exact again: ``kind`` and ``parameter`` are what the kernel knows."""

    name: str
    kind: int
    parameter: float

    def patience(self, due: int) -> int:
        """For ``blocks``: scans in vain per deescalation; ``due`` where costs decide, negative where updates do."""
        if self.name == "cost":
            return due
        return -int(self.parameter) if self.name == "auto" else int(self.parameter)

    def __str__(self) -> str:
        return f"{self.name}({self.parameter:g})" if self.name in ("fixed", "auto") else self.name


def read_policy(text: str) -> Policy:
    """A policy by name; ``fixed`` and ``auto`` take a number.

    >>> [str(read_policy(text)) for text in ("cost", "fixed(10)", "auto")]
    ['cost', 'fixed(10)', 'auto(3000)']
    """
    found = re.fullmatch(r"\s*(\w+)\s*(?:\(\s*([0-9.eE+]+)\s*\))?\s*", text) if isinstance(text, str) else None
    name = found[1].lower() if found else ""
    if found is None or name not in _KNOWN or (found[2] and name in ("always", "cost")):
        raise UsageError(f"policy: expected one of {', '.join(POLICIES)}, got {text!r}")
    kind, parameter = _KNOWN[name]
    if found[2]:
        try:
            parameter = float(found[2])
        except ValueError:
            parameter = 0.0
        if parameter < 1:
            raise UsageError(f"policy: expected a number of at least 1 in {name}(...), got {found[2]}")
    return Policy(name, kind, parameter)
