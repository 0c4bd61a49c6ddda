"""A word on the terminal while kernels compile, which happens once per machine and takes a while."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PATIENCE = 1.5
_said = False


@contextmanager
def compiling() -> Iterator[None]:
    """Say what is going on when the work inside takes longer than a moment; at most once per process."""
    if _said or not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(_PATIENCE, _say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say() -> None:
    global _said
    if not _said:
        _said = True
        print(
            "tamis: preparing kernels for this machine (once, they are kept); this can take a minute", file=sys.stderr
        )
