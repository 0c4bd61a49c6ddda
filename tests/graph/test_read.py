"""Content graphs from files and tables, and saved ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tamis import UsageError
from tamis.graph import ContentGraph, GraphError

ROWS = {"parent": ["", "sport", "sport", "boston"], "child": ["sport", "baseball", "soccer", "baseball"]}
PAIRS = {(a, b) for a, b in zip(ROWS["parent"], ROWS["child"], strict=True) if a}


def pairs(graph: ContentGraph) -> set[tuple[str, str]]:
    return {(graph.named(parent), graph.named(i)) for i in graph for parent in graph.parents(i)}


def test_tables() -> None:
    for source in (
        ROWS,
        pa.table(ROWS),
        [dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)],
    ):
        assert pairs(ContentGraph.from_table(source, name="topic")) == PAIRS
    with pytest.raises(
        UsageError,
        match=r"there is no column 'parent'; did you mean 'parents'\? \(the columns are 'parents', 'child'\)",
    ):
        ContentGraph.from_table({"parents": ["a"], "child": ["b"]}, name="t")
    with pytest.raises(GraphError, match="row 1, column 'child': a category is text, got 7"):
        ContentGraph.from_table({"parent": ["a", "b"], "child": ["b", 7]}, name="t")
    with pytest.raises(GraphError, match="row 0, column 'child': expected a category, got None"):
        ContentGraph.from_table({"parent": ["a"], "child": [None]}, name="t")


def test_files(tmp_path: Path) -> None:
    lines = [f"{b},{a},x" for a, b in zip(*ROWS.values(), strict=True)]
    (tmp_path / "edges.csv").write_text("\n".join(["child,parent,note", *lines]) + "\n", encoding="utf-8")
    with gzip.open(tmp_path / "edges.tsv.gz", "wt") as file:
        file.write("\n".join(lines).replace(",", "\t") + "\n")
    pq.write_table(pa.table(ROWS), tmp_path / "edges.parquet")
    assert pairs(ContentGraph.read(tmp_path / "edges.csv", name="topic")) == PAIRS
    headless = {"columns": ["child", "parent", "note"]}
    assert pairs(ContentGraph.read(tmp_path / "edges.tsv.gz", name="topic", **headless)) == PAIRS  # type: ignore[arg-type]
    assert pairs(ContentGraph.read(tmp_path / "edges.parquet", name="topic")) == PAIRS
    with pytest.raises(UsageError, match="there is no such file"):
        ContentGraph.read(tmp_path / "none.csv", name="t")
    with pytest.raises(UsageError, match=r"expected a file of edges or a thesaurus: \.csv"):
        (tmp_path / "edges.xlsx").touch()
        ContentGraph.read(tmp_path / "edges.xlsx", name="t")


def test_blanks_belong_to_no_category_and_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "edges.csv"
    path.write_text("parent, child\nsport, baseball\nsport,soccer \n", encoding="utf-8")
    assert pairs(ContentGraph.read(path, name="topic")) == {("sport", "baseball"), ("sport", "soccer")}
    path.write_text("from;to\nsport;baseball\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"edges\.csv: there is no column 'parent' \(the columns are 'from;to'\)"):
        ContentGraph.read(path, name="topic")


def test_keys_and_labels(tmp_path: Path) -> None:
    rows = "id\tparent\tname\n1\t\tSport\n2\t1\tFootball/soccer\n3\t1\tBoston\n4\t2\tBoston\n5\t9\t\n"
    (tmp_path / "iab.tsv").write_text(rows, encoding="utf-8")
    graph = ContentGraph.read(tmp_path / "iab.tsv", name="topic", child="id", label="name")
    assert pairs(graph) == {
        ("Sport", "Football|soccer"),
        ("Sport", "Boston (3)"),
        ("Football|soccer", "Boston (4)"),
        ("9", "5"),
    }
    assert ContentGraph.from_table(
        {"child": ["a", "b"], "parent": [None, "a"], "text": ["A", "B"]}, name="t", label="text"
    ).reaches("A", "B")


SKOS = """
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix : <http://example.org/t/> .
:1 a skos:Concept ; skos:prefLabel "Sport"@en, "Sport"@de .
:2 a skos:Concept ; skos:prefLabel "Baseball"@en ; skos:broader :1 .
:3 a skos:Concept ; skos:prefLabel "Football / soccer"@en, "Fußball"@de .
:1 skos:narrower :3 .
:4 a skos:Concept ; skos:prefLabel "Boston"@en .
:5 a skos:Concept ; skos:prefLabel "Boston"@en ; skos:broader :2 .
:6 a skos:Concept .
"""


def test_a_thesaurus(tmp_path: Path) -> None:
    path = tmp_path / "topics.ttl"
    path.write_text(SKOS, encoding="utf-8")
    graph = ContentGraph.read(path, name="topic")
    assert pairs(graph) == {("Sport", "Baseball"), ("Sport", "Football | soccer"), ("Baseball", "Boston (5)")}
    assert {"Boston (4)", "6"} <= set(graph.names)
    assert "Fußball" in ContentGraph.read(path, name="topic", language="de")
    path.write_text("@prefix : nonsense", encoding="utf-8")
    with pytest.raises(UsageError, match=r"topics\.ttl: cannot be read as turtle"):
        ContentGraph.read(path, name="topic")


def test_a_saved_graph_comes_back_with_its_labels(tmp_path: Path) -> None:
    graph = ContentGraph.from_table(ROWS, name="topic")
    graph.add_node("red sox", ["baseball"])
    graph.remove_node("soccer")
    graph.save(tmp_path / "topic.graph")
    again = ContentGraph.load(tmp_path / "topic.graph")
    assert (again.name, again.names, pairs(again)) == (graph.name, graph.names, pairs(graph))
    again.check()
    again.add_edge("boston", "red sox")
    again.check()
    (tmp_path / "bad").write_text("nothing", encoding="utf-8")
    with pytest.raises(GraphError, match="bad: is not a saved graph"):
        ContentGraph.load(tmp_path / "bad")
    with pytest.raises(GraphError, match=r"none: is not a saved graph: .*No such file"):
        ContentGraph.load(tmp_path / "none")
