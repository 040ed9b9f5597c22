"""Device maps become a partition of the modules; impossible ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attnscope.core.errors import RefusalError
from attnscope.hf.loading.classes import device_named
from attnscope.hf.loading.load import load
from attnscope.hf.loading.options import read_device_map, spread
from tests.command import attnscope
from tests.specimens import tiny_llama

TREE = {"": ["a", "b"], "a": ["a.0", "a.1"], "a.0": ["a.0.w"], "a.1": ["a.1.w"], "b": ["b.w"]}


def test_longest_name_wins_and_parts_do_not_overlap() -> None:
    assert spread({"": "cpu", "a.1": "disk"}, TREE, "m") == {"a.0": "cpu", "a.1": "disk", "b": "cpu"}
    assert spread({"a": "disk", "b": "cpu", "a.0.w": 0}, TREE, "m") == {"a.0.w": 0, "a.1": "disk", "b": "cpu"}
    assert spread({"": "cpu"}, TREE, "m") == {"": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny_llama().save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "The device map is empty"),
        ({"": "cpu", "transformer.h.3": "disk"}, "names 'transformer.h.3', but .* has no such part"),
        ({"model.layers": "disk"}, "leaves out 'model.embed_tokens'"),
        ({"": "gpu0"}, "There is no device 'gpu0'"),
        ({"": 7}, "is not available"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_impossible_maps_are_refused(folder: Path, asked: Any, said: str) -> None:
    with pytest.raises(RefusalError, match=said):
        load(str(folder), device_map=asked)


def test_files_that_are_not_maps_are_refused_before_loading(tmp_path: Path) -> None:
    wrong = {"list.json": "[1]", "text.json": "no json", "numbers.json": '{"a": 1.5}', "truth.json": '{"": true}'}
    for name, content in wrong.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(RefusalError, match=r"not a mapping|not a device"):
            read_device_map(tmp_path / name)
    with pytest.raises(RefusalError, match="There is no file"):
        read_device_map(str(tmp_path / "missing.json"))
    (tmp_path / "map.json").write_text(json.dumps({"": "cpu"}))
    assert read_device_map(str(tmp_path / "map.json")) == {"": "cpu"}
    assert read_device_map("auto") is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device_map": "auto", "stream_weights": True}, "give only one"),
        ({"stream_weights": True, "random_init": True}, "`random_init=True` has none"),
        ({"device_map": "auto", "device": "cuda"}, "exclude each other|not available"),
    ],
    ids=str,
)
def test_conflicting_options_are_refused(folder: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusalError, match=said):
        load(str(folder), **options)


def test_a_gguf_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(RefusalError, match=r"`stream_weights=` reads weights in parts.*GGUF.*safetensors"):
        load(str(tmp_path / "model.gguf"), stream_weights=True)


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq"])
def test_quantised_weights_are_refused_whichever_way_they_are_placed(folder: Path, tmp_path: Path, method: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": method}}))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    for options in ({}, {"device_map": "auto"}, {"stream_weights": True}):
        with pytest.raises(RefusalError, match=rf"quantised \({method}\).*GGUF"):
            load(str(tmp_path), **options)


def test_auto_uses_the_accelerator_if_there_is_one(folder: Path) -> None:
    """`auto` is the accelerator or else the CPU; an automatic device map fills memory before the disk."""
    assert device_named("auto") == (torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu"))
    loaded = load(str(folder), device_map="auto")
    assert set(loaded.provenance["placed"]) == {"cpu"} or torch.accelerator.is_available()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_take_two_bytes(tmp_path: Path, dtype: torch.dtype) -> None:
    """Every stored and every loaded weight has two bytes."""
    tiny_llama().to(dtype).save_pretrained(tmp_path)
    for streamed in (False, True):
        model = load(str(tmp_path), dtype="auto", stream_weights=streamed).model
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    wide = load(str(tmp_path), dtype="float32", stream_weights=True).model
    assert {parameter.dtype for parameter in wide.parameters()} == {torch.float32}


def test_command_refuses_in_one_sentence(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text('{"": "cpu", "no.such.layer": "disk"}')
    done = attnscope("scan", folder, "--device-map", tmp_path / "map.json", "--out", tmp_path / "o")
    assert done.returncode == 2
    assert "no.such.layer" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "o").exists()
