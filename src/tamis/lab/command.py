"""``tamis lab``: list, run and report. Heavy modules are imported inside the commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_SCALE = 0.02
OUT = Path("lab-results")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where results go, and the report.")]


@app.callback()
def _lab() -> None:
    """The tables and figures of the papers, measured on this machine and judged.

    [bold]A first look[/bold]

    \b
      tamis lab list                        what there is
      tamis lab run agile-exp1              one experiment, a small version of it
      tamis lab run all                     every experiment: minutes
      tamis lab report                      one HTML page of all results
      tamis lab run agile-exp1 --scale 1    at the paper's size: much longer
    """


@app.command("list")
def list_() -> None:
    """Show all experiments: name, the paper's exhibit, one line each."""
    from rich.console import Console
    from rich.table import Table

    from .registry import EXPERIMENTS

    console = Console()
    if not console.is_terminal:
        console.width = 160
    for paper in dict.fromkeys(experiment.paper for experiment in EXPERIMENTS):
        table = Table("name", "exhibit", "about", title=paper, title_justify="left", box=None, pad_edge=False)
        for experiment in EXPERIMENTS:
            if experiment.paper == paper:
                table.add_row(experiment.name, experiment.exhibit, experiment.about)
        console.print(table)


@app.command()
def run(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Experiments, or all.")],
    scale: Annotated[
        float, typer.Option(min=0.0005, help="Share of the paper's size; 1 is the paper's.")
    ] = DEFAULT_SCALE,
    seed: Annotated[int, typer.Option(min=0, help="The same seed makes the same workload.")] = 1,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", exists=True, file_okay=False, help="Input files, where one needs them."),
    ] = None,
    out: OutOption = OUT,
    contenders: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Only these contenders; claims about the others then fail."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(min=0.01, metavar="SECONDS", help="How long a contender measures at each point."),
    ] = None,
) -> None:
    """Run experiments: our table beside the paper's, a verdict per claim, JSON and plots.

    [bold]Examples[/bold]

    \b
      tamis lab run agile-exp1
      tamis lab run agile-exp1 agile-exp4 --scale 0.1 --out results
      tamis lab run agile-exp1 --contenders NOINDEX,blocks
      tamis lab run all --scale 1

    Exit code 0: no claim fails. 1: a claim fails, or contenders gave different matches. 2: a wrong argument.

    Claims about counters are judged at every scale, who is faster from scale 0.1 on, factors at the paper's size; \
below that they are shown and not judged. A paper's claim that is known not to hold any longer is shown with the \
reason and does not fail the run.
    """
    from rich.console import Console

    from . import page
    from .experiment import Inexact, Setting
    from .experiment import run as run_one
    from .registry import find

    wanted = find(names)
    picked = None if contenders is None else tuple(name.strip() for name in contenders.split(",") if name.strip())
    console = Console()
    if not console.is_terminal:
        console.width = 160
    results = []
    for experiment in wanted:
        with _progress(experiment.name) as step:
            setting = Setting(scale, seed, data, picked, budget, step)
            try:
                result = run_one(experiment, setting, out)
            except Inexact as error:
                typer.secho(f"{experiment.name}: INEXACT: {error}", fg="red", err=True)
                raise typer.Exit(1) from None
        page.show(result, console)
        results.append(result)
    if len(results) > 1:
        console.print(f"\n{page.summary(results)}", highlight=False)
    console.print(f"written to {out}; `tamis lab report --out {out}` makes a page of it", style="dim", highlight=False)
    if not all(result.holds for result in results):
        raise typer.Exit(1)


@app.command()
def report(
    out: OutOption = OUT,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="PAGE", exists=True, dir_okay=False, help="Renew a page of Markdown instead."),
    ] = None,
) -> None:
    """Make one HTML page, DIR/report.html, of all results in a folder.

    [bold]Examples[/bold]

    \b
      tamis lab report --out lab-results
      tamis lab report --out lab-results --markdown docs/lab-results.md

    On a page of Markdown, what lies between <!-- tamis lab report --markdown writes agile-exp1 from here --> and \
<!-- to here --> is replaced by verdicts, tables and plots of that experiment; plots go to assets/lab beside the page.
    """
    from . import markdown as pages
    from . import page

    typer.echo(page.write(out) if markdown is None else pages.write(out, markdown))


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar when somebody is watching. Drawn between measurements only: a drawing thread disturbs the clock."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(f"{name:<13}"), BarColumn(), TextColumn("{task.description:<52}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def step(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)
            bar.refresh()

        yield step
