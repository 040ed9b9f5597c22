"""Remove heads of a model by value, and restore them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf

from attnscope.commands.paths.removals import head_values
from attnscope.commands.treat.record import Treatment
from attnscope.commands.treat.run import treat
from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.editing.surgery import prunable, without_heads
from attnscope.hf.loading.in_memory import in_memory
from attnscope.hf.loading.load import Loaded
from tests.commands.treat.patients import patient

SIZES: dict[str, Any] = {"vocab_size": 60, "num_hidden_layers": 2, "num_attention_heads": 4}


def llama() -> Any:
    torch.manual_seed(0)
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(**SIZES, hidden_size=16, intermediate_size=24, num_key_value_heads=2)
    ).eval()


def gpt2() -> Any:
    torch.manual_seed(0)
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=60, n_layer=2, n_head=4, n_embd=16, n_positions=32)).eval()


@pytest.mark.parametrize("make", [llama, gpt2])
@torch.no_grad()
def test_a_removed_head_writes_nothing(make: Any) -> None:
    model = make()
    ids = torch.randint(0, 60, (2, 8), generator=torch.Generator().manual_seed(1))
    sites = prunable(model, anatomy(model))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    own = model(ids).logits
    seen: list[torch.Tensor] = []
    output = sites[1].projections.output
    assert output is not None
    projection = model.get_submodule(output.parameter.removesuffix(".weight"))

    def silenced(_: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        mixed = args[0].clone()
        mixed[..., 4:8] = 0.0  # head 1 of four, four numbers each
        seen.append(mixed)
        return (mixed, *args[1:])

    handle = projection.register_forward_pre_hook(silenced)
    wanted = model(ids).logits
    handle.remove()
    with without_heads(model, sites, [(1, 1)]):
        # Zeros are added in both: only the order of a float32 sum of 16 may differ.
        assert torch.allclose(model(ids).logits, wanted, atol=1e-6)
    assert len(seen) == 1
    assert torch.equal(model(ids).logits, own)
    with pytest.raises(ZeroDivisionError), without_heads(model, sites, [(0, 0), (1, 3)]):
        raise ZeroDivisionError
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


def test_shared_blocks_are_refused() -> None:
    config = hf.AlbertConfig(
        vocab_size=60,
        embedding_size=8,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
    )
    model = hf.AlbertForMaskedLM(config).eval()
    with pytest.raises(RefusalError, match="share their weights"):
        prunable(model, anatomy(model))


def test_values_add_up_to_what_all_heads_add() -> None:
    """Efficiency, on the model itself: without any head the frozen logits are those of length 0, and the sum of all
    values is the difference of the linear functional between all heads and none."""
    model = llama().double()
    loaded = in_memory(model)
    ids = torch.randint(0, 60, (7,), generator=torch.Generator().manual_seed(2))
    structure = anatomy(model)
    values = head_values(loaded, ids, structure)
    assert values.shape == (2, 4)
    from attnscope.hf.editing.freeze import freeze
    from attnscope.pathways.lengths import lengths

    network = freeze(model, {"input_ids": ids[None]}, structure)
    expected = network.output.softmax(-1)
    by_length = lengths(network)

    def foretold(output: torch.Tensor) -> float:
        logits = output[0, :-1]
        return float(logits.gather(-1, ids[1:, None]).sum() - (logits * expected[0, :-1]).sum())

    none = next(iter(by_length.cumulative()))
    assert float(values.sum()) == pytest.approx(foretold(network.output) - foretold(none), abs=1e-10)
    assert float(values.abs().max()) > 1e-4


SMALL: dict[str, Any] = {"remedy": "prune", "samples": 6, "max_tokens": 16}


@pytest.fixture(scope="module")
def pruned() -> tuple[Loaded, Treatment]:
    loaded = patient()
    return loaded, treat(loaded, heads=2, settings={"prompts": 2}, **SMALL)


def test_orders_begin_at_the_whole_model_and_random_is_a_band(pruned: tuple[Loaded, Treatment]) -> None:
    found = pruned[1]
    assert found.pruning is not None
    for order in found.pruning.orders:
        assert order.losses[0] == pytest.approx(found.arms["before"].loss, abs=1e-6)
        assert sorted(order.heads) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    drawn = {order.name: order for order in found.pruning.orders}
    assert all(
        low <= mean <= high
        for low, mean, high in zip(drawn["random"].low, drawn["random"].losses, drawn["random"].high, strict=True)
    )


def test_the_treated_model_lacks_the_requested_heads(pruned: tuple[Loaded, Treatment]) -> None:
    loaded, found = pruned
    assert found.pruning is not None
    assert len(found.removed) == 2
    place = found.pruning.counts.index(2)
    by = next(order for order in found.pruning.orders if order.name == found.pruning.by)
    assert found.arms["treated"].loss == pytest.approx(by.losses[place], abs=1e-6)
    weight = loaded.model.get_parameter(f"model.layers.{found.removed[0][0]}.self_attn.o_proj.weight")
    assert weight.detach().abs().sum(dim=0).min() > 0  # put back


def test_keep_loss_removes_as_many_heads_as_it_allows(pruned: tuple[Loaded, Treatment]) -> None:
    found = treat(pruned[0], keep_loss=50.0, settings={"prompts": 1}, **SMALL)
    assert found.pruning is not None
    assert found.pruning.removed == found.pruning.total - 1  # never all
