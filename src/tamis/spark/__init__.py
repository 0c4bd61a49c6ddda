"""The pipeline on Spark: exact matching of streams and tables through PySpark.

Guarantees the law of exactness for any number of shards, partitions and micro-batches. Spark does what Spark does
(sources, shuffle, state store, checkpoints, scheduling); this room packs, routes and replays.
"""

from __future__ import annotations

from . import reports, sinks, sources
from .graphs import content_graph
from .session import builder, prepare
from .stream import MatchStream, match_stream, read_contexts, read_kinds, read_profiles
from .table import Index, TableMatches, build, match_table, tamis

__all__ = [
    "Index",
    "MatchStream",
    "TableMatches",
    "build",
    "builder",
    "content_graph",
    "match_stream",
    "match_table",
    "prepare",
    "read_contexts",
    "read_kinds",
    "read_profiles",
    "reports",
    "sinks",
    "sources",
    "tamis",
]
