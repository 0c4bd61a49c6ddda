"""The text form of profiles: from texts to trees, and back to places in the text.

Guarantees: every string gives a tree or a :class:`ProfileError` with an exact position, in time linear in its
length; trees are bounded in depth, so that whoever reads them may recurse. Refuses to know: schemas, kinds of
attributes, contexts, what a condition means.

This is the face of :mod:`tamis.model.tokens` (words), :mod:`tamis.model.parser` (grammar), :mod:`tamis.model.faults`
(errors) and :mod:`tamis.model.defects` (what no text could have given).
"""

from __future__ import annotations

from collections.abc import Iterator

from tamis.errors import ProfileError
from tamis.model.defects import MAX_ITEMS, MAX_REGEX, compile_regex, defect, pattern_defect, regex_defect
from tamis.model.parser import MAX_DEPTH, MAX_OPERATORS, MAX_PREDICATES, MAX_REGEXES, Parser
from tamis.model.tokens import (
    INT_MAX,
    INT_MIN,
    MAX_LENGTH,
    RESERVED,
    Token,
    is_plain_name,
    number,
    read_time,
    readable,
    scan,
    string,
    tokenise,
)
from tamis.model.tree import Condition, Effect, Expression, Literal, Node, children

__all__ = [
    "INT_MAX",
    "INT_MIN",
    "MAX_DEPTH",
    "MAX_ITEMS",
    "MAX_LENGTH",
    "MAX_OPERATORS",
    "MAX_PREDICATES",
    "MAX_REGEX",
    "MAX_REGEXES",
    "RESERVED",
    "Parser",
    "Token",
    "compile_regex",
    "defect",
    "is_plain_name",
    "locate",
    "number",
    "parse",
    "parse_effects",
    "pattern_defect",
    "read_time",
    "readable",
    "regex_defect",
    "scan",
    "string",
    "tokenise",
]


def parse(
    text: str, *, max_length: int = MAX_LENGTH, max_depth: int = MAX_DEPTH, max_items: int = MAX_ITEMS
) -> Condition:
    """The tree of a profile text, or a :class:`ProfileError` that says where and why not.

    Runtime complexity: O(len(text)).
    """
    readable(text, max_length)
    return Parser(text, scan(text), max_depth, max_items).profile()


def parse_effects(
    text: str, *, max_length: int = MAX_LENGTH, max_depth: int = MAX_DEPTH, max_items: int = MAX_ITEMS
) -> tuple[Effect, ...]:
    """The effects of ``ctx.stock -= quantity; seen = seen + 1``; the ``ctx.`` of a target may be left out."""
    readable(text, max_length)
    return Parser(text, scan(text), max_depth, max_items).effects()


def locate(text: str, node: Node) -> tuple[int, int]:
    """Line and column (from 1) of the first name or constant of ``node`` in ``text``.

    Parses the text again while recording positions, so it belongs on the error path. Nodes are found by value:
    of equal nodes the first is meant. A node that the text does not contain is at (1, 1).
    """
    parser = _Recorder(text, scan(text))
    try:
        tree: tuple[Node, ...] = (parser.profile(),)
    except ProfileError:
        parser = _Recorder(text, scan(text))
        try:
            tree = tuple(effect.value for effect in parser.effects())
        except ProfileError:
            return (1, 1)
    for candidate in (found for root in tree for found in _reading_order(root)):
        if candidate == node:
            for leaf in _reading_order(candidate):
                if id(leaf) in parser.starts:
                    return parser.position(parser.starts[id(leaf)])
    return (1, 1)


class _Recorder(Parser):
    """A parser that remembers where each name and constant stood."""

    __slots__ = ("kept", "starts")

    def __init__(self, text: str, tokens: list[str]) -> None:
        super().__init__(text, tokens)
        self.starts: dict[int, int] = {}
        self.kept: list[Expression] = []

    def leaf(self, token: str, start: int) -> Expression:
        return self.record(super().leaf(token, start), start)

    def constant(self, value: bool, start: int) -> Expression:
        return self.record(super().constant(value, start), start)

    def number(self, token: str, start: int, negative: bool = False) -> Literal:
        found = super().number(token, start, negative)
        self.record(found, start)
        return found

    def typed(self, token: str, start: int) -> Expression:
        return self.record(super().typed(token, start), start)

    def record(self, leaf: Expression, start: int) -> Expression:
        self.kept.append(leaf)
        self.starts[id(leaf)] = start
        return leaf


def _reading_order(node: Node) -> Iterator[Node]:
    yield node
    for child in children(node):
        yield from _reading_order(child)
