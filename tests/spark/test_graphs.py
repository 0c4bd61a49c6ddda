"""Predicates on content graphs work on Spark as they do in one process; graphs are labelled by a job."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tamis import ReferenceFilter, UsageError
from tamis.errors import GraphError
from tamis.graph import ContentGraph
from tamis.spark import content_graph, match_stream, match_table

EDGES = [("sport", "baseball"), ("baseball", "red sox"), ("news", "red sox"), ("news", "politics"), ("sport", "rowing")]
PROFILES = pa.table(
    {
        "id": ["fan", "news", "not"],
        "profile": ["topic within ctx.topics", "topic within 'news'", "topic not within ['sport', 'politics']"],
        "context": ["u", None, None],
    }
)
CONTEXTS = pa.table({"context": ["u"], "attribute": ["topics"], "value": ['["baseball", "politics"]']})
TOPICS = ["red sox", "politics", "rowing", "news", "sport", "nowhere"]


def expected() -> list[tuple[int, str]]:
    reference = ReferenceFilter(graphs=[ContentGraph.from_edges(EDGES, name="topic")])
    for row in PROFILES.to_pylist():
        reference.subscribe(row["id"], row["profile"], row["context"])
    reference.update("u", topics=["baseball", "politics"])
    return sorted((row, str(id)) for row, id in reference.match_many({"topic": TOPICS}))


def table(spark: Any, edges: list[tuple[str | None, str | None]]) -> Any:
    columns = {"parent": [a for a, _ in edges], "child": [b for _, b in edges]}
    return spark.createDataFrame(pa.table({name: pa.array(rows, pa.string()) for name, rows in columns.items()}))


def test_a_graph_is_labelled_by_a_job(spark: Any) -> None:
    rng = Random(4)
    tree = [(f"c{rng.randrange(i)}", f"c{i}") for i in range(1, 400)]
    across = [(f"c{a}", f"c{b}") for a, b in (sorted(rng.sample(range(400), 2)) for _ in range(300))]
    for edges, most in (
        (EDGES, 100_000),
        ([*tree, *across], 60),
        ([*tree, (None, "alone"), (None, "c3")], 100),
    ):
        found = content_graph(table(spark, [*edges, *edges[:9]]).repartition(3), name="topic", most=most)
        wanted = ContentGraph.from_edges(sorted(set(edges), key=lambda edge: (edge[0] or "", edge[1])), name="topic")
        assert found.names == wanted.names
        arrays = wanted.arrays()
        for key, array in found.arrays().items():
            assert np.array_equal(array, arrays[key]), key
        found.check()


def test_what_is_no_graph_is_refused(spark: Any) -> None:
    for edges, words in (
        ([("a", "b"), ("b", "a")], "graph 'topic' has a cycle: 'b' -> 'a' -> 'b'"),
        ([("a", "b"), ("a", None)], "graph 'topic': the name of a category is text, got None"),
        ([("a", "x//y")], "no empty part, got 'x//y'"),
    ):
        with pytest.raises(GraphError, match=words):
            content_graph(table(spark, edges), name="topic")
    with pytest.raises(UsageError, match="there is no column 'above'"):
        content_graph(table(spark, [("a", "b")]), name="topic", parent="above")
    with pytest.raises(UsageError, match="most is how many categories a task gets, got 0"):
        content_graph(table(spark, [("a", "b")]), name="topic", most=0)


def test_tables(spark: Any) -> None:
    graph = ContentGraph.from_edges(EDGES, name="topic")
    messages = spark.createDataFrame(pa.table({"n": list(range(6)), "topic": TOPICS}))
    profiles, contexts = spark.createDataFrame(PROFILES), spark.createDataFrame(CONTEXTS)
    found = match_table(messages, profiles, contexts, message_id="n", graphs=[graph])
    assert sorted((row.n, row.profile) for row in found.matches.collect()) == expected()
    assert [(row.n, row.reason.partition(";")[0]) for row in found.rejected.collect()] == [
        (5, "topic: graph 'topic' has no category 'nowhere'")
    ]


def test_streams(spark: Any, tmp_path: Path) -> None:
    graph = ContentGraph.from_edges(EDGES, name="topic")
    folder = tmp_path / "messages"
    spark.createDataFrame(pa.table({"seq": list(range(6)), "topic": TOPICS})).write.json(str(folder))
    messages = spark.readStream.schema("seq long, topic string").json(str(folder))
    stream = match_stream(
        messages, profiles=spark.createDataFrame(PROFILES), contexts=spark.createDataFrame(CONTEXTS), graphs=[graph]
    )
    query = (
        stream.matches.writeStream.format("memory")
        .queryName("graph_matches")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted((row.seq, row.profile) for row in spark.table("graph_matches").collect()) == expected()
