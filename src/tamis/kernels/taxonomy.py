"""Categories in programs: which category a text means, and what the categories of a message are below.

A filter has a vector of content graphs. Each has a :class:`Taxonomy`: its labels and edges, the category of every text,
and *marks* on the categories of the message at hand and all above them, so that ``topic within X`` costs one look per
category of X, however many categories the message has. Marks are made once per message (:func:`mark`), for each graph
whose attribute the message has, and are private to one shard.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from .digraph import Edges
from .jit import bare
from .labels import Labels, ancestors, reaches
from .records import Record, at_address

# How a value holds categories: a text, a list, or either (a list has the code -1 - code).
TEXT, LIST, EITHER = range(3)
# Entries of Taxonomy.count: the message attribute, how its value holds categories, marked categories, value present;
# categories found below those of the message so far, how many of them were looked below already, and how many are the
# message's own: they are the first.
COLUMN, MODE, MARKED, PRESENT, DOWN, HEAD, OWN = range(7)


class Taxonomy(Record):
    """One graph as programs and indexes see it."""

    FIELDS: ClassVar = {
        "labels": Labels,
        "edges": Edges,
        "category": (np.int32, 1),  # [text]: its category, -1 for none
        "up": (np.uint8, 1),  # [category + 1]: 1 for those of the message and all above, and behind the last category
        "above": (np.int32, 1),  # the marked categories
        "down": (np.uint8, 1),  # [category + 1]: the same for those of the message and those found below
        "below": (np.int32, 1),  # these categories
        "count": (np.int64, 1),
    }


taxonomy_at = at_address(Taxonomy)


@bare
def span(v, mode, values):
    """The elements of a value: (first, last, text); a single text is the element itself, and then the span is 0..1."""
    if mode == TEXT or (mode == EITHER and v >= 0.0):
        return np.int64(0), np.int64(1), np.int64(v)
    k = np.int64(v) if mode == LIST else np.int64(-1.0 - v)
    return values.list_start[k], values.list_start[k + 1], np.int64(-1)


@bare
def element(i, text, elements, category):
    """The category of element ``i`` of a span of ``Values.list_value``; -1 where there is none."""
    if text < 0:
        x = elements[i]
        if math.isnan(x):
            return np.int64(-1)
        text = np.int64(x)
    if text >= category.shape[0]:
        return np.int64(-1)
    return np.int64(category[text])


@bare
def mark(graphs, messages, values, m):
    """Mark the categories of message ``m``, and all above them, in every graph."""
    for g in range(graphs.shape[0]):
        tx = taxonomy_at(graphs[g])
        count, up, above, down, below = tx.count, tx.up, tx.above, tx.down, tx.below
        for i in range(count[MARKED]):
            up[above[i]] = 0
        for i in range(count[DOWN]):
            down[below[i]] = 0
        size = n_own = np.int64(0)
        count[PRESENT] = 0
        a = count[COLUMN]
        if a >= 0 and a < messages.value.shape[1]:
            v = messages.value[m, a]
            if not math.isnan(v):
                count[PRESENT] = 1
                first, last, text = span(v, count[MODE], values)
                for i in range(first, last):
                    node = element(i, text, values.list_value, tx.category)
                    if node >= 0 and down[node] == 0:
                        down[node], below[n_own] = 1, node
                        n_own += 1
                        size = ancestors(tx.labels, node, up, above, size)
        count[MARKED], count[DOWN], count[HEAD], count[OWN] = size, n_own, 0, n_own


@bare
def expand(tx):
    """Look one step further below the categories of the message; False when there is nothing left."""
    count, edges, down, below = tx.count, tx.edges, tx.down, tx.below
    if count[HEAD] == count[DOWN]:
        return False
    e = np.int64(edges.down[below[count[HEAD]]])
    count[HEAD] += 1
    while e >= 0:
        child = np.int64(edges.child[e])
        if down[child] == 0:
            down[child], below[count[DOWN]] = 1, child
            count[DOWN] += 1
        e = np.int64(edges.next_down[e])
    return True


@bare
def under(tx, v, mode, values):
    """Whether a category of the value ``v`` is marked: the message's is within it."""
    first, last, text = span(v, mode, values)
    for i in range(first, last):
        node = element(i, text, values.list_value, tx.category)
        if node >= 0 and tx.up[node]:
            return True
    return False


@bare
def related(tx, below, below_mode, above, above_mode, values):
    """Whether a category of ``below`` is one of ``above`` or below it."""
    first, last, text = span(above, above_mode, values)
    start, stop, single = span(below, below_mode, values)
    for i in range(first, last):
        high = element(i, text, values.list_value, tx.category)
        if high < 0:
            continue
        for j in range(start, stop):
            low = element(j, single, values.list_value, tx.category)
            if low >= 0 and reaches(tx.labels, high, low):
                return True
    return False
