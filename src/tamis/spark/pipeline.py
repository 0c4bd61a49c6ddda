"""``pipeline.toml``: a whole pipeline as one declaration, checked before anything starts.

Guarantees that :func:`load` names every mistake it can find without Spark, each with its table and key, and that a
:class:`Pipeline` it returns has sources, sinks and rules that exist. Paths are relative to the file; ``${NAME}`` in a
text of a source, sink or of Spark's settings is a variable of the environment, so that no secret has to stand there.
Refuses to start anything: that is :mod:`tamis.spark.run`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tamis.engine.shard import Shard, Track
from tamis.errors import TamisError, UsageError
from tamis.model.profile import read_profile
from tamis.model.tables import did_you_mean

from . import columns, sinks, sources
from .control import read_qos
from .declaration import check, fill, unknown
from .route import shard_keys
from .stream import _NEEDED, HOLD_LIMIT, checked_hold_limit, milliseconds

STREAMS: Final = ("messages", "updates", "profiles", "events")
INITIAL: Final = ("profiles", "contexts")
OUTPUTS: Final = ("matches", "rejected", "figures")
_TABLES: Final = ("sources", "initial", "schema", "track", "sinks", "spark", "metrics")
_TEXTS: Final = ("context", "attribute", "profile", "on_match", "event")
_SINKS: Final[dict[str, type[Any]]] = {
    "parquet": sinks.Parquet,
    "kafka": sinks.Kafka,
    "table": sinks.Table,
    "console": sinks.Console,
    "function": sinks.Function,
}
_SOURCES: Final[dict[str, type[Any]]] = {
    "kafka": sources.KafkaSource,
    **dict.fromkeys(("json", "csv", "parquet"), sources.FileSource),
}


class PipelineError(UsageError):
    """A pipeline that cannot work; ``problems`` are all mistakes that were found, one text each."""

    def __init__(self, path: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
        super().__init__(f"{path}: {count}\n" + "\n".join(f"  {problem}" for problem in problems))


@dataclass(frozen=True)
class Settings:
    """The keys before the first table."""

    checkpoint: str
    order: str = "seq"
    message_id: Sequence[str] = ()
    shards: int = 2
    wait: str = "10 seconds"
    hold_limit: int = HOLD_LIMIT
    values: str = "json"
    strategy: str = "agile"
    consistency: str = "serial"
    qos: Sequence[str] = ()
    trigger: str | None = None
    name: str = "tamis"


@dataclass(frozen=True)
class Spark:
    """``[spark]``: where it runs. ``jars`` is a directory that ``python -m tamis.spark.jars`` filled."""

    master: str | None = None
    jars: str | None = None
    log: str = "ERROR"
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Metrics:
    """``[metrics]``: where Prometheus may ask; port 0 takes a free one."""

    port: int = 0
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UsageError(f"port: expected a number from 0 to 65535, got {self.port}")


@dataclass(frozen=True)
class Initial:
    """A source that is read once, before the first event; ``profile`` is a text with parameters for all its rows."""

    source: Any
    profile: str | None = None
    on_match: str | None = None


@dataclass(frozen=True)
class Pipeline:
    """A declaration without mistakes."""

    path: str
    settings: Settings
    spark: Spark
    sources: Mapping[str, Any]
    sinks: Mapping[str, Any]
    initial: Mapping[str, Initial] = field(default_factory=dict)
    schema: Mapping[str, str] = field(default_factory=dict)
    tracks: tuple[Mapping[str, Any], ...] = ()
    metrics: Metrics | None = None

    @property
    def waits(self) -> bool:
        """Whether there are several streams, which wait for each other."""
        return len(self.sources) > 1 and milliseconds(self.settings.wait) > 0

    def options(self) -> dict[str, Any]:
        """The arguments of :func:`tamis.spark.match_stream` besides the frames."""
        one = self.settings
        found: dict[str, Any] = {"order": one.order, "shards": one.shards, "values": one.values, "wait": one.wait}
        found |= {"message_id": one.message_id or None, "strategy": one.strategy, "schema": dict(self.schema) or None}
        found |= {"track": self.tracks, "hold_limit": one.hold_limit}
        found |= {"consistency": one.consistency, "qos": one.qos or None}
        if "profiles" in self.initial and self.initial["profiles"].profile is not None:
            found |= {"profile": self.initial["profiles"].profile, "on_match": self.initial["profiles"].on_match}
        return found


def load(path: str | Path, master: str | None = None) -> Pipeline:
    """The pipeline that a file declares; :class:`PipelineError` with all mistakes. ``master`` replaces the file's."""
    place = Path(path)
    try:
        text = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise UsageError(f"{place}: cannot be read: {reason}") from None
    try:
        declared = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(str(place), [f"not TOML: {error}"]) from None
    reading = _Reading(place, declared, master)
    made = reading.pipeline()
    if reading.problems or made is None:
        raise PipelineError(str(place), reading.problems)
    return made


class _Reading:
    """One file being checked; ``problems`` grows."""

    def __init__(self, path: Path, declared: dict[str, Any], master: str | None) -> None:
        self.path, self.declared, self.master = path, declared, master
        self.problems: list[str] = []

    def pipeline(self) -> Pipeline | None:
        top = {key: value for key, value in self.declared.items() if key not in _TABLES}
        known = (*Settings.__dataclass_fields__, *_TABLES)
        for key in [key for key in top if key not in known]:
            self.problems.append(f"unknown key {unknown(key, known, quoted=True)}")
            del top[key]
        top = self._expanded(top, "the top of the file")
        if isinstance(top.get("checkpoint"), str):
            top["checkpoint"] = self._located(top["checkpoint"])
        settings = self._filled(Settings, top, "the top of the file")
        spark = self._spark()
        streams = dict(self._sources("sources", STREAMS))
        initial = self._initial()
        outputs = self._sinks()
        schema, tracks = self._rules(settings)
        metrics = self._metrics()
        if settings is not None:
            self._settings(settings)
            self._columns(settings, streams, initial)
            self._checkpoint(settings)
        self._together(streams, initial)
        if settings is None or spark is None:
            return None
        return Pipeline(str(self.path), settings, spark, streams, outputs, initial, schema, tracks, metrics)

    # -- tables ------------------------------------------------------------------------------------------------

    def _table(self, name: str) -> dict[str, Any]:
        found = self.declared.get(name, {})
        if isinstance(found, dict):
            return found
        self.problems.append(f"{name}: expected a table [{name}], got {found!r}")
        return {}

    def _filled(self, kind: type[Any], table: Mapping[str, Any], where: str) -> Any:
        made, problems = fill(kind, table, where)
        self.problems += problems
        return made

    def _tables(self, name: str, known: Sequence[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """The tables below ``[name]`` with names that are known: name, how it is shown, content."""
        for key, table in self._table(name).items():
            if key not in known:
                self.problems.append(f"[{name}.{key}]: {unknown(key, known)}")
            elif not isinstance(table, dict):
                self.problems.append(f"{name}.{key}: expected a table [{name}.{key}], got {table!r}")
            else:
                yield key, f"[{name}.{key}]", self._expanded(table, f"[{name}.{key}]")

    def _sources(self, name: str, known: Sequence[str]) -> Iterator[tuple[str, Any]]:
        for key, where, table in self._tables(name, known):
            if isinstance(table.get("path"), str):
                table["path"] = self._located(table["path"])
            made, problems = check(_SOURCES, table, where)
            self.problems += problems
            if made is not None:
                self._exists(made, where)
            yield key, made

    def _exists(self, made: Any, where: str) -> None:
        path = getattr(made, "path", None)
        if path is None or "://" in path or any(sign in path for sign in "*?[{"):
            return
        if not Path(path).exists():
            self.problems.append(f"{where}: path: there is no file or directory {path!r}")

    def _initial(self) -> dict[str, Initial]:
        templates: dict[str, dict[str, Any]] = {}
        profiles = self._table("initial").get("profiles")
        if isinstance(profiles, dict):
            templates["profiles"] = {key: profiles[key] for key in ("profile", "on_match") if key in profiles}
            for key, value in templates["profiles"].items():
                if not isinstance(value, str):
                    self.problems.append(f"[initial.profiles]: {key}: expected a text, got {value!r}")
                    templates["profiles"] = {}
                    break
            if "on_match" in templates["profiles"] and "profile" not in templates["profiles"]:
                self.problems.append("[initial.profiles]: on_match: is the effect of 'profile', which is missing")
            elif "profile" in templates["profiles"]:
                try:
                    read_profile(*templates["profiles"].values())
                except TamisError as error:
                    self.problems.append(f"[initial.profiles]: profile: {error}".replace("\n", "\n    "))
            rest = {key: value for key, value in profiles.items() if key not in ("profile", "on_match")}
            self.declared["initial"] = {**self._table("initial"), "profiles": rest}
        return {name: Initial(made, **templates.get(name, {})) for name, made in self._sources("initial", INITIAL)}

    def _sinks(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, where, table in self._tables("sinks", OUTPUTS):
            if isinstance(table.get("path"), str):
                table["path"] = self._located(table["path"])
            if isinstance(table.get("url"), str) and table["url"].startswith("sqlite:///"):
                table["url"] = "sqlite:///" + self._located(table["url"].removeprefix("sqlite:///"))
            made, problems = check(_SINKS, table, where)
            self.problems += problems
            self._package(made, where)
            if made is not None and not isinstance(made, sinks.Console | sinks.Function):
                for other, one in found.items():
                    if one == made:
                        self.problems.append(f"{where}: goes where [sinks.{other}] goes; every output needs its own")
            found[key] = made
        if not self._table("sinks").keys() & {"matches", "rejected"}:
            self.problems.append("[sinks]: nothing would be kept; declare [sinks.matches]")
        return found

    def _package(self, made: Any, where: str) -> None:
        needed = None
        if isinstance(made, sinks.Kafka) and made.exactly_once:
            needed = ("confluent_kafka", "tamis[kafka]")
        elif isinstance(made, sinks.Table) and str(made.url).startswith("postgres"):
            needed = ("psycopg", "tamis[postgres]")
        if needed and importlib.util.find_spec(needed[0]) is None:
            self.problems.append(f"{where}: needs a package that is not installed: pip install '{needed[1]}'")

    def _rules(self, settings: Settings | None) -> tuple[dict[str, str], tuple[Mapping[str, Any], ...]]:
        """Kinds and tracks, each tried on an empty filter."""
        schema = {str(name): kind for name, kind in self._flat(self._table("schema"))}
        for name, kind in list(schema.items()):
            if not self._tried(f"[schema]: {name}", schema={name: kind}):
                del schema[name]
        if settings is not None:
            self._tried("the top of the file", strategy=settings.strategy)
        listed = self.declared.get("track", [])
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            self.problems.append(f"track: expected tables [[track]], got {listed!r}")
            listed = []
        tracks: list[Track] = []
        for number, one in enumerate(listed, start=1):
            where = f"[[track]] {number}"
            track = self._filled(Track, one, where)
            if track is not None and self._tried(where, (*tracks, track), schema=schema or None):
                tracks.append(track)
        return schema, tuple(dict(one) for one in listed)

    def _flat(self, table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        """``ctx.stock = "number"`` is a table in TOML; here it is a name."""
        for name, kind in table.items():
            if isinstance(kind, dict):
                yield from self._flat(kind, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", kind

    def _tried(self, where: str, tracks: Sequence[Track] = (), **options: Any) -> bool:
        try:
            Shard(0, 1, tracks, **options)
        except (TamisError, TypeError) as error:
            self.problems.append(f"{where}: {error}".replace("\n", "\n    "))
            return False
        return True

    def _spark(self) -> Spark | None:
        table = self._expanded(self._table("spark"), "[spark]")
        if self.master is not None:
            table["master"] = self.master
        if isinstance(table.get("config"), dict):
            table["config"] = dict(_dotted(table["config"]))
        if isinstance(table.get("jars"), str):
            table["jars"] = self._located(table["jars"])
        made: Spark | None = self._filled(Spark, table, "[spark]")
        if made is None:
            return None
        levels = ("OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG")
        if made.log not in levels:
            self.problems.append(f"[spark]: log: {unknown(made.log, levels)}")
        schemes = ("local", "spark://", "yarn", "k8s://")
        if made.master is not None and not made.master.startswith(schemes):
            self.problems.append(
                f"[spark]: master: expected local[N], spark://HOST:PORT, yarn or k8s://..., got {made.master!r}"
            )
        for key in made.config:
            if not key.startswith("spark."):
                self.problems.append(f"[spark.config]: {key}: settings of Spark begin with 'spark.'")
        if made.jars is not None:
            from .jars import jars_in

            if not jars_in(made.jars):
                self.problems.append(
                    f"[spark]: jars: {made.jars!r} is not complete; fill it with python -m tamis.spark.jars DIRECTORY"
                )
        return made

    def _metrics(self) -> Metrics | None:
        if "metrics" not in self.declared:
            return None
        made: Metrics | None = self._filled(Metrics, self._expanded(self._table("metrics"), "[metrics]"), "[metrics]")
        if importlib.util.find_spec("prometheus_client") is None:
            self.problems.append(
                "[metrics]: needs the package prometheus-client, which is not installed: pip install 'tamis[spark]'"
            )
        return made

    # -- what has to fit together ------------------------------------------------------------------------------

    def _settings(self, settings: Settings) -> None:
        if settings.values not in ("json", "plain"):
            self.problems.append(f"values: {unknown(settings.values, ('json', 'plain'))}")
        for key in ("wait", "trigger"):
            value = getattr(settings, key)
            if value is not None:
                try:
                    milliseconds(value, key)
                except UsageError as error:
                    self.problems.append(str(error))
        checks: tuple[Callable[[], object], ...] = (
            lambda: shard_keys(settings.shards),
            lambda: checked_hold_limit(settings.hold_limit),
            lambda: read_qos(settings.qos, settings.consistency),
        )
        for check_one in checks:
            try:
                check_one()
            except UsageError as error:
                self.problems.append(str(error))

    def _together(self, streams: Mapping[str, Any], initial: Mapping[str, Initial]) -> None:
        if "events" not in streams and "messages" not in streams:
            self.problems.append("[sources]: declare [sources.messages], or [sources.events] for one ordered stream")
        if "events" in streams:
            for name in [name for name in streams if name != "events"]:
                more = "; what is there from the start is [initial.profiles]" if name == "profiles" else ""
                self.problems.append(f"[sources.{name}]: [sources.events] is one ordered stream of everything{more}")
        if "profiles" in streams and "profiles" in initial:
            self.problems.append("[initial.profiles]: [sources.profiles] is there too; give one of them")
        if not {"profiles", "events"} & streams.keys() and "profiles" not in initial:
            self.problems.append("[sources]: there are no profiles; declare [initial.profiles] or [sources.profiles]")

    def _columns(self, settings: Settings, streams: Mapping[str, Any], initial: Mapping[str, Initial]) -> None:
        """What can be said of declared columns; those of files without a schema are checked when Spark has read it."""
        sorts: dict[str, str] = {}
        declared: list[tuple[str, str, Any, str | None]]
        declared = [(f"[sources.{name}]", name, one, None) for name, one in streams.items()]
        declared += [(f"[initial.{name}]", name, one.source, one.profile) for name, one in initial.items()]
        for where, name, source, template in declared:
            found = self._parsed(where, source)
            if found is None:
                continue
            streaming = where.startswith("[sources")
            needed = _NEEDED[name] if template is None else ("id", *_parameters(template))
            for column in (*needed, *((settings.order,) if streaming else ())):
                if column not in found:
                    what = ", the order of events," if column == settings.order else ""
                    near = did_you_mean(column, list(found))
                    self.problems.append(f"{where}: schema: column {column!r}{what} is missing{near}")
            if settings.order in found:
                kind = found[settings.order]
                if kind not in columns.ORDERED:
                    self.problems.append(
                        f"{where}: schema: column {settings.order!r}, the order of events, must hold numbers, dates or "
                        f"times, got {kind}"
                    )
                else:
                    sorts[where] = _sort(kind)
            if name != "messages" and template is None:
                for column in [c for c in _TEXTS if c in found and not found[c].startswith(columns.TEXT)]:
                    self.problems.append(f"{where}: schema: column {column!r}: expected string, got {found[column]}")
            if name in ("messages", "events"):
                self._ids(settings, where, found)
        if len(set(sorts.values())) > 1:
            shown = ", ".join(f"{where} {sort}" for where, sort in sorts.items())
            self.problems.append(f"order: column {settings.order!r} must be of one sort everywhere: {shown}")

    def _ids(self, settings: Settings, where: str, found: Mapping[str, str]) -> None:
        wanted = (settings.message_id,) if isinstance(settings.message_id, str) else settings.message_id
        if found.get("message", "").startswith("struct"):
            return  # ids may be inside
        for name in wanted:
            if name not in found:
                near = did_you_mean(name, list(found))
                self.problems.append(f"message_id: {where} has no column {name!r}{near}")

    def _parsed(self, where: str, source: Any) -> dict[str, str] | None:
        if source is None or source.schema is None:
            return None
        try:
            found = columns.parse(str(source.schema))
        except UsageError as error:
            self.problems.append(f"{where}: {error}")
            return None
        for name in source.required:
            if name not in found:
                self.problems.append(f"{where}: required: {unknown(name, found)}")
        for name in (sources.SOURCE, sources.CORRUPT):
            if name in found:
                self.problems.append(f"{where}: schema: the column {name} is made by the source; choose another name")
        return found

    def _checkpoint(self, settings: Settings) -> None:
        before = checkpoint_of(settings.checkpoint)
        if before is not None and before.shards not in (None, settings.shards):
            self.problems.append(
                f"shards: expected {before.shards}, the number that the checkpoint {settings.checkpoint!r} was made "
                f"with, got {settings.shards}; where profiles and contexts live depends on it. To change it, save them "
                "with tamis.spark.read_profiles and read_contexts, and declare a new checkpoint with them as "
                "[initial.profiles] and [initial.contexts]: docs/spark.md, 'Another number of shards'"
            )

    # -- texts -------------------------------------------------------------------------------------------------

    def _located(self, path: str) -> str:
        """Relative to the file, unless it has a scheme."""
        return path if "://" in path or not path else os.path.normpath(self.path.absolute().parent / path)

    def _expanded(self, value: Any, where: str) -> Any:
        """With the variables of the environment in place."""
        if isinstance(value, dict):
            return {key: self._expanded(one, where) for key, one in value.items()}
        if isinstance(value, list):
            return [self._expanded(one, where) for one in value]
        if not isinstance(value, str):
            return value

        def replaced(found: re.Match[str]) -> str:
            if found[1] not in os.environ:
                self.problems.append(f"{where}: ${{{found[1]}}}: there is no such variable in the environment")
            return os.environ.get(found[1], "")

        return re.sub(r"\$\{(\w+)\}", replaced, value)


def _parameters(template: str) -> tuple[str, ...]:
    """The ``{parameters}`` of a profile, none when it cannot be read: that is told elsewhere."""
    try:
        return read_profile(template).parameters()
    except TamisError:
        return ()


def _dotted(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else str(value)


def _sort(kind: str) -> str:
    if kind in ("float", "real", "double"):
        return "floating"
    return "time" if kind == "date" or kind.startswith("timestamp") else "whole"


# -- what is there already -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkpoint:
    """What can be read of a checkpoint on a local disk without Spark."""

    started: int
    """The last micro-batch that was planned; -1 before the first."""
    finished: int
    """The last that was committed; -1 before the first."""
    shards: int | None


def checkpoint_of(path: str) -> Checkpoint | None:
    """``None`` when there is none, or not on a local disk."""
    if path.startswith("file:"):
        path = urlsplit(path).path
    if "://" in path:
        return None
    place = Path(path)
    started, finished = _last(place / "offsets"), _last(place / "commits")
    if started < 0:
        return None
    lines = (place / "offsets" / str(started)).read_text(encoding="utf-8").splitlines()
    shards = None
    if len(lines) > 1:
        try:
            shards = int(json.loads(lines[1])["conf"]["spark.sql.shuffle.partitions"])
        except (ValueError, KeyError, TypeError):
            shards = None
    return Checkpoint(started, finished, shards)


def _last(folder: Path) -> int:
    if not folder.is_dir():
        return -1
    return max((int(one.name) for one in folder.iterdir() if one.name.isdigit()), default=-1)
