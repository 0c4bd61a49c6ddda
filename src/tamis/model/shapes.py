"""Profiles that differ in their constants only are parsed once, and so are the predicates that profiles share.

:func:`lift` takes the numbers, texts and booleans out of a profile text, looks the rest (its *shape*) up in a
bounded cache, and returns the shared tree with the constants beside it. Guarantees:
``substitute(tree, {"#0": values[0], ...}) == parse(text)``. Patterns, times and the items of lists stay in the
shape, because what is done with them once per shape (compiling, sorting) depends on their values; only the items of
the one small set of a conjunction are lifted, because each of them will be a comparison.

A shape that is a conjunction is put together from *pieces*, one per item, each of which is parsed once: a hundred
thousand different conjunctions of the same few hundred predicates cost a look into a table per predicate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from tamis.errors import ProfileError
from tamis.model.language import INT_MAX, MAX_PREDICATES, MAX_REGEXES, Parser, number, parse, readable, scan, string
from tamis.model.normal import Clause, normalise
from tamis.model.tokens import spellings
from tamis.model.tree import (
    FIELDS,
    And,
    Condition,
    Context,
    Function,
    Items,
    Like,
    Literal,
    Matches,
    Member,
    Node,
    Parameter,
    Scalar,
    Truth,
    walk,
)
from tamis.model.values import BOOLEAN, NUMBER, TEXT, Kind

MAX_SHAPES = 100_000
MAX_CHARACTERS = 64_000_000
MAX_SET = 8  # items of a set that are lifted

N = TypeVar("N", bound="Node")
V = TypeVar("V")
Shape: TypeAlias = "tuple[str, Condition, tuple[Scalar, ...]]"

_DIGIT, _QUOTE, _OPEN, _WORD = 1, 2, 3, 4
# What the loop has to look at, by first character; every other token goes into the key as it is.
_FIRST = {
    **dict.fromkeys("0123456789.", _DIGIT),
    **dict.fromkeys("'\"", _QUOTE),
    **dict.fromkeys("[(", _OPEN),
    **dict.fromkeys("tTfF", _WORD),
}
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_PINNED = frozenset({"like", "startswith", "matches", "date", "timestamp", "number"})
_CALLED = frozenset({"date", "timestamp", "number"})
# After one of these a minus belongs to the number that follows it.
_BEFORE_OPERAND = frozenset(
    {
        *("", "(", "[", ",", "+", "-", "*", "/", "!", "&&", "||", "==", "=", "!=", "<>", "<", "<=", ">", ">="),
        *("and", "or", "not", "between", "in", "like", "startswith", "matches"),
    }
)
# A set in the reach of one of these stays in the shape.
_LOOSE = frozenset({*spellings("or"), "||", *spellings("not"), "!"})
# What stands in a key for a constant. No text has such a token.
_KINDS: dict[str, Kind] = {"?n": NUMBER, "?s": TEXT, "?b": BOOLEAN}
# The tokens that decide where the items of a conjunction end.
_AND, _OR, _BETWEEN, _DEEPER, _HIGHER, _END = range(6)
_ROLES = {
    **dict.fromkeys((*spellings("and"), "&&"), _AND),
    **dict.fromkeys((*spellings("or"), "||"), _OR),
    **dict.fromkeys(spellings("between"), _BETWEEN),
    **dict.fromkeys("([", _DEEPER),
    **dict.fromkeys(")]", _HIGHER),
    "": _END,
}


class Lifted(NamedTuple):
    """A text without its constants: the key of its shape, the tokens with ``?n ?s ?b`` for them, the constants."""

    key: str
    parts: list[str]
    values: tuple[Scalar, ...]


class Piece:
    """One item of a conjunction, its constants lifted out; compared by identity.

    A piece belongs to one text with markers and one number of its first parameter, so that its tree, the kinds of
    its parameters and all that is derived from them never change.
    """

    __slots__ = ("clause", "kinds", "predicates", "regexes", "signature", "tree", "uses_context")

    def __init__(self, read: _Reading, clause: Clause) -> None:
        self.tree = read.tree
        self.clause = clause  # its normal form, which has this one clause
        self.kinds: Mapping[str, Kind] = read.kinds  # of its parameters, in reading order
        self.signature = "".join(kind.name[0] for kind in read.kinds.values())
        self.uses_context = any(type(node) is Context for node in read.nodes)
        self.predicates = read.parser.predicates
        self.regexes = read.parser.regexes


class _Bounded(Generic[V]):
    """Values by text, bounded in number and in characters; the oldest are dropped first."""

    __slots__ = ("characters", "found", "max_characters", "max_entries")

    def __init__(self, max_entries: int, max_characters: int) -> None:
        self.max_entries = max_entries
        self.max_characters = max_characters
        self.characters = 0
        self.found: dict[str, V] = {}

    def add(self, key: str, value: V) -> None:
        if len(key) > self.max_characters // 100:
            return
        if len(self.found) >= self.max_entries or self.characters + len(key) > self.max_characters:
            for old in list(self.found)[: max(1, len(self.found) // 8)]:
                del self.found[old]
                self.characters -= len(old)
        self.found[key] = value
        self.characters += len(key)


class Shapes:
    """Bounded caches of shapes and of pieces; the oldest are dropped first."""

    __slots__ = ("_pieces", "_trees")

    def __init__(self, max_shapes: int = MAX_SHAPES, max_characters: int = MAX_CHARACTERS) -> None:
        self._trees: _Bounded[Condition] = _Bounded(max_shapes, max_characters)
        # None stands for a piece of a text that has to be parsed as a whole.
        self._pieces: _Bounded[Piece | None] = _Bounded(max_shapes, max_characters)

    def __len__(self) -> int:
        return len(self._trees.found)

    def lift(self, text: str) -> Shape:
        """Key, tree with parameters ``#0``, ``#1``, ... and the constants in their order.

        Raises what :func:`parse` raises. Runtime complexity: O(tokens), without building a tree on a hit.
        """
        lifted = self.take_apart(text)
        tree = None if lifted is None else self.tree(lifted, text)
        return (text, parse(text), ()) if lifted is None or tree is None else (lifted.key, tree, lifted.values)

    def take_apart(self, text: str) -> Lifted | None:
        """The text without its constants; None when one of them is wrong. Reads tokens, not their order."""
        readable(text)
        values: list[Scalar] = []
        parts: list[str] = []
        sets: list[tuple[int, int]] = []
        previous = ""
        inside = 0
        for token in scan(text):
            if inside:  # a list, which stays in the key
                inside += (token == "[" or token == "(") - (token == "]" or token == ")")
                parts.append(token)
                previous = token
                continue
            what = _FIRST.get(token[:1])
            if what is None:
                pass
            elif what == _WORD:
                if token in _BOOLEANS:
                    values.append(_BOOLEANS[token])
                    token = "?b"
            elif what == _OPEN:
                if previous.lower() == "in":
                    sets.append((len(parts) + 1, len(values)))
                    inside = 1
                elif token == "[":
                    inside = 1
            elif previous.lower() not in _PINNED and not (
                previous == "(" and len(parts) > 1 and parts[-2].lower() in _CALLED
            ):
                if what == _DIGIT:
                    value = number(token) if token != "." else ""
                    if isinstance(value, str):
                        return None
                    if previous == "-" and (len(parts) < 2 or _before_operand(parts[-2])):
                        parts.pop()
                        value = -value
                    elif type(value) is int and value > INT_MAX:
                        return None
                    values.append(value)
                    token = "?n"
                else:
                    body = string(token)
                    if body is None:
                        return None
                    values.append(body)
                    token = "?s"
            parts.append(token)
            previous = token
        if len(sets) == 1 and _LOOSE.isdisjoint(parts):
            _lift_set(parts, values, *sets[0])
        # No text has a token such as "?n", and texts and names delimit themselves: equal keys, equal tokens.
        return Lifted(" ".join(parts).rstrip(" "), parts, tuple(values))

    def tree(self, lifted: Lifted, text: str) -> Condition | None:
        """The tree of a lifted text; None when its constants have to stay. Raises what :func:`parse` raises."""
        found = self._trees.found.get(lifted.key)
        if found is None:
            pieces = self.pieces(lifted.parts)
            if pieces is None:
                read = _read(lifted.parts, 0)
                if read is None:
                    parse(text)
                    return None
                found = read.tree
            else:
                found = joined(pieces)
            self._trees.add(lifted.key, found)
        return found

    def pieces(self, parts: list[str]) -> tuple[Piece, ...] | None:
        """The items of a conjunction of lifted tokens, or None when there is more to it.

        Exact because of how the parser works: an item that is a condition by itself is read in the same way when an
        ``and`` follows it, unless it may be an operand of an ``or``.
        """
        cached = self._pieces.found
        found: list[Piece] = []
        start = first = depth = 0
        between = False
        for at, part in enumerate(parts):
            role = _ROLES.get(part)
            if role is None:
                continue
            if role == _DEEPER:
                depth += 1
            elif role == _HIGHER:
                depth -= 1
            elif depth and role != _END:
                continue
            elif role == _BETWEEN:
                between = True
            elif role == _OR:
                return None
            elif role == _AND and between:
                between = False
            else:
                words = parts[start:at]
                key = f"{first} {' '.join(words)}"
                piece = cached.get(key)
                if piece is None:
                    if key not in cached:
                        piece = _piece(words, first)
                        self._pieces.add(key, piece)
                    if piece is None:
                        return None
                found.append(piece)
                first += len(piece.kinds)
                start = at + 1
                if role == _END:
                    break
        if len(found) > MAX_REGEXES and (
            sum(piece.predicates for piece in found) > MAX_PREDICATES
            or sum(piece.regexes for piece in found) > MAX_REGEXES
        ):
            return None
        return tuple(found)


def _lift_set(parts: list[str], values: list[Scalar], start: int, at: int) -> None:
    """Lift the constants of the set that starts at ``parts[start]`` to ``values[at]``, all of them or none."""
    close = "]" if parts[start - 1] == "[" else ")"
    end = parts.index(close, start) if close in parts[start:] else start
    constants = parts[start:end:2]
    if not 0 < len(constants) <= MAX_SET or len(set(constants)) < len(constants):
        return
    if any(separator != "," for separator in parts[start + 1 : end : 2]):
        return
    markers: list[str] = []
    found: list[Scalar] = []
    for token in constants:
        what = _FIRST.get(token[:1])
        value = number(token) if what == _DIGIT and token != "." else None
        if what == _QUOTE:
            value = string(token)
            if value is None:
                return
        elif value is None or isinstance(value, str) or value > INT_MAX or (type(value) is float and value % 1 == 0):
            return  # of a whole number the encoding does not tell whether it was written 1 or 1.0
        markers.append("?s" if what == _QUOTE else "?n")
        found.append(value)
    parts[start:end:2] = markers
    values[at:at] = found


def joined(pieces: Sequence[Piece]) -> Condition:
    """The conjunction of the pieces."""
    if len(pieces) == 1:
        return pieces[0].tree
    items: list[Condition] = []
    for piece in pieces:
        tree = piece.tree
        if type(tree) is And:
            items += tree.items
        else:
            items.append(tree)
    return And(tuple(items))


class _Reading(NamedTuple):
    """What came of lifted tokens: the tree, its nodes from the right, the kinds of its parameters."""

    tree: Condition
    nodes: list[Node]
    kinds: dict[str, Kind]
    parser: Parser


def _read(parts: list[str], first: int) -> _Reading | None:
    """Parse lifted tokens with parameters from number ``first`` on.

    None when the tokens are wrong, or right only because a parameter may stand where a constant may not.
    """
    kinds: dict[str, Kind] = {}
    tokens: list[str] = []
    for part in parts:
        kind = _KINDS.get(part)
        if kind is not None:
            name = f"#{first + len(kinds)}"
            kinds[name] = kind
            part = f"{{{name}"  # Without the closing brace: no text has such a token.
        tokens.append(part)
    parser = Parser("", tokens)
    try:
        tree = parser.profile()
    except ProfileError:
        return None
    nodes = list(walk(tree))
    for node in nodes:
        look = _PARTICULAR.get(type(node))
        for operand in look(node) if look is not None else ():
            lifted = kinds.get(operand.name) if isinstance(operand, Parameter) else None
            if lifted is not None and not (lifted is BOOLEAN and type(node) is Truth):
                return None
    return _Reading(tree, nodes, kinds, parser)


# The operands that may be a parameter but not any constant.
_PARTICULAR: dict[type, Callable[[Any], Sequence[Node]]] = {
    Truth: lambda node: (node.operand,),
    Member: lambda node: (node.collection,),
    Like: lambda node: (node.pattern,),
    Matches: lambda node: (node.pattern,),
    Function: lambda node: node.arguments if node.name == "distance" else (),
}


def _piece(words: list[str], first: int) -> Piece | None:
    """The piece of the words between two ``and``; None when it cannot be looked at by itself."""
    if any(word.lower() == "or" and word not in _ROLES for word in words):  # oR: the caller took it for a name
        return None
    read = _read([*words, ""], first)
    if read is None or BOOLEAN in read.kinds.values():
        return None
    names = dict.fromkeys(node.name for node in reversed(read.nodes) if isinstance(node, Parameter))
    if list(names) != list(read.kinds):
        return None
    try:
        clauses = normalise(read.tree)
    except ProfileError:
        return None
    if len(clauses) != 1 or not clauses[0] or (not read.kinds and len(clauses[0]) > 1):
        return None
    predicates, regexes = read.parser.predicates, read.parser.regexes
    if predicates > MAX_PREDICATES // MAX_REGEXES or regexes > 1:  # so that few pieces need not be counted
        return None
    return Piece(read, clauses[0])


def _before_operand(part: str) -> bool:
    return part in _BEFORE_OPERAND or part.lower() in _BEFORE_OPERAND


def substitute(tree: N, values: Mapping[str, Scalar | Sequence[Scalar]]) -> N:
    """The tree with each parameter that ``values`` names exchanged for its constant; the others stay.

    A list or tuple becomes a list constant. Parts without such parameters are shared, not copied.
    """
    try:
        return cast("N", _substitute(tree, values))
    except RecursionError:
        raise ProfileError("too-deep", "the tree is nested too deeply") from None


def _substitute(node: Node, values: Mapping[str, Scalar | Sequence[Scalar]]) -> Node:
    if isinstance(node, Parameter):
        if node.name not in values:
            return node
        value = values[node.name]
        return Items(tuple(map(Literal, value))) if isinstance(value, list | tuple) else Literal(cast("Scalar", value))
    names = FIELDS.get(type(node))
    if not names:
        return node
    changed: dict[str, object] = {}
    for name in names:
        old = getattr(node, name)
        new: object
        if type(old) is tuple:
            new = tuple([_substitute(item, values) for item in old])
            if all(a is b for a, b in zip(old, new, strict=True)):
                continue
        else:
            new = _substitute(old, values)
            if new is old:
                continue
        changed[name] = new
    return replace(node, **changed) if changed else node  # type: ignore[arg-type]


_SHARED = Shapes()


def lift(text: str) -> Shape:
    """:meth:`Shapes.lift` on the cache of the process."""
    return _SHARED.lift(text)
