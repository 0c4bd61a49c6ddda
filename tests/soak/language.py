"""Mutated profile texts: only :class:`ProfileError` may come out of the parser, and soon.

What parses must also survive printing and parsing again, unchanged; a sample goes on into a filter and into the
reference, which must agree on whether, and with which code, they refuse it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from exactness import Report

from tamis import Filter
from tamis.errors import ProfileError
from tamis.model.language import parse, parse_effects
from tamis.model.printer import to_text
from tamis.reference import ReferenceFilter
from tamis.testing import Vocabulary, pick, random_effects, random_profile

LIMIT = 0.050
SEEDS = 600  # well-formed texts that one task mutates
LONGEST = 20_000
EVERY = 40  # one parsed text in so many goes into filters

WORDS = """
    and or not && || ! == = != <> < <= > >= between in like matches startswith has( abs( distance( ( ) [ ] , { } {p}
    ctx. ctx . ` `` ' " '' \\ r' \\u{110000} \\x -- # /* */ + - * / % ** // ~ ^ @ $ ? : ; => 1 0 1e999 -1e-999 0x1f
    1_000 .5 5. 1..2 1e inf nan 9223372036854775807 9223372036854775808 -9223372036854775808 true False NULL none is
    exists where select ٣ é 😀 ﬁ ı a.b.c
"""
PHRASES = (
    *("date '2024-01-31'", "date '2024-02-30'", "date '0000-00-00'", "timestamp '2024-01-31T00:00:00Z'", "is null"),
    *("timestamp '9999-12-31T23:59:59.999999Z'", "number 'inf'", "number 'x'", "1" * 400, "between 1 and", "in []"),
    *("matches '(a+)+$'", "matches '('", "matches '(?=a)'", "like '%\\'", "in [1, 'a']", "e\u0301", "\u200b", "\u202e"),
    *("\ufeff", "\ud800", "\u2028", "\n", "\r", "\t", "\x00", " "),
)
TOKENS = (*WORDS.split(), *PHRASES)
REPEATED = (*"()-[`\\{!", "not ", "a and ", "a or ", "1 + ", "abs(", "'a', ", "x in [1] and ")

Rng = np.random.Generator


def _delete(rng: Rng, text: str, pool: list[str]) -> str:
    start, stop = _span(rng, text)
    return text[:start] + text[stop:]


def _double(rng: Rng, text: str, pool: list[str]) -> str:
    start, stop = _span(rng, text)
    return text[:stop] + text[start:stop] * int(rng.integers(1, 4)) + text[stop:]


def _insert(rng: Rng, text: str, pool: list[str]) -> str:
    start = int(rng.integers(0, len(text) + 1))
    return text[:start] + pick(rng, (" ", "")) + pick(rng, TOKENS) + pick(rng, (" ", "")) + text[start:]


def _replace(rng: Rng, text: str, pool: list[str]) -> str:
    start, stop = _span(rng, text)
    return text[:start] + pick(rng, TOKENS) + text[stop:]


def _character(rng: Rng, text: str, pool: list[str]) -> str:
    start = int(rng.integers(0, len(text) + 1))
    high = pick(rng, (0x80, 0x80, 0x800, 0x11_0000))
    return text[:start] + chr(int(rng.integers(0, high))) + text[start + int(rng.integers(0, 2)) :]


def _truncate(rng: Rng, text: str, pool: list[str]) -> str:
    return text[: int(rng.integers(0, len(text) + 1))]


def _splice(rng: Rng, text: str, pool: list[str]) -> str:
    other = pick(rng, pool)
    return text[: int(rng.integers(0, len(text) + 1))] + other[int(rng.integers(0, len(other) + 1)) :]


def _join(rng: Rng, text: str, pool: list[str]) -> str:
    return f"{text}{pick(rng, (' and ', ' or ', ' and not ', ' ', ',', chr(10)))}{pick(rng, pool)}"


def _wrap(rng: Rng, text: str, pool: list[str]) -> str:
    depth = int(rng.integers(1, 80))
    return "(" * depth + text + ")" * (depth - int(rng.integers(0, 2)))


def _repeat(rng: Rng, text: str, pool: list[str]) -> str:
    start = int(rng.integers(0, len(text) + 1))
    many = int(10 ** rng.uniform(0, 3.5))
    return text[:start] + pick(rng, REPEATED) * many + text[start:]


def _lengthen(rng: Rng, text: str, pool: list[str]) -> str:
    start, stop = _span(rng, text)
    return text[:stop] + text[start:stop] * int(10 ** rng.uniform(0, 3)) + text[stop:]


Mutation = Callable[[Rng, str, list[str]], str]
COMMON: tuple[Mutation, ...] = (_delete, _double, _insert, _insert, _replace, _replace, _character, _truncate, _splice)
RARE: tuple[Mutation, ...] = (_join, _wrap, _repeat, _lengthen)


def _span(rng: Rng, text: str) -> tuple[int, int]:
    start = int(rng.integers(0, len(text) + 1))
    return start, min(len(text), start + int(rng.integers(1, 12)))


def mutate(rng: Rng, pool: list[str]) -> str:
    """One to four changes of a text of the pool."""
    text = pick(rng, pool)
    for _ in range(int(rng.integers(1, 5))):
        mutation = pick(rng, RARE) if rng.random() < 0.04 else pick(rng, COMMON)
        text = mutation(rng, text, pool)[:LONGEST]
    return text


def run(seed: int, texts: int) -> Report:
    """Mutates and parses; the report's events are the texts."""
    rng, report, v = np.random.default_rng(seed), Report(), Vocabulary()
    pool = [random_profile(rng, v, depth=int(rng.integers(0, 4))) for _ in range(SEEDS)]
    effects = [random_effects(rng, v) for _ in range(SEEDS // 10)]
    slowest, slow_text, parsed = 0.0, "", 0
    for n in range(texts):
        reader, source = (parse_effects, effects) if n % 20 == 0 else (parse, pool)
        text = mutate(rng, source)
        tree, took, wrong = read(reader, text)
        if took > slowest:
            slowest, slow_text = took, text
        if took > LIMIT:
            wrong = f"{took * 1000:.0f} ms"
        if wrong is None and tree is not None and reader is parse:
            parsed += 1
            wrong = survives(tree) or (agreed(text) if parsed % EVERY == 0 else None)
        if wrong:
            report.failures.append(f"language {seed}, text {n}: {wrong}\n    {shown(text)}")
    report.events = texts
    report.facts = {"ms for the slowest": slowest * 1000, "characters in it": len(slow_text)}
    return report


def read(reader: Callable[[str], Any], text: str) -> tuple[Any, float, str | None]:
    """The tree if there is one, the seconds of this thread alone, and what went wrong. A slow text is read again."""
    best, wrong, tree = float("inf"), None, None
    for _ in range(4):
        start = time.thread_time()
        try:
            tree = reader(text)
        except ProfileError as error:
            best = min(best, time.thread_time() - start)
            str(error)
        except Exception as error:
            return None, time.thread_time() - start, f"{type(error).__name__}: {error}"
        else:
            best = min(best, time.thread_time() - start)
        if best <= LIMIT:
            break
    return tree, best, wrong


def survives(tree: Any) -> str | None:
    """What goes wrong when the tree is printed and parsed again."""
    try:
        printed = to_text(tree)
        return None if repr(parse(printed)) == repr(tree) else f"comes back as another tree from {shown(printed)}"
    except Exception as error:
        return f"printed and parsed again: {type(error).__name__}: {error}"


def agreed(text: str) -> str | None:
    """Whether the filter and the reference take, or refuse, a text alike; other errors than ours go through."""
    answers = []
    for filter in (Filter(), ReferenceFilter()):
        try:
            filter.subscribe("q", text, context="A")
            answers.append("taken")
        except ProfileError as error:
            answers.append(error.code)
        except Exception as error:
            return f"{type(filter).__name__}.subscribe: {type(error).__name__}: {error}"
    return None if answers[0] == answers[1] else f"the filter says {answers[0]}, the reference {answers[1]}"


def shown(text: str) -> str:
    """A text as Python source, cut when long."""
    return ascii(text) if len(text) <= 300 else f"{text[:200]!a} … {text[-80:]!a} ({len(text)} characters)"
