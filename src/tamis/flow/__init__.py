"""Flow: queues, batches and quality of service between the sources and a filter.

Guarantees that time is an argument (nothing here reads a clock but :mod:`tamis.flow.live`), and that every event is
accounted for. See the guide of flows.
"""

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
from .chunk import Chunk, Consistency
from .classes import QosClass
from .core import Flow, Work
from .costs import Costs
from .lanes import Lanes
from .policies import Batch, Hybrid, Policy, Shed, Traditional, batch_size
from .wishes import Choice, choose

__all__ = [
    "STRATEGIES",
    "Batch",
    "BatchControl",
    "Batching",
    "Choice",
    "Chunk",
    "Consistency",
    "CostModel",
    "Costs",
    "Flow",
    "Grouping",
    "Hybrid",
    "Lanes",
    "LatencyModel",
    "Policy",
    "QosClass",
    "Shed",
    "Traditional",
    "Tuner",
    "Tuning",
    "Work",
    "batch_size",
    "by_value",
    "choose",
    "fixed_number",
    "fixed_size",
]
