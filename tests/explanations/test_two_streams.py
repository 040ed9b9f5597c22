"""Streams that read each other, and towers that do not, against the paper's equations on full maps."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.explanations.relevance import relevance
from attnscope.matrix.relevance import AttentionCall, of_two_streams, read_each_other, relevance_maps
from attnscope.matrix.scores import Scores
from tests.explanations.two_way import abar, normalised, row_of, written_out

WORDS, THINGS, LAYERS = 7, 5, 2


def lxmert() -> Any:
    torch.manual_seed(0)
    config = hf.LxmertConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        l_layers=LAYERS,
        x_layers=LAYERS,
        r_layers=LAYERS,
        visual_feat_dim=12,
        max_position_embeddings=64,
    )
    model = hf.LxmertModel(config).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)  # fresh weights attend nearly uniformly
    return model


def seen() -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return {
        "input_ids": torch.randint(3, 64, (1, WORDS), generator=rng),
        "visual_feats": torch.randn(1, THINGS, 12, generator=rng).double(),
        "visual_pos": torch.rand(1, THINGS, 4, generator=rng).double(),
    }


def test_co_attention_follows_all_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    """In LXMERT both directions of a block read the streams before it, and then each stream attends to itself."""
    model, batch = lxmert(), seen()
    with written_out(monkeypatch) as maps, torch.enable_grad():
        states = model(**batch)[0]
        states[0].mean(0).norm().backward()
    A = [abar(one) if one.grad is not None else torch.zeros(one.shape[2:], dtype=one.dtype) for one in maps]
    assert len(A) == 2 * LAYERS + 4 * LAYERS
    words, things = A[:LAYERS], A[LAYERS : 2 * LAYERS]
    tt, ii = torch.eye(WORDS, dtype=torch.float64), torch.eye(THINGS, dtype=torch.float64)
    ti, it = torch.zeros(WORDS, THINGS).double(), torch.zeros(THINGS, WORDS).double()
    for one in words:
        tt = tt + one @ tt
    for one in things:
        ii = ii + one @ ii
    for layer in range(LAYERS):
        to_things, to_words, own_words, own_things = A[2 * LAYERS + 4 * layer : 2 * LAYERS + 4 * layer + 4]
        more = (
            normalised(tt).T @ to_things @ normalised(ii),
            to_things @ it,
            normalised(ii).T @ to_words @ normalised(tt),
            to_words @ ti,
        )
        ti, tt, it, ii = ti + more[0], tt + more[1], it + more[2], ii + more[3]
        tt, ti = tt + own_words @ tt, ti + own_words @ ti
        ii, it = ii + own_things @ ii, it + own_things @ it
    found = attnscope.explain(model, batch, methods="relevance,gradient_input,raw_attention", dtype="float64")
    assert [(one.name, len(one.tokens)) for one in found.inputs] == [("image", THINGS), ("text", WORDS)]
    assert found.value == pytest.approx(float(states[0].detach().mean(0).norm()), rel=1e-12)
    # The mean over words is read from all words, weighted by the gradient at their last self-attention.
    gradients = torch.tensor(found.method("relevance").scores[1])
    assert bool((gradients >= 0).all())
    start = _start(model, batch)
    # Sums of a few hundred terms >= 0 with a few hundred rounding errors each: far below 1e-10.
    for row, expected in zip(found.method("relevance").scores, (start @ ti, start @ tt - start), strict=True):
        assert row == pytest.approx(expected.tolist(), abs=1e-10 * float(expected.max()))
        assert float(expected.max()) > 0


def _start(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Return the norm of the gradient at the output of the last self-attention of words, for each token."""
    kept: list[Tensor] = []
    last = model.encoder.x_layers[-1].lang_self_att.self

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        output[0].retain_grad()
        kept.append(output[0])

    handle = last.register_forward_hook(keep)
    with torch.enable_grad():
        model(**batch)[0][0].mean(0).norm().backward()
    handle.remove()
    assert kept[0].grad is not None
    sizes = kept[0].grad[0].norm(dim=-1)
    return sizes / sizes.sum()


def clip() -> Any:
    torch.manual_seed(0)
    text = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 4, "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 1}
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision |= {"image_size": 24, "patch_size": 8}
    model = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def test_two_towers_are_explained_independently() -> None:
    model = clip()
    rng = torch.Generator().manual_seed(1)
    batch = {
        "input_ids": torch.tensor([[1, 7, 8, 9, 2]]),
        "pixel_values": torch.randn(1, 3, 24, 24, generator=rng).double(),
    }
    found = attnscope.explain(model, batch, methods="relevance,gradient_input,occlusion", dtype="float64")
    model.set_attn_implementation("eager")
    with torch.enable_grad():
        answer = model(**batch, output_attentions=True)
        kept = [*answer.vision_model_output.attentions, *answer.text_model_output.attentions]
        for one in kept:
            one.retain_grad()
        answer.logits_per_image.sum().backward()
    # Eager CLIP computes softmax in float32: a few thousand rounding errors, as in test_relevance.
    near = 4e3 * torch.finfo(torch.float32).eps
    assert found.value == pytest.approx(float(answer.logits_per_image.detach()), rel=near)
    assert [(one.name, one.grid) for one in found.inputs] == [("image", (3, 3)), ("text", None)]
    # The picture is read at [CLS], the text at its largest token number, as CLIP does.
    for row, maps, place in zip(found.method("relevance").scores, (kept[:2], kept[2:]), (0, 3), strict=True):
        R = torch.eye(len(row), dtype=torch.float64)
        for one in maps:
            R = R + abar(one) @ R
        expected = R[place] - torch.eye(len(row)).double()[place]
        assert row == pytest.approx(expected.tolist(), abs=near * float(expected.max()))
        assert float(expected.max()) > 0


def by_hand(gradient: Tensor, stack: str, keys: str, sees_last: bool = True) -> AttentionCall:
    """Return a call with uniform attention, one head and unit vectors as values, so that dA is the gradient."""
    rows, columns = gradient.shape
    scores = Scores(torch.zeros(1, 1, rows, 1).double(), torch.zeros(1, 1, columns, 1).double(), 1.0)
    value = torch.eye(columns, dtype=torch.float64)[None, None]
    return AttentionCall(stack, keys, 0, scores, value, gradient.double()[None, :, None], sees_last)


def test_parallel_and_sequential_co_attention() -> None:
    """R^tt += Abar R^it (11): in parallel R^it is still 0; in sequence it is what the first direction added."""
    there, back = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    # Uniform over 2 and 3 keys: Abar is a half and a third of the gradient, each with a single 1.
    for sees_last, expected in ((False, 0.0), (True, 1.0)):
        calls = [by_hand(there, "t", "i"), by_hand(back, "i", "t", sees_last)]
        assert read_each_other(calls)
        maps = relevance_maps(calls)
        assert maps["t", "i"].tolist() == [[1, 0], [0, 0], [0, 0]]
        assert maps["i", "t"].tolist() == [[1, 0, 0], [0, 0, 0]]
        assert float(maps["i", "i"][0, 0]) == 1 + expected
        assert torch.equal(maps["t", "t"], torch.eye(3).double())


@pytest.mark.parametrize("begins", [("d",), ("e",), ("d", "e")])
def test_rows_equal_maps_if_a_stack_continues_after_it_was_read(begins: tuple[str, ...]) -> None:
    """The encoder attends to itself again between two reads and after the last, and a third stack reads both. Rows are
    compared with the four maps of the rule in float64: sums of a few hundred terms >= 0."""
    rng = torch.Generator().manual_seed(3)
    sizes = {"e": 4, "d": 3, "f": 2}
    order = ["ee", "dd", "de", "ee", "ff", "dd", "de", "fd", "fe", "ee", "dd", "ff"]
    calls = [by_hand(torch.randn(sizes[s], sizes[k], generator=rng), s, k) for s, k in map(tuple, order)]
    assert not read_each_other(calls)
    start = {stack: torch.rand(sizes[stack], generator=rng).double() for stack in (*begins, "f")}
    expected = of_two_streams(calls, start)
    found = relevance(calls=calls, start=start)
    for stack, row in expected.items():
        torch.testing.assert_close(found[stack], row, atol=1e-12, rtol=1e-12)
        assert float(row.max()) > 0


def test_never_negative_and_finite_for_zero_rows() -> None:
    rng = torch.Generator().manual_seed(0)
    calls = [
        by_hand(-torch.rand(3, 3, generator=rng), "t", "t"),  # negative: R^tt stays the identity, and row sums are 0
        by_hand(torch.randn(3, 2, generator=rng), "t", "i"),
        by_hand(torch.randn(2, 3, generator=rng), "i", "t"),
        by_hand(torch.randn(3, 3, generator=rng), "t", "t"),
    ]
    found = relevance(calls=calls, start={"t": torch.tensor([0.0, 0.0, 1.0]).double()})
    assert set(found) == {"t", "i"}
    for numbers in found.values():
        assert bool((numbers >= 0).all())
        assert bool(numbers.isfinite().all())


SAM_LAYERS, SAM_SIDE = 2, 6


def sam() -> Any:
    """Return a SAM with windows in its encoder and two blocks in its two-way decoder."""
    torch.manual_seed(0)
    width, heads = 32, 4
    config = hf.SamConfig(
        vision_config={
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 16 * SAM_SIDE,
            "patch_size": 16,
            "output_channels": width,
            "window_size": 3,
            "global_attn_indexes": [1],
            "num_pos_feats": width // 2,
            "mlp_dim": 16,
        },
        prompt_encoder_config={"hidden_size": width, "image_size": 16 * SAM_SIDE, "patch_size": 16},
        mask_decoder_config={
            "hidden_size": width,
            "mlp_dim": 48,
            "num_hidden_layers": SAM_LAYERS,
            "num_attention_heads": heads,
            "iou_head_hidden_dim": width,
        },
    )
    model = hf.SamModel(config).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.requires_grad_(False)


@pytest.mark.parametrize("score", [0, 2])
def test_a_two_way_decoder_follows_all_equations(score: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In SAM tokens attend to themselves and to the picture, and the picture to them. The score is read from the first
    token. The encoder attends within windows and is left out, so relevance covers the inputs of the decoder."""
    model = sam()
    rng = torch.Generator().manual_seed(1)
    side = 16 * SAM_SIDE
    batch = {
        "pixel_values": torch.randn(1, 3, side, side, generator=rng).double(),
        "input_points": torch.rand(1, 1, 2, 2, generator=rng).double() * side,
    }
    value, to_tokens, to_picture = row_of(
        model, lambda: model(**batch).iou_scores[0, 0, score], 0, SAM_LAYERS, monkeypatch
    )
    found = attnscope.explain(model, batch, target=score, methods="relevance", dtype="float64")
    assert found.value == pytest.approx(value, rel=1e-10)
    assert found.target == f"entry {score} of the mean state"
    image, prompt = found.inputs
    assert (image.name, image.grid, prompt.name) == ("image", (SAM_SIDE, SAM_SIDE), "prompt")
    assert len(prompt.tokens) == 5 + 2 + 1  # the decoder's own tokens, the points, and the token for no box
    # Sums of terms >= 0 with a few thousand rounding errors each.
    for row, expected in zip(found.methods[0].scores, (to_picture, to_tokens), strict=True):
        assert row == pytest.approx(expected.tolist(), abs=1e-10 * float(expected.max()))
        assert float(expected.max()) > 0


def test_two_way_decoder_scores_image_embeddings() -> None:
    """Picture embeddings are an input too, and other methods remove the vectors that enter the decoder."""
    model = sam()
    rng = torch.Generator().manual_seed(1)
    given = torch.randn(1, 32, SAM_SIDE, SAM_SIDE, generator=rng).double()
    batch = {"image_embeddings": given, "input_points": torch.tensor([[[[40.0, 20.0]]]]).double()}
    found = attnscope.explain(model, batch, target=1, methods="gradient_input,occlusion", dtype="float64")
    by_gradient, by_occlusion = (method.scores[0] for method in found.methods)
    assert found.inputs[0].grid == (SAM_SIDE, SAM_SIDE)
    moved = given.clone().requires_grad_()
    with torch.enable_grad():
        answer = model(image_embeddings=moved, input_points=batch["input_points"]).iou_scores[0, 0, 1]
        answer.backward()
    # The decoder gets the embedding plus a vector of the prompt, which is the same at every place.
    entered = given + model.prompt_encoder.no_mask_embed.weight[0][:, None, None]
    assert moved.grad is not None
    expected = (moved.grad * entered).sum(1).flatten()
    assert by_gradient == pytest.approx(expected.tolist(), abs=1e-10 * float(expected.abs().max()))
    blank = given.clone()
    blank[0, :, 2, 3] = 0  # a neutral embedding
    lost = float(
        answer.detach() - model(image_embeddings=blank, input_points=batch["input_points"]).iou_scores[0, 0, 1]
    )
    assert by_occlusion[2 * SAM_SIDE + 3] == pytest.approx(lost, rel=1e-6)


def test_missing_entry_of_a_state_is_refused() -> None:
    batch = {
        "image_embeddings": torch.zeros(1, 32, SAM_SIDE, SAM_SIDE).double(),
        "input_points": torch.ones(1, 1, 1, 2),
    }
    with pytest.raises(RefusalError, match="entries 0 to 2, not 7"):
        attnscope.explain(sam(), batch, target=7, methods="relevance")
