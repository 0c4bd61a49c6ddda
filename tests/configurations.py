"""Every index x strategy x policy that a filter can be made of: what contract tests and long runs go through."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fickle import fickle
from tamis import Filter
from tamis.index import FAMILY
from tamis.model.batching import FULL, FULL_MIX, MINI, MINI_MIX, Batching, by_value, fixed_number, fixed_size

SCOPE = {"a": (-2.0, 4.0), "b": (0.0, 3.0)}
POLICIES = ("always", "fixed(3)", "auto(10)")

STRATEGIES: dict[str, Callable[..., Any]] = {
    f"{strategy} {index}": partial(Filter, strategy=strategy, index=index)
    for index in FAMILY
    for strategy in ("agile", "eager", "gbu", *(["noindex"] if index == "skiplist" else []))
} | {f"partial {index}": partial(Filter, strategy="partial", index=index, scope=SCOPE) for index in FAMILY}
"""Every structure of the family under every strategy."""

AGILE: dict[str, Callable[..., Any]] = {
    f"{policy} {index}": partial(Filter, index=index, policy=policy, indexed=1 + len(policy) % 3)
    for index in ("blocks", *FAMILY)
    for policy in POLICIES
}
"""Every structure under AGILE with every policy of paper 000; ``cost`` is what the others have."""

AUTO: dict[str, Callable[..., Any]] = {
    **{f"auto {strategy}": partial(fickle, strategy=strategy) for strategy in ("eager", "gbu")},
    "auto partial": partial(fickle, strategy="partial", scope=SCOPE),
    "auto attributes": partial(fickle, index="skiplist", indexed="auto"),
}
"""Filters that choose among the family, and change all the time."""

BATCHED: dict[str, Callable[..., Any]] = {
    "batched blocks": partial(Filter, index="blocks", batching=Batching(MINI, 7)),
    "batched threads": partial(Filter, index="blocks", threads=3, batching=Batching(MINI, 50)),
    "batched skiplist": partial(Filter, index="skiplist", batching=Batching(MINI, 9, fixed_size(3))),
    "batched full": partial(Filter, index="skiplist", policy="fixed(3)", batching=Batching(FULL, 6)),
    "batched messages": partial(Filter, index="skiplist", batching=Batching(FULL_MIX, 11)),
    "batched both": partial(Filter, index="skiplist", batching=Batching(MINI_MIX, 40, by_value(0.7, 2.0, most=5))),
    "batched eager": partial(
        Filter, index="skiplist", strategy="eager", batching=Batching(MINI, 30, fixed_number(4, least=2))
    ),
    "batched hash": partial(Filter, index="hash", batching=Batching(MINI_MIX, 30, by_value(1.0, least=3))),
    "batched btree": partial(Filter, index="btree", strategy="gbu", batching=Batching(MINI, 300, by_value(1.0))),
    "batched rtree": partial(Filter, index="rtree", policy="always", batching=Batching(MINI_MIX, 100, fixed_size(7))),
}
"""Every structure in batches of every kind, so small that logs have many of them."""

FAMILIES = STRATEGIES | AGILE | AUTO | {"threads skiplist": partial(Filter, index="skiplist", threads=3)}
