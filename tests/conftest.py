"""What every test shares: the hypothesis profiles, and which tests wait for ``make soak``.

``HYPOTHESIS_PROFILE`` chooses the profile. ``default`` is quick and gives the same examples in every run;
``soak`` looks much longer and at new examples each time.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")

settings.register_profile(
    "default",
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(
    "soak",
    max_examples=5_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile(PROFILE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests marked ``soak`` out of the quick run."""
    if PROFILE == "soak":
        return
    skip = pytest.mark.skip(reason="long random run: make soak")
    for item in items:
        if "soak" in item.keywords:
            item.add_marker(skip)
