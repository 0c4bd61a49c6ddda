"""Tables of ``pipeline.toml`` as frozen settings, sources and sinks.

Guarantees that every mistake of a table is named, not only the first: with the table, the key, what was expected and
the nearest known word. Refuses to know what the tables mean.
"""

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
    """An instance of the class that the key ``format`` chooses, made of the other keys; raises with all mistakes."""
    made, problems = check(kinds, declaration, where)
    if made is None:
        raise UsageError("\n".join(problems))
    return made


def check(kinds: Mapping[str, type[S]], declaration: Mapping[str, Any], where: str) -> tuple[S | None, list[str]]:
    """As :func:`build`, but the mistakes are returned; there is an instance when there are none."""
    name = declaration.get("format")
    if name is None:
        near = [key for key in declaration if difflib.get_close_matches(key, ["format"], n=1)]
        if near:
            return None, [f"{where}: unknown key {near[0]!r}; did you mean 'format'?"]
        return None, [f"{where}: the key 'format' is missing; it is one of {', '.join(kinds)}"]
    if not isinstance(name, str) or name not in kinds:
        return None, [f"{where}: format: {unknown(str(name), kinds)}"]
    kind = kinds[name]
    named = any(one.name == "format" for one in fields(kind) if one.init)  # type: ignore[arg-type]
    return fill(kind, declaration if named else {k: v for k, v in declaration.items() if k != "format"}, where)


def fill(kind: type[S], declaration: Mapping[str, Any], where: str) -> tuple[S | None, list[str]]:
    """An instance of a dataclass whose fields are the keys of the table, or all that is wrong with the table."""
    known: dict[str, Field[Any]] = {one.name: one for one in fields(kind) if one.init}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    problems, meant = [], set()
    for key, value in declaration.items():
        if key not in known:
            problems.append(f"{where}: unknown key {unknown(key, known, quoted=True)}")
            meant.update(difflib.get_close_matches(key, list(known), n=1))
        elif not _is(value, hints[key]):
            problems.append(f"{where}: {key}: expected {_words(hints[key])}, got {value!r}")
    for key, one in known.items():
        needed = one.default is MISSING and one.default_factory is MISSING
        if needed and key not in declaration and key not in meant:
            problems.append(f"{where}: the key {key!r} is missing")
    if problems:
        return None, problems
    try:
        return kind(**declaration), []
    except UsageError as error:
        return None, [f"{where}: {error}"]


def unknown(word: str, known: Collection[str], quoted: bool = False) -> str:
    """What to say of a word that is none of the known ones."""
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
        item = get_args(hint)[1] if get_args(hint) else str
        return isinstance(value, Mapping) and all(_is(x, item) for x in value.values())
    if origin is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin) if isinstance(origin, type) else callable(value)


def _words(hint: Any) -> str:
    if get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(_words(one) for one in get_args(hint) if one is not type(None))
    origin = get_origin(hint) or hint
    if origin is Mapping and get_args(hint) and get_args(hint)[1] is not str:
        return "a table of texts, numbers or true and false"
    names = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
    names |= {Sequence: "a list of texts", Mapping: "a table of texts"}
    return names.get(origin, "a function")
