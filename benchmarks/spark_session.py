"""What the Spark benchmarks share: a session on all cores with one Python worker each, and tables in the docs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tamis.spark import builder

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOR_DOCS = "--docs" in sys.argv  # a benchmark shall write its table into the page; the common options do not know it
sys.argv = [argument for argument in sys.argv if argument != "--docs"]


def session(memory: str = "4g") -> Any:
    """Spark on this machine, tuned as the docs say; both sides of a comparison run in it."""
    cores = os.cpu_count() or 1
    spark = (
        builder(f"local[{cores}]", "tamis-benchmark")
        .config("spark.driver.memory", memory)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(cores))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def load() -> str:
    """How busy the machine is, to be written beside the figures."""
    return f"load average {os.getloadavg()[0]:.1f} before the run"


def write_table(name: str, table: str, page: str = "spark.md") -> None:
    """Put a table into a page of the docs, between the marks of a benchmark."""
    file = DOCS / page
    begin, end = f"<!-- benchmarks/{name}.py --docs writes from here", "<!-- to here -->"
    head, _, rest = file.read_text(encoding="utf-8").partition(begin)
    first, _, tail = rest.partition("\n")
    file.write_text(f"{head}{begin}{first}\n{table}\n{end}{tail.partition(end)[2]}", encoding="utf-8")
