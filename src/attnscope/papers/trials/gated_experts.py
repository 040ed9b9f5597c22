"""How many samples it takes to identify the experts in attention, with gates in different places (arXiv:2602.01468).

Output j of token i in multi-head attention is a mixture of experts: sum_h sum_k A^h_ik (x_k . v_h), with tokens x_k,
patterns A^h and v_h = W_V^h W_O^h[:, j]. Here the data come from one head, y = sum_k A_k (x_k . v) + noise, and the
mean of two heads is fitted to them by least squares: rates differ if more heads are fitted than exist. The expert error
is the distance of the fitted v_h from v.

With values V and a gate vector g, the kinds are:

    none     no gate: linear experts
    output   (A V) sigmoid(x_i . g), a gate after attention           value   A (V sigmoid(x_k . g)), on the values
    key      a gate on the keys, before the logits                    layer   one gate on the sum of all heads
    self     (A V) sigmoid(A V): a gate computed from the tensor it multiplies, so the expert is not linear in v

What can be identified (derived): let both heads share their logits and gates. If the answer is linear in v_h, the split
v_1 = v + e, v_2 = v - e gives the same answer for every e, so no number n of samples distinguishes the two experts from
one. Only their mean can be found, at the rate n^(-1/2). In `self` the second derivative with respect to v does not
vanish, so a split changes the answer by the order of e^2, and e falls like n^(-1/4) or faster.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import AttentionInputs
from attnscope.papers.models.nano import Attention
from attnscope.variants.gated_output import gated_output
from attnscope.variants.gated_value import gated_value

KINDS = ("none", "output", "value", "key", "layer", "self")
WIDTH, TOKENS, FITTED = 3, 5, 2
Experts = dict[str, Tensor]  # logits [head, width, width], value [head, width], gate [head, width]


def answer(kind: str, experts: Experts, tokens: Float[Tensor, "sample token width"]) -> Float[Tensor, " sample"]:
    """Return the heads' mean output at the first token."""
    first = tokens[:, 0]
    gates = torch.einsum("stw,hw->hst", tokens, experts["gate"]).sigmoid()
    keys = tokens * gates[..., None] if kind == "key" else tokens[None]
    asked = torch.einsum("sw,hwv->hsv", first, experts["logits"])
    weights = (keys * asked[:, :, None]).sum(-1).softmax(-1)
    values = torch.einsum("stw,hw->hst", tokens, experts["value"])
    mixed = (weights * (values * gates if kind == "value" else values)).sum(-1)
    if kind == "output":
        mixed = mixed * gates[..., 0]
    if kind == "self":
        mixed = mixed * mixed.sigmoid()
    whole = mixed.mean(0)
    return whole * gates[0, :, 0] if kind == "layer" else whole


def true_expert(rng: torch.Generator) -> Experts:
    """Draw the true head: random weights of the logits, and value and gate vectors of norm 2."""
    logits = torch.randn(1, WIDTH, WIDTH, generator=rng, dtype=torch.float64)
    rest = torch.randn(2, 1, WIDTH, generator=rng, dtype=torch.float64)
    value, gate = 2 * rest / rest.norm(dim=-1, keepdim=True)
    return {"logits": logits, "value": value, "gate": gate}


def fitted(kind: str, samples: int, seed: int, *, starts: int, iterations: int, noise: float) -> dict[str, Any]:
    """Fit more heads than exist by least squares, from several starting points around the truth.

    In a valley of equal loss the result of a fit depends on where it starts. So the error reported is the largest of
    all fits that the samples cannot distinguish from the best: n times the excess loss divided by the noise variance is
    chi-square with as many degrees of freedom as parameters, and fits within twice that number are kept. The truth and
    the starting points depend only on the seed. Two heads equal to the truth are a possible fit, so the best loss is at
    most the loss of the truth on the same samples: a descent that ends above it has not converged and is not used.
    """
    rng, start_rng, data_rng = (torch.Generator().manual_seed(3 * seed + which) for which in range(3))
    truth = true_expert(rng)
    tokens = torch.randn(samples, TOKENS, WIDTH, generator=data_rng, dtype=torch.float64)
    errors = noise * torch.randn(samples, generator=data_rng, dtype=torch.float64)
    wanted = answer(kind, truth, tokens) + errors
    fits = []
    for _ in range(starts):
        start = {
            name: tensor + 0.7 * torch.randn(FITTED, *tensor.shape[1:], generator=start_rng, dtype=torch.float64)
            for name, tensor in truth.items()
        }
        fits.append(_descended(kind, start, tokens, wanted, iterations))
    best, experts = min(fits, key=lambda fit: fit[0])
    parameters = sum(tensor.numel() for tensor in experts.values())
    as_good = [fit for loss, fit in fits if loss <= best + 2 * parameters * noise**2 / samples]
    size = truth["value"].norm()
    away = [(fit["value"] - truth["value"]).norm(dim=-1).square().mean().sqrt() for fit in as_good]
    return {
        "kind": kind,
        "samples": samples,
        "seed": seed,
        "as_good": len(as_good),
        "loss_over_noise": best / noise**2,
        "loss_over_truth": best / float(errors.square().mean()),
        "expert_error": float(max(away) / size),
        "mean_error": float((experts["value"].mean(0) - truth["value"][0]).norm() / size),
    }


def _descended(kind: str, start: Experts, tokens: Tensor, wanted: Tensor, iterations: int) -> tuple[float, Experts]:
    experts = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    search: dict[str, Any] = {"line_search_fn": "strong_wolfe", "tolerance_grad": 1e-9, "tolerance_change": 1e-13}
    optimiser = torch.optim.LBFGS(list(experts.values()), max_iter=iterations, history_size=30, **search)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = (answer(kind, experts, tokens) - wanted).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimiser.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        loss = (answer(kind, experts, tokens) - wanted).square().mean()
    return float(loss), {name: tensor.detach() for name, tensor in experts.items()}


@torch.no_grad()
def algebra(tokens: int, width: int, heads: int, seed: int) -> dict[str, float]:
    """Return how far the sum over experts, and attention with gates of 1, are from the module itself, in float64."""
    rng = torch.Generator().manual_seed(seed)
    module = Attention(width, heads, width // heads, biases=False).double()
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=rng, dtype=torch.float64) / width**0.5)
    stream = torch.randn(1, tokens, width, generator=rng, dtype=torch.float64)
    whole = module(stream)
    query, key, value = (
        part(stream).reshape(1, tokens, heads, -1).transpose(1, 2) for part in (module.query, module.key, module.value)
    )
    inputs = AttentionInputs(query, key, value, scale=module.scale)
    pattern = softmax_pattern(inputs)
    of_value = module.value.weight.T.reshape(width, heads, -1)
    of_output = module.output.weight.T.reshape(heads, -1, width)
    experts = torch.einsum("whd,hdj->hwj", of_value, of_output)  # W_V^h W_O^h
    triple = torch.einsum("bhik,bkw,hwj->bij", pattern, stream, experts)
    own = {"gate_weight": torch.zeros(width, width), "gate_bias": torch.zeros(width)}
    behind = gated_output(plain_attention(inputs).transpose(1, 2), stream, **own)
    on_values = gated_value(value.transpose(1, 2), stream, **own).transpose(1, 2)
    before = plain_attention(replace(inputs, value=on_values)).transpose(1, 2)
    return {
        "triple_sum": float((triple - whole).abs().max()),
        "gate_of_one": max(float((module.output(x.flatten(2)) - whole).abs().max()) for x in (behind, before)),
    }
