"""Predicates on content graphs: the engine answers as the reference does, whatever moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from random_topics import CONTEXTS, Scene
from tamis import EventLog, Filter, ReferenceFilter
from tamis.testing import differences

OPTIONS: dict[str, dict[str, Any]] = {
    "agile": {},
    "threads": {"threads": 3},
    "noindex": {"strategy": "noindex"},
    "eager": {"strategy": "eager", "index": "skiplist"},
}


def both(scene: Scene, **options: Any) -> tuple[Filter, ReferenceFilter]:
    return Filter(graphs=scene.graphs, **options), ReferenceFilter(graphs=scene.graphs)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@settings(max_examples=12)
@given(seed=st.integers(0, 2**32))
def test_engine_is_reference(options: dict[str, Any], seed: int) -> None:
    """Random graphs, profiles and interleaved logs; the graphs change between logs."""
    scene = Scene(np.random.default_rng(seed))
    f, reference = both(scene, **options)
    for round in range(6):
        assert differences(f, reference, scene.log(40, updates=0.3 + 0.1 * round), CONTEXTS) == []
        f.check()
        assert differences(f, reference, EventLog.of_messages(scene.columns(30))) == []
        for _ in range(round):
            scene.change()
        if round == 3:
            f.deescalate()
