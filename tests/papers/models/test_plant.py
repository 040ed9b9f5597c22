"""A head in the weights: the model holds the pattern, whatever tokens it reads, and its checkpoint too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.data.frame import AttentionFrame
from attnscope.heads.head import Head
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.intercepting.recompute import dense_pattern
from attnscope.hf.tapping.tap import tap
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.models.plant import plant


def a_head(n: int = 9, width: int = 3, causal: bool = True, seed: int = 0) -> Head:
    generator = torch.Generator().manual_seed(seed)
    queries, keys = (torch.randn(n, width, generator=generator) * 2 for _ in range(2))
    return Head(queries, keys, causal, "by hand")


def a_model(**settings: Any) -> Nano:
    every = {"vocab_size": 20, "width": 24, "heads": 3, "layers": 2, "norm": "none", "causal": True, "max_tokens": 12}
    return Nano(Config(**{**every, **settings}), seed=1).eval()


def ids(tokens: int = 9) -> Tensor:
    return torch.randint(0, 20, (2, tokens), generator=torch.Generator().manual_seed(0))


def first_layer(model: Nano, **batch: Tensor) -> Tensor:
    caught: list[Tensor] = []

    def receive(frame: object) -> None:
        if isinstance(frame, AttentionFrame) and frame.layer == 0:
            caught.append(dense_pattern(frame.scores))

    with torch.no_grad(), tap(model, anatomy(model, batch), receive):
        model(**batch)
    return caught[0]


@pytest.mark.parametrize("settings", [{}, {"mlp": 16}, {"biases": False, "head_width": 11}])
def test_the_pattern_is_seen_through_the_tap(settings: dict[str, Any]) -> None:
    model, head = a_model(**settings), a_head()
    plant(model, head, head_index=1)
    for tokens in (9, 4):
        seen = first_layer(model, input_ids=ids(tokens))[:, 1]
        assert float((seen - head.attention(0, tokens)[:, :tokens]).abs().max()) < 1e-5


def test_vectors_and_both_directions() -> None:
    model, head = a_model(vocab_size=None, inputs=2, inputs_hidden=6, out=2, causal=False), a_head(causal=False)
    plant(model, head, head_index=2)
    seen = first_layer(model, vectors=torch.randn(2, 9, 2))[:, 2]
    assert float((seen - head.attention()).abs().max()) < 1e-5


def test_a_checkpoint_holds_the_head() -> None:
    model, head, other = a_model(), a_head(), a_model(biases=True)
    plant(model, head)
    other.load_state_dict(model.state_dict())
    assert float((first_layer(other, input_ids=ids())[:, 0] - head.attention()).abs().max()) < 1e-5


def test_only_the_planted_head_reads_its_channels() -> None:
    """The same model with the register emptied differs in that head alone, so nothing else can have read it."""
    model, head = a_model(mlp=16), a_head()
    plant(model, head, head_index=1)
    with_head = first_layer(model, input_ids=ids())
    silent = a_model(mlp=16)
    silent.load_state_dict(model.state_dict())
    with torch.no_grad():
        silent.positions.weight[:, 18:] = 0  # type: ignore[union-attr]
        for block in (model.blocks[0], silent.blocks[0]):
            # What the head mixes differs: keep it out of the stream.
            block.get_parameter("attention.output.weight").zero_()
    assert torch.equal(first_layer(silent, input_ids=ids())[:, [0, 2]], with_head[:, [0, 2]])
    assert torch.equal(silent(ids()), model(ids()))


def test_two_heads_live_in_channels_of_their_own() -> None:
    model, one, other = a_model(), a_head(seed=1), a_head(seed=2)
    plant(model, one, head_index=0)
    plant(model, other, head_index=2, first_channel=4)
    seen = first_layer(model, input_ids=ids())
    assert float((seen[:, 0] - one.attention()).abs().max()) < 1e-5
    assert float((seen[:, 2] - other.attention()).abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("settings", "head", "options", "sentence"),
    [
        ({"norm": "pre"}, a_head(), {}, "the first layer of a model without norms alone"),
        ({}, a_head(), {"layer": 1}, "the first layer of a model without norms alone"),
        ({"positions": "none"}, a_head(), {}, "positions='learned'"),
        ({}, a_head(), {"head_index": 3}, "heads 0 to 2, not 3"),
        ({}, a_head(width=9), {}, "`width=8` or less"),
        ({}, a_head(causal=False), {}, "both be causal"),
        ({"causal": False}, a_head(n=13, causal=False), {}, "13 rows and the model 12 positions"),
        ({}, a_head(), {"first_channel": 19}, "do not fit behind channel 19"),
        ({"head_width": 20}, a_head(width=13), {}, "26 channels of 24"),
        ({}, Head(torch.ones(3, 2), torch.ones(4, 2), True, "by hand"), {}, "no single input"),
        ({}, Head(torch.ones(3, 2).double(), torch.ones(3, 2).double(), True, "by hand"), {}, "would round it"),
    ],
)
def test_refused_plants_change_nothing(
    settings: dict[str, Any], head: Head, options: dict[str, Any], sentence: str
) -> None:
    model = a_model(**settings)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(RefusalError, match=sentence):
        plant(model, head, **options)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
