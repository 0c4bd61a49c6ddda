"""The runner of the long random runs: an early end is clean, reports, and says how to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

RUN = Path(__file__).parent / "soak" / "run.py"


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_an_early_end_leaves_nothing_but_a_report(ending: signal.Signals) -> None:
    command = [sys.executable, str(RUN), "--only", "language", "--texts", "100000000", "--seed", "7", "--jobs", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as run:
        try:
            assert run.stdout is not None
            assert "first seed 7" in run.stdout.readline()
            process = psutil.Process(run.pid)
            while not (workers := process.children(recursive=True)):
                assert run.poll() is None
            # To the whole group, as a terminal does.
            os.killpg(run.pid, ending) if ending is signal.SIGINT else run.send_signal(ending)
            told = run.communicate(timeout=60)[0]
        finally:
            run.kill()
    assert run.returncode == 130
    assert "go on with: python tests/soak/run.py --seed 7 --events 0 --calm 0 --drifting 0 --texts 100000000" in told
    assert "language: 0 failures; 0 texts" in told
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
