"""Content graphs: categories as a directed acyclic graph (Lee, Naganuma, Kurakake; Kulik).

Guarantees that reachability is exact at any time, also while edges come and go. Refuses to know profiles and filters:
they hold a graph and ask it.

>>> from tamis.graph import ContentGraph
>>> edges = [("sport", "baseball"), ("baseball", "red sox"), ("boston", "red sox")]
>>> topic = ContentGraph.from_edges(edges, name="topic")
>>> topic.reaches("sport", "red sox"), topic.reaches("baseball", "boston")
(True, False)
"""

from __future__ import annotations

from tamis.errors import GraphError

from .content import ContentGraph
from .matcher import Matched, Matcher
from .searches import Searches

__all__ = ["ContentGraph", "GraphError", "Matched", "Matcher", "Searches"]
