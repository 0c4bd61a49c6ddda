"""Who competes: names, and the options of the filter behind each. The one place to change.

The first four are the paper's: one architecture (indexes, merge, postfilter) for all of them, its index structure
(interval skip list, Section 6.1), its AttI = 2 indexed attributes; AGILE ignores FP = 1,000 false positives before it
deescalates, as in Experiments 1 to 3. NOINDEX gives every profile to the same postfilter.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

from tamis import Filter, UsageError

from .experiment import Setting

Options = Mapping[str, Any]

ATT_I: Final = 2
_SKIPLIST: Final = {"index": "skiplist", "indexed": ATT_I}

PAPER: Final[dict[str, Options]] = {
    "NOINDEX": {"strategy": "noindex", **_SKIPLIST},
    "EAGER": {"strategy": "eager", **_SKIPLIST},
    "GBU": {"strategy": "gbu", **_SKIPLIST},
    "AGILE": {"strategy": "agile", "policy": "fixed(1000)", **_SKIPLIST},
}
BLOCKS: Final[dict[str, Options]] = {"blocks": {"strategy": "agile", "index": "blocks"}}
SCAN: Final[dict[str, Options]] = {"scan": {"strategy": "noindex"}}
"""NOINDEX as today's processors like it: vectorised, sixteen profiles at a time, no postfilter for most of them."""
INDEXES: Final[dict[str, Options]] = {
    f"AGILE {index}": {"strategy": "agile", "policy": "fixed(1000)", "index": index, "indexed": ATT_I}
    for index in ("hash", "btree", "rtree")
}
POLICIES: Final[dict[str, Options]] = {
    f"AGILE {policy}": {"strategy": "agile", "policy": policy, **_SKIPLIST}
    for policy in ("always", "fixed(10)", "fixed(100)", "auto(3000)", "cost")
}
ALL: Final[dict[str, Options]] = {**PAPER, **BLOCKS, **SCAN, **INDEXES, **POLICIES}

COST: Final = "AGILE cost"
AUTO: Final = "AGILE auto(3000)"
OTHER_POLICIES: Final = ("AGILE always", "AGILE fixed(10)", "AGILE fixed(100)", "AGILE", AUTO)
"""The paper's policies, to compare ours with; ``AGILE`` itself is ``fixed(1000)``."""


def chosen(setting: Setting) -> dict[str, Options]:
    """The contenders that a run is for; an unknown name is an error."""
    if setting.contenders is None:
        return dict(ALL)
    for name in setting.contenders:
        if name not in ALL:
            near = difflib.get_close_matches(name, ALL, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"there is no contender {name!r}{hint} (known: {', '.join(ALL)})")
    return {name: options for name, options in ALL.items() if name in setting.contenders}


def make(name: str, options: Options) -> Filter:
    """A contender's filter; options that the filter refuses are an error that names the contender."""
    try:
        return Filter(**options)
    except (UsageError, TypeError) as error:
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise UsageError(f"contender {name}: Filter({given}) is refused: {error}") from None
