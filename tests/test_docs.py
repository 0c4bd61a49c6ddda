"""The documentation tells the truth: every example runs, every link leads somewhere."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("**/*.md")])
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_examples_run(page: Path) -> None:
    # The parser takes a closing fence for output, so the fences go first; line numbers stay.
    text = re.sub(r"(?m)^\s*```.*$", "", page.read_text(encoding="utf-8"))
    examples = doctest.DocTestParser().get_doctest(text, {}, name(page), str(page), 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    failed = runner.run(examples, out=report.append).failed
    assert failed == 0, "".join(report)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_readme_shows_the_first_example_and_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for needed in ("make demo", "make test", "docs/assets/filter.svg", "docs/results.md", ">>> f.explain(", "['w-A']"):
        assert needed in text.replace("print(f.explain(", "f.explain("), needed


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "assets").glob("*.svg")), ids=name)
def test_picture_is_well_formed_and_described(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    assert root.get("role") == "img"
    assert {child.tag.rpartition("}")[2] for child in root} >= {"title", "desc"}


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=name)
def test_example_scripts_run(script: Path) -> None:
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
