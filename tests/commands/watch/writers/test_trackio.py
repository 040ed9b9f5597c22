"""trackio, in a folder of its own: what it stored is read back. Runs where trackio is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trackio")

ROOT = Path(__file__).parents[4]
PROGRAM = """
import sys
from attnscope.commands.watch.writers import Writers
from attnscope.commands.watch.writers import scalars
from tests.commands.timeline.sample import header, looks
writers = Writers.of("trackio", sys.argv[1])
writers.open(header())
written = looks(18)
for one in written:
    writers.write(one)
assert len(writers) == 1, "it failed"
writers.close()
from trackio.sqlite_storage import SQLiteStorage
rows = SQLiteStorage.get_logs("attnscope", "run")
assert [row["step"] for row in rows] == [one.step for one in written], rows
for name, expected in scalars(written[3], written[2]).items():
    assert abs(rows[3][name] - expected) <= 1e-9 * abs(expected), (name, rows[3][name], expected)
assert any("Entropy collapses" in str(alert) for alert in SQLiteStorage.get_alerts("attnscope")), "no alert"
print("read back")
"""


def test_looks_are_in_its_store(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "run")],
        cwd=ROOT,
        env={**os.environ, "TRACKIO_DIR": str(tmp_path / "store"), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "read back" in done.stdout, done.stderr
