"""Content graphs from files and tables: edges as CSV, TSV, Parquet or Arrow, thesauri as SKOS.

Guarantees that what cannot be read is an error that names the file, the column and the row. Refuses to know what is
done with the edges. SKOS needs rdflib: ``pip install 'tamis[rdf]'``.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tamis.errors import GraphError, UsageError
from tamis.model.tables import did_you_mean, to_list, to_table

Edge: TypeAlias = "tuple[str | None, str]"
"""(parent, child); without a parent the child is a category of its own."""

DELIMITERS: Final = {".csv": ",", ".tsv": "\t"}
RDF: Final = {".ttl": "turtle", ".rdf": "xml", ".owl": "xml", ".nt": "nt", ".jsonld": "json-ld", ".skos": "xml"}
PARQUET: Final = (".parquet", ".pq")


def table_edges(
    source: Any, parent: str, child: str, label: str | None = None, what: str = "table of edges"
) -> list[Edge]:
    """The edges of a table with a column of parents and one of children; an absent or empty parent is none.

    With a column of labels, the others are keys, and categories are named by their labels.
    """
    table = to_table(source, what)
    wanted = [parent, child, *([label] if label else [])]
    for column in wanted:
        if column not in table.names:
            have = ", ".join(map(repr, table.names))
            hint = did_you_mean(column, table.names)
            raise UsageError(f"{what}: there is no column {column!r}{hint} (the columns are {have})")
    edges: list[Edge] = []
    labels: dict[str, str] = {}
    for row, values in enumerate(zip(*(to_list(table.column(column)) for column in wanted), strict=True)):
        for column, value in zip(wanted, values, strict=True):
            if value is not None and not isinstance(value, str):
                raise GraphError(
                    f"{what}: row {row}, column {column!r}: a category is text, got {value!r}; make the column text"
                )
        above, below, *text = values
        if not below:
            raise GraphError(f"{what}: row {row}, column {child!r}: expected a category, got {below!r}")
        edges.append((above or None, below))
        if label and text[0]:
            labels.setdefault(below, text[0])
    if not label:
        return edges
    keys = dict.fromkeys(key for edge in edges for key in edge if key)
    names = unique({key: labels.get(key, key) for key in keys}, str)
    return [(names[above] if above else None, names[below]) for above, below in edges]


def file_edges(
    path: str | Path, parent: str, child: str, label: str | None, columns: Sequence[str] | None, language: str
) -> list[Edge]:
    """The edges of a file, by the ending of its name; ``.gz`` behind it is fine for CSV and TSV."""
    path = Path(path)
    if not path.exists():
        raise UsageError(f"{path}: there is no such file")
    ending = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if ending in DELIMITERS:
        return table_edges(_text(path, DELIMITERS[ending], columns), parent, child, label, str(path))
    if ending in PARQUET:
        import pyarrow.parquet as pq

        return table_edges(pq.read_table(path), parent, child, label, str(path))
    if ending in RDF:
        return skos_edges(path, RDF[ending], language)
    known = ", ".join([*DELIMITERS, *PARQUET, *RDF])
    raise UsageError(f"{path}: expected a file of edges or a thesaurus: {known}")


def _text(path: Path, delimiter: str, columns: Sequence[str] | None) -> Any:
    from pyarrow import csv

    given = list(columns) if columns is not None else None
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            head = csv.ReadOptions(column_names=given)
            split = csv.ParseOptions(delimiter=delimiter, quote_char='"' if delimiter == "," else False)
            names = given or _header(path, delimiter)
            kept = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
            table = csv.read_csv(stream, head, split, kept)
            # Blanks behind a separator belong to nobody's category.
            table = table.rename_columns([name.strip() for name in table.column_names])
            return pa.table({name: pc.utf8_trim_whitespace(table[name]) for name in dict.fromkeys(table.column_names)})
    except pa.ArrowInvalid as error:
        raise UsageError(f"{path}: {error}") from None


def _header(path: Path, delimiter: str) -> list[str]:
    with pa.input_stream(str(path), compression="detect") as stream:
        line = stream.read(65_536).decode("utf-8-sig", "replace").partition("\n")[0]
    return [name.strip().strip('"') for name in line.split(delimiter)]


def skos_edges(path: Path, kind: str, language: str) -> list[Edge]:
    """The concepts of a thesaurus: ``skos:broader`` and ``skos:narrower``, or ``rdfs:subClassOf``.

    A concept is named by its preferred label in ``language``, or by any label, or by the end of its address. Labels
    that occur twice get the end of the address behind them. ``/`` in a label becomes ``|``, as it separates paths.
    """
    if importlib.util.find_spec("rdflib") is None:
        raise UsageError(f"{path}: SKOS and RDF need rdflib: pip install 'tamis[rdf]'")
    import rdflib
    from rdflib.namespace import OWL, RDF, RDFS, SKOS

    graph = rdflib.Graph()
    try:
        graph.parse(path, format=kind)
    except Exception as error:  # rdflib's parsers raise what they like
        raise UsageError(f"{path}: cannot be read as {kind}: {error}") from None
    pairs = [(parent, child) for child, parent in graph.subject_objects(SKOS.broader)]
    pairs += list(graph.subject_objects(SKOS.narrower))
    pairs += [(parent, child) for child, parent in graph.subject_objects(RDFS.subClassOf)]
    pairs = [(a, b) for a, b in pairs if not isinstance(a, rdflib.BNode) and not isinstance(b, rdflib.BNode)]
    alone = [one for kind_of in (SKOS.Concept, OWL.Class) for one in graph.subjects(RDF.type, kind_of)]
    nodes = dict.fromkeys([*(node for pair in pairs for node in pair), *alone])
    if not nodes:
        raise UsageError(f"{path}: has no concepts: expected skos:Concept, skos:broader or rdfs:subClassOf")
    names = _labels(
        nodes, lambda node: [*graph.objects(node, SKOS.prefLabel), *graph.objects(node, RDFS.label)], language
    )
    edges: list[Edge] = [(names[a], names[b]) for a, b in pairs]
    return edges + [(None, names[node]) for node in nodes]


def _labels(nodes: Iterable[Any], labels: Any, language: str) -> dict[Any, str]:
    """A name of its own for every concept."""
    plain = {}
    for node in nodes:
        found = labels(node)
        found.sort(key=lambda label: (getattr(label, "language", None) != language, str(label)))
        plain[node] = str(found[0]).strip() if found else _end(node)
    return unique(plain, _end)


def unique(labels: Mapping[Any, str], key: Callable[[Any], str]) -> dict[Any, str]:
    """Labels as names: ``/`` becomes ``|``, as it separates paths; those that occur twice get the key behind them."""
    plain = {node: label.replace("/", "|") for node, label in labels.items()}
    often = Counter(plain.values())
    names = {node: name if often[name] == 1 else f"{name} ({key(node)})" for node, name in plain.items()}
    if len(set(names.values())) < len(names):
        twice = next(name for name, count in Counter(names.values()).items() if count > 1)
        raise GraphError(f"two concepts have the name {twice!r}")
    return names


def _end(node: Any) -> str:
    """The last part of an address."""
    return str(node).rstrip("/#").rpartition("/")[2].rpartition("#")[2]
