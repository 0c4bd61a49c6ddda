"""Results for people: on the terminal, and as one HTML page that needs nothing else.

Guarantees that the page shows what the JSON files hold and nothing else; it loads nothing and runs nothing.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tamis.errors import UsageError

from .experiment import VERDICTS, Cell, Claim, Result, Table, Verdict, read
from .registry import EXPERIMENTS

if TYPE_CHECKING:
    from rich.console import Console

MARKS: Final[dict[Verdict, str]] = {"holds": "✓", "fails": "✗", "no longer holds": "≠", "not judged": "·"}
COLOURS: Final[dict[Verdict, str]] = {
    "holds": "green",
    "fails": "red",
    "no longer holds": "yellow",
    "not judged": "dim",
}
WHOSE: Final = {"paper": "the paper", "tamis": "tamis"}


def shown(value: Cell) -> str:
    """A cell for people: three digits where they matter, all of them above a hundred."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"


def figures(claim: Claim) -> str:
    """Both sides of a claim."""
    unit = f" {claim.unit}" if claim.unit else ""
    return f"{claim.left}: {shown(claim.value)} {claim.sign} {claim.right}: {shown(claim.bound)}{unit}"


def summary(results: Sequence[Result]) -> str:
    """The verdicts of several results in one line."""
    counts = dict.fromkeys(VERDICTS, 0)
    for result in results:
        for verdict, number in result.counted().items():
            counts[verdict] += number
    text = f"{counts['holds']} of {sum(counts.values()) - counts['not judged']} judged claims hold"
    text += f", {counts['no longer holds']} no longer (the reason is said)" if counts["no longer holds"] else ""
    return text + (f", {counts['not judged']} not judged at this scale" if counts["not judged"] else "")


# -- the terminal ----------------------------------------------------------------------------------------------


def show(result: Result, console: Console) -> None:
    """Tables and verdicts."""
    from rich import box, table, text

    console.print(f"\n[bold]{result.name}[/bold]  {result.exhibit}: {result.about}", highlight=False)
    for one in result.tables:
        drawn = table.Table(title=one.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        heads = _heads(one)
        for k, head in enumerate(heads):
            drawn.add_column(head, justify="left" if k == 0 else "right", no_wrap=True)
        for row in one.rows:
            drawn.add_row(*map(shown, row))
        console.print(drawn)
        if one.note:
            console.print(f"  {one.note}", style="dim", highlight=False)
    verdicts = table.Table("", "claim", "whose", "figures", title="Claims", title_justify="left", box=box.SIMPLE_HEAD)
    for claim in result.claims:
        mark = text.Text(f"{MARKS[claim.verdict]} {claim.verdict}", style=COLOURS[claim.verdict], no_wrap=True)
        reason = f" ({claim.reason})" if claim.reason else ""
        verdicts.add_row(mark, claim.words, WHOSE[claim.whose], text.Text(figures(claim) + reason))
    console.print(verdicts)
    for note in result.notes:
        console.print(f"  {note}", style="dim", highlight=False)
    console.print(f"  {summary([result])}; {result.seconds:,.0f} s", highlight=False)


def _heads(table: Table) -> list[str]:
    """One heading per column, each with the heading of its group."""
    above = [text for text, width in table.groups for _ in range(width)]
    first = {k for k, text in enumerate(above) if k == 0 or above[k - 1] != text}
    if not table.groups:
        return list(table.head)
    return [f"{text if k in first else ''}\n{table.head[k]}" for k, text in enumerate(above)]


# -- the page --------------------------------------------------------------------------------------------------


def load(out: Path) -> list[Result]:
    """Everything in a folder of results, in the order of the experiments."""
    order = {experiment.name: k for k, experiment in enumerate(EXPERIMENTS)}
    found = [read(path) for path in sorted(out.glob("*.json"))]
    if not found:
        raise UsageError(f"there are no results in {out}; `tamis lab run all --out {out}` makes them")
    return sorted(found, key=lambda result: (order.get(result.name, len(order)), result.name))


def write(out: Path) -> Path:
    """``OUT/report.html`` of everything in the folder."""
    place = out / "report.html"
    place.write_text(render(load(out), out), encoding="utf-8")
    return place


def render(results: Sequence[Result], out: Path) -> str:
    """The page; plots are read from the folder."""
    contents = "".join(
        f'<tr><td><a href="#{_text(one.name)}">{_text(one.name)}</a></td><td>{_text(one.exhibit)}</td>'
        f"<td class=words>{_text(one.about)}</td><td class=n>{one.scale:g}</td><td>{_tally(one)}</td></tr>"
        for one in results
    )
    body = [
        "<h1>The lab of tamis</h1>",
        f"<p>{_text(summary(results))}. A scale of 1 is the paper's size.</p>",
        "<div class=wide><table><thead><tr><th>experiment</th><th>exhibit</th><th>about</th><th class=n>scale</th>"
        f"<th>claims</th></tr></thead><tbody>{contents}</tbody></table></div>",
        *(_section(result, out) for result in results),
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>The lab of tamis</title>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_CSS}</style></head>\n<body><main>\n'
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def _section(result: Result, out: Path) -> str:
    machine = "; ".join(f"{name} {value}" for name, value in result.machine.items() if name != "processor")
    given = "".join(
        f"<tr><td>{_text(name)}</td><td>{_text(_parameter(value))}</td></tr>"
        for name, value in result.parameters.items()
    )
    parts = [
        f'<section id="{_text(result.name)}"><h2>{_text(result.name)} <span>{_text(result.exhibit)}</span></h2>',
        f"<p>{_text(result.about[:1].upper() + result.about[1:])}. <i>{_text(result.paper)}</i></p>",
        _verdicts(result.claims),
        *(_figure(out / file, caption) for file, caption in result.plots.items()),
        *map(_table, result.tables),
        *(f"<p class=note>{_text(note)}</p>" for note in result.notes),
        f"<details><summary>Parameters</summary><table><tbody>{given}</tbody></table></details>",
        f"<p class=note>{_text(result.date)}, {result.seconds:,.0f} s, seed {result.seed}, scale {result.scale:g}; "
        f"{_text(result.machine.get('processor', ''))}; {_text(machine)}.</p></section>",
    ]
    return "\n".join(parts)


def _parameter(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_parameter(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(_parameter, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _tally(result: Result) -> str:
    """How many claims ended in each verdict, as coloured words."""
    words = (
        f'<span class="{_class(verdict)}">{number} {_text(verdict)}</span>'
        for verdict, number in result.counted().items()
        if number
    )
    return ", ".join(words) or "none"


def _verdicts(claims: Sequence[Claim]) -> str:
    def side(what: str, value: float | None, unit: str) -> str:
        figure = f"{shown(value)} {unit}" if value is not None else "–"
        return f"<td><b>{_text(figure.strip())}</b><small>{_text(what)}</small></td>"

    rows = "".join(
        f'<tr><td class="{_class(claim.verdict)}">{MARKS[claim.verdict]} {_text(claim.verdict)}</td>'
        f"<td class=words>{_text(claim.words)}{f'<small>{_text(claim.reason)}</small>' if claim.reason else ''}</td>"
        f"<td>{_text(WHOSE[claim.whose])}</td>{side(claim.left, claim.value, claim.unit)}"
        f"<td>{claim.sign}</td>{side(claim.right, claim.bound, claim.unit)}</tr>"
        for claim in claims
    )
    head = "<tr><th>verdict</th><th>claim</th><th>whose</th><th>figure</th><th></th><th>bound</th></tr>"
    return f"<div class=wide><table class=claims><thead>{head}</thead><tbody>{rows}</tbody></table></div>"


def _figure(path: Path, caption: str) -> str:
    """The picture itself, inside the page."""
    svg = re.sub(r"^.*?(?=<svg)", "", path.read_text(encoding="utf-8"), count=1, flags=re.DOTALL)
    named = svg.replace("<svg", f'<svg role="img" aria-label="{_text(caption)}"', 1)
    return f"<figure>{named}<figcaption>{_text(caption)}</figcaption></figure>"


def _table(table: Table) -> str:
    above = "".join(f'<th class=group colspan="{width}">{_text(text)}</th>' for text, width in table.groups)
    edges, column = set(), 0
    for _, width in table.groups:
        edges.add(column)
        column += width

    def look(k: int) -> str:
        return f' class="n{" edge" if k in edges else ""}"' if k else ""

    head = "".join(f"<th{look(k)}>{_text(text)}</th>" for k, text in enumerate(table.head))
    rows = "".join(
        "<tr>" + "".join(f"<td{look(k)}>{_text(shown(cell))}</td>" for k, cell in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    note = f"<p class=note>{_text(table.note)}</p>" if table.note else ""
    first = f"<tr>{above}</tr>" if above else ""
    return (
        f"<h3>{_text(table.title)}</h3><div class=wide><table><thead>{first}<tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>{note}"
    )


def _class(verdict: str) -> str:
    return verdict.replace(" ", "-")


def _text(value: str) -> str:
    return html.escape(value, quote=True)


_CSS: Final = """
body{margin:0;background:#f4f6f6;color:#222;font:15px/1.5 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1160px;margin:0 auto;padding:32px 24px 64px}
h1{margin:0 0 4px;font-size:28px;color:#00594f}h2{margin:0 0 6px;font-size:20px;color:#00594f}
h2 span{color:#666;font-weight:400;font-size:16px;margin-left:8px}h3{margin:22px 0 4px;font-size:15px}
p{margin:0 0 12px;color:#555;max-width:100ch}.note{font-size:13px;margin:6px 0;color:#666}
section,main>.wide{background:#fff;border:1px solid #e0e6e5;border-radius:8px;padding:18px 22px;margin:16px 0}
.wide{overflow-x:auto}a{color:#00796b}
figure{margin:18px 0}figure svg{display:block;width:100%;height:auto}
figcaption{color:#666;font-size:13px;margin-top:4px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:13.5px}
th,td{padding:4px 9px;border-bottom:1px solid #eceff0;text-align:left;white-space:nowrap;vertical-align:top}
th{color:#666;font-weight:600;border-bottom:2px solid #d5dddc}.n{text-align:right}
.group{text-align:center;border-bottom:0}.edge,.group+.group{border-left:2px solid #d5dddc}
.words{white-space:normal}.claims td:nth-child(2){min-width:340px}small{display:block;color:#777}
.claims b{font-weight:600}
details{margin:14px 0;font-size:14px}
details td{white-space:normal}summary{cursor:pointer;color:#00796b}
.holds{color:#1b7f3b;font-weight:600}.fails{color:#b3261e;font-weight:700}.no-longer-holds{color:#9a5b00;font-weight:600}.not-judged{color:#777}
""".replace("\n", "")
