"""What every variant may see: padding, later tokens, shared keys, other sequences, empty rows."""

from dataclasses import replace

import pytest
import torch

from attnscope.core.errors import RefusalError
from attnscope.core.registry import variants
from attnscope.core.variant import Variant
from tests.variants.calls import DIM, HEADS, SIZE, TOKENS, Call, able, attending, call_of, noise

every_attention = pytest.mark.parametrize("one", attending().values(), ids=attending())
of_tokens = pytest.mark.parametrize(
    "one",
    [one for one in variants().values() if one.card.kind != "weights"],
    ids=[name for name, one in variants().items() if one.card.kind != "weights"],
)


def token_axis(one: Variant) -> int:
    """Return the axis of tokens in the output."""
    return 2 if one.card.kind in ("pattern", "logits") else 1


def token_axes(call: Call) -> dict[str, int]:
    """Return the axis of tokens in each input."""
    heads_first = call.one.card.kind in ("pattern", "logits")
    return {name: 2 if heads_first or name == "streams" else 1 for name in call.given}


@every_attention
def test_a_causal_mask_written_out_is_the_causal_flag(one: Variant) -> None:
    flagged = call_of(one, "causal")
    past = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()[None, None]
    written = replace(flagged, more={**flagged.more, "visible": past, "causal": False})
    if one.card.causal:
        torch.testing.assert_close(written(), flagged(), rtol=1e-11, atol=1e-11)
    else:
        with pytest.raises(RefusalError, match="causal"):
            written()


@of_tokens
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("left", "right"), [(5, 0), (0, 5), (2, 3)])
def test_padding_is_invisible(one: Variant, causal: bool, left: int, right: int) -> None:
    if causal and not one.card.causal:
        return
    call = call_of(one)
    given = {}
    for seed, (name, axis) in enumerate(token_axes(call).items()):
        tensor = call.given[name]
        shape = [*tensor.shape]
        garbage = []
        for side, count in enumerate((left, right)):
            shape[axis] = count
            garbage.append(9 * noise(70 + 2 * seed + side, *shape))
        given[name] = torch.cat([garbage[0], tensor, garbage[1]], axis)
    more = dict(call.more)
    if "causal" in more:
        real = torch.zeros(1, 1, 1, left + TOKENS + right, dtype=torch.bool)
        real[..., left : left + TOKENS] = True
        more |= {"visible": real, "causal": causal}
        call = replace(call, more={**call.more, "causal": causal})
    padded = replace(call, given=given, more=more)()
    kept = padded.narrow(token_axis(one), left, TOKENS)
    torch.testing.assert_close(kept, call(), rtol=1e-11, atol=1e-11)


@of_tokens
@pytest.mark.parametrize("mask", ["causal", "causal and padding"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_causal_variants_never_see_later_tokens(one: Variant, mask: str, dtype: torch.dtype) -> None:
    """Change everything from token t on; the output before t must be equal to the bit."""
    if not one.card.causal:
        return
    call = call_of(one, mask).of(dtype)
    first = call()
    for token in (3, 16, TOKENS - 1):
        given = {name: tensor.clone() for name, tensor in call.given.items()}
        for seed, (name, axis) in enumerate(token_axes(call).items()):
            later = given[name].narrow(axis, token, TOKENS - token)
            later.copy_(7 * noise(90 + seed, *later.shape))
        other = replace(call, given=given)()
        axis = token_axis(one)
        assert torch.equal(first.narrow(axis, 0, token), other.narrow(axis, 0, token))
        rest = TOKENS - token
        assert not torch.equal(first.narrow(axis, token, rest), other.narrow(axis, token, rest))


@every_attention
@pytest.mark.parametrize("mask", ["none", "causal and padding"])
def test_heads_may_share_keys_and_values(one: Variant, mask: str) -> None:
    if not able(one, mask):
        return
    call = call_of(one, mask, size=replace(SIZE, kv_heads=2))
    repeated = {name: t if name == "query" else t.repeat_interleave(HEADS // 2, 1) for name, t in call.given.items()}
    torch.testing.assert_close(call(), replace(call, given=repeated)(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(call(), call.slow(), rtol=1e-11, atol=1e-11)


@every_attention
def test_cross_attention_works_if_the_card_says_so(one: Variant) -> None:
    call = call_of(one, "padding", keys=12)
    if one.card.cross:
        assert call().shape == (*call.given["query"].shape[:3], DIM)
        torch.testing.assert_close(call(), call.slow(), rtol=1e-11, atol=1e-11)
    else:
        with pytest.raises(RefusalError, match="same sequence"):
            call()


@of_tokens
def test_a_sequence_that_sees_nothing_is_zero_and_has_no_gradient_that_is_not_a_number(one: Variant) -> None:
    call = call_of(one).of(torch.float32)
    if "visible" not in call.more:
        return
    visible = torch.ones(2, 1, 1, TOKENS, dtype=torch.bool)
    visible[0] = False
    call = replace(call, more={**call.more, "visible": visible})
    tensors = [tensor.requires_grad_() for tensor in call.tensors()]
    found = call()
    if one.card.kind in ("pattern", "logits") and one.card.name != "shaped":  # which keeps the token itself
        assert not found[0].any()
    found.square().sum().backward()
    assert all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in tensors)
