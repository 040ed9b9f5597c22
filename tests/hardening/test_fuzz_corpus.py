"""Inputs that `make fuzz` found, read again without atheris: each gives a value or a refusal, and nothing else happens.

`python -m tools.fuzz --pack` writes the archives, one for each reader: the minimised corpus, and inputs that broke a
reader once (found-*). The other tests write the defects out.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnscope.commands.scan.survey.builder import NotMeasured
from attnscope.commands.scan.survey.merge import merge
from attnscope.commands.scan.survey.shards import HASH, ShardId, content_hash, to_bytes
from attnscope.core.errors import RefusalError
from tests.commands.scan.survey.sample import sample_survey
from tools.fuzz.readers import READERS, check, lowered_bounds, prepare

ARCHIVES = Path(__file__).parent / "fuzz"


@pytest.mark.parametrize("name", READERS)
def test_every_input_that_fuzzing_found_is_read_or_refused(name: str, tmp_path: Path) -> None:
    for other in {name, *(content.decode("latin1") for content in (READERS[name].beside or {}).values())} & {*READERS}:
        with zipfile.ZipFile(ARCHIVES / f"{other}.zip") as archive:
            seeds = [entry for entry in archive.namelist() if entry.startswith("seed-")]
            for seed in seeds:
                archive.extract(seed, tmp_path / "seeds" / other)
    path = prepare(tmp_path / "read", READERS[name], tmp_path / "seeds")
    with zipfile.ZipFile(ARCHIVES / f"{name}.zip") as archive, lowered_bounds():
        for entry in archive.namelist():
            check(READERS[name], path, archive.read(entry))


def test_the_archives_stay_small() -> None:
    assert {file.name for file in ARCHIVES.iterdir()} == {f"{name}.zip" for name in READERS}
    assert sum(file.stat().st_size for file in ARCHIVES.iterdir()) < 1 << 20


def _refusal(name: str, tmp_path: Path, data: bytes) -> str:
    refusal = check(READERS[name], prepare(tmp_path / "read", READERS[name], tmp_path), data)
    assert isinstance(refusal, RefusalError), refusal
    return refusal.sentence


def _shard(tmp_path: Path, document: dict[str, Any] | None = None, changed: dict[str, Any] | None = None) -> Path:
    """Return a shard with some fields and arrays replaced, and a hash that fits."""
    from safetensors.numpy import load, save

    shard_id = ShardId({"seed": 0}, "ab" * 32, 0, 1)
    arrays = load(to_bytes(shard_id, sample_survey(1, 2, 2), NotMeasured()))
    told = {**json.loads(arrays["document"].tobytes()), **(document or {})}
    arrays |= {"document": np.frombuffer(json.dumps(told).encode(), np.uint8), **(changed or {})}
    del arrays[HASH]
    arrays[HASH] = np.frombuffer(content_hash(arrays), np.uint8)
    path = tmp_path / "a.shard"
    path.write_bytes(save(arrays))
    return path


def test_a_shard_whose_hash_fits_and_whose_arrays_do_not_is_refused(tmp_path: Path) -> None:
    numbers = len(merge(_shard(tmp_path)).table())
    wrong: dict[str, np.ndarray] = {
        "count": np.zeros(1, np.int64),
        "minimum": np.zeros(numbers, np.int64),
        "total.low": np.full(numbers, 2**15 - 1, np.int16),
        "total.negative": np.zeros(1, np.uint8),
        "sketch.lengths": np.full(numbers, 2**31 - 1, np.int32),
        "layout": np.frombuffer(b"[[1]]", np.uint8),
    }
    for name, array in wrong.items():
        with pytest.raises(RefusalError, match="not a complete shard"):
            merge(_shard(tmp_path, changed={name: array}))
    heads = json.dumps([[["entropy", "value", "decoder", "self", 0], 2**62, [], []]]).encode()
    with pytest.raises(RefusalError, match="not a complete shard"):
        merge(_shard(tmp_path, changed={"layout": np.frombuffer(heads, np.uint8)}))


@pytest.mark.parametrize(
    "document",
    [
        {"of": 10**18},
        {"number": -1},
        {"sequences": "6"},
        {"tokens": {}},
        {"tokens": []},
        {"origin": "x"},
        {"origin": "[]"},
        {"origin": '{"model": {}, "corpus": {}}'},
        {"cards": "{}"},
        {"cards": "null"},
        {"weights": "[{}]"},
        {"missing": {"lacking": 5}},
        {"plan": None},
    ],
)
def test_a_shard_whose_hash_fits_and_whose_document_does_not_is_refused(
    document: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(RefusalError, match="not a complete shard"):
        merge(_shard(tmp_path, document), partial=True)


def test_a_gguf_header_that_counts_more_than_the_file_holds_is_refused_before_memory_is_full(tmp_path: Path) -> None:
    key = struct.pack("<Q", 1) + b"k"
    for fields, value in ((2**60, b""), (1, struct.pack("<IIQ", 9, 4, 2**60)), (1, struct.pack("<I", 99))):
        data = b"GGUF" + struct.pack("<IQQ", 3, 0, fields) + key + value
        assert "is damaged or cut short" in _refusal("model.gguf", tmp_path, data)


def test_refusals_quote_a_few_words_of_a_file_only(tmp_path: Path) -> None:
    long = "x" * 50_000
    for name, document in (
        ("record.json", {"format": "attnscope-collapse", "version": long}),
        ("record.json", {"format": "attnscope-collapse", "version": [long]}),  # cannot be looked up in a mapping
        ("run.json", {"format": "attnscope-run", "version": long}),
        ("attnscope.json", {"format": "attnscope-treated", "version": long, "attnscope": long}),
        ("corpus.jsonl", {long: 1}),
        ("config.json", {"model_type": "llama", "num_hidden_layers": 10**4000}),
    ):
        assert len(_refusal(name, tmp_path, json.dumps(document).encode())) < 1000


def test_numbers_beyond_float64_are_refused_or_ignored(tmp_path: Path) -> None:
    plan = b'{"format": "attnscope-shards", "version": 1, "plan": {}, "digest": "", "of": 1e999}'
    assert "no store of shards" in _refusal("plan.json", tmp_path, plan)
    part = b'{"answer": 1e999, "seconds": 1, "sha256": ""}'
    assert "has been changed" in _refusal("part.json", tmp_path, part)
    state = b'{"log_history": [{"loss": 1%s, "step": 1}]}' % (b"0" * 400)
    reader = READERS["trainer_state.json"]
    assert check(reader, prepare(tmp_path / "7", reader, tmp_path), state)[0] is None


def test_half_a_character_in_a_target_is_refused(tmp_path: Path) -> None:
    assert "half a character" in _refusal("prompts.jsonl", tmp_path, b'{"text": "a", "target": "\\ud800"}')


def test_a_lock_with_an_impossible_process_is_not_held(tmp_path: Path) -> None:
    import socket

    for number in ("9" * 18, "9" * 5000):
        path = prepare(tmp_path, READERS["run.lock"], tmp_path)
        assert check(READERS["run.lock"], path, f"{number} {socket.gethostname()}\n".encode()) is False


def test_text_that_no_python_string_holds_is_refused_in_a_pattern(tmp_path: Path) -> None:
    out = io.BytesIO()
    odd = np.frombuffer(b"\xff\xff\xff\x7f" * 2, "<U1")
    np.savez(out, rows=odd, columns=np.zeros(2, np.int64))
    assert "not numbers" in _refusal("pattern.npz", tmp_path, out.getvalue())


def test_a_training_checkpoint_with_other_moments_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save

    weights = {"weight": np.zeros((2, 2), np.float32), "bias": np.zeros(2, np.float32), "losses": np.zeros(2)}
    step = {"optimiser/step/bias": np.zeros((), np.float32)}
    whole = {f"optimiser/{name}/bias": np.zeros(2, np.float32) for name in ("exp_avg", "exp_avg_sq")}
    assert "cannot be read" in _refusal("kept.safetensors", tmp_path, save({"weight": weights["weight"]}))
    for moments in (
        step,
        {"optimiser/x": np.zeros(2)},
        {**whole, "optimiser/step/nothing": np.zeros(())},
        {**whole, "optimiser/step/bias": np.full((), -1e9, np.float32)},
        {name: value.astype(np.int64) for name, value in {**whole, **step}.items()},
    ):
        assert "is of another model" in _refusal("kept.safetensors", tmp_path, save({**weights, **moments}))
