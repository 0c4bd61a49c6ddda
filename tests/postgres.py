"""A real PostgreSQL for tests: the fixture ``postgres`` gives the URL of a database that is empty at first."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemons import Daemon, free_port, unprivileged
from kafka_broker import missing


def programs() -> Path | None:
    """The directory of ``initdb`` and ``postgres``, where ``tools/system`` looks for it too."""
    places = [os.environ.get("POSTGRES_BIN"), os.path.dirname(shutil.which("initdb") or "")]
    places += [str(place) for place in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    for place in places:
        if place and Path(place, "initdb").exists() and Path(place, "postgres").exists():
            return Path(place)
    return None


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A server of our own on a free loopback port, without durability: only the tests need its data."""
    found = programs()
    if found is None:
        missing("no PostgreSQL: make setup could not install it")
        return
    directory = Path(tempfile.mkdtemp(prefix="tamis-postgres-"))
    daemon = Daemon(directory, signal="INT", user=unprivileged("postgres", "nobody"))
    data, port = str(directory / "data"), free_port()
    # Files, not the network, decide who may connect: any local user, no password, loopback only.
    daemon.run([str(found / "initdb"), "-D", data, "-U", "tamis", "-A", "trust", "-E", "UTF8", "--no-sync"])
    options = ["-c", "fsync=off", "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={directory}"]
    url = f"postgresql://tamis@127.0.0.1:{port}"

    def answers() -> bool:
        import psycopg

        try:
            psycopg.connect(f"{url}/postgres", connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    daemon.start([str(found / "postgres"), "-D", data, "-p", str(port), *options], answers)
    yield url
    daemon.stop()


@pytest.fixture
def postgres(postgres_server: str) -> str:
    """The URL of a new database."""
    import psycopg

    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(f"{postgres_server}/postgres", autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return f"{postgres_server}/{name}"
