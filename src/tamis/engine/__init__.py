"""The engine: contexts, strategies, merge, postfilter, matches, explain. See :class:`tamis.engine.filter.Filter`."""
