"""The first time on a machine: kernels compile in two processes side by side, as Numba compiles one at a time.

An index is built before the first log is replayed, and both take their kernels a while to compile. A second interpreter
that replays one message on an empty filter leaves the kernels of the replay where the first one will find them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tamis.kernels.jit import cache_folder

REPLAY = "from tamis import Filter; Filter().match({})"
ALONE = "TAMIS_COMPILE_ALONE"  # set, to any text, where no second process is wanted
_helper: subprocess.Popen[bytes] | None = None
_asked = False


def begin() -> None:
    """Have the replay compiled by a second process, if it is not yet; called before an index is built."""
    global _helper, _asked
    if _asked:
        return
    _asked = True
    python = Path(sys.executable or "")
    if os.environ.get(ALONE) or (os.cpu_count() or 1) < 2 or not python.name.startswith("python"):
        return
    if any(Path(cache_folder()).rglob("process.replay-*.nbi")):
        return
    quiet = subprocess.DEVNULL
    try:
        _helper = subprocess.Popen(
            [python, "-c", REPLAY], env={**os.environ, ALONE: "1"}, stdin=quiet, stdout=quiet, stderr=quiet
        )
    except OSError:  # then this process does it alone
        _helper = None


def done() -> None:
    """Wait for the second process; called before a log is replayed. What it did not manage is compiled here."""
    global _helper
    if _helper is not None:
        _helper.wait()
        _helper = None
