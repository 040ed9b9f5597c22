"""Training an induction network on random Markov chains, and what its training must find (arXiv:2409.10559).

A shorter way to its answer. What heads of layer 1 fetch depends on the `window` symbols before a place alone, one of
V^window contexts; so do K and the weights of layer 2. Let N[u, e] count how often symbol e followed context u in a
text whose last context is u*. Then

    y_e = sum_u N[u, e] exp(a K[u*, u]) / sum_u N[u, .] exp(a K[u*, u]):

counts are made once, and a step needs one table K for all texts. Same numbers as the network's attention, which a test
holds it to.

Loss is cross entropy of y taken as logits, as published: its floor is ln(1 + (V - 1) / e), not 0.

What is found. The paper's modified chi^2 information of a set S of parents, with mu of the chain's own long run,

    I(S) = E_rule sum_{z, e} mu(z_S)^2 mu(e | z_S)^2 / mu(e)  -  sum_z mu(z_S)^2 :

how much parents in S tell about the next symbol, each value of theirs weighed by how often it comes (so that large
sets, whose values come seldom, pay for their size). The set with the largest I is the one that training should keep.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.commands.scan.run import scan
from attnscope.core.experiment import Session
from attnscope.data.read import REPEATED
from attnscope.papers.models.induction import Chains, InductionNetwork

Phase = Literal["sets_weight", "lags", "sharpness"]
PHASES: tuple[Phase, ...] = ("sets_weight", "lags", "sharpness")


@dataclass(frozen=True)
class Counted:
    """Texts as the network sees them: which context each ends with, what followed which context, what comes next."""

    last: Int[Tensor, " row"]
    counts: Float[Tensor, "row context symbol"]
    answer: Int[Tensor, " row"]

    def __getitem__(self, rows: slice) -> Counted:
        return Counted(self.last[rows], self.counts[rows], self.answer[rows])


def counted(ids: Int[Tensor, "row token"], window: int, symbols: int) -> Counted:
    """The last token of each row is the answer; places that do not have a whole window before them are not copied."""
    places = symbols ** torch.arange(window)  # lag 1 is the lowest digit of a context's number
    contexts = (ids.unfold(1, window, 1).flip(-1) * places).sum(-1)[:, :-1]  # before tokens window, window + 1, ...
    followed = contexts[:, :-1] * symbols + ids[:, window:-1]
    counts = torch.zeros(len(ids), symbols ** (window + 1)).scatter_add_(1, followed, torch.ones(followed.shape))
    return Counted(contexts[:, -1], counts.reshape(len(ids), -1, symbols), ids[:, -1])


def all_contexts(window: int, symbols: int) -> Float[Tensor, "context lag symbol"]:
    number = torch.arange(symbols**window)[:, None]
    return F.one_hot(number // symbols ** torch.arange(window) % symbols, symbols).float()


def answers(network: InductionNetwork, texts: Counted) -> Float[Tensor, "row symbol"]:
    contexts = all_contexts(network.window, network.symbols).to(network.lags)
    fetched = torch.einsum("ule,hl->hue", contexts, network.lags.softmax(-1))
    table = (network.sharpness * network.kernel(F.normalize(fetched, dim=-1))).exp()
    weight = F.embedding(texts.last, table)
    mixed = (weight[:, None] @ texts.counts.to(table))[:, 0]
    return mixed / mixed.sum(-1, keepdim=True)


def loss_of(network: InductionNetwork, texts: Counted) -> Tensor:
    return F.cross_entropy(answers(network, texts), texts.answer)


@dataclass(frozen=True)
class Stretch:
    """So many epochs of gradient descent on these tensors, with this rate for each."""

    name: str
    trains: tuple[Phase, ...]
    epochs: int
    rate: float


def descend(
    network: InductionNetwork,
    known: Counted,
    held: Counted,
    plan: Sequence[Stretch],
    session: Session,
    parents: tuple[int, ...],
) -> list[dict[str, Any]]:
    """All texts in every step, as published; a row of what the network is like before each epoch, and at the end."""
    rows, epoch, total = [], 0, sum(stretch.epochs for stretch in plan)
    for stretch in plan:
        trained = [getattr(network, name) for name in stretch.trains]
        for _ in range(stretch.epochs):
            rows.append(state(network, held, parents) | {"epoch": epoch, "stretch": stretch.name})
            slopes = torch.autograd.grad(loss_of(network, known), trained)
            with torch.no_grad():
                for tensor, slope in zip(trained, slopes, strict=True):
                    tensor.sub_(stretch.rate * slope)
            epoch += 1
            session.advance(stretch.name, epoch, total)
    rows.append(state(network, held, parents) | {"epoch": epoch, "stretch": plan[-1].name})
    return rows


@torch.no_grad()
def state(network: InductionNetwork, held: Counted, parents: tuple[int, ...]) -> dict[str, float]:
    """Validation loss, share of the set of all parents, weight of each of its heads on its lag, sharpness."""
    wanted = tuple(lag - 1 for lag in parents)
    return {
        "loss": float(loss_of(network, held)),
        "share": float(network.shares[network.sets.index(wanted)]),
        **{f"lag_{lag}": float(network.lag_weights[lag - 1, lag - 1]) for lag in parents},
        "sharpness": float(network.sharpness),
    }


def rule_of_three(rules: Float[Tensor, "row ..."], parents: tuple[int, ...]) -> Float[Tensor, "row one two three next"]:
    """The rule of the next symbol given the last three, of chains whose parents are among those."""
    wide = rules
    for lag in (1, 2, 3):
        if lag not in parents:
            wide = wide.unsqueeze(lag)
    return wide.expand(-1, *(rules.shape[-1],) * 4)


def long_run(rule: Float[Tensor, "row one two three next"], steps: int = 400) -> Float[Tensor, "row one two three"]:
    """How often the last three symbols stand together.

    The mean of the second half of many steps from the uniform start: a chain that goes round in a circle has no limit,
    and its mean is what long texts count.
    """
    now = torch.full(rule.shape[:-1], rule.shape[-1] ** -3.0, dtype=rule.dtype)
    total = torch.zeros_like(now)
    for step in range(steps):
        now = torch.einsum("rabc,rabce->reab", now, rule)
        total += now * (step >= steps // 2)
    return total / (steps - steps // 2)


def information(rules: Float[Tensor, "row ..."], parents: tuple[int, ...], degree: int) -> dict[tuple[int, ...], float]:
    """I(S) for all sets of at most `degree` of the lags 1 to 3; parents are among them."""
    rule = rule_of_three(rules, parents)
    joint = torch.einsum("rabc,rabce->reabc", long_run(rule), rule)
    found = {}
    for size in range(degree + 1):
        for chosen in itertools.combinations((1, 2, 3), size):
            left_out = [1 + lag for lag in (1, 2, 3) if lag not in chosen]
            some = joint.sum(left_out, keepdim=True).flatten(2) if left_out else joint.flatten(2)  # [row, next, values]
            before, after = some.sum(1), some.sum(2)
            tells = (some.square() / after[..., None].clamp_min(1e-300)).sum(1) - before.square()
            found[chosen] = float(tells.sum(-1).mean())
    return found


def trained(
    chains: Chains, known: int, held: int, window: int, plan: Sequence[Stretch], seed: int, session: Session
) -> tuple[InductionNetwork, list[dict[str, Any]]]:
    """A network of three heads on texts of its own; `held` more texts are for validation."""
    text = chains.draw(known + held, seed)
    texts = counted(text.ids, window, chains.symbols)
    network = InductionNetwork(chains.symbols, 3, window)
    return network, descend(network, texts[:known], texts[known:], plan, session, chains.parents)


# Induction heads of real models: on random tokens that come twice, who attends to what followed the token before?
#
# Nothing but the first time can tell what comes in the second, and random tokens have no grammar: a head that attends
# to the token behind the last occurrence has looked the context up. The heads that make this possible, which tell
# each token what stood before it, should lie in earlier layers (arXiv:2209.11895, 2409.10559).

MEASURES = ("induction", "previous_token")


def uniform_share(tokens: int) -> float:
    """What a head that attends to all it sees alike gives to one of them, mean over the second time; behind BOS."""
    return sum(1 / (place + 2) for place in range(tokens, 2 * tokens)) / tokens


def heads_of(model: str, rows: int, tokens: int, seed: int) -> list[dict[str, Any]]:
    """Both measures for every head of a model that is loaded by name, on BOS and twice so many tokens."""
    survey = scan(model, REPEATED, measures=MEASURES, samples=rows, max_tokens=2 * tokens + 1, bos="yes", seed=seed)
    found, before = (survey.values(name) for name in MEASURES)
    return [
        {"layer": layer, "head": head, "induction": float(found[layer, head]), "previous": float(before[layer, head])}
        for layer in range(len(found))
        for head in range(found.shape[1])
    ]
