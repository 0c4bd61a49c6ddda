"""The three ways tamis compiles a kernel.

``kernel`` may allocate arrays. ``bare`` may not, and is compiled without reference counting: taking an array out of a
bundle would otherwise cost two atomic operations each time. ``inlined`` is ``bare`` and pasted into its callers by
LLVM: bundles are passed by value, so small functions must not be calls.
"""

from __future__ import annotations

import numba as nb

OPTIONS = {"nogil": True, "error_model": "numpy"}

kernel = nb.njit(cache=True, **OPTIONS)
bare = nb.njit(cache=True, _nrt=False, **OPTIONS)
inlined = nb.njit(cache=True, _nrt=False, forceinline=True, **OPTIONS)
