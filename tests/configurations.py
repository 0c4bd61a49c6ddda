"""Every index x strategy x policy that a filter can be made of: what contract tests and long runs go through."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fickle import fickle
from tamis import Filter
from tamis.index import FAMILY

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

FAMILIES = STRATEGIES | AGILE | AUTO | {"threads skiplist": partial(Filter, index="skiplist", threads=3)}
