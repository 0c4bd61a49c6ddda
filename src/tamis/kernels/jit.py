"""The four ways tamis compiles a kernel, and where the compiled code is kept.

``kernel`` may allocate arrays. ``bare`` may not, and is compiled without reference counting: taking an array out of a
bundle would otherwise cost two atomic operations each time. ``inlined`` is ``bare`` and pasted into its callers;
``folded`` is, too, but by LLVM, as it may have several returns: for what is called so often that handing over a bundle,
a hundred numbers, counts.

Numba keeps compiled code per source file and does not notice that a function *called* from it has changed in another
file. So the code is kept in a folder named after all kernel sources together: change one and all are compiled anew.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba as nb

OPTIONS = {"nogil": True, "error_model": "numpy"}
BARE = {**OPTIONS, "_nrt": False}


@cache
def cache_folder() -> str:
    """Where compiled kernels are kept: below NUMBA_CACHE_DIR if set, else the user's cache, else a temporary folder."""
    digest = hashlib.sha256(nb.__version__.encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    name = f"kernels-{digest.hexdigest()[:16]}"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tamis"
    places = [Path(nb.config.CACHE_DIR)] if nb.config.CACHE_DIR else [home]
    for place in (*places, Path(tempfile.gettempdir()) / f"tamis-{os.getuid()}"):
        try:
            (place / name).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place / name):
                return str(place / name)
        except OSError:
            continue
    return str(nb.config.CACHE_DIR)


def _compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    def decorate(function: Callable[..., Any]) -> Any:
        # Numba asks for the folder when a function is decorated; other libraries' kernels stay where they are.
        before, nb.config.CACHE_DIR = nb.config.CACHE_DIR, cache_folder()
        try:
            return nb.njit(cache=True, **OPTIONS, **options)(function)
        finally:
            nb.config.CACHE_DIR = before

    return decorate


kernel = _compiled()
bare = _compiled(_nrt=False)
inlined = _compiled(_nrt=False, inline="always")
folded = _compiled(_nrt=False, forceinline=True)
