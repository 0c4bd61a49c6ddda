"""The text form of profiles: tokeniser and Pratt parser.

Guarantees: every string gives a tree or a :class:`ProfileError` with an exact position, in time linear in its
length; trees are bounded in depth, so that whoever reads them may recurse. Refuses to know: schemas, kinds of
attributes, contexts, what a condition means.

Tokens are bare strings from one ``findall``; their positions are found again only when something is wrong,
which keeps the good path short (a three-predicate profile parses in about 20 µs).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple, NoReturn, cast

import re2

from tamis.errors import ProfileError, UsageError
from tamis.model.tree import (
    And,
    Arithmetic,
    Attribute,
    Between,
    Compare,
    Condition,
    Context,
    Effect,
    Expression,
    Function,
    Has,
    Items,
    Like,
    Literal,
    Matches,
    Member,
    Negative,
    Node,
    Not,
    Or,
    Parameter,
    StartsWith,
    Truth,
    children,
)

MAX_LENGTH: Final = 65_536
MAX_DEPTH: Final = 64
MAX_ITEMS: Final = 10_000
MAX_PREDICATES: Final = 4_096
MAX_OPERATORS: Final = 100
MAX_REGEX: Final = 1_000
MAX_REGEXES: Final = 32

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1

# Every alternative that starts with a quote runs to the end of the text when it is not closed: a failed match
# would make the tokeniser scan the rest once per quote.
_SPACE = r"\s*+(?:(?:--|\#)[^\r\n]*+\s*+)*+"
_TICKED = r"`[^`]*+(?:``[^`]*+)*+(?:`|\Z)"
_NAME = r"[^\W\d]\w*+(?:\.[^\W\d]\w*+)*+"
_TOKEN = "|".join(
    [
        r"[rR]'[^']*+(?:''[^']*+)*+(?:'|\Z)",
        r'[rR]"[^"]*+(?:""[^"]*+)*+(?:"|\Z)',
        rf"[cC][tT][xX]\.{_TICKED}",
        _NAME,
        r"(?:[0-9]|\.[0-9])[0-9_]*+(?:\.[0-9_]*+)?+(?:[eE][+-]?[0-9_]*+)?+[\w.]*+",
        r"'[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*+(?:'|\\?\Z)",
        r'"[^"\\]*+(?:(?:\\.|"")[^"\\]*+)*+(?:"|\\?\Z)',
        _TICKED,
        r"\{[^{}\r\n]*+\}",
        r"===|!==|[=!<>]=|=[<>]|<>|&&|\|\||[-+*/]=",
        r".",
        r"\Z",
    ]
)
_SCAN = re.compile(f"{_SPACE}({_TOKEN})", re.DOTALL)
scan = _SCAN.findall

_CLOSED = re.compile(
    r"""'[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*+' | "[^"\\]*+(?:(?:\\.|"")[^"\\]*+)*+" """, re.DOTALL | re.VERBOSE
)
_CLOSED_RAW = re.compile(r"""'[^']*+(?:''[^']*+)*+'|"[^"]*+(?:""[^"]*+)*+\"""")
_CLOSED_TICKED = re.compile(r"`[^`]*+(?:``[^`]*+)*+`")
_ESCAPE = re.compile(
    r"\\(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)|''|\"\"", re.DOTALL
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_INTEGER = re.compile(r"[0-9]+(?:_[0-9]+)*")
_FLOAT = re.compile(r"(?:[0-9]+(?:_[0-9]+)*)?(?:\.(?:[0-9]+(?:_[0-9]+)*)?)?(?:[eE][+-]?[0-9]+(?:_[0-9]+)*)?")
_SURROGATE = re.compile("[\ud800-\udfff]")
_PLAIN = re.compile(_NAME)
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]+))?)?\s?(?:([Zz])|([+-])([0-9]{2}):?([0-9]{2})?)?)?"
)
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")

_OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _UNARY = range(1, 8)


def _spellings(word: str) -> tuple[str, str, str]:
    return (word, word.upper(), word.capitalize())


_COMPARISONS = {"==": "==", "=": "==", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_POSTFIX = ("not", "between", "in", "like", "startswith", "matches")
# token -> (binding power, canonical spelling). Words are listed in the three usual spellings; others are lowered.
_INFIX: dict[str, tuple[int, str]] = {
    **dict.fromkeys((*_spellings("or"), "||"), (_OR, "or")),
    **dict.fromkeys((*_spellings("and"), "&&"), (_AND, "and")),
    **{s: (_COMPARE, op) for s, op in _COMPARISONS.items()},
    **{s: (_COMPARE, word) for word in _POSTFIX for s in _spellings(word)},
    **{s: (_SUM, s) for s in "+-"},
    **{s: (_PRODUCT, s) for s in "*/"},
}
_FUNCTIONS = {"abs": 1, "distance": 2, "has": 1}
_TYPED = ("date", "timestamp", "number")
RESERVED: Final = frozenset({"and", "or", "true", "false", "null", "none", "ctx", *_POSTFIX})
# token -> what it does at the start of an operand; names and constants are not listed.
_PREFIX: dict[str, str] = {
    **{s: s for s in ("", "(", "[", "-")},
    **dict.fromkeys((*_spellings("not"), "!"), "not"),
    **{s: word for word in ("true", "false", "null", "none", "ctx") for s in _spellings(word)},
    **{s: "function" for word in _FUNCTIONS for s in _spellings(word)},
    **{s: "typed" for word in _TYPED for s in _spellings(word)},
    **{s: "keyword" for word in ("and", "or", *_POSTFIX[1:]) for s in _spellings(word)},
}
_KINDS = {
    **dict.fromkeys("0123456789.", "number"),
    **dict.fromkeys("'\"", "text"),
    "`": "ticked",
    "{": "parameter",
    **dict.fromkeys("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_", "name"),
}
_INSTEAD = {
    "===": "==",
    "!==": "!=",
    "&": "&&",
    "|": "||",
    "=>": ">=",
    "=<": "<=",
    "eq": "==",
    "equals": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "regexp": "matches",
    "rlike": "matches",
    "contains": "like '%...%'",
    "ilike": "matches '(?i)...'",
}
_CONDITIONS = frozenset({Compare, Between, Member, Like, StartsWith, Matches, Has, Truth, And, Or, Not})
_COLLECTIONS = frozenset({Items, Attribute, Context, Parameter})
_PLAIN_ITEMS = ("number", "text")
_QUOTES = ("'", '"')
_INFIX_WORDS = (*_POSTFIX, "and", "or")
_OPERAND = ("a name", "a constant", "'('")
_SPECIALS = {
    "inf": float("inf"),
    "+inf": float("inf"),
    "-inf": float("-inf"),
    "infinity": float("inf"),
    "-infinity": float("-inf"),
    "nan": float("nan"),
}


class Token(NamedTuple):
    """One word of a profile text: its kind, its spelling and the offset where it starts."""

    kind: str
    text: str
    start: int


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


def tokenise(text: str) -> Iterator[Token]:
    """The tokens of a text, comments left out; never fails, so that editors can colour half-written profiles.

    Kinds: ``name context keyword number text parameter operator other``.
    """
    for match in _SCAN.finditer(text):
        token = match[1]
        if token:
            yield Token(_token_kind(token), token, match.start(1))


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


def is_plain_name(name: str) -> bool:
    """Whether a name can be written without backticks."""
    if not _PLAIN.fullmatch(name):
        return False
    lowered = name.lower()
    return lowered not in RESERVED and not lowered.startswith("ctx.")


def read_time(text: str, *, date_only: bool = False) -> datetime | None:
    """An ISO 8601 date or timestamp as an instant in UTC, floored to microseconds; None when it is not one."""
    found = (_DATE if date_only else _TIME).fullmatch(text)
    if found is None:
        return None
    fields = [*found.groups(), *[None] * 8]
    fraction, _, sign, off_hours, off_minutes = fields[6:11]
    try:
        micro = int((fraction or "0")[:6].ljust(6, "0"))
        year, month, day, hour, minute, second = (int(field or 0) for field in fields[:6])
        when = datetime(year, month, day, hour, minute, second, micro, UTC)
        if sign:
            hours, minutes = int(off_hours or 0), int(off_minutes or 0)
            if hours > 23 or minutes > 59:
                return None
            offset = timedelta(hours=hours, minutes=minutes)
            when = when - offset if sign == "+" else when + offset
    except (ValueError, OverflowError):
        return None
    return when


@lru_cache(maxsize=4096)
def regex_defect(pattern: str) -> str | None:
    """Why RE2 refuses a pattern, or None when it accepts it."""
    if len(pattern) > MAX_REGEX:
        return f"the pattern is longer than {MAX_REGEX} characters"
    try:
        compile_regex(pattern)
    except (re2.error, UnicodeError) as error:
        reason = error.args[0] if error.args else "invalid"
        return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    return None


def compile_regex(pattern: str) -> Any:
    """The compiled RE2 pattern, with the options under which profiles are checked."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    return re2.compile(pattern, options)


def defect(node: Node) -> tuple[str, str] | None:
    """Code and reason if one node, apart from its children, could not have come from the text form.

    For trees made by other means (JSON form, builder). Depth and size are not looked at.
    """
    if isinstance(node, Attribute | Context | Parameter):
        what = type(node).__name__.lower()
        if not isinstance(node.name, str) or not node.name:
            return ("empty-name", f"the name of a {what} is a text with at least one character")
        if _SURROGATE.search(node.name):
            return ("bad-character", f"the name {node.name!r} holds a lone surrogate, which is not text")
        if isinstance(node, Parameter) and (node.name != node.name.strip() or set(node.name) & set("{}\r\n")):
            return ("bad-parameter", f"{node.name!r} cannot be the name of a parameter")
    elif isinstance(node, Literal):
        value = node.value
        if isinstance(value, str) and _SURROGATE.search(value):
            return ("bad-character", f"the text {value!r} holds a lone surrogate, which is not text")
        if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
            return _RANGE
        if isinstance(value, datetime) and value.tzinfo is not UTC:
            return ("bad-time", f"{value!r} is not in UTC")
    elif isinstance(node, Items):
        if any(isinstance(item, Items) for item in node.items):
            return ("misplaced-list", "a list cannot hold lists")
        if len(node.items) > MAX_ITEMS:
            return ("too-long", f"a list has at most {MAX_ITEMS:,} items, this one has {len(node.items):,}")
    elif isinstance(node, Function):
        if _FUNCTIONS.get(node.name) != len(node.arguments) or node.name == "has":
            return ("unknown-function", f"there is no function {node.name} of {len(node.arguments)} arguments")
        if node.name == "distance" and any(type(a) not in _COLLECTIONS for a in node.arguments):
            return ("bad-argument", "distance takes two lists of numbers")
    elif isinstance(node, Member):
        if type(node.collection) not in _COLLECTIONS:
            return ("bad-list", "'in' takes a list or the name of one")
    elif isinstance(node, Like | Matches):
        pattern = node.pattern
        if not isinstance(pattern, Parameter) and not (isinstance(pattern, Literal) and isinstance(pattern.value, str)):
            return ("bad-pattern", "the pattern is a text constant or a parameter")
        if isinstance(pattern, Literal):
            return pattern_defect(isinstance(node, Matches), str(pattern.value))
    elif isinstance(node, Has):
        if not isinstance(node.operand, Attribute | Context):
            return ("bad-argument", "has(...) takes the name of an attribute")
    elif isinstance(node, Truth):
        literal = isinstance(node.operand, Literal) and isinstance(node.operand.value, bool)
        if not literal and not isinstance(node.operand, Attribute | Context | Parameter):
            return ("not-a-condition", "only a name, a parameter, true or false is a condition by itself")
    if any(isinstance(child, Items) for child in children(node) if not isinstance(node, Member | Function | Items)) or (
        isinstance(node, Member) and isinstance(node.value, Items)
    ):
        return ("misplaced-list", "a list can stand after 'in' and in distance(...) only")
    return None


def pattern_defect(regex: bool, pattern: str) -> tuple[str, str] | None:
    """Code and reason if a like pattern, or a regular expression, is not valid."""
    if regex:
        reason = regex_defect(pattern)
        return None if reason is None else ("bad-regex", f"RE2 refuses the regular expression: {reason}")
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        return ("bad-pattern", "the pattern ends with a backslash that escapes nothing")
    return None


class Parser:
    """One parse of one token list. ``text`` serves error positions only, so tokens may have been exchanged."""

    __slots__ = ("at", "depth", "max_depth", "max_items", "operators", "predicates", "regexes", "text", "tokens")

    def __init__(self, text: str, tokens: list[str], max_depth: int = MAX_DEPTH, max_items: int = MAX_ITEMS) -> None:
        self.text = text
        self.tokens = tokens
        self.max_depth = max_depth
        self.max_items = max_items
        self.at = 0
        self.depth = 0
        self.operators = 0
        self.predicates = 0
        self.regexes = 0

    def profile(self) -> Condition:
        """The whole text as one condition."""
        if not self.tokens[0]:
            self.fail("unexpected-end", "the profile is empty", 0, ("a condition",))
        try:
            condition = self.condition(self.node(_OR), 0)
        except RecursionError:
            self.too_deep(self.at - 1)
        if self.tokens[self.at]:
            self.unexpected(self.at, ("an operator", "'and'", "'or'", "the end of the profile"), known=_INFIX_WORDS)
        return condition

    def effects(self) -> tuple[Effect, ...]:
        """The whole text as assignments."""
        found: list[Effect] = []
        tokens = self.tokens
        try:
            while tokens[self.at]:
                found.append(self.effect())
                self.operators = 0
                if tokens[self.at] == ";":
                    self.at += 1
                elif tokens[self.at]:
                    self.unexpected(self.at, ("';'", "an operator", "the end of the effects"))
        except RecursionError:
            self.too_deep(self.at - 1)
        if not found:
            self.fail("unexpected-end", "there is no effect", 0, ("an assignment such as ctx.stock -= quantity",))
        return tuple(found)

    def effect(self) -> Effect:
        """``target op value``."""
        start = self.at
        target = None
        if _token_kind(self.tokens[start]) in ("name", "context"):
            self.at += 1
            target = self.leaf(self.tokens[start], start)
        if not isinstance(target, Attribute | Context):
            self.unexpected(start, ("the attribute to assign, such as ctx.stock",))
        at = self.at
        op = self.tokens[at]
        if op not in ("=", "+=", "-=", "*=", "/="):
            suggestion = "=" if op in ("==", "===", ":") else None
            self.unexpected(at, ("'='", "'+='", "'-='", "'*='", "'/='"), suggestion)
        self.at += 1
        value = self.value(self.node(_SUM), at + 1)
        if op != "=":
            value = Arithmetic(op[0], Context(target.name), value)
        return Effect(target.name, value)

    def node(self, power: int) -> Node:
        """The longest node from here whose operators all bind at least as tightly as ``power``."""
        tokens = self.tokens
        start = self.at
        token = tokens[start]
        self.at = start + 1
        code = _PREFIX.get(token)
        left: Node = self.leaf(token, start) if code is None else self.prefix(code, token, start)
        while True:
            at = self.at
            token = tokens[at]
            infix = _INFIX.get(token)
            if infix is None:
                infix = _INFIX.get(token.lower())
                if infix is None:
                    return left
            level = infix[0]
            if level < power:
                return left
            self.at = at + 1
            if level == _COMPARE:
                op = infix[1]
                if op in _COMPARISONS:
                    left = self.compare(op, self.value(left, start))
                else:
                    left = self.predicate(op, self.value(left, start))
            elif level == _AND:
                left = self.all_of(self.condition(left, start))
            elif level == _OR:
                left = self.any_of(self.condition(left, start))
            else:
                self.operators += 1
                if self.operators > MAX_OPERATORS:
                    self.fail("too-deep", f"more than {MAX_OPERATORS} arithmetic operators in one predicate", at)
                left = Arithmetic(infix[1], self.value(left, start), self.value(self.node(level + 1), at + 1))

    def all_of(self, first: Condition) -> Condition:
        """``first and ...``."""
        items = [*first.items] if type(first) is And else [first]
        tokens = self.tokens
        while True:
            self.operators = 0
            start = self.at
            item = self.condition(self.node(_NOT), start)
            if type(item) is And:
                items += item.items
            else:
                items.append(item)
            infix = _INFIX.get(tokens[self.at])
            if infix is None or infix[0] != _AND:
                return And(tuple(items))
            self.at += 1

    def any_of(self, first: Condition) -> Condition:
        """``first or ...``."""
        items = [*first.items] if type(first) is Or else [first]
        tokens = self.tokens
        while True:
            self.operators = 0
            start = self.at
            item = self.condition(self.node(_AND), start)
            if type(item) is Or:
                items += item.items
            else:
                items.append(item)
            infix = _INFIX.get(tokens[self.at])
            if infix is None or infix[0] != _OR:
                return Or(tuple(items))
            self.at += 1

    def compare(self, op: str, left: Expression) -> Condition:
        """``left op ...``, with the rest of the chain."""
        start = self.at
        right = self.value(self.node(_SUM), start)
        self.count(start)
        first = Compare(op, left, right)
        following = _COMPARISONS.get(self.tokens[self.at])
        if following is None:
            return first
        items: list[Condition] = [first]
        while following is not None:
            self.at += 1
            start = self.at
            left, right = right, self.value(self.node(_SUM), start)
            self.count(start)
            items.append(Compare(following, left, right))
            following = _COMPARISONS.get(self.tokens[self.at])
        return And(tuple(items))

    def predicate(self, op: str, left: Expression) -> Condition:
        """``left op ...`` for the operators that are words."""
        tokens = self.tokens
        negated = op == "not"
        if negated:
            op = tokens[self.at].lower()
            if op not in _POSTFIX or op == "not":
                words = tuple(f"'{word}'" for word in _POSTFIX[1:])
                self.unexpected(self.at, words, known=_POSTFIX[1:])
            self.at += 1
        start = self.at
        found: Condition
        if op == "between":
            low = self.value(self.node(_SUM), start)
            infix = _INFIX.get(tokens[self.at]) or _INFIX.get(tokens[self.at].lower())
            if infix is None or infix[0] != _AND:
                self.unexpected(self.at, ("'and' with the upper end, as in between 1 and 5",), known=("and",))
            self.at += 1
            start = self.at
            found = Between(left, low, self.value(self.node(_SUM), start))
        elif op == "in":
            found = Member(left, self.collection(start))
        elif op == "startswith":
            found = StartsWith(left, self.value(self.node(_SUM), start))
        else:
            pattern = self.pattern(op, start)
            found = Matches(left, pattern) if op == "matches" else Like(left, pattern)
        self.count(start)
        return Not(found) if negated else found

    def collection(self, start: int) -> Expression:
        """What may follow ``in``."""
        token = self.tokens[start]
        if token == "[" or token == "(":
            self.at += 1
            return self.items("]" if token == "[" else ")", start)
        found = self.node(_SUM)
        if type(found) not in _COLLECTIONS:
            self.fail("bad-list", "'in' takes a list or the name of one", start, ("'['", "a name"))
        return cast("Expression", found)

    def items(self, close: str, opened: int) -> Items:
        """The items of a list, after its opening bracket."""
        self.deeper(opened)
        tokens = self.tokens
        found: list[Expression] = []
        while tokens[self.at] != close:
            start = self.at
            if not tokens[start]:
                self.unclosed(opened)
            if len(found) >= self.max_items:
                self.fail("too-long", f"a list has at most {self.max_items:,} items", start)
            token = tokens[start]
            following = tokens[start + 1]
            if (following == "," or following == close) and _KINDS.get(token[0]) in _PLAIN_ITEMS:
                # Long lists of constants: 30 % less time than through node().
                self.at = start + 1
                found.append(self.leaf(token, start))
            else:
                found.append(self.value(self.node(_SUM), start))
            if tokens[self.at] == ",":
                self.at += 1
            elif tokens[self.at] != close:
                if not tokens[self.at]:
                    self.unclosed(opened)
                self.unexpected(self.at, ("','", f"'{close}'"))
        self.at += 1
        self.depth -= 1
        return Items(tuple(found))

    def pattern(self, op: str, start: int) -> Expression:
        """The pattern after ``like`` or ``matches``."""
        found = self.node(_SUM)
        if type(found) is Literal and type(found.value) is str:
            if op == "matches":
                self.regexes += 1
                if self.regexes > MAX_REGEXES:
                    self.fail("too-long", f"more than {MAX_REGEXES} regular expressions in one profile", start)
            wrong = pattern_defect(op == "matches", found.value)
            if wrong is not None:
                self.fail(wrong[0], wrong[1], start)
            return found
        if type(found) is not Parameter:
            self.fail(
                "bad-pattern", f"'{op}' takes a text constant or a parameter", start, ("a quoted text", "{parameter}")
            )
        return found

    def prefix(self, code: str, token: str, start: int) -> Node:
        """An operand that does not start with a plain name or constant."""
        tokens = self.tokens
        if code == "(":
            self.deeper(start)
            inner = self.node(_OR)
            if tokens[self.at] != ")":
                if not tokens[self.at]:
                    self.unclosed(start)
                self.unexpected(self.at, ("')'", "an operator"), known=_INFIX_WORDS)
            self.at += 1
            self.depth -= 1
            return inner
        if code == "not":
            self.deeper(start)
            negated = Not(self.condition(self.node(_COMPARE), start + 1))
            self.depth -= 1
            return negated
        if code == "-":
            following = tokens[start + 1]
            if _KINDS.get(following[:1]) == "number" and following != ".":
                self.at += 1
                return self.number(following, start, negative=True)
            self.deeper(start)
            operand = self.value(self.node(_UNARY), start + 1)
            self.depth -= 1
            return Negative(operand)
        if code == "true" or code == "false":
            return self.constant(code == "true", start)
        if code == "function":
            return self.call(token, start) if tokens[start + 1] == "(" else self.leaf(token, start)
        if code == "typed":
            return self.typed(token, start)
        if code == "[":
            self.fail("misplaced-list", "a list can stand after 'in' and in distance(...) only", start, _OPERAND)
        if code == "null" or code == "none":
            self.no_null(start)
        self.unexpected(start, _OPERAND)

    def leaf(self, token: str, start: int) -> Expression:
        """A name, number, text or parameter."""
        kind = _KINDS.get(token[:1])
        if kind == "name":
            if token[1:2] in _QUOTES or "`" in token:
                return self.raw_or_context(token, start)
            if token.startswith("ctx."):
                return Context(token[4:])
            lowered = token.lower()
            following = self.tokens[start + 1]
            if lowered != token and lowered in _PREFIX and token not in _PREFIX:
                if lowered in RESERVED or following == "(" or following[:1] in _QUOTES:
                    return cast("Expression", self.prefix(_PREFIX[lowered], token, start))
            elif following == "(":
                self.unknown_function(token, start)
            return Context(token[4:]) if lowered.startswith("ctx.") else Attribute(token)
        if kind == "number" and token != ".":
            return self.number(token, start)
        if kind == "text":
            return Literal(self.string(token, start))
        if kind == "ticked":
            return Attribute(self.ticked(token, start))
        if kind == "parameter" and len(token) > 1:
            if token[-1] != "}":  # not from a text: a constant lifted out by tamis.model.shapes
                return Parameter(token[1:])
            name = token[1:-1].strip()
            if not name or name[0] == "#":
                self.fail("bad-parameter", "a parameter needs a name, which does not start with #", start, ("{name}",))
            return Parameter(name)
        if _PLAIN.fullmatch(token):  # starts with a letter beyond ASCII
            if self.tokens[start + 1] == "(":
                self.unknown_function(token, start)
            return Attribute(token)
        self.unexpected(start, _OPERAND)

    def raw_or_context(self, token: str, start: int) -> Expression:
        """``r'...'`` or a context name in backticks."""
        if token[1] in "'\"":
            if not _CLOSED_RAW.fullmatch(token, 1):
                self.fail("unterminated-string", f"the text that starts with {token[:2]} has no end", start)
            quote = token[1]
            return Literal(token[2:-1].replace(quote + quote, quote))
        return Context(self.ticked(token[4:], start))

    def constant(self, value: bool, start: int) -> Expression:
        """``true`` or ``false``."""
        return Literal(value)

    def ticked(self, token: str, start: int) -> str:
        """The name inside backticks."""
        if not _CLOSED_TICKED.fullmatch(token):
            self.fail("unterminated-string", "the name in backticks has no end", start, ("'`'",))
        if len(token) == 2:
            self.fail("empty-name", "a name has at least one character", start)
        return token[1:-1].replace("``", "`")

    def number(self, token: str, start: int, negative: bool = False) -> Literal:
        """A number token."""
        value = number(token)
        if isinstance(value, str):
            code, message = ("bad-number", f"{_short(token)} is not a number") if value == "bad-number" else _RANGE
            self.fail(code, message, start)
        found = -value if negative else value
        if type(found) is int and found > INT_MAX:
            self.fail(*_RANGE, start)
        return Literal(found)

    def string(self, token: str, start: int) -> str:
        """The value of a quoted text."""
        value = string(token)
        if value is not None:
            return value
        if not _CLOSED.fullmatch(token):
            self.fail("unterminated-string", f"the text that starts with {token[0]} has no end", start, (token[0],))
        for found in _ESCAPE.finditer(token, 1, len(token) - 1):
            if _unescape(found) is None:
                shown = found[0] if found[1] != "u" else token[found.start() : found.start() + 6]
                self.fail(
                    "bad-escape",
                    f"{shown} is no escape; a backslash itself is written twice, or the text as r'...'",
                    start,
                    (r"\n \t \r \\ \' \" \uXXXX",),
                    inside=found.start(),
                )
        raise AssertionError("a closed text without a bad escape has a value")  # pragma: no cover

    def typed(self, token: str, start: int) -> Expression:
        """``date '...'``, ``timestamp("...")``, ``number 'inf'``; without a text it is a plain name."""
        tokens = self.tokens
        word = token.lower()
        called = tokens[start + 1] == "("
        at = start + 2 if called else start + 1
        if tokens[at][:1] not in _QUOTES:
            if called:
                self.fail(
                    "bad-time" if word != "number" else "bad-number",
                    f"{word}(...) takes a quoted text",
                    at,
                    (f"{word}('{_EXAMPLES[word]}')",),
                )
            return self.leaf(token, start)
        text = self.string(tokens[at], at)
        self.at = at + 1
        if called:
            if tokens[self.at] != ")":
                if not tokens[self.at]:
                    self.unclosed(start + 1)
                self.unexpected(self.at, ("')'",))
            self.at += 1
        if word == "number":
            if text.lower() not in _SPECIALS:
                self.fail("bad-number", f"{_short(text)} is no special number", at, ("'inf'", "'-inf'", "'nan'"))
            return Literal(_SPECIALS[text.lower()])
        when = read_time(text, date_only=word == "date")
        if when is None:
            self.fail("bad-time", f"{_short(text)} is not a {word}", at, (f"{word} '{_EXAMPLES[word]}'",))
        return Literal(when)

    def call(self, token: str, start: int) -> Node:
        """``abs(x)``, ``distance(a, b)``, ``has(x)``."""
        name = token.lower()
        opened = start + 1
        self.deeper(opened)
        tokens = self.tokens
        self.at = opened + 1
        arguments: list[Expression] = []
        while tokens[self.at] != ")":
            at = self.at
            if not tokens[at]:
                self.unclosed(opened)
            if name == "distance" and tokens[at] == "[":
                self.at += 1
                arguments.append(self.items("]", at))
            else:
                arguments.append(self.value(self.node(_SUM), at))
                if name == "has" and not isinstance(arguments[-1], Attribute | Context):
                    self.fail("bad-argument", "has(...) takes the name of an attribute", at, ("a name",))
                if name == "distance" and type(arguments[-1]) not in _COLLECTIONS:
                    self.fail("bad-argument", "distance takes two lists of numbers", at, ("a name", "'['"))
            if len(arguments) > 2:
                break
            if tokens[self.at] == ",":
                self.at += 1
            elif tokens[self.at] != ")":
                if not tokens[self.at]:
                    self.unclosed(opened)
                self.unexpected(self.at, ("','", "')'"))
        wanted = _FUNCTIONS[name]
        if len(arguments) != wanted:
            plural = "argument" if wanted == 1 else "arguments"
            self.fail("bad-argument", f"{name}(...) takes {wanted} {plural}", start)
        self.at += 1
        self.depth -= 1
        if name == "has":
            self.count(start)
            return Has(arguments[0])
        return Function(name, tuple(arguments))

    def value(self, node: Node, start: int) -> Expression:
        """The node, which must be an expression."""
        if type(node) in _CONDITIONS:
            message = "this is a condition (true or false), but a value is needed here"
            self.fail("not-an-expression", message, start, ("a value",))
        return cast("Expression", node)

    def condition(self, node: Node, start: int) -> Condition:
        """The node, which must be a condition; a name alone stands for a boolean."""
        kind = type(node)
        if kind in _CONDITIONS:
            return cast("Condition", node)
        if kind is Attribute or kind is Context or kind is Parameter:
            self.count(start)
            return Truth(cast("Expression", node))
        if kind is Literal and type(cast("Literal", node).value) is bool:
            self.count(start)
            return Truth(cast("Literal", node))
        following = self.tokens[self.at]
        if following and following not in (")", "]", ",", ";") and following.lower() not in _INFIX:
            self.unexpected(self.at, ("a comparison such as ==",), known=_INFIX_WORDS)
        message = "this is a value, but a condition (true or false) is needed here"
        self.fail("not-a-condition", message, start, ("a comparison",))

    def count(self, at: int) -> None:
        """One more predicate; what it holds is complete, so its operators no longer count."""
        self.operators = 0
        self.predicates += 1
        if self.predicates > MAX_PREDICATES:
            self.fail("too-long", f"more than {MAX_PREDICATES:,} predicates in one profile", at)

    def deeper(self, at: int) -> None:
        """One more level of nesting."""
        self.depth += 1
        if self.depth > self.max_depth:
            self.too_deep(at)

    def too_deep(self, at: int) -> NoReturn:
        self.fail("too-deep", f"nested more than {self.max_depth} deep", at)

    def unclosed(self, opened: int) -> NoReturn:
        bracket = self.tokens[opened]
        closing = "]" if bracket == "[" else ")"
        self.fail("unclosed", f"'{bracket}' is never closed", opened, (f"'{closing}'",))

    def no_null(self, at: int) -> NoReturn:
        tokens = self.tokens
        suggestion = "has(x)"
        if at >= 2 and tokens[at - 1] in _COMPARISONS and _token_kind(tokens[at - 2]) in ("name", "context"):
            found = f"has({tokens[at - 2]})"
            suggestion = found if tokens[at - 1] in ("!=", "<>") else f"not {found}"
        self.fail("no-null", "there is no null; whether a value is present is asked with has(x)", at, (), suggestion)

    def unknown_function(self, token: str, at: int) -> NoReturn:
        known = (*_FUNCTIONS, "date", "timestamp")
        nearest = _nearest(token, (*known, "not"))
        self.fail("unknown-function", f"there is no function {_short(token)}", at, known, nearest)

    def unexpected(
        self, at: int, expected: tuple[str, ...], suggestion: str | None = None, *, known: tuple[str, ...] = ()
    ) -> NoReturn:
        """The token at ``at`` cannot stand there; looks for what may have been meant among the ``known`` words."""
        tokens = self.tokens
        token = tokens[at]
        if not token:
            self.fail("unexpected-end", "the text ends too early", at, expected)
        lowered = token.lower()
        kind = _KINDS.get(token[0])
        if suggestion is None:
            suggestion = _INSTEAD.get(lowered)
        if suggestion is None and lowered == "is" and at > 0:
            following = [word.lower() for word in tokens[at + 1 : at + 3]]
            found = f"has({tokens[at - 1]})"
            suggestion = found if following[:1] == ["not"] else f"not {found}"
            self.fail("no-null", "'is' is not in the language; presence is asked with has(x)", at, expected, suggestion)
        if suggestion is None and kind == "name":
            suggestion = _nearest(lowered, known)
        if kind == "text" and string(token) is None and not _CLOSED.fullmatch(token):
            self.fail("unterminated-string", f"the text that starts with {token[0]} has no end", at, (token[0],))
        message = f"unexpected {_short(token)}"
        if lowered in RESERVED and expected is _OPERAND and kind == "name":
            message += " (a name that is also a keyword goes in backticks)"
            if lowered == "ctx":
                message = "unexpected 'ctx' alone (an attribute of the context is written ctx.name)"
        elif token == "{":
            message += " (a parameter is written {name})"
        self.fail("unexpected-token", message, at, expected, suggestion)

    def fail(
        self,
        code: str,
        message: str,
        at: int,
        expected: tuple[str, ...] = (),
        suggestion: str | None = None,
        *,
        inside: int = 0,
    ) -> NoReturn:
        """Raises the error at token number ``at``, ``inside`` characters into it."""
        line, column = self.position(at, inside)
        raise ProfileError(code, message, self.text, line, column, expected, suggestion)

    def position(self, at: int, inside: int = 0) -> tuple[int, int]:
        """Line and column of a token; the end of the text is right after the last token."""
        for match in islice(_SCAN.finditer(self.text), max(at, 0), None):
            return _line_column(self.text, match.start(1) + inside if match[1] else match.start())
        return _line_column(self.text, len(self.text))


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


_RANGE = ("number-range", "the number is out of range (integers have 64 bits, others are doubles)")
_EXAMPLES = {"date": "2024-01-31", "timestamp": "2024-01-31T12:00:00Z", "number": "inf"}


def number(token: str) -> int | float | str:
    """The value of a number token without sign, or the code of what is wrong with it.

    2**63 passes: with a minus in front it is in range, which the caller has to check.
    """
    if len(token) < 19 and token.isascii() and token.isdigit():
        return int(token)
    if _INTEGER.fullmatch(token):
        digits = token.replace("_", "").lstrip("0")
        if len(digits) > 19:
            return "number-range"
        whole = int(digits or "0")
        return whole if whole <= INT_MAX + 1 else "number-range"
    if not _FLOAT.fullmatch(token):
        return "bad-number"
    value = float(token.replace("_", ""))
    return value if value != _SPECIALS["inf"] else "number-range"


def string(token: str) -> str | None:
    """The value of a quoted text token, or None when it is not closed or has a bad escape."""
    quote = token[0]
    body = token[1:-1]
    if len(token) > 1 and token[-1] == quote and "\\" not in body and quote not in body:
        return body
    if not _CLOSED.fullmatch(token):
        return None
    parts: list[str] = []
    last = 1
    for found in _ESCAPE.finditer(token, 1, len(token) - 1):
        if found[1] is None and found[0][0] != quote:
            continue
        part = _unescape(found)
        if part is None:
            return None
        parts.append(token[last : found.start()])
        parts.append(part)
        last = found.end()
    parts.append(token[last:-1])
    return "".join(parts)


def _unescape(found: re.Match[str]) -> str | None:
    escape: str | None = found[1]
    if escape is None:
        return found[0][0]
    if len(escape) == 5:
        code = int(escape[1:], 16)
        return None if 0xD800 <= code <= 0xDFFF else chr(code)
    if len(escape) == 11:
        high, low = int(escape[1:5], 16), int(escape[7:], 16)
        return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
    return _ESCAPES.get(escape)


def _token_kind(token: str) -> str:
    kind = _KINDS.get(token[:1], "other")
    if kind == "name" or (kind == "other" and _PLAIN.match(token)):
        if token[1:2] in _QUOTES:
            return "text"
        lowered = token.lower()
        if lowered in RESERVED:
            return "keyword"
        return "context" if lowered.startswith("ctx.") else "name"
    if kind == "ticked":
        return "name"
    if kind == "number" and token == ".":
        return "other"
    if kind == "parameter" and token == "{":
        return "other"
    if kind == "other" and (token in _INFIX or token in ("!", "(", ")", "[", "]", ",", ";", "+=", "-=", "*=", "/=")):
        return "operator"
    return kind


def _nearest(word: str, known: tuple[str, ...]) -> str | None:
    found = len(word) > 1 and get_close_matches(word.lower()[:40], known, 1, 0.6)
    return found[0] if found else None


def _short(text: str, width: int = 40) -> str:
    return repr(text if len(text) <= width else text[: width - 3] + "...")


def _line_column(text: str, offset: int) -> tuple[int, int]:
    lines = text[:offset].splitlines(keepends=True)
    if not lines:
        return (1, 1)
    if lines[-1].splitlines()[0] != lines[-1]:
        return (len(lines) + 1, 1)
    return (len(lines), len(lines[-1]) + 1)


def _reading_order(node: Node) -> Iterator[Node]:
    yield node
    for child in children(node):
        yield from _reading_order(child)


def readable(text: str, max_length: int = MAX_LENGTH) -> None:
    """Raises unless ``text`` is a str of allowed length without lone surrogates."""
    if not isinstance(text, str):
        raise UsageError(f"a profile text is a str, not {type(text).__name__}")
    if len(text) > max_length:
        raise ProfileError("too-long", f"the text has {len(text):,} characters, at most {max_length:,} are allowed")
    if not text.isascii():
        found = _SURROGATE.search(text)
        if found is not None:
            line, column = _line_column(text, found.start())
            shown = text.encode("utf-8", "replace").decode()
            raise ProfileError("bad-character", "a lone surrogate is not a character", shown, line, column)
