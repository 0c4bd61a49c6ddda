"""Results for documentation: Markdown sections between two comments of a page, and their plots beside it.

Guarantees that only what lies between the comments is written; the words around it are the author's. The comments are
``<!-- tamis lab report --markdown writes NAME from here -->`` and ``<!-- to here -->``, with the name of an experiment.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tamis.errors import UsageError

from .experiment import Claim, Result, Table
from .page import MARKS, load, shown, summary

ASSETS: Final = Path("assets", "lab")
_BEGIN: Final = r"<!-- tamis lab report --markdown writes ([\w-]+) from here -->\n"
_PART: Final = re.compile(rf"({_BEGIN})(.*?)(<!-- to here -->)", re.DOTALL)


def write(out: Path, page: Path) -> Path:
    """Renew the parts of ``page`` for which there are results in ``out``; the others stay as they are."""
    results = {result.name: result for result in load(out)}
    text = page.read_text(encoding="utf-8")
    for found in _PART.finditer(text):
        if re.search(_BEGIN, found[3]):
            raise UsageError(f"{page}: the place for {found[2]} has no end: write <!-- to here --> where it ends")
    wanted = [found[2] for found in _PART.finditer(text) if found[2] in results]
    if not wanted:
        raise UsageError(f"{page} has no place for {', '.join(results)}: see `tamis lab report --help`")
    assets = page.parent / ASSETS
    assets.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        for plot in results[name].plots:
            shutil.copyfile(out / plot, assets / plot)

    def renewed(found: re.Match[str]) -> str:
        result = results.get(found[2])
        return found[0] if result is None else f"{found[1]}\n{section(result)}\n{found[4]}"

    page.write_text(_PART.sub(renewed, text), encoding="utf-8")
    return page


def section(result: Result) -> str:
    """Verdicts, tables and plots of one experiment."""
    parts = [_claims(result.claims), *map(_table, result.tables)]
    parts += [f"![{caption}]({(ASSETS / file).as_posix()})" for file, caption in result.plots.items()]
    parts.append(
        f"*{summary([result])}. `tamis lab run {result.name} --scale {result.scale:g} --seed {result.seed}`, "
        f"{result.date}, {result.seconds:,.0f} s; {result.machine.get('processor', '')}, "
        f"{result.machine.get('cores', '')} cores.*"
    )
    return "\n\n".join(parts) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _claims(claims: Sequence[Claim]) -> str:
    lines = [_row(("", "claim", "figure", "", "bound")), "|---|---|---:|---|---|"]
    for claim in claims:
        figure = f"{shown(claim.value)} {claim.unit}".strip()
        bound = f"{shown(claim.bound)} {claim.unit}".strip()
        words = claim.words if claim.whose == "paper" else f"*ours:* {claim.words}"
        if claim.verdict == "no longer holds":
            words += f" (*{claim.reason}*)"
        mark = f"{MARKS[claim.verdict]} {claim.verdict}"
        lines.append(_row((mark, words, figure, claim.sign, f"{bound} ({claim.right})")))
    return "\n".join(lines)


def _table(table: Table) -> str:
    """Headings of groups go into every heading below them: Markdown has one row of headings."""
    above = [text for text, width in table.groups for _ in range(width)] or [""] * len(table.head)
    head = [f"{text} {name}".strip() if text else name for text, name in zip(above, table.head, strict=True)]
    lines = [f"**{table.title}**", "", _row(head), "|---" + "|---:" * (len(table.head) - 1) + "|"]
    lines += [_row([shown(cell) for cell in row]) for row in table.rows]
    return "\n".join(lines) + (f"\n\n{table.note}" if table.note else "")
