"""A small stack machine for everything that is not an interval on one attribute.

A program is a run of instructions ``(operation, a, b)``. Expression operations push; test operations pop and end the
program with *false* when they fail, so a program is a conjunction. Absent values and NaN make every test fail but
``HAS*``. The compiler in :mod:`tamis.engine.programs` guarantees the depth and the kinds of the operands.
"""

from __future__ import annotations

import math

import numpy as np

from .bundles import ABSENT, ABSENT_BITS
from .jit import bare, inlined
from .taxonomy import PRESENT, related, taxonomy_at, under

DEPTH = 256
FIRST_INSTANT, LAST_INSTANT = -62_135_596_800_000_000.0, 253_402_300_799_999_999.0

(MESSAGE, CONTEXT, CONSTANT, WIDE_CONSTANT, ADD, SUBTRACT, MULTIPLY, DIVIDE, NEGATE, ABSOLUTE, DISTANCE) = range(11)
(LIST_LOW, LIST_HIGH, INSTANT, BELOW, ABOVE) = range(11, 16)
(LESS, LESS_EQUAL, GREATER, GREATER_EQUAL, EQUAL, NOT_EQUAL) = range(20, 26)
(TEXT_LESS, TEXT_LESS_EQUAL, TEXT_GREATER, TEXT_GREATER_EQUAL) = range(26, 30)
(IN_LIST, NOT_IN_LIST, IN_POOL, NOT_IN_POOL, IN_STACK, NOT_IN_STACK) = range(30, 36)
(STARTS, NOT_STARTS, PATTERN, NOT_PATTERN) = range(36, 40)
(HAS_MESSAGE, HAS_CONTEXT, HASNT_MESSAGE, HASNT_CONTEXT, NEVER) = range(40, 45)
# Of graph ``a``: the marked categories of the message within a value, one value within another; ``b`` says how values
# hold categories (two bits each).
(UNDER, NOT_UNDER, WITHIN, NOT_WITHIN) = range(45, 49)


@bare
def compare_texts(heap, start, a, b):
    """-1, 0 or 1: UTF-8 bytes order as code points do."""
    ia, ea, ib, eb = start[a], start[a + 1], start[b], start[b + 1]
    while ia < ea and ib < eb:
        if heap[ia] != heap[ib]:
            return -1 if heap[ia] < heap[ib] else 1
        ia += 1
        ib += 1
    if ia < ea:
        return 1
    return -1 if ib < eb else 0


@bare
def _is_prefix(heap, start, text, prefix):
    n = start[prefix + 1] - start[prefix]
    if start[text + 1] - start[text] < n:
        return False
    for i in range(n):
        if heap[start[text] + i] != heap[start[prefix] + i]:
            return False
    return True


@bare
def pattern_matches(verdict, pattern, text):
    """Whether (pattern, text) is in the open-addressing set of verdicts."""
    key = (np.uint64(pattern + 1) << np.uint64(32)) | np.uint64(text)
    mask = np.uint64(verdict.shape[0] - 1)
    i = (key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32) & mask
    while verdict[i] != 0:
        if verdict[i] == key:
            return True
        i = (i + np.uint64(1)) & mask
    return False


@bare
def add_verdict(verdict, pattern, text):
    """Put (pattern, text) into the set; the caller keeps the set at most half full."""
    key = (np.uint64(pattern + 1) << np.uint64(32)) | np.uint64(text)
    mask = np.uint64(verdict.shape[0] - 1)
    i = (key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32) & mask
    while verdict[i] != 0 and verdict[i] != key:
        i = (i + np.uint64(1)) & mask
    verdict[i] = key


@bare
def _distance(sv, at, left, right, values):
    """Euclidean distance of two operands on the stack from ``at`` on: a list's code (size -1) or that many values."""
    total = 0.0
    second = at + (1 if left < 0 else left)
    la = lb = np.int64(0)
    if left < 0:
        if math.isnan(sv[at]):
            return np.nan
        la = np.int64(sv[at])
        left = values.list_start[la + 1] - values.list_start[la]
        la = values.list_start[la]
        at = -1
    if right < 0:
        if math.isnan(sv[second]):
            return np.nan
        lb = np.int64(sv[second])
        right = values.list_start[lb + 1] - values.list_start[lb]
        lb = values.list_start[lb]
        second = -1
    if left != right:
        return np.nan
    for i in range(left):
        x = values.list_value[la + i] if at < 0 else sv[at + i]
        y = values.list_value[lb + i] if second < 0 else sv[second + i]
        total += (x - y) * (x - y)
    return math.sqrt(total)


@inlined
def _less(xv, xr, yv, yr):
    return xv < yv or (xv == yv and xr < yr)


@bare
def run(first, length, m, c, own, world):
    """Run one program for message row ``m``, context ``c`` (or -1) and the constants from ``own`` on.

    Returns (verdict, value, residual): the verdict of the tests, and the top of the stack for value programs.
    """
    messages, contexts, templates, clauses, values = (
        world.messages,
        world.contexts,
        world.templates,
        world.clauses,
        world.values,
    )
    stack = world.stack
    sv, sr = stack[0], stack[1]  # residuals are small integers, exact as doubles
    n = 0
    code = templates.code
    for pc in range(first, first + length):
        op, a, b = code[pc, 0], code[pc, 1], code[pc, 2]
        if op <= ABOVE:
            if op == MESSAGE:
                sv[n] = messages.value[m, a]
                sr[n] = messages.residual[m, a] if messages.residual.shape[0] else 0
                n += 1
            elif op == CONTEXT:
                sv[n] = contexts.value[c, a]
                sr[n] = contexts.residual[c, a] if contexts.residual.shape[0] else 0
                n += 1
            elif op == CONSTANT:
                if a >= 0:
                    sv[n] = clauses.constant[own + a]
                    sr[n] = 0
                else:
                    sv[n] = templates.pool[-1 - a]
                    sr[n] = templates.pool_residual[-1 - a]
                n += 1
            elif op == WIDE_CONSTANT:
                sv[n] = clauses.constant[own + a]
                sr[n] = clauses.constant[own + b]
                n += 1
            elif op == NEGATE:
                sv[n - 1] = ABSENT if math.isnan(sv[n - 1]) else -sv[n - 1]
                sr[n - 1] = 0
            elif op == ABSOLUTE:
                sv[n - 1] = ABSENT if math.isnan(sv[n - 1]) else abs(sv[n - 1])
                sr[n - 1] = 0
            elif op == INSTANT:
                # A computed instant as a context stores it: whole microseconds, years 1 to 9999.
                x = math.floor(sv[n - 1])
                sv[n - 1] = x if FIRST_INSTANT <= x <= LAST_INSTANT else ABSENT
            elif op == LIST_LOW or op == LIST_HIGH:
                x = np.nan
                if not math.isnan(sv[n - 1]):
                    k = np.int64(sv[n - 1])
                    for i in range(values.list_start[k], values.list_start[k + 1]):
                        v = values.list_value[i]
                        if math.isnan(x) or (v < x if op == LIST_LOW else v > x):
                            x = v
                sv[n - 1] = x
                sr[n - 1] = 0
            elif op == BELOW or op == ABOVE:
                # An end of a rearranged comparison, moved outward by more than its rounding; where the doubles say
                # nothing (infinity minus infinity) it is no bound at all.
                n -= 1
                x, y = sv[n - 1], sv[n]
                if math.isnan(x) or math.isnan(y):
                    sv[n - 1] = ABSENT
                else:
                    end = x + y if a > 0 else x - y
                    margin = (abs(x) + abs(y)) * 1e-14 + 1e-300
                    end = end - margin if op == BELOW else end + margin
                    if math.isnan(end):
                        end = -np.inf if op == BELOW else np.inf
                    sv[n - 1] = end
                sr[n - 1] = 0
            elif op == DISTANCE:
                n -= (1 if a < 0 else a) + (1 if b < 0 else b)
                x = _distance(sv, n, np.int64(a), np.int64(b), values)
                sv[n] = ABSENT if math.isnan(x) else x
                sr[n] = 0
                n += 1
            else:
                n -= 1
                x, y = sv[n - 1], sv[n]
                if op == ADD:
                    x = x + y
                elif op == SUBTRACT:
                    x = x - y
                elif op == MULTIPLY:
                    x = x * y
                else:
                    x = x / y if y != 0.0 else np.nan
                # A result that is no number is no value; NaN itself is a value.
                sv[n - 1] = ABSENT if math.isnan(x) else x
                sr[n - 1] = 0
            continue
        if op <= NOT_EQUAL:
            n -= 2
            xv, xr, yv, yr = sv[n], sr[n], sv[n + 1], sr[n + 1]
            if math.isnan(xv) or math.isnan(yv):
                return False, 0.0, 0.0
            if op == LESS:
                ok = _less(xv, xr, yv, yr)
            elif op == LESS_EQUAL:
                ok = not _less(yv, yr, xv, xr)
            elif op == GREATER:
                ok = _less(yv, yr, xv, xr)
            elif op == GREATER_EQUAL:
                ok = not _less(xv, xr, yv, yr)
            elif op == EQUAL:
                ok = xv == yv and xr == yr
            else:
                ok = xv != yv or xr != yr
        elif op <= TEXT_GREATER_EQUAL:
            n -= 2
            if math.isnan(sv[n]) or math.isnan(sv[n + 1]):
                return False, 0.0, 0.0
            order = compare_texts(values.heap, values.start, np.int64(sv[n]), np.int64(sv[n + 1]))
            if op == TEXT_LESS:
                ok = order < 0
            elif op == TEXT_LESS_EQUAL:
                ok = order <= 0
            elif op == TEXT_GREATER:
                ok = order > 0
            else:
                ok = order >= 0
        elif op == IN_LIST or op == NOT_IN_LIST:
            n -= 2
            if math.isnan(sv[n]) or math.isnan(sv[n + 1]):
                return False, 0.0, 0.0
            k = np.int64(sv[n + 1])
            found = False
            for i in range(values.list_start[k], values.list_start[k + 1]):
                if values.list_value[i] == sv[n] and values.list_residual[i] == sr[n]:
                    found = True
                    break
            ok = found == (op == IN_LIST)
        elif op == IN_POOL or op == NOT_IN_POOL:
            n -= 1
            if math.isnan(sv[n]):
                return False, 0.0, 0.0
            found = False
            lo, hi = a, a + b
            while lo < hi:
                mid = (lo + hi) >> 1
                pv, pr = templates.pool[mid], float(templates.pool_residual[mid])
                if pv == sv[n] and pr == sr[n]:
                    found = True
                    break
                if _less(pv, pr, sv[n], sr[n]):
                    lo = mid + 1
                else:
                    hi = mid
            ok = found == (op == IN_POOL)
        elif op == IN_STACK or op == NOT_IN_STACK:
            n -= a + 1
            if math.isnan(sv[n]):
                return False, 0.0, 0.0
            found = False
            for i in range(n + 1, n + 1 + a):
                if stack.view(np.int64)[0, i] == ABSENT_BITS:
                    return False, 0.0, 0.0
                if sv[i] == sv[n] and sr[i] == sr[n]:
                    found = True
            ok = found == (op == IN_STACK)
        elif op == STARTS or op == NOT_STARTS:
            n -= 2
            if math.isnan(sv[n]) or math.isnan(sv[n + 1]):
                return False, 0.0, 0.0
            ok = _is_prefix(values.heap, values.start, np.int64(sv[n]), np.int64(sv[n + 1])) == (op == STARTS)
        elif op == PATTERN or op == NOT_PATTERN:
            n -= 2
            if math.isnan(sv[n]):
                return False, 0.0, 0.0
            ok = pattern_matches(values.verdict, np.int64(sv[n + 1]), np.int64(sv[n])) == (op == PATTERN)
        elif op == HAS_MESSAGE or op == HASNT_MESSAGE:
            ok = (messages.value.view(np.int64)[m, a] != ABSENT_BITS) == (op == HAS_MESSAGE)
        elif op == HAS_CONTEXT or op == HASNT_CONTEXT:
            ok = (contexts.value.view(np.int64)[c, a] != ABSENT_BITS) == (op == HAS_CONTEXT)
        elif op == UNDER or op == NOT_UNDER:
            n -= 1
            taxonomy = taxonomy_at(world.graphs[a])
            if math.isnan(sv[n]) or taxonomy.count[PRESENT] == 0:
                return False, 0.0, 0.0
            ok = under(taxonomy, sv[n], np.int64(b), values) == (op == UNDER)
        elif op == WITHIN or op == NOT_WITHIN:
            n -= 2
            if math.isnan(sv[n]) or math.isnan(sv[n + 1]):
                return False, 0.0, 0.0
            modes = np.int64(b)
            taxonomy = taxonomy_at(world.graphs[a])
            ok = related(taxonomy, sv[n], modes & 3, sv[n + 1], modes >> 2, values) == (op == WITHIN)
        else:
            ok = False
        if not ok:
            return False, 0.0, 0.0
    if n > 0:
        return True, sv[n - 1], sr[n - 1]
    return True, 0.0, 0.0


@bare
def forget_verdict(verdict, pattern, text):
    """Take back a verdict; only safe newest first."""
    key = (np.uint64(pattern + 1) << np.uint64(32)) | np.uint64(text)
    mask = np.uint64(verdict.shape[0] - 1)
    i = (key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32) & mask
    while verdict[i] != key:
        i = (i + np.uint64(1)) & mask
    verdict[i] = 0
