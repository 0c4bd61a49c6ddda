"""The words of profile texts: tokens, names and constants.

Guarantees: every string falls into tokens, in time linear in its length; numbers, texts and times are read exactly or
refused with a code. Refuses to know: which tokens may follow each other (:mod:`tamis.model.parser`).

Tokens are bare strings from one ``findall``; their positions are found again only when something is wrong,
which keeps the good path short.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from tamis.errors import ProfileError, UsageError

MAX_LENGTH: Final = 65_536

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
SCAN = re.compile(f"{_SPACE}({_TOKEN})", re.DOTALL)
scan = SCAN.findall

CLOSED = re.compile(
    r"""'[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*+' | "[^"\\]*+(?:(?:\\.|"")[^"\\]*+)*+" """, re.DOTALL | re.VERBOSE
)
CLOSED_RAW = re.compile(r"""'[^']*+(?:''[^']*+)*+'|"[^"]*+(?:""[^"]*+)*+\"""")
CLOSED_TICKED = re.compile(r"`[^`]*+(?:``[^`]*+)*+`")
ESCAPE = re.compile(
    r"\\(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)|''|\"\"", re.DOTALL
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_INTEGER = re.compile(r"[0-9]+(?:_[0-9]+)*")
_FLOAT = re.compile(r"(?:[0-9]+(?:_[0-9]+)*)?(?:\.(?:[0-9]+(?:_[0-9]+)*)?)?(?:[eE][+-]?[0-9]+(?:_[0-9]+)*)?")
SURROGATE = re.compile("[\ud800-\udfff]")
PLAIN = re.compile(_NAME)
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]+))?)?\s?(?:([Zz])|([+-])([0-9]{2}):?([0-9]{2})?)?)?"
)
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")

# How tightly operators bind.
OR, AND, NOT, COMPARE, SUM, PRODUCT, UNARY = range(1, 8)


def spellings(word: str) -> tuple[str, str, str]:
    return (word, word.upper(), word.capitalize())


COMPARISONS = {"==": "==", "=": "==", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
POSTFIX = ("not", "between", "in", "like", "startswith", "matches", "within", "covers")
# token -> (binding power, canonical spelling). Words are listed in the three usual spellings; others are lowered.
INFIX: dict[str, tuple[int, str]] = {
    **dict.fromkeys((*spellings("or"), "||"), (OR, "or")),
    **dict.fromkeys((*spellings("and"), "&&"), (AND, "and")),
    **{s: (COMPARE, op) for s, op in COMPARISONS.items()},
    **{s: (COMPARE, word) for word in POSTFIX for s in spellings(word)},
    **{s: (SUM, s) for s in "+-"},
    **{s: (PRODUCT, s) for s in "*/"},
}
FUNCTIONS = {"abs": 1, "distance": 2, "has": 1}
RESERVED: Final = frozenset({"and", "or", "true", "false", "null", "none", "ctx", *POSTFIX})
KINDS = {
    **dict.fromkeys("0123456789.", "number"),
    **dict.fromkeys("'\"", "text"),
    "`": "ticked",
    "{": "parameter",
    **dict.fromkeys("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_", "name"),
}
QUOTES = ("'", '"')
SPECIALS = {
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


def readable(text: str, max_length: int = MAX_LENGTH) -> None:
    """Raises unless ``text`` is a str of allowed length without lone surrogates."""
    if not isinstance(text, str):
        raise UsageError(f"a profile text is a str, not {type(text).__name__}")
    if len(text) > max_length:
        raise ProfileError("too-long", f"the text has {len(text):,} characters, at most {max_length:,} are allowed")
    if not text.isascii():
        found = SURROGATE.search(text)
        if found is not None:
            line, column = line_column(text, found.start())
            shown = text.encode("utf-8", "replace").decode()
            raise ProfileError("bad-character", "a lone surrogate is not a character", shown, line, column)


def tokenise(text: str) -> Iterator[Token]:
    """The tokens of a text, comments left out; never fails, so that editors can colour half-written profiles.

    Kinds: ``name context keyword number text parameter operator other``.
    """
    for match in SCAN.finditer(text):
        token = match[1]
        if token:
            yield Token(token_kind(token), token, match.start(1))


def token_kind(token: str) -> str:
    kind = KINDS.get(token[:1], "other")
    if kind == "name" or (kind == "other" and PLAIN.match(token)):
        if token[1:2] in QUOTES:
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
    if kind == "other" and (token in INFIX or token in ("!", "(", ")", "[", "]", ",", ";", "+=", "-=", "*=", "/=")):
        return "operator"
    return kind


def is_plain_name(name: str) -> bool:
    """Whether a name can be written without backticks."""
    if not PLAIN.fullmatch(name):
        return False
    lowered = name.lower()
    return lowered not in RESERVED and not lowered.startswith("ctx.")


def number(token: str) -> int | float | str:
    """The value of a number token without sign, or the code of what is wrong with it.

    2**63 passes: with a minus in front it is in range, which the caller has to check.
    """
    if len(token) < 19 and token.isascii():
        if token.isdigit():
            return int(token)
        if token.replace(".", "", 1).isdigit():
            return float(token)
    if _INTEGER.fullmatch(token):
        digits = token.replace("_", "").lstrip("0")
        if len(digits) > 19:
            return "number-range"
        whole = int(digits or "0")
        return whole if whole <= INT_MAX + 1 else "number-range"
    if not _FLOAT.fullmatch(token):
        return "bad-number"
    value = float(token.replace("_", ""))
    return value if value != SPECIALS["inf"] else "number-range"


def string(token: str) -> str | None:
    """The value of a quoted text token, or None when it is not closed or has a bad escape."""
    quote = token[0]
    body = token[1:-1]
    if len(token) > 1 and token[-1] == quote and "\\" not in body and quote not in body:
        return body
    if not CLOSED.fullmatch(token):
        return None
    parts: list[str] = []
    last = 1
    for found in ESCAPE.finditer(token, 1, len(token) - 1):
        if found[1] is None and found[0][0] != quote:
            continue
        part = unescape(found)
        if part is None:
            return None
        parts.append(token[last : found.start()])
        parts.append(part)
        last = found.end()
    parts.append(token[last:-1])
    return "".join(parts)


def unescape(found: re.Match[str]) -> str | None:
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


def line_column(text: str, offset: int) -> tuple[int, int]:
    lines = text[:offset].splitlines(keepends=True)
    if not lines:
        return (1, 1)
    if lines[-1].splitlines()[0] != lines[-1]:
        return (len(lines) + 1, 1)
    return (len(lines), len(lines[-1]) + 1)
