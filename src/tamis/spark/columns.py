"""Columns and types of a declared schema, read without Spark.

Guarantees that what is refused here Spark would refuse too: :func:`parse` knows the text form of Spark's schemas well
enough to find every column, and to name a type that does not exist. Refuses to judge what it does not know (collations,
intervals): those go to Spark as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tamis.errors import UsageError

from .declaration import unknown

_WHOLE: Final = ("tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long")
ORDERED: Final = (*_WHOLE, "float", "real", "double", "date", "timestamp", "timestamp_ltz", "timestamp_ntz")
"""Types that an order column may have."""
TEXT: Final = ("string", "varchar", "char")
_PLAIN: Final = (*ORDERED, "string", "boolean", "binary", "decimal", "dec", "numeric", "variant", "void")
_NESTED: Final = ("array", "map", "struct")
_COLUMN: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\W\d]\w*|\d\w*))\s*:?\s*(.*)", re.DOTALL)
_TAIL: Final = re.compile(r"\s+(?:not\s+null|comment\s+(?:'[^']*'|\"[^\"]*\")|default\s+\S+)\s*$", re.IGNORECASE)
_SIZED: Final = re.compile(r"(decimal|dec|numeric|varchar|char)\s*\(\s*\d+\s*(?:,\s*-?\d+\s*)?\)")
_LEFT_TO_SPARK: Final = re.compile(r"(interval\b|string\s+collate\b|time\s*\(|time$|geo|timestamp\s+with)")


def parse(schema: str) -> dict[str, str]:
    """Names and types, in order; raises :class:`UsageError` with the column that is wrong.

    >>> parse("id string, `at` timestamp NOT NULL, tags array<string>")
    {'id': 'string', 'at': 'timestamp', 'tags': 'array<string>'}
    >>> parse("price dubble")
    Traceback (most recent call last):
    tamis.errors.UsageError: schema: column 'price': type 'dubble' is not known; did you mean 'double'?
    """
    found: dict[str, str] = {}
    for part in _split(schema):
        match = _COLUMN.fullmatch(part)
        name = "" if match is None else (match[1] or match[2]).replace("``", "`")
        if match is None or not match[3].strip():
            raise UsageError(f"schema: expected a name and a type such as 'price double', got {part.strip()!r}")
        if name in found:
            raise UsageError(f"schema: column {name!r} is there twice")
        found[name] = _type(name, match[3])
    return found


def _type(column: str, text: str) -> str:
    while _TAIL.search(text):
        text = _TAIL.sub("", text)
    kind = text.strip().lower()
    if kind in _PLAIN or _SIZED.fullmatch(kind) or _LEFT_TO_SPARK.match(kind):
        return kind
    outer, sign, rest = kind.partition("<")
    if outer.strip() in _NESTED and sign and rest.endswith(">"):
        parts = list(_split(text.strip()[len(outer) + 1 : -1]))
        if outer.strip() == "struct":
            parse(",".join(parts))
        elif len(parts) != (1 if outer.strip() == "array" else 2):
            raise UsageError(f"schema: column {column!r}: {kind!r} has {len(parts)} types between < and >")
        else:
            for part in parts:
                _type(column, part)
        return kind
    raise UsageError(f"schema: column {column!r}: type {unknown(kind, (*_PLAIN, *_NESTED))}")


def _split(text: str) -> Iterator[str]:
    """The parts between commas that are in no bracket and no quotes."""
    depth, quote, start = 0, "", 0
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "`'\"":
            quote = sign
        elif sign in "<(":
            depth += 1
        elif sign in ">)":
            depth -= 1
        elif sign == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]
