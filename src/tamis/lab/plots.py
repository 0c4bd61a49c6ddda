"""Pictures of the lab: lines over a parameter or over time, as SVG.

Guarantees the same look for the same contender in every picture, and the same bytes for the same figures. Needs
matplotlib (the extra ``reports``), and asks for it before anything is measured.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tamis import UsageError

TEAL, ORANGE, GREY, BLUE, RED, PURPLE, BROWN, PINK = (
    "#00796b",
    "#d9730d",
    "#6b6b6b",
    "#2f6fb7",
    "#b3261e",
    "#7b4fa3",
    "#8d6e4a",
    "#c2185b",
)

STYLES: Final[dict[str, dict[str, Any]]] = {
    "NOINDEX": {"color": GREY, "marker": "s"},
    "EAGER": {"color": RED, "marker": "v"},
    "GBU": {"color": BLUE, "marker": "^"},
    "AGILE": {"color": ORANGE, "marker": "o"},
    "blocks": {"color": TEAL, "marker": "D", "linewidth": 2.4},
    "Unbatched/PIx": {"color": GREY, "marker": "s"},
    "Full/PIx": {"color": RED, "marker": "v"},
    "Full/-/MIx": {"color": BLUE, "marker": "^"},
    "MiniB/PIx": {"color": ORANGE, "marker": "o"},
    "MiniB/PIx/MIx": {"color": PURPLE, "marker": "X"},
    "Fix No": {"color": ORANGE, "marker": "o"},
    "Val Att 1": {"color": BLUE, "marker": "^"},
    "Val Att 2": {"color": RED, "marker": "v"},
    "Val Att 2+": {"color": TEAL, "marker": "D"},
    "hybrid": {"color": PURPLE, "marker": "X"},
    "unbatched, average": {"color": GREY, "marker": "s"},
    "unbatched, maximum": {"color": GREY, "marker": "s", "linestyle": "--"},
    "batched, average": {"color": TEAL, "marker": "D"},
    "batched, maximum": {"color": TEAL, "marker": "D", "linestyle": "--"},
    "AGILE skiplist": {"color": ORANGE, "marker": "o"},
    "EAGER skiplist": {"color": RED, "marker": "v"},
    "AGILE hash": {"color": BROWN, "marker": "P"},
    "AGILE btree": {"color": PURPLE, "marker": "X"},
    "AGILE rtree": {"color": BLUE, "marker": "<"},
    "AGILE always": {"color": GREY, "marker": "s"},
    "AGILE fixed(10)": {"color": BROWN, "marker": "P"},
    "AGILE fixed(100)": {"color": BLUE, "marker": "^"},
    "AGILE auto(3000)": {"color": PURPLE, "marker": "X"},
    "AGILE cost": {"color": PINK, "marker": "D", "linewidth": 2.4},
    "Traditional Eager": {"color": GREY, "marker": "s"},
    "Traditional Agile": {"color": RED, "marker": "v"},
    "Shed messages": {"color": BLUE, "marker": "^"},
    "Shed updates": {"color": BROWN, "marker": "P"},
    "Shed both": {"color": PURPLE, "marker": "X"},
    "Batching": {"color": ORANGE, "marker": "o"},
    "Bounded batching": {"color": BROWN, "marker": "<"},
    "Exact batching": {"color": TEAL, "marker": "D", "linewidth": 2.4},
    "Exact, blocks": {"color": TEAL, "marker": "D", "linestyle": ":"},
    "Limited exact batching": {"color": TEAL, "marker": "<", "linestyle": "--"},
    "Hybrid": {"color": PINK, "marker": "D", "linewidth": 2.4},
    "unoptimised": {"color": GREY, "marker": "s"},
    "closure": {"color": BLUE, "marker": "^"},
    "content lists": {"color": ORANGE, "marker": "o"},
    "adaptive": {"color": PURPLE, "marker": "X"},
    "ours": {"color": TEAL, "marker": "D", "linewidth": 2.4},
}
_TO_ZERO: Final = {"linthresh": 1.0, "linscale": 0.5}
_LINE: Final = {"linewidth": 1.6, "markersize": 5.0}

Line = tuple[str, Sequence[float], Sequence[float | None]]
"""Name, x, y; points without a y are left out."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes: lines of ours, and ``published`` ones (dashed, in the colour of the same name).

    ``spans`` are shaded stretches of x with a word each; ``ticks`` labels x where the values themselves should stand.
    ``zero`` lets a logarithmic y reach down to 0, below 1.
    """

    title: str
    xlabel: str
    ylabel: str
    lines: Sequence[Line]
    published: Sequence[Line] = ()
    logx: bool = False
    logy: bool = False
    ticks: Sequence[float] = ()
    spans: Sequence[tuple[float, float, str]] = ()
    markers: bool = True
    zero: bool = False


def needed() -> None:
    """An error now rather than after an hour, when matplotlib is not there."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("the lab draws with matplotlib: pip install 'tamis[reports]'")


def draw(panels: Sequence[Panel], salt: str, height: float = 3.5) -> bytes:
    """The panels one above the other, each with its legend at its right, as SVG; ``salt`` keeps ids apart."""
    needed()
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    settings: Any = {"font.size": 10, "svg.hashsalt": salt, "svg.fonttype": "path"}
    with matplotlib.rc_context(settings):
        spaced = ConstrainedLayoutEngine(h_pad=0.14)  # inches
        figure = Figure(figsize=(10.0, height * len(panels)), layout=spaced, facecolor="white")
        for axes, panel in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
            _panel(axes, panel)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})  # a date would make every run a change
    return out.getvalue()


def _panel(axes: Any, panel: Panel) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    for start, stop, word in panel.spans:
        axes.axvspan(start, stop, color="#f3ead9", zorder=0)
        place = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom", "color": "#7a5c1e"}
        axes.text((start + stop) / 2, 1.01, word, fontsize=9, **place)
    for name, x, y in panel.lines:
        _line(axes, name, x, y, STYLES.get(name, {}), panel.markers)
    for name, x, y in panel.published:
        look = {**STYLES.get(name, {}), "linestyle": (0, (4, 3)), "linewidth": 1.1, "markersize": 3.5, "alpha": 0.75}
        _line(axes, f"{name}, published", x, y, {"markerfacecolor": "white", **look}, True)
    axes.set_xscale("log" if panel.logx else "linear")
    top = max((y for _, _, values in panel.lines for y in values if y is not None), default=0.0)
    small = panel.zero and top <= 1
    if panel.logy and not small:
        axes.set_yscale("symlog" if panel.zero else "log", **(_TO_ZERO if panel.zero else {}))
    reach = [x for _, places, _ in (*panel.lines, *panel.published) for x in places]
    if not panel.logx and reach:
        room = 0.03 * (max(reach) - min(reach))
        axes.set_xlim(min(reach) - room, max(reach) + room)
    axes.set_title(panel.title, loc="left", fontsize=11, fontweight="bold", pad=18 if panel.spans else 8)
    axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    if panel.ticks:
        axes.set_xticks(list(panel.ticks))
    if panel.logy and not panel.zero:
        _log_ticks(axes)
    else:
        axes.set_ylim(bottom=0, top=None if top else 1)
    if panel.logx:
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.minorticks_off()
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0, fontsize=9)


def _log_ticks(axes: Any) -> None:
    """Powers of ten, and 2 and 5 between them where there is less than two decades to see."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axes.get_ylim()
    narrow = high / low < 100
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _line(
    axes: Any, name: str, x: Sequence[float], y: Sequence[float | None], look: Mapping[str, Any], markers: bool
) -> None:
    kept = [(a, b) for a, b in zip(x, y, strict=True) if b is not None]
    if not kept:
        return
    style = {**_LINE, **look}
    if not markers:
        style.pop("marker", None)
    axes.plot([a for a, _ in kept], [b for _, b in kept], label=name, **style)
