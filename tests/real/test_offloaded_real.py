"""A real language model with half of its blocks on disk gives the same survey as in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attnscope.commands.scan.run import scan
from attnscope.commands.scan.survey.survey import Survey
from attnscope.hf.loading.load import load
from tools.fetch_models import unquantised

pytestmark = pytest.mark.real

TEXT = "The capital of France is Paris. The capital of Italy is Rome."


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dequantise the model from 4 bits, and save it in bfloat16 in several files."""
    folder = tmp_path_factory.mktemp("smollm2")
    loaded = load(str(unquantised("smollm2")), dtype="bfloat16")
    save: Any = loaded.model.save_pretrained
    save(folder, max_shard_size="100MB")
    assert loaded.tokenizer is not None
    loaded.tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.thorough
def test_half_of_the_blocks_on_disk_give_the_same_survey(smollm2: Path) -> None:
    def scanned(**options: Any) -> Survey:
        return scan(str(smollm2), [TEXT], samples=1, max_tokens=12, bos="yes", **options)

    whole = scanned()
    half = {"": "cpu", **{f"model.layers.{number}": "disk" for number in range(0, 30, 2)}}
    spread = scanned(device_map=half)
    assert spread.cells == whole.cells
    assert spread.provenance["model"]["hash"] == whole.provenance["model"]["hash"]
    placed = spread.provenance["model"]["placed"]
    width, inner, shared = 576, 1536, 3 * 64  # of a block: queries and outputs, keys and values, MLP, two norms
    assert placed["disk"] == 15 * (2 * width * width + 2 * width * shared + 3 * width * inner + 2 * width)
