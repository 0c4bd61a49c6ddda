"""The bundles of arrays that kernels read and write, and the meaning of their columns.

A bundle is a record of arrays: it passes into a kernel as one pointer, its arrays save to disk and open memory-mapped.
Codes are row numbers: a context code is a row of :class:`Contexts`, a profile code a row of :class:`Profiles`.
A value is a double: numbers and instants (microseconds) as they are, booleans as 0 and 1, texts and lists as a code.
Integers beyond 2**53 carry the difference to their double in a parallel ``residual`` array (empty while none exists),
so that comparing (value, residual) lexicographically is exact to 64 bits.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .records import Record

# An absent value is this one NaN; any other NaN is a present value that compares false.
ABSENT_BITS = np.int64(0x7FF8_0000_0000_A85E)
ABSENT = np.array([ABSENT_BITS]).view(np.float64)[0]

# Columns of Clauses.meta.
TEMPLATE, CONTEXT, PROFILE, CONSTANTS, PLACE, NEXT, SIBLING, FLAGS = range(8)
META_COLUMNS = 8
# Bits of Clauses.meta[:, FLAGS].
LIVE, HAS_SIBLING, HAS_EFFECT, CLOSED, AWAY, FILED = 1, 2, 4, 8, 16, 32

# Columns of Templates.row.
FIRST_PREDICATE, PREDICATES, PROGRAM, PROGRAM_LENGTH, GATE, GATE_LENGTH, DEPENDS_LOW, DEPENDS_HIGH = range(8)
TEMPLATE_COLUMNS = 8

# Columns of Templates.predicate: one interval test ``low <= message[attribute] <= high``.
ATTRIBUTE, LOW, LOW_CTX, LOW_CONST, LOW_STRICT, HIGH, HIGH_CTX, HIGH_CONST, HIGH_STRICT, TRAITS = range(10)
PREDICATE_COLUMNS = 10
# Bits of TRAITS. COMPLEX: the interval depends on its context in a way that gives no slack, every update recomputes it.
# OUTER: the interval is a superset found by rearranging an expression; the exact test is in the program.
COMPLEX, OUTER = 1, 2
# Kinds of bounds (columns LOW and HIGH): none, a constant, a context value, context value + constant, a program.
NONE, CONST, CTX, CTX_PLUS, COMPUTED = range(5)

# Columns of Profiles.row.
FIRST_CLAUSE, EFFECT, EFFECTS, SHAPE = range(4)  # FIRST_CLAUSE is -1 for a code without a profile
PROFILE_COLUMNS = 4


# Entries of the ``count`` array of every index; an index may have more behind them. LISTENERS have a context.
N_ENTRIES, LISTENERS, PROBES, UPDATES, CANDIDATES, FALSE_POSITIVES, ESCALATIONS = range(7)
COMMON_COUNTS = 7


# Bits of Contexts.watch: some index entry depends on the value; the index has to hear of every update of it.
WATCHED, PINNED = range(2)


class Contexts(Record):
    """What is known of every context, and how far each value may move before an index has to hear of it."""

    FIELDS: ClassVar = {
        "value": (np.float64, 2),  # [context, attribute]
        "residual": (np.int16, 2),  # [context, attribute], or [0, 0]
        "watch": (np.uint8, 3),  # [context, attribute // 8, 2], a bit per attribute: WATCHED, PINNED
        "safe": (np.float32, 3),  # [context, attribute, 2]: K(i) of paper 000 as a range of the context's value
        "head": (np.int32, 1),  # [context]: first clause on this context, -1 for none
    }


class Templates(Record):
    """Shapes of clauses: what many clauses share, apart from their constants."""

    FIELDS: ClassVar = {
        "row": (np.int32, 2),  # [template, TEMPLATE_COLUMNS]
        "predicate": (np.int32, 2),  # [predicate, PREDICATE_COLUMNS]
        "code": (np.int32, 2),  # [instruction, 3]
        "pool": (np.float64, 1),  # constants that belong to a template
        "pool_residual": (np.int16, 1),
    }


class Clauses(Record):
    """One conjunction of a profile's normal form per row."""

    FIELDS: ClassVar = {
        "meta": (np.int32, 2),  # [clause, META_COLUMNS]
        "constant": (np.float64, 1),  # the clauses' own constants, one run per clause
    }


class Profiles(Record):
    """One row per profile code; ``seen`` is the serial of the last message that matched it."""

    FIELDS: ClassVar = {
        "row": (np.int32, 2),  # [profile, PROFILE_COLUMNS]
        "order": (np.int64, 1),  # [profile]: subscription order
        "seen": (np.int64, 1),  # [profile]
        "effect": (np.int32, 2),  # [effect, 4]: target attribute, first instruction, length, constants
    }


class Values(Record):
    """Texts, lists and pattern verdicts that values refer to by code."""

    FIELDS: ClassVar = {
        "heap": (np.uint8, 1),  # UTF-8 of all texts
        "start": (np.int64, 1),  # [text + 1]
        "list_start": (np.int64, 1),  # [list + 1]
        "list_value": (np.float64, 1),
        "list_residual": (np.int16, 1),
        "verdict": (np.uint64, 1),  # open-addressing set of (pattern << 32 | text) that match; size a power of two
    }


class Messages(Record):
    """Encoded messages of one log."""

    FIELDS: ClassVar = {
        "value": (np.float64, 2),  # [message, attribute]
        "residual": (np.int16, 2),  # [message, attribute], or [0, 0]
    }


class World(Record):
    """All that the exact test of a clause may look at, and the stack that programs run on."""

    FIELDS: ClassVar = {
        "messages": Messages,
        "contexts": Contexts,
        "templates": Templates,
        "clauses": Clauses,
        "values": Values,
        "graphs": (np.int64, 1),  # [graph]: address of its Taxonomy; see :mod:`tamis.kernels.taxonomy`
        "stack": (np.float64, 2),  # [2, depth]
    }


# The sketch of context values that every index keeps; see :mod:`tamis.kernels.root`.
SKETCH = {
    "strips": (np.int32, 1),
    "strip": (np.float64, 2),
    "sketch": (np.uint8, 1),
}


class Blocks(Record):
    """The index ``blocks``; see :mod:`tamis.kernels.blocks` for the layout and its invariants."""

    FIELDS: ClassVar = {
        "lines": (np.uint8, 1),
        "zones": (np.uint8, 1),
        "plots": (np.uint8, 1),
        "cores": (np.uint8, 1),
        "boxes": (np.uint8, 1),
        "masks": (np.uint32, 2),
        "summary": (np.uint32, 1),
        "clause": (np.int32, 1),
        "profile": (np.int32, 1),
        "base": (np.float64, 2),
        "scale": (np.float64, 2),
        "width": (np.float64, 2),
        "reach": (np.float64, 3),
        "used": (np.uint64, 1),
        "margin": (np.uint8, 1),
        "debt": (np.int32, 1),
        "slack": (np.float64, 1),
        "leash": (np.float64, 1),
        "plot": (np.float64, 1),
        "grain": (np.float64, 1),
        "routes": (np.uint64, 2),
        "route": (np.int32, 2),
        "seen": (np.float64, 2),
        "cuts": (np.float64, 2),
        "passing": (np.float64, 1),
        "node": (np.int32, 2),
        "split": (np.float64, 1),
        "slot_attribute": (np.int32, 1),
        "attribute_slot": (np.int32, 1),
        "count": (np.int64, 1),
        "scratch": (np.float64, 2),
        "wanted": (np.uint8, 2),
        "growth": (np.int32, 1),
        **SKETCH,
        "root": (np.int32, 2),
        "hull": (np.float64, 2),
        "tenant": (np.int32, 2),
    }


class Scan(Record):
    """NOINDEX: bounds rounded outward to float32, one row per attribute, scanned front to back."""

    FIELDS: ClassVar = {
        "low": (np.float32, 2),  # [slot, entry]
        "high": (np.float32, 2),
        "clause": (np.int32, 1),  # [entry]
        "profile": (np.int32, 1),
        "plain": (np.uint8, 1),  # [entry]: 0 closed, 1 the bounds decide, 2 always to be postfiltered
        "slot_attribute": (np.int32, 1),
        "attribute_slot": (np.int32, 1),
        "count": (np.int64, 1),
        **SKETCH,
    }


class Postings(Record):
    """Lists of entries; see :mod:`tamis.kernels.postings`."""

    FIELDS: ClassVar = {
        "marker": (np.int32, 2),
        "list": (np.int32, 2),
        "marks": (np.int32, 3),  # [entry, group, 2 * most]: list and marker of each of an entry's markers
        "used": (np.uint8, 2),  # [entry, group]: how many there are
        "stock": (np.int64, 1),
    }


# What every index of paper 000 has, whatever its structure; see :mod:`tamis.kernels.strategies`. An entry is a clause
# number, a group is what one structure indexes together: one slot, or several where a structure has many dimensions.
FAMILY = {
    "postings": Postings,
    "held": (np.float64, 3),  # [entry, slot, 2]: K(i), the values of the slot for which the entry is returned
    "level": (np.int8, 3),  # [entry, slot, 2]: how far each end is escalated, 0 is exact
    "state": (np.uint8, 2),  # [entry, group]: OUT, PLACED or EVERYWHERE
    "everywhere": (np.uint64, 2),  # [group, word]: entries that the group returns for every message
    "always": (np.int64, 1),  # [group]: and how many they are
    "certain": (np.uint8, 1),  # [entry]: what all groups return of it matches
    "bits": (np.uint64, 2),  # [2, word]: the merge works in these
    "brief": (np.uint64, 2),  # [2, word >> 6]: a bit for every word that may hold one
    "want": (np.float64, 2),  # [slot, 2]: the interval that is to be placed
    "aim": (np.int8, 2),  # [slot, 2]: and the level at which
    "levels": (np.int64, 2),  # [CHOSEN or TRIED, group]: the levels that a review weighs
    "group": (np.int32, 1),  # [groups + 1]: the first slot of each group
    "scope": (np.float64, 2),  # [slot, 2]: of PARTIAL
    "rule": (np.float64, 1),  # strategy, policy and what they count
    "seen": (np.float64, 2),  # [slot, SEEN]: what the policy has measured
    "routes": (np.uint64, 2),
    "route": (np.int32, 2),
    "slot_attribute": (np.int32, 1),
    "attribute_slot": (np.int32, 1),
    "count": (np.int64, 1),
    **SKETCH,
}


class SkipList(Record):
    """Interval skip lists; see :mod:`tamis.kernels.skiplist`."""

    FIELDS: ClassVar = {
        **FAMILY,
        "key": (np.float64, 1),  # [node]; the number of a node is that of its first edge
        "height": (np.int8, 1),  # [node]
        "to": (np.int32, 1),  # [edge]: the node it leads to; an edge is also the number of a list
        "beyond": (np.float64, 1),  # [edge]: the key of that node
        "ends": (np.int32, 3),  # [entry, group, 2]: the nodes between which an entry lies
        "path": (np.int32, 1),  # [height]: the way to a node
        "edges": (np.int32, 1),  # [marks]: those that make up a range
        "spare": (np.int64, 1),  # edges in use, random state, rough ends, tallest node of each group
    }


class HashTable(Record):
    """Hash tables of cells; see :mod:`tamis.kernels.hashtable`."""

    FIELDS: ClassVar = {
        **FAMILY,
        "cell": (np.float64, 1),  # [slot]: the width of a cell, 0 where values themselves are hashed
        "bucket": (np.int64, 2),  # [bucket, 2]: group and cell; a bucket is also the number of a list
        "slots": (np.int32, 1),  # open addressing: bucket, -1 for none
        "spare": (np.int64, 1),  # buckets in use
    }


class BTree(Record):
    """B+-trees with node buffers; see :mod:`tamis.kernels.btree`. Leaves are the first nodes, inner nodes follow."""

    FIELDS: ClassVar = {
        **FAMILY,
        "node": (np.int32, 2),  # [node, 2]: entries or children, parent; a node is also the number of a list
        "span": (np.float64, 2),  # [node, 3]: the least lower and the largest upper end, and that of its buffer
        "low": (np.float64, 2),  # [leaf, LEAF]: the intervals of the entries
        "high": (np.float64, 2),
        "entry": (np.int32, 2),  # [leaf, LEAF]
        "key": (np.float64, 3),  # [inner, 2, FAN]: the least key of each child, its ends
        "key_entry": (np.int32, 2),  # [inner, FAN]: and its number
        "child": (np.int32, 2),  # [inner, FAN]
        "cap": (np.float64, 2),  # [inner, FAN]: the largest upper end below each child
        "home": (np.int32, 2),  # [entry, group]: the leaf it is in, -1 for none
        "tree": (np.int32, 2),  # [group, 2]: root and height
        "path": (np.int32, 1),  # nodes that are still to be visited
        "spare": (np.int64, 1),  # nodes in use and free ones
    }


class RTree(Record):
    """An R-tree with node buffers over all slots; see :mod:`tamis.kernels.rtree`."""

    FIELDS: ClassVar = {
        **FAMILY,
        "node": (np.int32, 2),  # [node, 3]: entries or children, parent, height; a node is also the number of a list
        "hull": (np.float64, 3),  # [node, slot, 2]: its box
        "load": (np.float64, 3),  # [node, slot, 2]: the box of what its buffer holds
        "box": (np.float64, 3),  # [node, 2 * slot + end, FAN]: the boxes of its children or entries
        "child": (np.int32, 2),  # [node, FAN]: and their numbers
        "home": (np.int32, 2),  # [entry, group]: the leaf it is in, -1 for none
        "tree": (np.int32, 2),  # [group, 2]: root and height
        "unit": (np.float64, 2),  # [slot, 3]: the part of the domain where sizes are measured, and 1 / its length
        "at": (np.float64, 2),  # [slot, 2]: the message, as a box
        "meets": (np.uint8, 1),  # [FAN]: the children that it meets
        "order": (np.int32, 2),  # [2, FAN]: of a split: children in order, now and for the best cut so far
        "middle": (np.float64, 1),  # [FAN]
        "part": (np.float64, 3),  # [2 * FAN, slot, 2]: hulls of the first children, of the last ones
        "path": (np.int32, 1),  # nodes that are still to be visited
        "spare": (np.int64, 1),  # nodes in use and free ones
    }
