"""Every variant that mixes values, as the attention of a nano model."""

from __future__ import annotations

import pytest
import torch

from attnscope.core.errors import RefusalError
from attnscope.core.variant import Size, Variant
from attnscope.papers.models.nano import Config, Nano, exchanged
from tests.variants.calls import SETTINGS, attending

TOKENS = 11
SIZE = Size(heads=4, dim=4, width=16)
IDS = torch.randint(0, 20, (2, TOKENS), generator=torch.Generator().manual_seed(0))
PADDING = torch.ones(2, TOKENS, dtype=torch.long)
PADDING[0, -3:] = 0
every_attention = pytest.mark.parametrize("one", attending().values(), ids=attending())


def nano(one: Variant | None = None, *, causal: bool) -> Nano:
    config = Config(vocab_size=20, width=16, heads=4, layers=2, causal=causal, mlp=16, initial=0.6)
    if one is None:
        return Nano(config, seed=0).double()
    own = {name: tensor.double() for name, tensor in one.start(SIZE).items()}
    return Nano(config, seed=0, attention=exchanged(one, **own, **SETTINGS.get(one.card.name, {}))).double()


@every_attention
@pytest.mark.parametrize("causal", [False, True])
def test_a_start_that_keeps_the_function_keeps_the_model(one: Variant, causal: bool) -> None:
    model = nano(one, causal=causal)
    if causal and not one.card.causal:
        with pytest.raises(RefusalError, match="causal"):
            model(IDS)
        return
    for mask in (None, PADDING):
        found, before = model(IDS, attention_mask=mask), nano(causal=causal)(IDS, attention_mask=mask)
        real = torch.ones_like(PADDING).bool() if mask is None else PADDING.bool()
        assert bool(found.isfinite().all())
        same = torch.allclose(found[real], before[real], rtol=1e-10, atol=1e-10)
        assert same == (one.card.keeps is not None)


@every_attention
def test_no_causal_model_sees_the_future(one: Variant) -> None:
    if not one.card.causal:
        return
    model = nano(one, causal=True)
    other = IDS.clone()
    other[:, 6:] = (IDS[:, 6:] + 1) % 20
    assert torch.equal(model(IDS)[:, :6], model(other)[:, :6])
    assert not torch.equal(model(IDS)[:, 6:], model(other)[:, 6:])


@every_attention
def test_padding_changes_nothing_in_a_model(one: Variant) -> None:
    model = nano(one, causal=False)
    padded = model(IDS[:1], attention_mask=PADDING[:1])
    torch.testing.assert_close(padded[:, :-3], model(IDS[:1, :-3]), rtol=1e-10, atol=1e-10)
