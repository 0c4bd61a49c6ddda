"""Content graphs on Spark: graphs on their way to the workers, and graphs made of tables of edges.

Guarantees that a graph arrives as it was when it was sent, labels included, and that :func:`content_graph` gives the
graph that ``ContentGraph.from_edges`` gives for the same edges in the order of their names. Refuses to know streams.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tamis.errors import GraphError, UsageError
from tamis.graph import ContentGraph
from tamis.model.tables import did_you_mean

_PACKED = "name string, data binary"
Packed = tuple[str, dict[str, bytes]]


def packed_graphs(graphs: Sequence[ContentGraph]) -> tuple[Packed, ...]:
    """Graphs as plain bytes, for a plan that travels."""
    return tuple((graph.name, {name: _bytes(array) for name, array in graph.arrays().items()}) for graph in graphs)


def unpacked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a filter, with the graphs that :func:`packed_graphs` packed."""
    found = dict(options)
    if found.get("graphs"):
        found["graphs"] = [
            ContentGraph.from_arrays(name, {key: np.load(io.BytesIO(data)) for key, data in arrays.items()})
            for name, arrays in found["graphs"]
        ]
    return found


def content_graph(edges: DataFrame, *, name: str, parent: str = "parent", child: str = "child") -> ContentGraph:
    """The content graph of a table of edges, labelled by a Spark job: the driver only takes the finished arrays.

    Spark finds the distinct edges and sorts them; one task labels them, because labels of a category depend on those
    of all above it. Cycles and bad names are errors, as in ``ContentGraph.from_edges``.
    """
    for column in (parent, child):
        if column not in edges.columns:
            raise UsageError(f"edges: there is no column {column!r}{did_you_mean(column, edges.columns)}")
    pairs = edges.select(F.col(parent).cast("string").alias("parent"), F.col(child).cast("string").alias("child"))
    distinct = pairs.distinct().sort("parent", "child").coalesce(1)
    rows = distinct.mapInArrow(_Label(name), _PACKED).toArrow()
    found = dict(zip(rows["name"].to_pylist(), rows["data"].to_pylist(), strict=True))
    if "error" in found:
        raise GraphError(found["error"].decode())
    return ContentGraph.from_arrays(name, {key: np.load(io.BytesIO(data)) for key, data in found.items()})


class _Label:
    """The function for ``mapInArrow``: all edges in, the arrays of the graph out."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        edges: list[tuple[str | None, str]] = []
        for batch in batches:
            edges += zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        try:
            graph = ContentGraph.from_edges(edges, name=self._name)
            arrays = {key: _bytes(array) for key, array in graph.arrays().items()}
        except GraphError as error:
            arrays = {"error": str(error).encode()}
        for key, data in arrays.items():
            yield pa.RecordBatch.from_pydict({"name": pa.array([key]), "data": pa.array([data], pa.binary())})


def _bytes(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
