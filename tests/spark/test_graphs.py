"""Predicates on content graphs work on Spark as they do in one process; graphs are labelled by a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tamis import ReferenceFilter
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


def test_a_graph_is_labelled_by_a_job(spark: Any) -> None:
    edges = spark.createDataFrame(pa.table({"parent": [a for a, _ in EDGES] * 2, "child": [b for _, b in EDGES] * 2}))
    found = content_graph(edges.repartition(3), name="topic")
    wanted = ContentGraph.from_edges(EDGES, name="topic")
    assert sorted(found.names) == sorted(wanted.names)
    for above in wanted.names:
        for below in wanted.names:
            assert found.reaches(above, below) == wanted.reaches(above, below)
    found.check()
    with pytest.raises(GraphError, match="cycle"):
        content_graph(spark.createDataFrame(pa.table({"parent": ["a", "b"], "child": ["b", "a"]})), name="topic")


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
