"""The two-way decoder of MobileSAM with trained weights, on a photograph with one point in a face."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from skimage import data
from torch import Tensor
from torch.nn.functional import interpolate

import attnscope
from tests.explanations.two_way import row_of
from tools.mobile_sam import mobile_sam, prompted

pytestmark = pytest.mark.real
POINT, BESIDE = (220.0, 120.0), (235.0, 140.0)  # column and row, both in the face
PLACES = 64  # rows and columns of the picture's embedding
Batch = dict[str, Tensor]


@pytest.fixture(scope="module")
def seen() -> tuple[Any, Batch]:
    """Return the decoder in float64, its inputs, and its mask with the highest score."""
    model = mobile_sam()
    batch = prompted(data.astronaut(), [POINT])
    with torch.no_grad():
        embedded = model.vision_encoder(batch["pixel_values"]).last_hidden_state
    return model.double(), {
        "image_embeddings": embedded.double(),
        "input_points": batch["input_points"].double(),
    }


@torch.no_grad()
def mask(model: Any, batch: Batch, number: int) -> Tensor:
    """Return which of 256 x 256 pixels belong to the mask."""
    return model(**batch).pred_masks[0, 0, number] > 0


def test_the_encoder_is_the_one_that_the_decoder_was_trained_with(seen: tuple[Any, Batch]) -> None:
    """Another point of the same face gives the same mask, which it would not with a wrong encoder."""
    model, batch = seen
    scores = model(**batch).iou_scores[0, 0]
    best = int(scores.argmax())
    assert float(scores[best]) > 0.9
    one = mask(model, batch, best)
    moved = prompted(data.astronaut(), [BESIDE])["input_points"].double()
    other = mask(model, {**batch, "input_points": moved}, best)
    assert int((one & other).sum()) > 0.9 * int((one | other).sum())
    assert 0.01 < float(one.double().mean()) < 0.1
    assert bool(one[60, 110])  # the point itself, of 512 pixels
    assert not bool(one[:20].any() | one[150:].any())  # the wall above the hair, the suit


@pytest.mark.thorough
def test_relevance_of_a_score(seen: tuple[Any, Batch], monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference computes all equations with full patterns; the score comes from the decoder's first token."""
    model, batch = seen
    value, to_tokens, to_picture = row_of(model, lambda: model(**batch).iou_scores[0, 0, 0], 0, 2, monkeypatch)
    found = attnscope.explain(model, batch, target=0, methods="relevance", dtype="float64")
    assert found.value == pytest.approx(value, rel=1e-10)
    assert found.inputs[0].grid == (PLACES, PLACES)
    # Sums of nonnegative terms, with about ten thousand roundings each.
    for numbers, expected in zip(found.methods[0].scores, (to_picture, to_tokens), strict=True):
        assert numbers == pytest.approx(expected.tolist(), abs=1e-10 * float(expected.max()))
    # The face gets many times the relevance of its share of the area.
    inside = interpolate(mask(model, batch, 0)[None, None].double(), (PLACES, PLACES), mode="area").flatten() > 0.5
    assert float(to_picture[inside].sum() / to_picture.sum()) > 5 * float(inside.double().mean())
