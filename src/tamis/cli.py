"""The ``tamis`` command: files and pipes in, matches out.

Guarantees that one bad line, row or profile never stops the rest: it is reported with its place and a reason, and
the work goes on. Refuses to know how matching works; everything goes through the public face of the package. Heavy
modules are imported inside the commands, so that ``tamis --help`` and shell completion answer at once.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tamis.errors import EventError, ProfileError, UsageError
from tamis.files import (
    Id,
    Kinds,
    Profile,
    Records,
    Rejections,
    Sink,
    as_time,
    chunks,
    format_of,
    opened,
    ordered,
    plain,
    read_profiles,
    read_updates,
    whole,
    write_rejected,
)
from tamis.lab.command import app as lab

if TYPE_CHECKING:
    from tamis import Filter, Matches

SHOWN = 10  # rejected events on the terminal
NO_ORDER = ""  # no column has this name: records are taken as they come


class Wire(StrEnum):
    """How records are written in a file or a pipe."""

    json = "json"
    csv = "csv"
    parquet = "parquet"


class Output(StrEnum):
    """How matches are written."""

    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"


class Report(StrEnum):
    """How ``check`` and ``explain`` answer."""

    text = "text"
    json = "json"


def subscribe(target: Filter, profiles: Iterable[Profile], on_error: Callable[[Profile, Exception], None]) -> None:
    """Subscribes every profile that can be; the others go to ``on_error``."""
    for profile in profiles:
        try:
            target.subscribe(profile.id, profile.condition, context=profile.context, on_match=profile.on_match)
        except (ProfileError, EventError, ValueError, TypeError) as error:
            on_error(profile, error)


def first_kinds(target: Filter) -> Kinds:
    """The kinds that the profiles fixed: how untyped cells and JSON's missing time type are to be read."""

    def kind(name: str) -> str | None:
        found = target.schema.kind(name)
        return None if found is None else str(found)

    return kind


# -- filtering ---------------------------------------------------------------------------------------------------


def make_filter(
    strategy: str | None,
    index: str | None,
    threads: int | None,
    schema: Sequence[str],
    graphs: Sequence[str] = (),
) -> Filter:
    """A filter with the options that were given."""
    from tamis import Filter

    declared = {}
    for item in schema:
        name, sign, kind = item.partition("=")
        if not sign:
            raise UsageError(f"--schema {item!r}: expected name=kind, such as price=number or ctx.stock=number")
        declared[name.strip()] = kind.strip()
    options: dict[str, Any] = {"strategy": strategy, "index": index, "threads": threads, "schema": declared or None}
    options["graphs"] = [_graph(item) for item in graphs] or None
    return Filter(**{name: value for name, value in options.items() if value is not None})


def _graph(item: str) -> Any:
    """The content graph that ``--graph topic=edges.csv`` names."""
    from tamis.graph import ContentGraph

    name, sign, path = item.partition("=")
    if not sign or not name.strip() or not path.strip():
        raise UsageError(f"--graph {item!r}: expected attribute=file, such as topic=edges.csv (columns parent, child)")
    return ContentGraph.read(path.strip(), name=name.strip())


def set_contexts(target: Filter, records: Records, bad: Rejections) -> None:
    """The starting values: one row per context, one column per attribute."""
    if len(records) and "context" not in records.columns:
        raise UsageError("contexts: no column 'context'; the other columns are the attributes")
    names = plain(records.columns.get("context", []))
    attributes = {name: plain(column) for name, column in records.columns.items() if name != "context"}
    for row, name in enumerate(names):
        try:
            target.update(name, {a: values[row] for a, values in attributes.items() if values[row] is not None})
        except (EventError, ValueError, TypeError) as error:
            bad.add("context", records.places[row], str(error))


def note_rejected(matches: Matches, messages: Records | None, updates: Records | None, bad: Rejections) -> None:
    """Gives the filter's own rejections the places of the files they came from."""
    for item in matches.rejected:
        records = updates if item.kind == "update" else messages
        bad.add(item.kind, f"row {item.row + 1}" if records is None else records.places[item.row], item.reason)


def output_form(form: Output | None, path: str) -> str:
    """As asked for, else by the extension, else a table for people and JSON lines for programs."""
    if form is not None:
        return form.value
    if path != "-":
        return format_of(path, "say --format")
    return "table" if sys.stdout.isatty() else "json"


def report_rejected(bad: Rejections, path: str | None) -> None:
    """Everything refused, into a file or shortly to standard error."""
    if path is not None:
        write_rejected(bad, path)
        return
    if not bad.items:
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("source", "place", "reason", title=f"{len(bad.items):,} rejected", title_justify="left")
    for item in bad.items[:SHOWN]:
        table.add_row(item.source, Text(item.place), Text(item.reason))
    if len(bad.items) > SHOWN:
        table.caption = f"and {len(bad.items) - SHOWN:,} more; all of them with --rejected FILE"
    console = Console(stderr=True)
    if not console.is_terminal:
        console.width = 160
    console.print(table)


@contextmanager
def progress(label: str) -> Iterator[Callable[[int], None]]:
    """A counter that moves with long work, when somebody is watching."""
    if not sys.stderr.isatty():
        yield lambda n: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda n: bar.advance(task, n)


# -- commands ----------------------------------------------------------------------------------------------------

app = typer.Typer(
    name="tamis",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ProfilesOption = Annotated[
    str, typer.Option("--profiles", "-p", metavar="FILE", help="Profiles: .tamis text, or .jsonl, .csv, .parquet.")
]
UpdatesOption = Annotated[
    str | None,
    typer.Option("--updates", "-u", metavar="FILE", help="Context updates: columns context, attribute, value."),
]
ContextsOption = Annotated[
    str | None,
    typer.Option("--contexts", "-c", metavar="FILE", help="Starting values: column context, one column per attribute."),
]
SchemaOption = Annotated[
    list[str] | None,
    typer.Option("--schema", metavar="NAME=KIND", help="Declares a kind, such as price=number. May be repeated."),
]


GraphOption = Annotated[
    list[str] | None,
    typer.Option(
        "--graph",
        "-g",
        metavar="NAME=FILE",
        help="A content graph for within and covers: topic=edges.csv with columns parent, child. May be repeated.",
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tamis {version('tamis')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Match every message against standing profiles whose conditions depend on live context.

    [bold]A first look[/bold]

    \b
      tamis demo                                       the warehouse story, on Spark (--small: without)
      tamis check warehouses.tamis                     are my profiles right?
      tamis match -p warehouses.tamis -m orders.csv    who gets which order?
      tamis explain -p warehouses.tamis --id w-A -m '{"item": "bolt"}'
    """


@app.command()
def match(
    profiles: ProfilesOption,
    messages: Annotated[
        str, typer.Option("--messages", "-m", metavar="FILE", help="Messages: .jsonl, .csv, .parquet, or - for stdin.")
    ],
    updates: UpdatesOption = None,
    contexts: ContextsOption = None,
    order: Annotated[str, typer.Option(help="The column that orders messages and updates among each other.")] = "seq",
    format: Annotated[
        Output | None, typer.Option("--format", "-f", help="Default: by the output's extension, else table or json.")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Where matches go; - is stdout.")] = "-",
    key: Annotated[str | None, typer.Option(help="A message attribute to repeat in the output.")] = None,
    rejected: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where rejected events go (.jsonl, .csv, .parquet).")
    ] = None,
    input_format: Annotated[Wire | None, typer.Option(help="Overrides the extension of --messages.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 when anything was rejected.")] = False,
    schema: SchemaOption = None,
    graph: GraphOption = None,
    strategy: Annotated[
        str | None, typer.Option(help="What an update does to an index: agile, eager, partial, gbu, noindex.")
    ] = None,
    index: Annotated[str | None, typer.Option(help="The index structure: auto, blocks, ...")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads for matching.")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say afterwards, on standard error, which index was used and why.")
    ] = False,
) -> None:
    """Match messages against profiles and write one line per match.

    [bold]Examples[/bold]

    \b
      tamis match -p warehouses.tamis -m orders.csv
      tamis match -p warehouses.tamis -m orders.csv -c contexts.csv
      tamis match -p w.tamis -m orders.jsonl -u stock.jsonl -o out.parquet
      zcat orders.jsonl.gz | tamis match -p w.tamis -m - -f csv --key id

    The number of a message is its place in the input, counted from 0.

    With updates, the order column decides which update comes before which message; at equal values the update \
does. When neither file has the column, all updates are applied first.

    A line, row or profile that cannot be used is reported and the rest goes on.
    """
    bad = Rejections()
    form = output_form(format, output)
    wire = None if input_format is None else input_format.value
    target = make_filter(strategy, index, threads, schema or [], graph or [])
    _load(target, profiles, contexts, bad)
    kinds = first_kinds(target)
    sink = Sink(form, output, key)
    with progress("matching") as advance:
        pending = None if updates is None else read_updates(updates, kinds, bad)
        merged = pending is not None and order in pending.columns
        if pending is not None and merged:
            records = whole(messages, wire, kinds, bad, "message")
            _same_order(order, records, merged)
            pending = ordered(pending, order, "update", bad)
            records = ordered(records, order, "message", bad)
            _process(target, records, pending, order, sink, bad)
            advance(len(records))
        else:
            if pending is not None:
                _process(target, Records({}, (), ()), pending, order, sink, bad)
            for records in chunks(messages, wire, kinds, bad, "message"):
                if pending is not None:
                    _same_order(order, records, merged)
                _process(target, records, None, NO_ORDER, sink, bad)
                advance(len(records))
    if pending is not None and not merged:
        typer.secho(f"no order column {order!r}: all updates were applied before the first message", dim=True, err=True)
    sink.close()
    report_rejected(bad, rejected)
    if plan:
        typer.echo(str(target.plan), err=True)
    if strict and bad.items:
        raise typer.Exit(1)


def _same_order(order: str, messages: Records, merged: bool) -> None:
    """Messages and updates both have the order column, or both do not."""
    if len(messages) and merged != (order in messages.columns):
        have, lack = ("updates", "messages") if merged else ("messages", "updates")
        raise UsageError(f"{have} have the order column {order!r} and {lack} do not; give both the column, or neither")


def _process(
    target: Filter, messages: Records, updates: Records | None, order: str, sink: Sink, bad: Rejections
) -> None:
    """One event log through the filter, its matches into the sink, its rejections to the others."""
    from tamis import EventLog

    tables = {"messages": messages, "updates": updates}
    log = EventLog.merge(
        # A dict without columns has no length: messages without any attribute go as rows.
        **{
            what: table.columns or [{}] * len(table)
            for what, table in tables.items()
            if table is not None and len(table)
        },
        order=order,
        values="plain",
    )
    found = target.process(log)
    note_rejected(found, messages, updates, bad)
    rows = found.message.tolist()
    keys = None
    if sink.key is not None:
        column = plain(messages.columns.get(sink.key, [None] * len(messages)))
        keys = [column[row] for row in rows]
    numbers = messages.numbers
    sink.write([numbers[row] for row in rows], keys, list(found.profile))


def _load(target: Filter, profiles: str, contexts: str | None, bad: Rejections) -> list[Profile]:
    """Profiles and starting values into the filter."""
    read = read_profiles(profiles, None, bad)

    def refuse(profile: Profile, error: Exception) -> None:
        bad.add("profile", profile.place, str(error))

    with progress("loading profiles") as advance:

        def counted() -> Iterator[Profile]:
            for number, profile in enumerate(read, start=1):
                yield profile
                if number % 1000 == 0:
                    advance(1000)

        subscribe(target, counted(), refuse)
    if contexts is not None:
        kinds = first_kinds(target)
        texts = {"context": "text"}
        records = whole(contexts, None, lambda name: texts.get(name) or kinds(f"ctx.{name}"), bad, "context")
        set_contexts(target, records, bad)
    return read


def _message(text: str) -> dict[str, Any]:
    """The message of ``explain``: JSON itself, ``@file``, or ``-``."""
    if text == "-":
        text = sys.stdin.read()
    elif text.startswith("@"):
        with opened(text[1:]) as stream:
            text = stream.read().decode("utf-8", errors="replace")
    try:
        message = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--message: not JSON: {error}") from None
    if not isinstance(message, dict):
        raise UsageError('--message: expected a JSON object such as {"item": "bolt"}')
    return message


@app.command()
def explain(
    profiles: ProfilesOption,
    id: Annotated[str, typer.Option("--id", help="The profile to explain.")],
    message: Annotated[
        str, typer.Option("--message", "-m", metavar="JSON|@FILE|-", help="The message: JSON, @file, or - for stdin.")
    ],
    updates: UpdatesOption = None,
    contexts: ContextsOption = None,
    order: Annotated[str, typer.Option(help="The column that orders the updates, when they have it.")] = "seq",
    schema: SchemaOption = None,
    graph: GraphOption = None,
) -> None:
    """Say why a message matches a profile, or which predicate fails with which values.

    [bold]Example[/bold]

    \b
      tamis explain -p warehouses.tamis --id w-A -u stock.jsonl -m @order.json
      tamis explain -p warehouses.tamis --id w-A -m '{"item": "bolt"}'
    """
    from tamis import EventLog

    bad = Rejections()
    target = make_filter(None, None, None, schema or [], graph or [])
    _load(target, profiles, contexts, bad)
    if updates is not None:
        pending = read_updates(updates, first_kinds(target), bad)
        if order in pending.columns:
            pending = ordered(pending, order, "update", bad)
        log = EventLog.merge(updates=pending.columns if len(pending) else None, order=order, values="plain")
        note_rejected(target.process(log), None, pending, bad)
    wanted: Id = id
    if wanted not in target and id.lstrip("-").isdigit():
        wanted = int(id)
    report_rejected(bad, None)
    if wanted not in target:
        raise UsageError(f"no profile {id!r} in {profiles}")
    kinds = first_kinds(target)
    value = {
        name: as_time(item) if (kinds(name) or "").endswith("time") else item
        for name, item in _message(message).items()
    }
    try:
        typer.echo(str(target.explain(wanted, value)))
    except EventError as error:
        raise UsageError(str(error)) from None


@app.command()
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Profiles: .tamis, .jsonl, .csv, .parquet.")],
    format: Annotated[Report, typer.Option("--format", "-f", help="For people, or one JSON object per error.")] = (
        Report.text
    ),
    schema: SchemaOption = None,
    graph: GraphOption = None,
) -> None:
    """Check profiles: every error at once, with a caret at its place. Exit code 1 when there is any.

    [bold]Examples[/bold]

    \b
      tamis check warehouses.tamis
      tamis check profiles/*.tamis --format json
    """
    target = make_filter(None, None, None, schema or [], graph or [])
    total = errors = 0
    for file in files:
        bad = Rejections()
        read = read_profiles(file, None, bad)
        found: list[tuple[str, str, dict[str, Any]]] = [
            (item.place, item.reason, {"code": "record", "message": item.reason}) for item in bad.items
        ]

        def note(profile: Profile, error: Exception, found: list[tuple[str, str, dict[str, Any]]] = found) -> None:
            details: dict[str, Any] = {"code": "profile", "message": str(error), "profile": profile.id}
            place = profile.place
            if isinstance(error, ProfileError):
                details = error.to_dict()
                if profile.offset and error.text == profile.condition:
                    place = f"{place}, column {profile.offset + error.column}"
            found.append((place, str(error), details))

        subscribe(target, read, note)
        total += len(read) + len(bad.items)
        errors += len(found)
        for place, text, details in found:
            if format is Report.json:
                typer.echo(json.dumps({"place": place, **details}, ensure_ascii=False))
            else:
                typer.echo(f"{place}: {text}\n")
    typer.secho(f"{total:,} profiles, {errors:,} errors", fg="red" if errors else "green", err=format is Report.json)
    if errors:
        raise typer.Exit(1)


@app.command()
def run(
    pipeline: Annotated[str, typer.Argument(metavar="FILE", help="The pipeline: a TOML file.")],
    once: Annotated[
        bool, typer.Option("--once", help="Deliver everything that is there now, then end: for files and cron.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the plan and what exactly-once rests on; start nothing.")
    ] = False,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Where Spark runs: local[4], spark://..., yarn, k8s://...")
    ] = None,
) -> None:
    """Run a pipeline on Spark: sources, profiles, shards and sinks as a file declares them.

    [bold]Examples[/bold]

    \b
      tamis run examples/pipeline.toml --explain
      tamis run examples/pipeline.toml --once
      tamis run pipeline.toml --master spark://host:7077

    The file is checked before anything starts: all mistakes at once, each with its place. Ctrl-C finishes the \
micro-batch that runs; the next call goes on from the checkpoint.
    """
    try:
        from tamis.spark.explain import explain as plan
        from tamis.spark.pipeline import load
        from tamis.spark.run import RunError
        from tamis.spark.run import run as start
    except ImportError as error:
        raise UsageError(f"tamis run needs Spark: pip install 'tamis[spark]' ({error})") from None
    declared = load(pipeline, master)
    if explain:
        typer.echo(plan(declared))
        return
    try:
        status = start(declared, once)
    except RunError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    if status.rejected and "rejected" not in declared.sinks:
        typer.secho("rejected events were only counted; [sinks.rejected] keeps them with reasons", dim=True, err=True)


@app.command()
def demo(
    profiles: Annotated[int | None, typer.Option(min=1, help="Number of profiles.", show_default="100,000")] = None,
    events: Annotated[int | None, typer.Option(min=1, help="Orders and restocks.", show_default="1,000,000")] = None,
    seed: Annotated[int, typer.Option(help="The same seed tells the same story.")] = 7,
    small: Annotated[
        bool, typer.Option("--small", help="Without Spark, in this process: 50,000 profiles, 200,000 events.")
    ] = False,
    shards: Annotated[int, typer.Option(min=1, help="Shards on Spark, one core each.")] = 2,
    folder: Annotated[
        Path, typer.Option(help="Where Spark's files, the deliveries and the summary go; emptied first.")
    ] = Path(".cache/demo"),
) -> None:
    """The warehouse story: orders find warehouses with enough in stock, and change the stock by doing so."""
    if small:
        from tamis.demo import run

        run(profiles=profiles or 50_000, events=events or 200_000, seed=seed)
        return
    missing = [name for name in ("pyspark", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the demo needs {' and '.join(missing)}: pip install 'tamis[spark,reports]', or try `tamis demo --small`"
        )
    from tamis.spark.demo import run as run_on_spark

    run_on_spark(folder, profiles or 100_000, events or 1_000_000, seed, shards)


app.add_typer(lab, name="lab")


def main() -> None:
    """The entry point of the ``tamis`` command."""
    try:
        app()
    except UsageError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
