"""What was delivered, for people: a delivery log per profile, per context and per hour, with quantiles of latency.

A delivery log is what a sink wrote of ``MatchStream.matches``, one row per delivery, with two times: when its message
came and when it was delivered. ``DataFrame`` in, ``DataFrame`` out; :func:`write` makes one HTML file of them that
needs nothing else. Guarantees exact counts and exact quantiles, to the microsecond of the log. Refuses to know streams.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tamis.errors import UsageError
from tamis.model.tables import did_you_mean

DELIVERED: Final = "delivered"
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
TEAL, GREY, ORANGE, LIGHT = "#00796b", "#8a8a8a", "#c65d00", "#b7d7d3"
_ROWS: Final = 15
_BINS: Final = 40
_HOUR: Final = timedelta(hours=1)
_PACKED: Final = "#quantiles"
_TIMES = (T.TimestampType, T.TimestampNTZType)


def read(spark: SparkSession, path: str) -> DataFrame:
    """The delivery log of a :class:`~tamis.spark.sinks.Parquet` sink, also while it grows.

    ``delivered`` is when the file with the row was complete, the last step before its micro-batch was committed.
    """
    rows = spark.read.parquet(path)
    if DELIVERED in rows.columns:
        return rows
    return rows.withColumn(DELIVERED, F.col("_metadata.file_modification_time"))


@dataclass(frozen=True)
class Report:
    """The tables of a delivery log; each is computed when it is asked for.

    ``deliveries`` has ``profile``, ``delivered`` and ``came``, the column with the time when the message came; latency
    is what lies between, in milliseconds. ``hour`` names the time that hours are counted by, ``came`` unless told.
    ``profiles``, with ``id`` and ``context``, is needed for :attr:`per_context` only.
    """

    deliveries: DataFrame
    came: str
    hour: str | None = None
    profiles: DataFrame | None = None

    def __post_init__(self) -> None:
        for name in (self.came, DELIVERED, self.hour or self.came):
            _check(self.deliveries, name, _TIMES, "a time")
        _check(self.deliveries, "profile", (T.StringType, T.LongType), "text or integers")
        if self.profiles is not None:
            for name in ("id", "context"):
                _check(self.profiles, name, (T.DataType,), "")

    @property
    def per_profile(self) -> DataFrame:
        """``profile``, ``deliveries``, ``first``, ``last``; latency: ``mean``, ``p50``, ``p95``, ``p99``, ``max``."""
        return self._by(self._timed, "profile")

    @property
    def per_context(self) -> DataFrame:
        """The same per context, with the number of profiles served; null stands for profiles without a context."""
        return self._by(self._owned, "context", _served())

    def busiest(self, key: str, rows: int) -> DataFrame:
        """The rows of ``per_profile`` (key ``profile``) or ``per_context`` with most deliveries, those first.

        Counts all and takes quantiles of these only: with 100,000 profiles the quantiles are most of the work.
        """
        log, served = (self._owned, [_served()]) if key == "context" else (self._timed, [])
        counted = log.groupBy(key).agg(F.count("*").alias("#deliveries")).orderBy(F.desc("#deliveries"), key)
        top = counted.limit(rows).select(F.col(key).alias("#key"))
        picked = log.join(F.broadcast(top), F.col(key).eqNullSafe(F.col("#key")), "left_semi")
        return self._by(picked, key, *served).orderBy(F.desc("deliveries"), key)

    @property
    def per_hour(self) -> DataFrame:
        """The same per hour, in order of time, with the number of profiles served."""
        hours = self._timed.withColumn("hour", F.date_trunc("hour", _named(self.hour or self.came)))
        return self._by(hours, "hour", _served()).orderBy("hour")

    @property
    def per_batch(self) -> DataFrame:
        """The same per micro-batch, in order, with the number of profiles served."""
        _check(self.deliveries, "batch", (T.IntegerType, T.LongType), "integers")
        return self._by(self._timed, "batch", _served()).orderBy("batch")

    @property
    def total(self) -> DataFrame:
        """One row: the same of everything, with the number of profiles served."""
        return _unpacked(self._timed.agg(_served(), *_aggregates()))

    def latencies(self, bins: int = _BINS) -> DataFrame:
        """A histogram of latency: ``low``, ``high`` (milliseconds) and ``deliveries``; bins of equal width, from 0."""
        top = self._timed.agg(F.max("latency")).first()
        width = max(float(top[0] or 0.0) if top else 0.0, 1e-3) / bins
        place = F.least(F.floor(F.greatest(F.col("latency"), F.lit(0.0)) / width), F.lit(bins - 1))
        counted = self._timed.groupBy(place.cast("int").alias("bin")).agg(F.count("*").alias("deliveries"))
        low = (F.col("bin") * F.lit(width)).alias("low")
        return counted.orderBy("bin").select(low, ((F.col("bin") + 1) * F.lit(width)).alias("high"), "deliveries")

    def spread(self) -> DataFrame:
        """How many profiles got how many deliveries: ``deliveries`` and ``profiles``; without those that got none."""
        each = self.deliveries.groupBy("profile").agg(F.count("*").alias("deliveries"))
        return each.groupBy("deliveries").agg(F.count("*").alias("profiles")).orderBy("deliveries")

    @cached_property
    def _timed(self) -> DataFrame:
        micros = F.unix_micros(_named(DELIVERED).cast("timestamp")) - F.unix_micros(_named(self.came).cast("timestamp"))
        return self.deliveries.withColumn("latency", micros / F.lit(1000.0))

    @property
    def _owned(self) -> DataFrame:
        """The log with the context of every profile."""
        if self.profiles is None:
            raise UsageError("profiles: a report per context needs the DataFrame of profiles, with id and context")
        return self._timed.join(self.profiles.select(F.col("id").alias("profile"), "context"), "profile", "left")

    @staticmethod
    def _by(rows: DataFrame, key: str, *more: Column) -> DataFrame:
        return _unpacked(rows.groupBy(key).agg(*more, *_aggregates()))


def _served() -> Column:
    return F.count_distinct("profile").alias("profiles")


def _aggregates() -> list[Column]:
    # One call for all quantiles: each call keeps the values of every group once more.
    quantiles = F.percentile("latency", F.array(*map(F.lit, QUANTILES.values()))).alias(_PACKED)
    ends = [F.min(DELIVERED).alias("first"), F.max(DELIVERED).alias("last")]
    return [
        F.count("*").alias("deliveries"),
        *ends,
        F.mean("latency").alias("mean"),
        quantiles,
        F.max("latency").alias("max"),
    ]


def _unpacked(rows: DataFrame) -> DataFrame:
    """The quantiles in columns of their own."""
    each = [F.get(_PACKED, F.lit(k)).alias(name) for k, name in enumerate(QUANTILES)]
    before = [name for name in rows.columns if name not in (_PACKED, "max")]
    return rows.select(*before, *each, "max")


def _check(frame: DataFrame, name: str, kinds: tuple[type[T.DataType], ...], words: str) -> None:
    if name not in frame.columns:
        near = did_you_mean(name, frame.columns)
        raise UsageError(f"column {name!r} is missing; got {', '.join(frame.columns)}{near}")
    found = frame.schema[name].dataType
    if not isinstance(found, kinds):
        raise UsageError(f"column {name!r}: expected {words}, got {found.simpleString()}")


def _named(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


# -- the page --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """A part of the page: a title, a sentence, a picture (SVG) and a table (names, then rows), each if there is one."""

    title: str
    text: str = ""
    picture: bytes | None = None
    table: tuple[Sequence[str], Sequence[Sequence[Any]]] | None = None


@dataclass(frozen=True)
class Page:
    """One HTML file: pictures are inside, nothing is loaded, nothing runs."""

    title: str
    text: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    sections: Sequence[Section] = ()

    def write(self, path: str | Path) -> Path:
        """The file."""
        place = Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(self.render(), encoding="utf-8")
        return place

    def render(self) -> str:
        """The text of the file."""
        facts = "".join(
            f"<div><b>{_text(value)}</b><span>{_text(name)}</span></div>" for name, value in self.facts.items()
        )
        title = _text(self.title)
        body = [f"<h1>{title}</h1>"]
        body += [f"<p>{_text(self.text)}</p>"] if self.text else []
        body += [f'<div class="facts">{facts}</div>'] if facts else []
        for section in self.sections:
            body.append(f"<section><h2>{_text(section.title)}</h2>")
            body += [f"<p>{_text(section.text)}</p>"] if section.text else []
            if section.picture is not None:
                data = base64.b64encode(section.picture).decode()
                body.append(f'<img alt="{_text(section.title)}" src="data:image/svg+xml;base64,{data}">')
            if section.table is not None:
                body.append(_table(*section.table))
            body.append("</section>")
        head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
        return f'<!doctype html>\n<html lang="en"><head>{head}<style>{_CSS}</style></head>\n<body><main>\n' + "\n".join(
            [*body, "</main></body></html>\n"]
        )


_CSS: Final = """
body{margin:0;background:#f4f6f6;color:#222;font:15px/1.5 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1080px;margin:0 auto;padding:32px 24px 64px}
h1{margin:0 0 4px;font-size:28px;color:#00594f}h2{margin:0 0 6px;font-size:18px}
p{margin:0 0 12px;color:#555;max-width:80ch}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(128px,1fr));gap:12px;margin:20px 0}
.facts div,section{background:#fff;border:1px solid #e0e6e5;border-radius:8px}
.facts div{padding:12px 16px}.facts b{display:block;font-size:21px;color:#00796b}.facts span{color:#666;font-size:13px}
section{padding:18px 22px;margin:16px 0;overflow-x:auto}
img{display:block;width:100%;max-width:900px;height:auto;margin:0 auto}
table{border-collapse:collapse;width:100%;margin-top:8px;font-variant-numeric:tabular-nums;font-size:14px}
th,td{padding:5px 10px;border-bottom:1px solid #eceff0;text-align:left;white-space:nowrap}
th{color:#666;font-weight:600;border-bottom:2px solid #d5dddc}.n{text-align:right}tbody tr:hover{background:#f6faf9}
""".replace("\n", "")


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    numbers = [bool(rows) and all(row[k] is None or _is_number(row[k]) for row in rows) for k in range(len(names))]

    def cells(tag: str, values: Iterable[str]) -> str:
        marks = (' class="n"' if number else "" for number in numbers)
        return "".join(f"<{tag}{mark}>{_text(value)}</{tag}>" for mark, value in zip(marks, values, strict=True))

    body = "".join(f"<tr>{cells('td', map(shown, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', names)}</tr></thead><tbody>{body}</tbody></table>"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def shown(value: Any) -> str:
    """A value of a table for people."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S").removesuffix(":00")
    return str(value)


def _text(value: str) -> str:
    return html.escape(value, quote=True)


# -- the report as a page --------------------------------------------------------------------------------------


def sections(report: Report, rows: int = _ROWS) -> list[Section]:
    """The report for a page: hours, latency, micro-batches, and the profiles and contexts with most deliveries."""
    hours, bins, spread = report.per_hour.collect(), report.latencies().collect(), report.spread().collect()
    found = [
        Section(
            "Deliveries per hour",
            f"Hours of the column {report.hour or report.came}, UTC.",
            hour_plot([row.hour for row in hours], [row.deliveries for row in hours]),
        ),
        Section(
            "Latency",
            f"From the column {report.came} to the delivery, all deliveries.",
            latency_plot([row.low for row in bins], [row.high for row in bins], [row.deliveries for row in bins]),
        ),
    ]
    if "batch" in report.deliveries.columns:
        batches = report.per_batch.collect()
        drawn = {name: [row[name] for row in batches] for name in QUANTILES}
        picture = batch_plot([row.batch for row in batches], [row.deliveries for row in batches], drawn)
        found.append(Section("Micro-batches", "Deliveries, and quantiles of latency.", picture))
    picture = spread_plot([row.deliveries for row in spread], [row.profiles for row in spread])
    found.append(Section("Deliveries per profile", "How many profiles got how many deliveries.", picture))
    names = ["deliveries", "mean", *QUANTILES, "max"]
    headings = ["deliveries", *(f"{name} ms" for name in names[1:])]
    for key in ("profile", "context") if report.profiles is not None else ("profile",):
        more = ["profiles"] if key == "context" else []
        top = report.busiest(key, rows).collect()
        listed = [[row[name] for name in (key, *more, *names)] for row in top]
        found.append(Section(f"Busiest {key}s", f"The first {len(top)}.", table=([key, *more, *headings], listed)))
    listed = [[row[name] for name in ("hour", "profiles", *names)] for row in hours]
    found.append(Section("Hours", "Every hour with a delivery.", table=(["hour", "profiles", *headings], listed)))
    return found


def facts(report: Report) -> dict[str, str]:
    """The first figures of a page."""
    row = report.total.first()
    assert row is not None
    found = {"deliveries": f"{row.deliveries:,}", "profiles served": f"{row.profiles:,}"}
    if row.deliveries:
        found |= {f"latency, {name}": _milliseconds(row[name]) for name in ("p50", "p99")}
    return found


def write(report: Report, path: str | Path, title: str = "Deliveries", text: str = "") -> Path:
    """The whole report as one HTML file."""
    return Page(title, text, facts(report), sections(report)).write(path)


def _milliseconds(value: float) -> str:
    return f"{value / 1000:,.2f} s" if value >= 1000 else f"{value:,.0f} ms"


# -- the plots -------------------------------------------------------------------------------------------------


def figure(width: float = 9.0, height: float = 2.9, panels: int = 1) -> tuple[Any, Any]:
    """A figure in the style of the reports, and its axes (one, or an array of them one above the other)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("plots need matplotlib: pip install 'tamis[reports]'") from None
    drawn = Figure(figsize=(width, height * panels), layout="constrained", facecolor="white")
    axes = drawn.subplots(panels, 1, sharex=True)
    for one in [axes] if panels == 1 else axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(visible=True, color="#e4e4e4", linewidth=0.8)
        one.set_axisbelow(True)
        one.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    return drawn, axes


def svg(drawn: Any) -> bytes:
    """The figure as SVG, the same bytes for the same figure."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "tamis", "svg.fonttype": "path"}):
        out = io.BytesIO()
        drawn.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def hour_plot(hours: Sequence[datetime], deliveries: Sequence[int]) -> bytes:
    """Bars over time."""
    drawn, axes = figure()
    places = [int((hour - hours[0]) / _HOUR) for hour in hours]  # an hour without deliveries leaves a gap
    axes.bar(places, deliveries, color=TEAL, width=0.86)
    span = places[-1] + 1 if places else 0
    form = "%H:%M" if len({hour.date() for hour in hours}) <= 1 else "%d %b\n%H:%M"
    ticks = range(0, span, max(1, -(-span // 12)))
    axes.set_xticks(ticks, [(hours[0] + k * _HOUR).strftime(form) for k in ticks])
    axes.set_ylabel("deliveries")
    axes.grid(visible=False, axis="x")
    return svg(drawn)


def latency_plot(low: Sequence[float], high: Sequence[float], deliveries: Sequence[int]) -> bytes:
    """A histogram, and the share that has been delivered by then."""
    drawn, axes = figure()
    widths = [b - a for a, b in zip(low, high, strict=True)]
    axes.bar(low, deliveries, width=widths, align="edge", color=LIGHT, edgecolor="white", linewidth=0.6)
    axes.set(xlabel="latency (ms)", ylabel="deliveries")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.set_xlim(left=0)
    share, total, seen = axes.twinx(), sum(deliveries), 0
    curve = []
    for count in deliveries:
        seen += count
        curve.append(100 * seen / total)
    share.step([0.0, *high], [0.0, *curve], where="post", color=TEAL, linewidth=2)
    share.set(ylim=(0, 104), ylabel="delivered by then (%)")
    share.spines[["top"]].set_visible(False)
    return svg(drawn)


def batch_plot(batches: Sequence[int], deliveries: Sequence[int], quantiles: Mapping[str, Sequence[float]]) -> bytes:
    """Deliveries and latency, one above the other."""
    from matplotlib.ticker import MaxNLocator

    drawn, (upper, lower) = figure(height=2.2, panels=2)
    upper.bar(batches, deliveries, color=TEAL, width=0.86)
    upper.set_ylabel("deliveries")
    upper.grid(visible=False, axis="x")
    for (name, values), colour in zip(quantiles.items(), (TEAL, GREY, ORANGE), strict=False):
        lower.plot(batches, values, "o-", color=colour, markersize=3.5, linewidth=1.6, label=name)
    lower.set(xlabel="micro-batch", ylabel="latency (ms)")
    lower.set_ylim(bottom=0)
    lower.legend(frameon=False, ncols=len(quantiles), loc="upper right")
    lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    return svg(drawn)


def spread_plot(deliveries: Sequence[int], profiles: Sequence[int]) -> bytes:
    """Profiles by their number of deliveries, in at most 60 bars."""
    from matplotlib.ticker import MaxNLocator

    drawn, axes = figure()
    top = max(deliveries, default=1)
    width = max(1, -(-top // 60))
    bars: dict[int, int] = {}
    for count, number in zip(deliveries, profiles, strict=True):
        bars[(count - 1) // width] = bars.get((count - 1) // width, 0) + number
    axes.bar([1 + (k + 0.5) * width - 0.5 for k in bars], list(bars.values()), width=0.86 * width, color=TEAL)
    axes.set(xlabel="deliveries", ylabel="profiles")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=False, axis="x")
    return svg(drawn)
