"""TensorBoard event files, read back record by record, hold every look under its documented names."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnscope.commands.watch import writers as room
from attnscope.commands.watch.writers import Writers, images, scalars
from attnscope.core.errors import RefusalError
from tests.commands.timeline.sample import header, look, looks

pytest.importorskip("tensorboardX")


def _events(folder: Path) -> list[Any]:
    """Event files are records: length (8 bytes), its checksum (4), the event, its checksum (4)."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for file in sorted(folder.rglob("events.out.tfevents.*")):
        content, at = file.read_bytes(), 0
        while at < len(content):
            (size,) = struct.unpack_from("<Q", content, at)
            found.append(Event.FromString(content[at + 12 : at + 12 + size]))
            at += 16 + size
    return found


def test_scalars_images_and_alarms_arrive(tmp_path: Path) -> None:
    writers = Writers.of("tensorboard", tmp_path)
    writers.open(header())
    written = looks(20)
    for entry in written:
        writers.write(entry)
    writers.close()
    numbers: dict[str, dict[int, float]] = {}
    pictures: dict[str, set[int]] = {}
    texts: list[str] = []
    for event in _events(tmp_path / "tensorboard"):
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            if kind == "simple_value":
                numbers.setdefault(value.tag, {})[event.step] = value.simple_value
            elif kind == "image":
                assert value.image.encoded_image_string.startswith(b"\x89PNG")
                pictures.setdefault(value.tag, set()).add(event.step)
            elif kind == "tensor":
                texts += [text.decode() for text in value.tensor.string_val]
    before = None
    for entry in written:
        for name, expected in scalars(entry, before).items():
            # event files hold float32: half a unit in the 24th bit
            assert numbers[name][entry.step] == pytest.approx(expected, rel=2**-24)
        before = entry
    assert numbers["attnscope/entropy/model/self/layer_1"].keys() == {entry.step for entry in written}
    assert pictures["attnscope/entropy/model/self/heads"] == {50, 550, 850}  # every tenth entry, and where an alarm is
    assert numbers["attnscope/alarms"][800] == 0
    assert numbers["attnscope/alarms"][850] == 1
    assert any("Entropy collapses in block 1" in text for text in texts)


def test_names_are_those_that_are_documented() -> None:
    said = scalars(look(3))
    assert said["attnscope/spike.second/model/stream/layer_2"] == pytest.approx(10.6)
    assert said["attnscope/entropy/model/self/smallest"] == look(3).values[4].numbers.min()
    assert said["attnscope/entropy/model/self/layer_1"] == pytest.approx(look(3).values[4].numbers[1].mean())
    # 200 steps of 2,048 tokens in 16 seconds
    assert said["attnscope/tokens_a_second"] == 200 * 2048 / 16
    assert {name for name in said if name.count("/") == 1} == {
        *("attnscope/cost", "attnscope/tokens", "attnscope/loss", "attnscope/tokens_a_second")
    }
    drawn = images(look(3), header().measures)
    assert set(drawn) == {"attnscope/entropy/model/self/heads", "attnscope/sink_mass/model/self/heads"}
    assert drawn["attnscope/sink_mass/model/self/heads"].shape == (24, 36, 3)
    assert drawn["attnscope/sink_mass/model/self/heads"].dtype == np.uint8


def test_a_logger_that_is_not_there_is_refused_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "find_spec", lambda _: None)
    with pytest.raises(RefusalError, match=r"needs wandb, which is not installed: pip install 'attnscope\[wandb\]'\."):
        Writers.of(("wandb",), tmp_path)
    with pytest.raises(RefusalError, match=r"no writer called 'tensorbord'\. Did you mean 'tensorboard'"):
        Writers.of("tensorbord", tmp_path)


class _Failing:
    """A logger whose server goes away after the first look."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.closed = False

    def open(self, _: object) -> None: ...

    def write(self, one: Any) -> None:
        if self.written:
            raise ConnectionError("the server is gone")
        self.written.append(one.step)

    def close(self) -> None:
        self.closed = True


def test_a_logger_that_fails_is_left_out_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    failing = _Failing()
    writers = Writers.of(("tensorboard", failing), tmp_path)
    writers.open(header())
    for one in looks(4):
        writers.write(one)
    assert len(writers) == 1
    writers.close()
    assert failing.written == [50]
    assert [record.message for record in caplog.records] == [
        "_Failing is skipped from now on (ConnectionError: the server is gone); the training goes on."
    ]
    steps = {event.step for event in _events(tmp_path) if event.summary.value}
    assert steps == {50, 100, 150, 200}
