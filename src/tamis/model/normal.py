"""The disjunctive normal form of a condition: a profile is true when one of its clauses is.

Guarantees: negation stands at predicates only, where it keeps the meaning "a predicate without a value is false,
negated or not"; because every comparison with NaN or an absent value is false, turning ``not a < b`` into
``a >= b`` is exact. Refuses to know: which predicates contradict each other, and what an index can do with them.
"""

from __future__ import annotations

from typing import TypeAlias

from tamis.errors import ProfileError
from tamis.model.tree import And, Between, Compare, Condition, Literal, Not, Or, Predicate, Truth

MAX_CLAUSES = 64

Clause: TypeAlias = "tuple[Predicate | Not, ...]"

_FLIPPED = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_TRUE = And(())
_FALSE = Or(())


def normalise(condition: Condition, limit: int = MAX_CLAUSES) -> tuple[Clause, ...]:
    """The clauses of a condition, in the order written: ``()`` is never true, ``((),)`` always.

    A ``Not`` in a clause holds a predicate that has no opposite of its own, such as a Member or a Like. ``between``
    becomes two comparisons. A predicate stands once in a clause; a clause that another one implies is left out.

    Runtime complexity: O(size of the result), plus O(clauses²) for the absorption.
    """
    try:
        pushed = _push(condition, False)
        clauses = _count(pushed)
        if clauses > limit:
            shown = f"{clauses:,}" if clauses < 10**9 else "more than a billion"
            raise ProfileError(
                "too-many-clauses",
                f"written as alternatives the profile has {shown} clauses, at most {limit:,} are allowed; "
                "use 'in [...]' in place of many 'or', or split it into several profiles",
            )
        return _absorb(_clauses(pushed))
    except RecursionError:
        raise ProfileError("too-deep", "the profile is nested too deeply") from None


def _push(condition: Condition, negated: bool) -> Condition:
    """The same meaning with negation at predicates only and without constants (except as the whole)."""
    while type(condition) is Not:
        condition, negated = condition.item, not negated
    if isinstance(condition, Compare):
        return Compare(_FLIPPED[condition.op], condition.left, condition.right) if negated else condition
    if isinstance(condition, And | Or):
        items = [_push(item, negated) for item in condition.items]
        return _join(isinstance(condition, And) is not negated, items)
    if isinstance(condition, Between):
        value, low, high = condition.value, condition.low, condition.high
        if negated:
            return Or((Compare("<", value, low), Compare(">", value, high)))
        return And((Compare(">=", value, low), Compare("<=", value, high)))
    if isinstance(condition, Truth) and isinstance(condition.operand, Literal):
        value_ = condition.operand.value
        if not isinstance(value_, bool):
            raise ProfileError("not-a-condition", f"the constant {value_!r} is a value, not a condition")
        return _TRUE if value_ is not negated else _FALSE
    return Not(condition) if negated else condition


def _join(every: bool, items: list[Condition]) -> Condition:
    neutral, deciding = (_TRUE, _FALSE) if every else (_FALSE, _TRUE)
    if deciding in items:
        return deciding
    kept = [item for item in items if item != neutral]
    if len(kept) == 1:
        return kept[0]
    return And(tuple(kept)) if every else Or(tuple(kept))


def _count(condition: Condition) -> int:
    if isinstance(condition, Or):
        return sum(map(_count, condition.items))
    if isinstance(condition, And):
        product = 1
        for item in condition.items:
            product *= _count(item)
            if product > 10**9:
                return 10**9
        return product
    return 1


def _clauses(condition: Condition) -> list[dict[Predicate | Not, None]]:
    """Clauses as insertion-ordered sets."""
    if isinstance(condition, Or):
        return [clause for item in condition.items for clause in _clauses(item)]
    if isinstance(condition, And):
        found: list[dict[Predicate | Not, None]] = [{}]
        for item in condition.items:
            right = _clauses(item)
            if len(right) == 1:
                for clause in found:
                    clause |= right[0]
            else:
                found = [clause | other for clause in found for other in right]
        return found
    return [{condition: None}]


def _absorb(clauses: list[dict[Predicate | Not, None]]) -> tuple[Clause, ...]:
    if len(clauses) == 1:
        return (tuple(clauses[0]),)
    kept: list[int] = []
    for i, clause in enumerate(clauses):
        mine = clause.keys()
        implied = any(
            other.keys() < mine or (j < i and other.keys() == mine) for j, other in enumerate(clauses) if j != i
        )
        if not implied:
            kept.append(i)
    return tuple(tuple(clauses[i]) for i in kept)
