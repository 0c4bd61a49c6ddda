"""The bundles of arrays that kernels read and write, and the meaning of their columns.

A bundle is a NamedTuple of arrays: it passes into a kernel, saves to disk, opens memory-mapped and pickles.
Codes are row numbers: a context code is a row of :class:`Contexts`, a profile code a row of :class:`Profiles`.
A value is a double: numbers and instants (microseconds) as they are, booleans as 0 and 1, texts and lists as their code.
Integers beyond 2**53 carry the difference to their double in a parallel ``residual`` array (empty while none exists),
so that comparing (value, residual) lexicographically is exact to 64 bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# An absent value is this one NaN; any other NaN is a present value that compares false.
ABSENT_BITS = np.int64(0x7FF8_0000_0000_A85E)
ABSENT = np.array([ABSENT_BITS]).view(np.float64)[0]

# Columns of Clauses.meta.
TEMPLATE, CONTEXT, PROFILE, CONSTANTS, PLACE, NEXT, SIBLING, FLAGS = range(8)
META_COLUMNS = 8
# Bits of Clauses.meta[:, FLAGS].
LIVE, HAS_SIBLING, HAS_EFFECT, CLOSED = 1, 2, 4, 8

# Columns of Templates.row.
FIRST_PREDICATE, PREDICATES, PROGRAM, PROGRAM_LENGTH, GATE, GATE_LENGTH, DEPENDS_LOW, DEPENDS_HIGH = range(8)
TEMPLATE_COLUMNS = 8

# Columns of Templates.predicate: one interval test ``low <= message[attribute] <= high``.
ATTRIBUTE, LOW, LOW_CTX, LOW_CONST, LOW_STRICT, HIGH, HIGH_CTX, HIGH_CONST, HIGH_STRICT, TRAITS = range(10)
PREDICATE_COLUMNS = 10
# Bits of TRAITS. COMPLEX: the interval depends on its context in a way that gives no slack, every update recomputes it.
# OUTER: the interval is a superset found by rearranging an expression; the exact test is in the program.
COMPLEX, OUTER = 1, 2
# Kinds of bounds (columns LOW and HIGH): none, a constant, a context attribute, context attribute + constant, a program.
NONE, CONST, CTX, CTX_PLUS, COMPUTED = range(5)

# Columns of Profiles.row.
FIRST_CLAUSE, EFFECT, EFFECTS, SHAPE = range(4)  # FIRST_CLAUSE is -1 for a code without a profile
PROFILE_COLUMNS = 4


# Entries of the ``count`` array of every index; an index may have more behind them.
N_ENTRIES, PROBES, UPDATES, CANDIDATES, FALSE_POSITIVES = range(5)
COMMON_COUNTS = 5


class Contexts(NamedTuple):
    """What is known of every context, and how far each value may move before an index has to hear of it."""

    value: NDArray[np.float64]  # [context, attribute]
    residual: NDArray[np.int16]  # [context, attribute], or [0, 0]
    watch: NDArray[np.uint8]  # [context, attribute // 8], a bit per attribute: some index entry depends on it
    safe: NDArray[np.float32]  # [context, attribute, 2]: K(i) of paper 000 as a range of the context's value
    head: NDArray[np.int32]  # [context]: first clause on this context, -1 for none


class Templates(NamedTuple):
    """Shapes of clauses: what many clauses share, apart from their constants."""

    row: NDArray[np.int32]  # [template, TEMPLATE_COLUMNS]
    predicate: NDArray[np.int32]  # [predicate, PREDICATE_COLUMNS]
    code: NDArray[np.int32]  # [instruction, 3]
    pool: NDArray[np.float64]  # constants that belong to a template
    pool_residual: NDArray[np.int16]


class Clauses(NamedTuple):
    """One conjunction of a profile's normal form per row."""

    meta: NDArray[np.int32]  # [clause, META_COLUMNS]
    constant: NDArray[np.float64]  # the clauses' own constants, one run per clause


class Profiles(NamedTuple):
    """One row per profile code; ``seen`` is the serial of the last message that matched it."""

    row: NDArray[np.int32]  # [profile, PROFILE_COLUMNS]
    order: NDArray[np.int64]  # [profile]: subscription order
    seen: NDArray[np.int64]  # [profile]
    effect: NDArray[np.int32]  # [effect, 4]: target attribute, first instruction, length, constants


class Values(NamedTuple):
    """Texts, lists and pattern verdicts that values refer to by code."""

    heap: NDArray[np.uint8]  # UTF-8 of all texts
    start: NDArray[np.int64]  # [text + 1]
    list_start: NDArray[np.int64]  # [list + 1]
    list_value: NDArray[np.float64]
    list_residual: NDArray[np.int16]
    verdict: NDArray[np.uint64]  # open-addressing set of (pattern << 32 | text) that match; size a power of two


class Messages(NamedTuple):
    """Encoded messages of one log."""

    value: NDArray[np.float64]  # [message, attribute]
    residual: NDArray[np.int16]  # [message, attribute], or [0, 0]


class World(NamedTuple):
    """All that the exact test of a clause may look at, and the stack that programs run on."""

    messages: Messages
    contexts: Contexts
    templates: Templates
    clauses: Clauses
    values: Values
    stack: NDArray[np.float64]  # [2, depth]


class Blocks(NamedTuple):
    """The index ``blocks``; see :mod:`tamis.kernels.blocks` for the layout and its invariants."""

    lines: NDArray[np.uint8]
    zones: NDArray[np.uint8]
    boxes: NDArray[np.uint8]
    masks: NDArray[np.uint32]
    summary: NDArray[np.uint32]
    clause: NDArray[np.int32]
    profile: NDArray[np.int32]
    base: NDArray[np.float64]
    scale: NDArray[np.float64]
    used: NDArray[np.uint64]
    debt: NDArray[np.int32]
    heat: NDArray[np.uint8]
    cuts: NDArray[np.float64]
    node: NDArray[np.int32]
    split: NDArray[np.float64]
    slot_attribute: NDArray[np.int32]
    attribute_slot: NDArray[np.int32]
    count: NDArray[np.int64]


class Scan(NamedTuple):
    """NOINDEX: bounds rounded outward to float32, one row per attribute, scanned front to back."""

    low: NDArray[np.float32]  # [slot, entry]
    high: NDArray[np.float32]
    clause: NDArray[np.int32]  # [entry]
    profile: NDArray[np.int32]
    plain: NDArray[np.uint8]  # [entry]: 0 closed, 1 the bounds decide, 2 always to be postfiltered
    slot_attribute: NDArray[np.int32]
    attribute_slot: NDArray[np.int32]
    count: NDArray[np.int64]
