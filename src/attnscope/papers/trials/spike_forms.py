"""Closed forms of arXiv:2603.05498 for spikes and sinks, and the spike of the trained model pocket.

quadratic   without SiLU, channel k of SwiGLU is a quadratic form h^T S_k h of its input h
bound       no entry of an RMSNorm's output is above sqrt(d), d being the width: |x_k| / sqrt(sum x^2 / d) <= sqrt(d).
            The square of the entry, divided by d, is the channel's share of the token: near 1 the token is little else
planted     tokens x = s e_c + noise of variance 1, with a spike s in channel c, are sqrt(2 d) apart for any s. RMSNorm
            gives them norm sqrt(d) and keeps their directions, which have cosine about s^2 / (s^2 + d). So they are
            then sqrt(2 d d / (s^2 + d)) apart: the distance is multiplied by sqrt(d / (s^2 + d))
metric      alpha_0 is 1 if all weight is on the first key, and H_n / n for uniform causal attention on n tokens, where
            H_n is the harmonic number
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.core.experiment import Figure, Point
from attnscope.data.read import read
from attnscope.hf.loading.load import load
from attnscope.matrix.spectrum import dominance, form_norms, quadratic_form, without_silu
from attnscope.measures.sink_mass import sink_mass
from attnscope.papers.models.decoder import Block, Decoder, Seen, Shape
from attnscope.papers.trials.curves import Rows
from attnscope.papers.trials.sinks_and_spikes import attention_of, sink_rate, stream_of

STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # strengths of a planted spike, in units of sqrt(width)


def closed_forms(width: int, tokens: int, seed: int) -> dict[str, Any]:
    """Return the results of all checks that need no trained model."""
    rng = torch.Generator().manual_seed(seed)
    return {"seed": seed, **quadratic(width, rng), **planted(width, rng), **metric(tokens)}


def quadratic(width: int, rng: torch.Generator) -> dict[str, float]:
    """Return the largest difference between h^T S_k h and the module, relative to the largest output, in float32."""
    gate, up = (torch.randn(2 * width, width, generator=rng) * width**-0.5 for _ in range(2))
    down = torch.randn(width, 2 * width, generator=rng) * (2 * width) ** -0.5
    token = torch.randn(16, width, generator=rng)
    forms = torch.stack([quadratic_form(gate, up, row) for row in down])
    plain = without_silu(token, gate, up, down)
    apart = torch.einsum("td,kde,te->tk", token, forms, token) - plain
    silu = F.silu(token @ gate.mT) * (token @ up.mT) @ down.mT  # the module with SiLU, which the form leaves out
    size = plain.abs().max()
    return {
        "quadratic_form_difference": float(apart.abs().max() / size),
        "silu_changes_output_by": float((silu - plain).abs().max() / size),
    }


def planted(width: int, rng: torch.Generator, norm: nn.Module | None = None) -> dict[str, Any]:
    """Return by which factor a norm (default: RMSNorm) changes the distance of tokens that share a planted spike.

    There is one factor per strength of the spike. With no norm it would be 1.
    """
    noise = torch.randn(64, width, generator=rng, dtype=torch.float64)
    norm = norm or nn.RMSNorm(width, eps=1e-6, dtype=torch.float64, elementwise_affine=False)
    spreads = []
    for strength in STRENGTHS:
        spiked = noise.clone()
        spiked[:, width // 3] += strength * width**0.5
        spreads.append(spread(norm(spiked)) / spread(spiked))
    apart = [abs(measured - predicted(strength)) for measured, strength in zip(spreads, STRENGTHS, strict=True)]
    return {"planted_spreads": spreads, "planted_spread": spreads[-1], "planted_difference": max(apart)}


def spread(tokens: Float[Tensor, "token width"]) -> float:
    """Return the root mean square of |x_i - x_j| over all pairs, computed from the distances to the mean."""
    count = len(tokens)
    return float((tokens - tokens.mean(0)).norm() * (2 / (count - 1)) ** 0.5)


def predicted(strength: float) -> float:
    """Return the predicted factor sqrt(d / (s^2 + d)), with s = strength sqrt(d)."""
    return float((strength**2 + 1) ** -0.5)


def metric(tokens: int) -> dict[str, float]:
    """Return alpha_0 and the sink rate of two known patterns."""
    parked = torch.zeros(1, 1, tokens, tokens, dtype=torch.float64)
    parked[..., 0] = 1.0
    counts = torch.arange(1, tokens + 1, dtype=torch.float64)
    uniform = (torch.ones(tokens, tokens, dtype=torch.float64).tril() / counts[:, None])[None, None]
    harmonic = math.fsum(1 / count for count in range(1, tokens + 1)) / tokens
    everyone = torch.ones(1, tokens, dtype=torch.bool)
    alpha = float(sink_mass(first_key_mass=uniform[..., 0], query_mask=everyone)["value"].value)
    return {
        "sink_rate_of_parked_head": sink_rate(parked),
        "sink_rate_of_uniform_head": sink_rate(uniform),
        "uniform_alpha": alpha,
        "uniform_alpha_difference": abs(alpha - harmonic),
    }


def pocket_decoder() -> tuple[Decoder, Int[Tensor, " token"]]:
    """Return a `Decoder` with pocket's weights, to observe its stream, and the embedded book in pocket's tokens."""
    loaded = load("pocket")
    theirs = {name.removeprefix("model."): tensor for name, tensor in loaded.model.state_dict().items()}
    config: Any = loaded.model.config
    sizes = {"width": config.hidden_size, "heads": config.num_attention_heads, "layers": config.num_hidden_layers}
    model = Decoder(Shape(config.vocab_size, **sizes, hidden=config.intermediate_size))
    model.load_state_dict({ours: theirs[_llama_name(ours)] for ours in model.state_dict()})
    assert loaded.tokenizer is not None
    text = "".join(read().documents)
    ids = loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return model.eval(), torch.tensor(ids)


LLAMA = {
    "embedding": "embed_tokens",
    "last_norm.of": "norm",
    "blocks": "layers",
    "attention_norm.of": "input_layernorm",
    "mlp_norm.of": "post_attention_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
}


def _llama_name(ours: str) -> str:
    for mine, theirs in LLAMA.items():
        ours = ours.replace(mine, theirs)
    block, last = ours.rpartition(".")[0], ours.rpartition(".")[2]
    mlp = block.rpartition(".")[2] in ("gate", "up", "down")
    return f"{block.rpartition('.')[0]}.mlp.{block.rpartition('.')[2]}_proj.{last}" if mlp else ours


def pocket_spike(sequences: int, tokens: int, seed: int) -> dict[str, Any]:
    """Return where and in which channel pocket's stream grows most, and numbers on that channel's quadratic form."""
    model, stream = pocket_decoder()
    rng = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(stream) - tokens, (sequences,), generator=rng)
    ids = F.pad(stream[starts[:, None] + torch.arange(tokens - 1)], (1, 0), value=0)
    seen = model.observe(ids)
    return {"seed": seed, **attention_of(seen), **stream_of(seen), **step_up(model, seen), **normed(model, seen)}


@torch.no_grad()
def normed(model: Decoder, seen: Seen) -> dict[str, float]:
    """Return the largest outputs of pocket's norms, without their gains and divided by sqrt(width).

    There are three numbers: the largest over all norms; the largest for the spiked token, at the norm that reads the
    spike; and the median of the largest entries of all other tokens at that norm.
    """
    readers: list[Any] = [
        *(norm for block in model.blocks for norm in (block.attention_norm, block.mlp_norm)),
        model.last_norm,
    ]
    outputs = [
        (norm(stream) / norm.of.weight).abs().amax(-1) * stream.shape[-1] ** -0.5
        for norm, stream in zip(readers, seen.streams, strict=True)
    ]
    peaks = [float(stream.abs().max()) for stream in seen.streams]
    where = peaks.index(max(peaks))
    spiked = seen.streams[where].abs().amax(-1) == max(peaks)
    return {
        "largest_normed_over_root_width": max(float(output.max()) for output in outputs),
        "spiked_token_over_root_width": float(outputs[where][spiked].max()),
        "other_tokens_over_root_width": float(outputs[where][~spiked].median()),
    }


@torch.no_grad()
def step_up(model: Decoder, seen: Seen) -> dict[str, Any]:
    """Return the MLP that makes an entry grow most, the channel k, and S_k compared with the forms of other channels.

    We measure growth and not the size of the output, because an MLP that removes a spike has an output as large. In
    pocket this is the MLP of the last block, with channel 0, and not that of block 1, in which a scan finds the massive
    activation.
    """
    growth = [after.abs() - before.abs() for before, after in zip(seen.streams[1::2], seen.streams[2::2], strict=True)]
    layer = max(range(len(growth)), key=lambda number: float(growth[number].max()))
    _, token, channel = (int(index[0]) for index in (growth[layer] == growth[layer].max()).nonzero(as_tuple=True))
    block = model.blocks[layer]
    assert isinstance(block, Block)
    gate, up, down = block.gate.weight, block.up.weight, block.down.weight
    norms = form_norms(gate, up, down)
    main, _ = dominance(quadratic_form(gate, up, down[channel]))
    others = [dominance(quadratic_form(gate, up, row))[0] for row in down]
    return {
        "step_up_layer": layer,
        "step_up_channel": channel,
        "step_up_on_token": token,
        "step_up": float(growth[layer].max()),
        "form_norms": norms.tolist(),
        "spike_form_norm_over_median": float(norms[channel] / norms.median()),
        "spike_form_norm_rank": int((norms > norms[channel]).sum()) + 1,
        "spike_form_dominance": main,
        "median_form_dominance": float(torch.tensor(others).median()),
    }


def planted_figure(forms: Rows) -> Figure:
    points = [
        Point.over([row["planted_spreads"][index] for row in forms], strength, "measured")
        for index, strength in enumerate(STRENGTHS)
    ]
    points += [Point(strength, predicted(strength), "sqrt(d / (s² + d))", dashed=True) for strength in STRENGTHS]
    caption = "Tokens of noise that share one planted channel: |x_i - x_j| after RMSNorm over that before it."
    axes = ("strength of the channel / sqrt(width)", "distance of tokens, after / before")
    title = "A planted spike makes tokens equal"
    return Figure("planted-spike", title, caption, *axes, tuple(points), log=True, log_x=True)


def channels_figure(pocket: Rows) -> Figure:
    """Draw the three largest channels after every half block, as the paper does."""
    points = tuple(
        Point.over([row["top_channels"][half][rank] for row in pocket], half / 2, label)
        for rank, label in enumerate(("largest channel", "second largest channel", "third largest channel"))
        for half in range(len(pocket[0]["top_channels"]))
    )
    caption = "pocket, on the embedded book: .5 is after the attention of the first block, 1 after its MLP, and so on."
    axes = ("blocks done", "largest |x| in the stream")
    return Figure("pocket-channels", "Where pocket's stream steps up", caption, *axes, points, log=True)


def forms_figure(pocket: Rows) -> Figure:
    first = pocket[0]
    norms, rank = sorted(first["form_norms"], reverse=True), first["spike_form_norm_rank"]
    points = [Point(place, norm, "channels, largest first") for place, norm in enumerate(norms, start=1)]
    spiked = first["form_norms"][first["step_up_channel"]]
    points += [Point(rank + offset, spiked, "the spike's channel") for offset in (-0.5, 0.5)]
    block = first["step_up_layer"]
    caption = f"||U_k|| of every channel in the MLP of block {block}, in which pocket's largest entry grows most."
    axes = ("rank of the channel", "Frobenius norm of its quadratic form")
    return Figure("pocket-forms", "Quadratic forms of the MLP that steps up", caption, *axes, tuple(points))
