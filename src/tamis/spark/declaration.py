"""Tables of ``pipeline.toml`` as sources and sinks: every error names the table, the key and what was expected."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar, get_args, get_origin

from tamis.errors import UsageError

S = TypeVar("S")


def build(kinds: Mapping[str, type[S]], declaration: Mapping[str, Any], where: str) -> S:
    """An instance of the class that the key ``format`` chooses, made of the other keys."""
    found = dict(declaration)
    name = found.get("format")
    if name is None:
        raise UsageError(f"{where}: the key 'format' is missing; it is one of {', '.join(kinds)}")
    if name not in kinds:
        raise UsageError(f"{where}: format: {_unknown(str(name), kinds)}")
    kind = kinds[name]
    known: dict[str, Field[Any]] = {one.name: one for one in fields(kind) if one.init}  # type: ignore[arg-type]
    if "format" not in known:
        del found["format"]
    hints = typing.get_type_hints(kind)
    for key, value in found.items():
        if key not in known:
            raise UsageError(f"{where}: unknown key {_unknown(key, known, quoted=True)}")
        if not _is(value, hints[key]):
            raise UsageError(f"{where}: {key}: expected {_words(hints[key])}, got {value!r}")
    for key, one in known.items():
        if key not in found and one.default is MISSING and one.default_factory is MISSING:
            raise UsageError(f"{where}: the key {key!r} is missing")
    try:
        return kind(**found)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _unknown(word: str, known: Collection[str], quoted: bool = False) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return f"{word!r}; {hint}" if quoted else f"{word!r} is not known; {hint}"


def _is(value: Any, hint: Any) -> bool:
    if get_origin(hint) in (types.UnionType, typing.Union):
        return any(_is(value, one) for one in get_args(hint))
    origin = get_origin(hint) or hint
    if origin is Any:
        return True
    if origin is Sequence:
        return isinstance(value, str) or (isinstance(value, list | tuple) and all(isinstance(x, str) for x in value))
    if origin is Mapping:
        return isinstance(value, Mapping) and all(isinstance(x, str) for x in value.values())
    if origin is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin) if isinstance(origin, type) else callable(value)


def _words(hint: Any) -> str:
    if get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(_words(one) for one in get_args(hint) if one is not type(None))
    origin = get_origin(hint) or hint
    names = {str: "a text", int: "a whole number", bool: "true or false", Sequence: "a list of texts"}
    names |= {Mapping: "a table of texts"}
    return names.get(origin, "a function")
