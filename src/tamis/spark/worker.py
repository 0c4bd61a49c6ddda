"""What a Python worker of Spark does once in its life.

Spark's worker collects garbage after every task, and everything that was imported is looked at each time: measured
40 ms a task. After :func:`settle` only what is new is looked at. Changes no result.
"""

from __future__ import annotations

import gc

_settled = False


def settle() -> None:
    """Take what is there now out of all further collections; nothing the second time, or outside of a task."""
    global _settled
    if _settled:
        return
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        gc.collect()
        gc.freeze()
        _settled = True
