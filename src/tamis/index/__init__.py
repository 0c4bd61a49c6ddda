"""Indexes: structures that find candidate clauses for a message. See :mod:`tamis.index.protocol`."""

from __future__ import annotations

from .blocks import BlocksIndex
from .noindex import NoIndex
from .protocol import Index

__all__ = ["BlocksIndex", "Index", "NoIndex"]
