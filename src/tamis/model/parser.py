"""The grammar of profile texts: a Pratt parser.

Guarantees: every token list gives a tree or a :class:`ProfileError` with an exact position, in time linear in its
length (a three-predicate profile takes about 20 µs); trees are bounded in depth, so that whoever reads them may
recurse. Refuses to know: schemas, kinds of attributes, contexts, what a condition means.
"""

from __future__ import annotations

from typing import Final, cast

from tamis.model.defects import COLLECTIONS, MAX_ITEMS, RANGE, category_defect, pattern_defect
from tamis.model.faults import INFIX_WORDS, OPERAND, Faults, short
from tamis.model.tokens import (
    AND,
    CLOSED,
    CLOSED_RAW,
    CLOSED_TICKED,
    COMPARE,
    COMPARISONS,
    ESCAPE,
    FUNCTIONS,
    INFIX,
    INT_MAX,
    KINDS,
    NOT,
    OR,
    PLAIN,
    POSTFIX,
    QUOTES,
    RESERVED,
    SPECIALS,
    SUM,
    UNARY,
    number,
    read_time,
    spellings,
    string,
    token_kind,
    unescape,
)
from tamis.model.tree import (
    And,
    Arithmetic,
    Attribute,
    Between,
    Compare,
    Condition,
    Context,
    Covers,
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
    Within,
)

MAX_DEPTH: Final = 64
MAX_PREDICATES: Final = 4_096
MAX_OPERATORS: Final = 100
MAX_REGEXES: Final = 32

_TYPED = ("date", "timestamp", "number")
# token -> what it does at the start of an operand; names and constants are not listed.
_PREFIX: dict[str, str] = {
    **{s: s for s in ("", "(", "[", "-")},
    **dict.fromkeys((*spellings("not"), "!"), "not"),
    **{s: word for word in ("true", "false", "null", "none", "ctx") for s in spellings(word)},
    **{s: "function" for word in FUNCTIONS for s in spellings(word)},
    **{s: "typed" for word in _TYPED for s in spellings(word)},
    **{s: "keyword" for word in ("and", "or", *POSTFIX[1:]) for s in spellings(word)},
}
_CONDITIONS = frozenset({Compare, Between, Member, Like, StartsWith, Matches, Within, Covers, Has, Truth, And, Or, Not})
_PLAIN_ITEMS = ("number", "text")
_EXAMPLES = {"date": "2024-01-31", "timestamp": "2024-01-31T12:00:00Z", "number": "inf"}


class Parser(Faults):
    """One parse of one token list."""

    __slots__ = ("at", "depth", "max_items", "operators", "predicates", "regexes")

    def __init__(self, text: str, tokens: list[str], max_depth: int = MAX_DEPTH, max_items: int = MAX_ITEMS) -> None:
        super().__init__(text, tokens, max_depth)
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
            condition = self.condition(self.node(OR), 0)
        except RecursionError:
            self.too_deep(self.at - 1)
        if self.tokens[self.at]:
            self.unexpected(self.at, ("an operator", "'and'", "'or'", "the end of the profile"), known=INFIX_WORDS)
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
        if token_kind(self.tokens[start]) in ("name", "context"):
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
        value = self.value(self.node(SUM), at + 1)
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
            infix = INFIX.get(token)
            if infix is None:
                infix = INFIX.get(token.lower())
                if infix is None:
                    return left
            level = infix[0]
            if level < power:
                return left
            self.at = at + 1
            if level == COMPARE:
                op = infix[1]
                if op in COMPARISONS:
                    left = self.compare(op, self.value(left, start))
                else:
                    left = self.predicate(op, self.value(left, start))
            elif level == AND:
                left = self.all_of(self.condition(left, start))
            elif level == OR:
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
            item = self.condition(self.node(NOT), start)
            if type(item) is And:
                items += item.items
            else:
                items.append(item)
            infix = INFIX.get(tokens[self.at])
            if infix is None or infix[0] != AND:
                return And(tuple(items))
            self.at += 1

    def any_of(self, first: Condition) -> Condition:
        """``first or ...``."""
        items = [*first.items] if type(first) is Or else [first]
        tokens = self.tokens
        while True:
            self.operators = 0
            start = self.at
            item = self.condition(self.node(AND), start)
            if type(item) is Or:
                items += item.items
            else:
                items.append(item)
            infix = INFIX.get(tokens[self.at])
            if infix is None or infix[0] != OR:
                return Or(tuple(items))
            self.at += 1

    def compare(self, op: str, left: Expression) -> Condition:
        """``left op ...``, with the rest of the chain."""
        start = self.at
        right = self.value(self.node(SUM), start)
        self.count(start)
        first = Compare(op, left, right)
        following = COMPARISONS.get(self.tokens[self.at])
        if following is None:
            return first
        items: list[Condition] = [first]
        while following is not None:
            self.at += 1
            start = self.at
            left, right = right, self.value(self.node(SUM), start)
            self.count(start)
            items.append(Compare(following, left, right))
            following = COMPARISONS.get(self.tokens[self.at])
        return And(tuple(items))

    def predicate(self, op: str, left: Expression) -> Condition:
        """``left op ...`` for the operators that are words."""
        tokens = self.tokens
        negated = op == "not"
        if negated:
            op = tokens[self.at].lower()
            if op not in POSTFIX or op == "not":
                words = tuple(f"'{word}'" for word in POSTFIX[1:])
                self.unexpected(self.at, words, known=POSTFIX[1:])
            self.at += 1
        start = self.at
        found: Condition
        if op == "between":
            low = self.value(self.node(SUM), start)
            infix = INFIX.get(tokens[self.at]) or INFIX.get(tokens[self.at].lower())
            if infix is None or infix[0] != AND:
                self.unexpected(self.at, ("'and' with the upper end, as in between 1 and 5",), known=("and",))
            self.at += 1
            start = self.at
            found = Between(left, low, self.value(self.node(SUM), start))
        elif op == "in":
            found = Member(left, self.collection(start))
        elif op == "startswith":
            found = StartsWith(left, self.value(self.node(SUM), start))
        elif op == "within" or op == "covers":
            found = self.category(Within if op == "within" else Covers, left, start)
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
        found = self.node(SUM)
        if type(found) not in COLLECTIONS:
            self.fail("bad-list", "'in' takes a list or the name of one", start, ("'['", "a name"))
        return cast("Expression", found)

    def category(self, kind: type[Within] | type[Covers], left: Expression, start: int) -> Condition:
        """What may follow ``within`` and ``covers``."""
        right: Expression
        if self.tokens[start] == "[":
            self.at += 1
            right = self.items("]", start)
        else:
            right = self.value(self.node(SUM), start)
        found = kind(left, right)
        wrong = category_defect(found)
        if wrong is not None:
            named = type(left) in (Attribute, Context)
            expected = ("a quoted text", "'['", "a name") if named else ("a name",)
            self.fail(wrong[0], wrong[1], start if named else start - 1, expected)
        return found

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
            if (following == "," or following == close) and KINDS.get(token[0]) in _PLAIN_ITEMS:
                # Long lists of constants: 30 % less time than through node().
                self.at = start + 1
                found.append(self.leaf(token, start))
            else:
                found.append(self.value(self.node(SUM), start))
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
        found = self.node(SUM)
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
            inner = self.node(OR)
            if tokens[self.at] != ")":
                if not tokens[self.at]:
                    self.unclosed(start)
                self.unexpected(self.at, ("')'", "an operator"), known=INFIX_WORDS)
            self.at += 1
            self.depth -= 1
            return inner
        if code == "not":
            self.deeper(start)
            negated = Not(self.condition(self.node(COMPARE), start + 1))
            self.depth -= 1
            return negated
        if code == "-":
            following = tokens[start + 1]
            if KINDS.get(following[:1]) == "number" and following != ".":
                self.at += 1
                return self.number(following, start, negative=True)
            self.deeper(start)
            operand = self.value(self.node(UNARY), start + 1)
            self.depth -= 1
            return Negative(operand)
        if code == "true" or code == "false":
            return self.constant(code == "true", start)
        if code == "function":
            return self.call(token, start) if tokens[start + 1] == "(" else self.leaf(token, start)
        if code == "typed":
            return self.typed(token, start)
        if code == "[":
            self.fail("misplaced-list", "a list can stand after 'in' and in distance(...) only", start, OPERAND)
        if code == "null" or code == "none":
            self.no_null(start)
        self.unexpected(start, OPERAND)

    def leaf(self, token: str, start: int) -> Expression:
        """A name, number, text or parameter."""
        kind = KINDS.get(token[:1])
        if kind == "name":
            if token[1:2] in QUOTES or "`" in token:
                return self.raw_or_context(token, start)
            if token.startswith("ctx."):
                return Context(token[4:])
            lowered = token.lower()
            following = self.tokens[start + 1]
            if lowered != token and lowered in _PREFIX and token not in _PREFIX:
                if lowered in RESERVED or following == "(" or following[:1] in QUOTES:
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
        if PLAIN.fullmatch(token):  # starts with a letter beyond ASCII
            if self.tokens[start + 1] == "(":
                self.unknown_function(token, start)
            return Attribute(token)
        self.unexpected(start, OPERAND)

    def raw_or_context(self, token: str, start: int) -> Expression:
        """``r'...'`` or a context name in backticks."""
        if token[1] in "'\"":
            if not CLOSED_RAW.fullmatch(token, 1):
                self.fail("unterminated-string", f"the text that starts with {token[:2]} has no end", start)
            quote = token[1]
            return Literal(token[2:-1].replace(quote + quote, quote))
        return Context(self.ticked(token[4:], start))

    def constant(self, value: bool, start: int) -> Expression:
        """``true`` or ``false``."""
        return Literal(value)

    def ticked(self, token: str, start: int) -> str:
        """The name inside backticks."""
        if not CLOSED_TICKED.fullmatch(token):
            self.fail("unterminated-string", "the name in backticks has no end", start, ("'`'",))
        if len(token) == 2:
            self.fail("empty-name", "a name has at least one character", start)
        return token[1:-1].replace("``", "`")

    def number(self, token: str, start: int, negative: bool = False) -> Literal:
        """A number token."""
        value = number(token)
        if isinstance(value, str):
            code, message = ("bad-number", f"{short(token)} is not a number") if value == "bad-number" else RANGE
            self.fail(code, message, start)
        found = -value if negative else value
        if type(found) is int and found > INT_MAX:
            self.fail(*RANGE, start)
        return Literal(found)

    def string(self, token: str, start: int) -> str:
        """The value of a quoted text."""
        value = string(token)
        if value is not None:
            return value
        if not CLOSED.fullmatch(token):
            self.fail("unterminated-string", f"the text that starts with {token[0]} has no end", start, (token[0],))
        for found in ESCAPE.finditer(token, 1, len(token) - 1):
            if unescape(found) is None:
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
        if tokens[at][:1] not in QUOTES:
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
            if text.lower() not in SPECIALS:
                self.fail("bad-number", f"{short(text)} is no special number", at, ("'inf'", "'-inf'", "'nan'"))
            return Literal(SPECIALS[text.lower()])
        when = read_time(text, date_only=word == "date")
        if when is None:
            self.fail("bad-time", f"{short(text)} is not a {word}", at, (f"{word} '{_EXAMPLES[word]}'",))
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
                arguments.append(self.value(self.node(SUM), at))
                if name == "has" and not isinstance(arguments[-1], Attribute | Context):
                    self.fail("bad-argument", "has(...) takes the name of an attribute", at, ("a name",))
                if name == "distance" and type(arguments[-1]) not in COLLECTIONS:
                    self.fail("bad-argument", "distance takes two lists of numbers", at, ("a name", "'['"))
            if len(arguments) > 2:
                break
            if tokens[self.at] == ",":
                self.at += 1
            elif tokens[self.at] != ")":
                if not tokens[self.at]:
                    self.unclosed(opened)
                self.unexpected(self.at, ("','", "')'"))
        wanted = FUNCTIONS[name]
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
        if following and following not in (")", "]", ",", ";") and following.lower() not in INFIX:
            self.unexpected(self.at, ("a comparison such as ==",), known=INFIX_WORDS)
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
