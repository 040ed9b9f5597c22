"""`scan` and `collapse` of folders of pictures and sounds give the numbers of the same batches made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

import attnscope
from tests.command import attnscope as command
from tests.commands.explain.test_media import classifier, pixels_of
from tests.data.test_medium import wav
from tests.specimens import save_specimen


def ears() -> hf.Wav2Vec2Model:
    """Return an audio model with one step per 20 samples."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    steps = {"conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_feat_extract_layers": 2}
    places = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
    return hf.Wav2Vec2Model(hf.Wav2Vec2Config(**sizes, **steps, **places)).eval()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Five pictures of different sizes, which are scaled to one size."""
    place = tmp_path / "photos"
    place.mkdir()
    draw = np.random.default_rng(0)
    for number in range(5):
        pixels = draw.integers(0, 255, (30 + number, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    return place


def test_a_folder_of_pictures_gives_what_its_batches_give(photos: Path) -> None:
    model = classifier()
    rows = [pixels_of(model, np.asarray(Image.open(file))) for file in sorted(photos.iterdir())]
    by_hand = attnscope.scan(model, [{"pixel_values": torch.cat(part)} for part in (rows[:2], rows[2:4], rows[4:])])
    found = attnscope.scan(model, photos, batch_size=2)
    assert found.cells == by_hand.cells
    assert found.provenance["corpus"]["name"] == "photos"
    assert found.provenance["corpus"]["sequences"] == 5


def test_some_of_them_are_drawn_and_depth_is_measured(photos: Path) -> None:
    assert attnscope.scan(classifier(), photos, samples=3).provenance["corpus"]["sequences"] == 3
    found = attnscope.collapse(classifier(), photos, samples=2, bounds=False)
    assert {int(n) for curve in found.curves.values() for n in curve.n} == {2}


def test_sounds_of_other_lengths_are_batches_of_their_own(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for number, length in enumerate((1600, 1600, 2400)):
        wav(tmp_path / f"{number}.wav", (draw.standard_normal(length) * 8000).astype(np.int16), rate=16000)
    found = attnscope.scan(ears(), tmp_path)
    assert found.provenance["corpus"]["sequences"] == 3


def test_from_the_command_line(photos: Path, tmp_path: Path) -> None:
    classifier().save_pretrained(tmp_path / "vit")
    done = command("scan", tmp_path / "vit", photos, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "out" / "survey.json").read_text())
    assert written["provenance"]["corpus"]["sequences"] == 5


def test_pictures_for_a_model_of_texts_are_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(attnscope.RefusalError, match=r"reads text.* and no pictures"):
        attnscope.scan(str(save_specimen(tmp_path / "model")), photos)
