"""Shards as arrays: packing loses nothing, and adding arrays equals merging surveys, bit for bit."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnscope
from attnscope.commands.scan.survey.builder import NotMeasured
from attnscope.commands.scan.survey.cell import Cell, Key
from attnscope.commands.scan.survey.packed import pack, unpack
from attnscope.commands.scan.survey.shards import PLAN, ShardId, Store, from_bytes, shard_name, to_bytes
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Card
from attnscope.core.errors import RefusalError
from attnscope.core.folders import open_folder
from attnscope.core.registry import measures

CARDS: dict[str, Card] = {
    name: replace(one.card, low=-np.inf, high=np.inf)  # the values below have all signs and sizes
    for name, one in measures().items()
    if name in ("entropy", "spike", "qk_spectrum")
}
PLAN_OF = {"seed": 0, "samples": 24}
DIGEST = "ab" * 32


def _cells(seed: int, weights: bool) -> dict[Key, Cell]:
    """Return cells with ties, zeros, NaN, the largest and smallest floats, and labels in some places only."""
    draw = np.random.default_rng(seed)
    odd = np.array([0.0, -0.0, 1e300, -1e-300, 5e-324, np.nan, np.inf, 1.0, 1.0])
    cells: dict[Key, Cell] = {}
    samples = np.arange(6) + 6 * seed
    for layer in range(3):
        values = np.where(draw.random((6, 4)) < 0.3, draw.choice(odd, (6, 4)), draw.normal(size=(6, 4)))
        cells[Key("entropy", CARDS["entropy"].parts[0], "decoder", "self", layer)] = Cell.of(values, {}, samples)
        where = {} if layer == seed else {"token": draw.integers(0, 3, (6,)), "channel": draw.integers(0, 9, (6,))}
        cells[Key("spike", CARDS["spike"].parts[0], "decoder", "stream", layer)] = Cell.of(values[:, 0], where, samples)
    if weights:
        key = Key("qk_spectrum", CARDS["qk_spectrum"].parts[0], "decoder", "self", 0)
        cells[key] = Cell.of(np.ones((1, 4)), {}, None)
    return dict(sorted(cells.items()))


def _survey(seed: int) -> Survey:
    provenance: dict[str, Any] = {
        "model": {"name": "m", "hash": "h", "stacks": [{"name": "decoder", "tokens": 60}]},
        "corpus": {"name": "c", "hash": "x", "sequences": 6, "tokens": 60},
        "dtype": "float32",
    }
    return Survey(provenance, CARDS, _cells(seed, weights=seed == 0))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.open(tmp_path / "store", PLAN_OF, DIGEST, 4)
    for number in range(4):
        made.write(number, _survey(number), NotMeasured())
    return made


def test_packing_loses_nothing() -> None:
    for seed in range(3):
        cells = _cells(seed, weights=False)
        assert unpack(*pack(cells)) == cells
    assert unpack(*pack({})) == {}


def test_a_shard_file_is_the_survey(tmp_path: Path) -> None:
    data = to_bytes(ShardId(PLAN_OF, DIGEST, 3, 4), _survey(0), NotMeasured({"entropy": frozenset({"x"})}))
    read = from_bytes(data, "here")
    assert (read.shard_id.number, read.shard_id.of, read.sequences, read.tokens) == (3, 4, 6, {"": 60, "decoder": 60})
    assert read.missing.lacking == {"entropy": {"x"}}
    for broken in (data[:-9], b"", data[:40], b"x" * 99):
        with pytest.raises(RefusalError, match="not a complete shard"):
            from_bytes(broken, "here")


def test_a_flipped_bit_is_detected_anywhere_in_a_shard() -> None:
    """Most of a shard is numbers that would be added without notice, so every part after the header is tried."""
    data = to_bytes(ShardId(PLAN_OF, DIGEST, 3, 4), _survey(0), NotMeasured())
    start = 8 + int.from_bytes(data[:8], "little")  # safetensors: the length of the header, and the header
    for byte in range(start, len(data), 101):
        turned = bytearray(data)
        turned[byte] ^= 1 << byte % 8
        with pytest.raises(RefusalError, match="not a complete shard"):
            from_bytes(bytes(turned), "here")
    from safetensors.numpy import load, save

    arrays = load(data)
    arrays.pop("sha256")
    with pytest.raises(RefusalError, match=r"not a complete shard \(it has no hash\): remove it and run its shard"):
        from_bytes(save(arrays), "here")


def test_the_fold_is_the_merge_of_surveys_in_any_order(store: Store, tmp_path: Path) -> None:
    merged = attnscope.merge(str(store.folder))
    for order in itertools.islice(itertools.permutations(range(4)), 0, 24, 7):
        slow = _survey(order[0])
        for number in order[1:]:
            slow = slow | _survey(number)
        assert merged.cells == slow.cells
        assert merged.cards == slow.cards
        assert merged.provenance == slow.provenance
    files = [tmp_path / "store" / shard_name(DIGEST, number) for number in (2, 0, 3, 1)]
    assert attnscope.merge(files).cells == merged.cells


def test_surveys_are_merged_too(tmp_path: Path) -> None:
    paths = [_survey(number).save(tmp_path / f"{number}.json") for number in range(2)]
    assert attnscope.merge(paths).cells == (_survey(0) | _survey(1)).cells
    with pytest.raises(RefusalError, match=r"The survey .*0\.json is given twice"):
        attnscope.merge([*paths, paths[0]])
    with pytest.raises(RefusalError, match="A survey is given twice"):
        attnscope.merge([_survey(0), _survey(0)])
    for nothing in (tmp_path, tmp_path / "not there"):
        with pytest.raises(RefusalError, match="neither a store of shards nor a survey"):
            attnscope.merge(nothing)
    with pytest.raises(RefusalError, match="nothing to merge"):
        attnscope.merge([])


def test_a_missing_shard_is_refused_or_noted(store: Store) -> None:
    store.folder.remove(shard_name(DIGEST, 2))
    with pytest.raises(RefusalError, match=r"Shard 2 of 4 \(counted from 0\) is missing"):
        attnscope.merge(str(store.folder))
    partial = attnscope.merge(str(store.folder), partial=True)
    assert partial.provenance["corpus"]["sequences"] == 18
    assert "Shard 2 of 4" in partial.provenance["notes"][0]
    assert store.done() == {0, 1, 3}


def test_a_doubled_shard_and_one_of_another_plan_are_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "copy.shard").write_bytes(store.folder.read(shard_name(DIGEST, 1)))
    with pytest.raises(RefusalError, match="Shard 1 is given twice"):
        attnscope.merge([str(store.folder), tmp_path / "copy.shard"])
    other = Store.open(tmp_path / "other", PLAN_OF | {"seed": 5}, "cd" * 32, 4)
    other.write(0, _survey(0), NotMeasured())
    with pytest.raises(RefusalError, match=r"another plan .*another seed"):
        attnscope.merge([str(store.folder), str(other.folder)])
    with pytest.raises(RefusalError, match="cannot be merged in one call"):
        attnscope.merge([str(store.folder), _survey(1).save(tmp_path / "survey.json")])


def test_a_store_is_for_one_plan(store: Store, tmp_path: Path) -> None:
    assert Store.open(tmp_path / "store", PLAN_OF, DIGEST, 4).done() == {0, 1, 2, 3}
    with pytest.raises(RefusalError, match=r"holds shards of another plan .another samples"):
        Store.open(tmp_path / "store", PLAN_OF | {"samples": 9}, "cd" * 32, 4)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear reader")
    with pytest.raises(RefusalError, match="is not empty and holds no shards"):
        Store.open(tmp_path / "full", PLAN_OF, DIGEST, 4)
    (tmp_path / "store" / PLAN).write_text("{}")
    with pytest.raises(RefusalError, match="no store of shards"):
        Store.open(tmp_path / "store", PLAN_OF, DIGEST, 4)
    (tmp_path / "file").write_text("")
    with pytest.raises(RefusalError):
        Store.open(tmp_path / "file" / "store", PLAN_OF, DIGEST, 4)


def test_a_store_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    made = Store.open("memory://attnscope-test/shards", PLAN_OF, DIGEST, 2)
    for number in range(2):
        made.write(number, _survey(number), NotMeasured())
    assert made.done() == {0, 1}
    assert attnscope.merge("memory://attnscope-test/shards").cells == (_survey(0) | _survey(1)).cells
    made.folder.remove(shard_name(DIGEST, 1))
    assert made.done() == {0}
    with pytest.raises(RefusalError, match="cannot be opened"):
        attnscope.merge("nonsense://there")


def test_many_shards_of_one_layout_are_one_sum(tmp_path: Path) -> None:
    """Use more codes than are held before sorting, and the same shard many times: counts and sums must grow."""
    made = Store.open(tmp_path / "many", PLAN_OF, DIGEST, 30)
    one = replace(_survey(1), cells=_cells(1, weights=False))
    for number in range(30):
        made.write(number, one, NotMeasured())
    merged = attnscope.merge(tmp_path / "many")
    for key, cell in one.cells.items():
        np.testing.assert_array_equal(merged.cells[key].moments.count, 30 * cell.moments.count)
        assert (merged.cells[key].moments.total == 30 * cell.moments.total).all()
        np.testing.assert_array_equal(merged.cells[key].sketch.tally.counts, 30 * cell.sketch.tally.counts)


def test_an_address_of_this_machine_is_a_folder(tmp_path: Path) -> None:
    """A file that fsspec writes is visible before it is complete, so a killed writer would leave half a shard."""
    pytest.importorskip("fsspec")
    where = open_folder(f"file://{tmp_path / 'shards'}/")
    assert str(where) == str(tmp_path / "shards")
    assert where == open_folder(tmp_path / "shards")
