"""Flow: what happens between the sources and ``Filter.process``. Sans-I/O: time is an argument."""

from __future__ import annotations

from .batching import (
    STRATEGIES,
    BatchControl,
    Batching,
    CostModel,
    Grouping,
    LatencyModel,
    Tuner,
    Tuning,
    by_value,
    fixed_number,
    fixed_size,
)

__all__ = [
    "STRATEGIES",
    "BatchControl",
    "Batching",
    "CostModel",
    "Grouping",
    "LatencyModel",
    "Tuner",
    "Tuning",
    "by_value",
    "fixed_number",
    "fixed_size",
]
