"""What is wrong with a profile text, and where: code, line and column, what was expected, "did you mean".

Guarantees that an error is told in the words of the text. Costs nothing until something is wrong: tokens carry no
positions, they are found again by their number. Refuses to know the grammar; :class:`tamis.model.parser.Parser` does.
"""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice
from typing import NoReturn

from tamis.errors import ProfileError
from tamis.model.tokens import (
    CLOSED,
    COMPARISONS,
    FUNCTIONS,
    KINDS,
    POSTFIX,
    RESERVED,
    SCAN,
    line_column,
    string,
    token_kind,
)

INFIX_WORDS = (*POSTFIX, "and", "or")
OPERAND = ("a name", "a constant", "'('")
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


class Faults:
    """A token list and its text. ``text`` serves error positions only, so tokens may have been exchanged."""

    __slots__ = ("max_depth", "text", "tokens")

    def __init__(self, text: str, tokens: list[str], max_depth: int) -> None:
        self.text = text
        self.tokens = tokens
        self.max_depth = max_depth

    def too_deep(self, at: int) -> NoReturn:
        self.fail("too-deep", f"nested more than {self.max_depth} deep", at)

    def unclosed(self, opened: int) -> NoReturn:
        bracket = self.tokens[opened]
        closing = "]" if bracket == "[" else ")"
        self.fail("unclosed", f"'{bracket}' is never closed", opened, (f"'{closing}'",))

    def no_null(self, at: int) -> NoReturn:
        tokens = self.tokens
        suggestion = "has(x)"
        if at >= 2 and tokens[at - 1] in COMPARISONS and token_kind(tokens[at - 2]) in ("name", "context"):
            found = f"has({tokens[at - 2]})"
            suggestion = found if tokens[at - 1] in ("!=", "<>") else f"not {found}"
        self.fail("no-null", "there is no null; whether a value is present is asked with has(x)", at, (), suggestion)

    def unknown_function(self, token: str, at: int) -> NoReturn:
        known = (*FUNCTIONS, "date", "timestamp")
        nearest = _nearest(token, (*known, "not"))
        self.fail("unknown-function", f"there is no function {short(token)}", at, known, nearest)

    def unexpected(
        self, at: int, expected: tuple[str, ...], suggestion: str | None = None, *, known: tuple[str, ...] = ()
    ) -> NoReturn:
        """The token at ``at`` cannot stand there; looks for what may have been meant among the ``known`` words."""
        tokens = self.tokens
        token = tokens[at]
        if not token:
            self.fail("unexpected-end", "the text ends too early", at, expected)
        lowered = token.lower()
        kind = KINDS.get(token[0])
        if suggestion is None:
            suggestion = _INSTEAD.get(lowered)
        if suggestion is None and lowered == "is" and at > 0:
            following = [word.lower() for word in tokens[at + 1 : at + 3]]
            found = f"has({tokens[at - 1]})"
            suggestion = found if following[:1] == ["not"] else f"not {found}"
            self.fail("no-null", "'is' is not in the language; presence is asked with has(x)", at, expected, suggestion)
        if suggestion is None and kind == "name":
            suggestion = _nearest(lowered, known)
        if kind == "text" and string(token) is None and not CLOSED.fullmatch(token):
            self.fail("unterminated-string", f"the text that starts with {token[0]} has no end", at, (token[0],))
        message = f"unexpected {short(token)}"
        if lowered in RESERVED and expected is OPERAND and kind == "name":
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
        for match in islice(SCAN.finditer(self.text), max(at, 0), None):
            return line_column(self.text, match.start(1) + inside if match[1] else match.start())
        return line_column(self.text, len(self.text))


def _nearest(word: str, known: tuple[str, ...]) -> str | None:
    found = len(word) > 1 and get_close_matches(word.lower()[:40], known, 1, 0.6)
    return found[0] if found else None


def short(text: str, width: int = 40) -> str:
    return repr(text if len(text) <= width else text[: width - 3] + "...")
