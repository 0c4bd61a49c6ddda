"""What every test shares: the hypothesis profiles, which tests wait for ``make soak``, and the servers.

``HYPOTHESIS_PROFILE`` chooses the profile. ``default`` is quick and gives the same examples in every run;
``soak`` looks much longer and at new examples each time.
"""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

from kafka_broker import connector_jars, kafka
from postgres import postgres, postgres_server

__all__ = ["kafka", "postgres", "postgres_server"]

# Every Spark session of the tests, whoever starts it, finds this interpreter and the Kafka connector.
os.environ["PYSPARK_PYTHON"] = sys.executable
if connector_jars():
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", f"--jars {','.join(connector_jars())} pyspark-shell")

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
        if item.get_closest_marker("soak"):
            item.add_marker(skip)
