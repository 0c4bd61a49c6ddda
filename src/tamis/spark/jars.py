"""Jars that Spark does not ship, resolved from Maven Central once and kept in a directory.

``python -m tamis.spark.jars DIRECTORY`` brings Spark's Kafka connector; coordinates (``group:artifact:version``) after
the directory bring those instead. Guarantees that a directory is either complete or absent, that a second call does
nothing, and that a failure says why. Spark's own resolver does the work, so everything it can be told applies:
``spark.jars.ivySettings``, ``DEFAULT_ARTIFACT_REPOSITORY``. A mirror in Maven's ``settings.xml`` is honoured as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyspark

from tamis.errors import TamisError

LISTING = "coordinates.txt"
REASONS = ("host ", "exception in thread", "server access error", "download failed")


class Packages(NamedTuple):
    """What is resolved together: the newest version of each artifact wins among them."""

    coordinates: tuple[str, ...]
    excludes: tuple[str, ...] = ()


# Maven Central, as we could reach it, has neither the connector of Spark 4.3 nor the token provider of 4.2: these are
# the newest of each, and the tests run exactly this set on Spark 4.3. Where `spark-sql-kafka-0-10_2.13:4.3.0` can be
# had, `spark-submit --packages` with it is the plainer way.
CONNECTOR = (
    Packages(
        ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",),
        ("org.apache.spark:spark-token-provider-kafka-0-10_2.13",),
    ),
    Packages(
        ("org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",),
        ("org.apache.kafka:*", "org.apache.hadoop:*"),
    ),
)


class JarsError(TamisError):
    """The jars could not be resolved; the text says which and why."""


def jars_in(directory: str | Path) -> list[str]:
    """The jars of a directory that :func:`resolve` filled, for ``spark.jars``; empty when it is not complete.

    Raises nothing, so that a caller may decide what a missing connector means to it.
    """
    place = Path(directory)
    if not (place / LISTING).is_file():
        return []
    return sorted(str(jar.resolve()) for jar in place.glob("*.jar"))


def resolve(directory: str | Path, groups: Sequence[Packages] = CONNECTOR) -> bool:
    """Fill ``directory`` with the jars of every group and all they need; False when they were there already.

    Every group is resolved by itself; the directory appears in one rename when all succeeded. What failed stands in
    ``DIRECTORY.failed`` too, for whoever finds the directory missing later.
    """
    place = Path(directory).absolute()
    failed = place.with_name(f"{place.name}.failed")
    wanted = "".join(f"{' '.join(group.coordinates)} without {' '.join(group.excludes)}\n" for group in groups)
    listing = place / LISTING
    if listing.is_file() and listing.read_text() == wanted:
        return False
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as work:
        fresh = Path(work) / "fresh"
        fresh.mkdir()
        for number, group in enumerate(groups):
            try:
                jars = _ivy(group, Path(work) / f"ivy-{number}")
            except JarsError as error:
                failed.write_text(f"{error}\n")
                raise
            for jar in jars:
                shutil.copy(jar, fresh)
        (fresh / LISTING).write_text(wanted)
        shutil.rmtree(place, ignore_errors=True)
        fresh.rename(place)
    failed.unlink(missing_ok=True)
    return True


def mirror_of_central(settings: Path) -> str | None:
    """The address that Maven's settings put in the place of Maven Central, if they do."""
    if not settings.is_file():
        return None
    try:
        root = ElementTree.parse(settings).getroot()
    except ElementTree.ParseError as error:
        raise JarsError(f"{settings}: {error}") from None
    for mirror in root.iterfind("{*}mirrors/{*}mirror"):
        of = {part.strip() for part in (mirror.findtext("{*}mirrorOf") or "").split(",")}
        if of & {"central", "*", "external:*"} and "!central" not in of:
            return (mirror.findtext("{*}url") or "").strip() or None
    return None


def _ivy(group: Packages, home: Path) -> list[Path]:
    """Resolve one group with Spark's own resolver, which works before Spark starts an application."""
    home.mkdir()
    (home / "nothing.py").touch()
    environment = os.environ.copy()
    mirror = mirror_of_central(Path.home() / ".m2" / "settings.xml")
    if mirror:
        environment.setdefault("DEFAULT_ARTIFACT_REPOSITORY", mirror.rstrip("/") + "/")
    environment["PYSPARK_PYTHON"] = sys.executable
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--master", "local[1]", "--packages", ",".join(group.coordinates)]
    if group.excludes:
        command += ["--exclude-packages", ",".join(group.excludes)]
    command += ["--conf", f"spark.jars.ivy={home}", str(home / "nothing.py")]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        raise JarsError(f"{' '.join(group.coordinates)}: no answer within 600 s") from None
    jars = sorted((home / "jars").glob("*.jar"))
    if done.returncode or not jars:
        raise JarsError(f"{' '.join(group.coordinates)}: {_reason(done.stderr)}")
    return jars


def _reason(log: str) -> str:
    """The lines of a failed resolution that say why, each once."""
    lines = [line.strip(" \t:") for line in log.splitlines()]
    telling = [line for line in lines if line.lower().startswith(REASONS) and "spark-packages" not in line]
    return "; ".join(dict.fromkeys(telling)) or " ".join(lines[-3:]) or "Spark's resolver said nothing"


def main(arguments: Sequence[str]) -> int:
    """The command; its exit code is 1 when something could not be resolved."""
    if not arguments:
        print("usage: python -m tamis.spark.jars DIRECTORY [GROUP:ARTIFACT:VERSION ...]", file=sys.stderr)
        return 2
    directory, *coordinates = arguments
    groups = (Packages(tuple(coordinates)),) if coordinates else CONNECTOR
    try:
        if resolve(directory, groups):
            print(f"{directory}: {len(jars_in(directory))} jars")
    except JarsError as error:
        print(f"{directory}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
