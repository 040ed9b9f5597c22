"""Weights & Biases, offline: the run file on disk holds every look. Runs where wandb is installed."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnscope.commands.watch.writers import Writers, scalars
from tests.commands.timeline.sample import header, looks

pytest.importorskip("wandb")


def _records(content: bytes, block: int = 32768) -> Iterator[bytes]:
    """Yield the records of a run file, a log in LevelDB format: a header of seven bytes, then blocks of pieces, each
    with a checksum (4 bytes), a length (2) and a kind (1): whole, first, middle or last."""
    at, whole = 7, b""
    while at + 7 <= len(content):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, size, kind = struct.unpack_from("<LHB", content, at)
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield whole
            whole = b""


def _finished(file: Path, kind: Any) -> list[Any]:
    """Return all records. The service of wandb writes the last ones shortly after `finish` has returned."""
    until = time.monotonic() + 60
    while True:
        found = [kind.FromString(content) for content in _records(file.read_bytes())]
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            return found
        assert time.monotonic() < until, "the run was never finished"
        time.sleep(0.2)


def test_looks_are_in_the_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wandb.proto import wandb_internal_pb2

    for name, value in {"MODE": "offline", "SILENT": "true", "DIR": str(tmp_path)}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    writers = Writers.of("wandb", tmp_path / "run")
    writers.open(header())
    written = looks(18)
    for look in written:
        writers.write(look)
    assert len(writers) == 1  # none has failed
    writers.close()
    (file,) = tmp_path.rglob("run-*.wandb")
    rows, alerts = [], []
    for record in _finished(file, wandb_internal_pb2.Record):
        if record.WhichOneof("record_type") == "history":
            rows.append({item.key or "/".join(item.nested_key): item.value_json for item in record.history.item})
        elif record.WhichOneof("record_type") == "alert":
            alerts.append(record.alert.text)
    assert [json.loads(row["attnscope/step"]) for row in rows] == [look.step for look in written]
    for name, expected in scalars(written[3], written[2]).items():
        assert json.loads(rows[3][name]) == pytest.approx(expected)
    assert json.loads(rows[0]["attnscope/entropy/model/self/heads/_type"]) == "image-file"
    assert any("Entropy collapses in block 1" in text for text in alerts)
