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
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tamis.errors import GraphError, UsageError
from tamis.graph import ContentGraph, parts
from tamis.graph.labelling import Ids, Labelling
from tamis.model.tables import did_you_mean

_PACKED = "part long, data binary"
MOST = 100_000
"""Categories of a task, when nobody says."""
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


def content_graph(
    edges: DataFrame, *, name: str, parent: str = "parent", child: str = "child", most: int = MOST
) -> ContentGraph:
    """The content graph of a table of edges, named, sorted and labelled by Spark.

    A task gets at most ``most`` categories and all above them, and makes their exceptions; it needs memory for these
    alone. The driver chooses the trees, cuts the parts and takes the graph, which it has to hold anyway. Cycles and bad
    names are errors, as in ``ContentGraph.from_edges``.
    """
    for column in (parent, child):
        if column not in edges.columns:
            raise UsageError(f"edges: there is no column {column!r}{did_you_mean(column, edges.columns)}")
    if most < 1:
        raise UsageError(f"most is how many categories a task gets, got {most}")
    names, pairs = _numbered(edges.select(_text(parent, "parent"), _text(child, "child")).distinct(), name)

    def hang(whole: Labelling, topo: Ids, extent: Ids) -> None:
        cut = [parts.packed(part) for part in parts.split(whole, extent, most)]
        sent = edges.sparkSession.createDataFrame(pa.table({"part": range(len(cut)), "data": cut}))
        made = sent.repartitionById(max(1, len(cut)), F.col("part").cast("int")).mapInArrow(_hang, _PACKED).toArrow()
        parts.join(whole, topo, (parts.unpacked(parts.Rows, data.as_py()) for data in made["data"]))

    return ContentGraph.from_numbers(names, *pairs, name=name, hang=hang)


def _text(column: str, name: str) -> Column:
    return F.col(column).cast("string").alias(name)


def _numbered(pairs: DataFrame, name: str) -> tuple[list[str], tuple[Ids, Ids]]:
    """Names in the order in which sorted edges bring them, and the edges by number."""
    both = F.explode(F.array("parent", "child")).alias("name")
    names = pairs.select(both).distinct().where("name is not null").sort("name").toArrow()
    ranks = names.append_column("rank", pa.array(np.arange(len(names), dtype=np.int32)))
    table = pairs.sparkSession.createDataFrame(ranks)
    for column in ("parent", "child"):
        rank = table.select(F.col("name").alias(column), F.col("rank").alias(f"{column}_rank"))
        pairs = pairs.join(rank, column, "left")
    found = pairs.select("parent_rank", "child_rank").toArrow()
    if found["child_rank"].null_count:
        raise GraphError(f"graph {name!r}: the name of a category is text, got None")
    above, below = (found[column].fill_null(-1).to_numpy() for column in ("parent_rank", "child_rank"))
    order = np.lexsort([below, above])
    flat = np.stack([above[order], below[order]], axis=1).ravel()
    known, at = np.unique(flat[flat >= 0], return_index=True)
    known = known[np.argsort(at)]
    number = np.empty(len(ranks), np.int32)
    number[known] = np.arange(len(known), dtype=np.int32)
    order = order[above[order] >= 0]
    return names["name"].take(pa.array(known)).to_pylist(), (number[above[order]], number[below[order]])


def _hang(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for ``mapInArrow``: parts in, their rows out."""
    for batch in batches:
        for part, data in zip(batch.column("part"), batch.column("data"), strict=True):
            rows = parts.packed(parts.hang(parts.unpacked(parts.Part, data.as_py())))
            yield pa.RecordBatch.from_pydict({"part": [part.as_py()], "data": pa.array([rows], pa.binary())})


def _bytes(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
