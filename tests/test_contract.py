"""Every filter keeps the contract: a state machine and random logs, compared with the reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from configurations import FAMILIES
from contract import VOCABULARY, machine
from fickle import fickle
from restless import restless
from tamis import Filter
from tamis.engine import replay
from tamis.errors import TamisError
from tamis.reference import ReferenceFilter
from tamis.testing import Mix, differences, random_log, random_tracks

FACTORIES: dict[str, Callable[..., Any]] = {
    "reference": ReferenceFilter,
    "agile": Filter,
    "noindex": partial(Filter, strategy="noindex"),
    "threads": partial(Filter, threads=3),
    "restless": restless,
    "restless threads": partial(restless, threads=2),
    "fickle": fickle,
    "fickle threads": partial(fickle, threads=2),
    **FAMILIES,
}


@pytest.fixture(autouse=True)
def threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that really run at once, though the logs are too short to be worth them."""
    monkeypatch.setattr(replay, "WORTH_THREADS", 0)


def attempt(call: Callable[..., Any], arguments: dict[str, Any]) -> str | None:
    """The class of the refusal, if it is one."""
    try:
        call(**arguments)
    except TamisError as error:
        return type(error).__name__
    return None


@pytest.mark.parametrize("name", FACTORIES)
def test_state_machine(name: str) -> None:
    examples = settings().max_examples
    # The family shares its strategies, so that a sample of each is enough here; the long runs go through all of them.
    few = max(5, examples // 10) if name in FAMILIES else examples
    steps = settings(max_examples=few, stateful_step_count=20, deadline=None)
    run_state_machine_as_test(machine(FACTORIES[name]), settings=steps)


LOGS = [(name, seed) for name in FACTORIES for seed in range(3 if name in FAMILIES else 8)]


@pytest.mark.parametrize(("name", "seed"), LOGS)
def test_random_logs(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    schema = VOCABULARY.schema() if seed % 3 == 0 else None
    filter, reference = FACTORIES[name](schema=schema), ReferenceFilter(schema=schema)
    for track in random_tracks(rng, seed % 3, VOCABULARY):
        assert attempt(filter.track, track) == attempt(reference.track, track)
    for part in range(3):
        log = random_log(rng, 120, VOCABULARY, Mix(effects=0.1 * part), columnar=seed % 2 == 0)
        assert differences(filter, reference, log) == []
        filter.check()
