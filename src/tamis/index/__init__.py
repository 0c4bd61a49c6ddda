"""Indexes: structures that find candidate clauses for a message. See :mod:`tamis.index.protocol`."""

from __future__ import annotations

from .blocks import BlocksIndex
from .catalogue import CatalogueIndex
from .family import FamilyIndex, HashIndex, SkipListIndex
from .noindex import NoIndex
from .protocol import Index
from .trees import BTreeIndex, RTreeIndex

FAMILY: dict[str, type[FamilyIndex]] = {kind.name: kind for kind in (SkipListIndex, HashIndex, BTreeIndex, RTreeIndex)}
"""The indexes of paper 000 by name."""

__all__ = [
    "FAMILY",
    "BTreeIndex",
    "BlocksIndex",
    "CatalogueIndex",
    "FamilyIndex",
    "HashIndex",
    "Index",
    "NoIndex",
    "RTreeIndex",
    "SkipListIndex",
]
