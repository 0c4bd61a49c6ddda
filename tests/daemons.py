"""Real servers for tests, each in its own temporary directory on loopback ports, that never outlive the tests.

Guarantees that the server and its directory are gone after :meth:`Daemon.stop`, and also when pytest is killed: a small
shell between the two ends the server as soon as the pipe from pytest closes, however that happens.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

# $1: the signal that ends the server, $2: the directory to remove, the rest: the server.
GUARD = """
signal=$1; directory=$2; shift 2
"$@" & server=$!
read -r kept
kill "-$signal" $server 2>/dev/null; wait $server
[ "$kept" = keep ] || rm -rf "$directory"
"""


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def unprivileged(*names: str) -> str | None:
    """The first of the users that exists when we are root; None when we are not, and so stay who we are."""
    if os.getuid() != 0:
        return None
    for name in names:
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise LookupError(f"none of the users {', '.join(names)} exists")


class Daemon:
    """A server process behind its guard. Its output goes to ``log`` inside ``directory``."""

    def __init__(self, directory: Path, *, signal: str, user: str | None = None) -> None:
        self.directory = directory
        self.log = directory / "log"
        self._signal = signal
        self._user = user
        self._guard: subprocess.Popen[bytes] | None = None
        if user:
            shutil.chown(directory, user)

    def run(self, command: Sequence[str], timeout: float = 60) -> None:
        """Run a command of the server to its end, as its user; raises with its output when it fails."""
        done = subprocess.run(
            command, cwd=self.directory, user=self._user, capture_output=True, text=True, timeout=timeout
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")

    def start(self, command: Sequence[str], answers: Callable[[], bool], timeout: float = 60) -> None:
        """Start the server and wait until it answers; raises with the end of its log when it does not."""
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(
                ["sh", "-c", GUARD, "sh", self._signal, str(self.directory), *command],
                cwd=self.directory,
                user=self._user,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        end = time.monotonic() + timeout
        while not answers():
            if time.monotonic() > end:
                tail = self.log.read_text(errors="replace")[-3000:]
                self.stop()
                raise RuntimeError(f"{command[0]} did not answer within {timeout:.0f} s:\n{tail}")
            time.sleep(0.1)

    def stop(self, keep: bool = False) -> None:
        """End the server and remove its directory, unless it is to ``keep`` its data for another start."""
        if self._guard is None or self._guard.stdin is None:
            return
        if keep:
            self._guard.stdin.write(b"keep\n")
        self._guard.stdin.close()
        self._guard.wait(timeout=60)
        self._guard = None
