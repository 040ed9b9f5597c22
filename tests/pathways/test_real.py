"""Paths through real weights: the linear form gives the model's numbers, and values of heads add up."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

import attnscope
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.editing.freeze import freeze
from attnscope.hf.loading.load import Loaded, load
from attnscope.pathways.heads import head_table
from attnscope.pathways.lengths import lengths
from attnscope.pathways.network import Network, differences, relative_difference
from attnscope.pathways.shapley import shapley
from attnscope.pathways.targets import logit, stream_norm
from attnscope.pathways.top_paths import top_paths
from tools.fetch_models import path as material
from tools.fetch_models import unquantised
from tools.real_models import dinov2, photographs

pytestmark = pytest.mark.real

TEXTS = {
    "minilm": "Paris is the capital of France, and Rome is the capital of Italy.",
    "rxnmapper": "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
}


def check(network: Network, allowed: float) -> None:
    assert max(differences(network)) <= allowed
    found = lengths(network)
    assert found.stream.parts.shape[1] == network.layers + 1
    assert relative_difference(found.stream.parts.sum((0, 1, 2)), network.streams[-1]) <= allowed


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_encoders(name: str, dtype: str) -> None:
    loaded = load(material(name), dtype=dtype, allow_pickle=True)
    assert loaded.tokenizer is not None
    ids = torch.tensor([loaded.tokenizer(TEXTS[name])["input_ids"][:16]])
    network = freeze(loaded.model, {"input_ids": ids})
    check(network, 1e-10 if dtype == "float64" else 1e-4)
    if dtype == "float64":
        table = head_table(network, stream_norm(network))
        assert table.total == pytest.approx(float(network.streams[-1].norm()), rel=1e-10)


def test_gpt2_shaped() -> None:
    loaded = load(material("microformer"), dtype="float64", allow_pickle=True)
    ids = torch.arange(3, 19)[None]
    check(freeze(loaded.model, {"input_ids": ids}), 1e-10)


def test_dinov2() -> None:
    pictures = {"pixel_values": photographs(56)["pixel_values"][:1].double()}
    model = dinov2().double()
    check(freeze(model, pictures, anatomy(model, pictures)), 1e-10)


@cache
def smollm2() -> Loaded:
    """Load the model once: unpacking takes longer than all tests that use it."""
    return load(unquantised("smollm2"))


def test_smollm2() -> None:
    loaded = smollm2()
    text = "The Eiffel Tower stands in the city of Paris, and the Colosseum in"
    assert loaded.tokenizer is not None
    ids = torch.tensor([loaded.tokenizer(text)["input_ids"][:6]])  # every edge is there; cost grows with tokens
    network = freeze(loaded.model, {"input_ids": ids})
    check(network, 1e-4)
    target = logit(int(network.output[0, -1].argmax()))
    table, every = head_table(network, target), shapley(network, target)
    whole = float(target(network.output))
    assert table.total == pytest.approx(whole, rel=1e-3)
    assert every.everything == pytest.approx(whole, rel=1e-3)
    assert every.nothing + every.total == pytest.approx(whole, rel=1e-2)
    best = top_paths(network, target, count=3, width=8, draws=4)
    assert len(best.paths) == 3
    assert not best.exact


def photograph() -> tuple[Any, dict[str, torch.Tensor]]:
    return dinov2(), {"pixel_values": photographs(42)["pixel_values"][:1]}


def tokens(model: Loaded, count: int) -> tuple[Any, dict[str, torch.Tensor]]:
    return model, {"input_ids": torch.arange(3, 3 + count)[None]}


OPERATORS: dict[str, Callable[[], tuple[Any, dict[str, torch.Tensor]]]] = {
    "BERT": lambda: tokens(load(material("minilm")), 12),
    "GPT-2": lambda: tokens(load(material("microformer"), allow_pickle=True), 12),
    "Llama": lambda: tokens(smollm2(), 3),  # every part is there; cost grows with tokens
    "ViT": photograph,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_the_operator_is_the_model_not_without_its_offset_and_not_the_jacobian(name: str) -> None:
    model, batch = OPERATORS[name]()
    for dtype, allowed in (("float64", 1e-10), ("float32", 1e-4)):
        op = attnscope.operator(model, batch, dtype=dtype)
        made = op @ op.input
        assert relative_difference(made + op.offset, op.output) <= allowed
        if name == "Llama":  # no bias and no shift of a norm anywhere
            assert not op.offset.any()
        else:
            assert relative_difference(made, op.output) > 0.01  # far above what is allowed
    apart = op.beside_jacobian(probes=4)
    assert apart.distance > 0.3  # 0.7 (BERT) to 8 (ViT) were seen
    assert apart.cosine < 0.9
