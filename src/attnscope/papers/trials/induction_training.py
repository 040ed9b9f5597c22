"""Train an induction network on random Markov chains, and compute what training should find (arXiv:2409.10559).

The network's answer in a shorter way: the outputs of block 1 depend only on the `window` symbols before a position,
which are one of V^window contexts for V symbols, and so do K and the weights of block 2. Let N[u, e] count how often
symbol e followed context u in a text whose last context is u*. Then, with a the sharpness,

    y_e = sum_u N[u, e] exp(a K[u*, u]) / sum_u N[u, .] exp(a K[u*, u]):

so texts are counted once, and each training step needs one table K for all texts. A test checks that this equals the
network's attention.

The loss is the cross entropy of y used as logits, as published: its minimum is ln(1 + (V - 1) / e), not 0 (here e is
Euler's number).

What training should find: the paper defines a modified chi^2 information of a set S of parents. With mu the stationary
distribution of the chain and z_S the symbols at the lags in S,

    I(S) = E_rule sum_{z, e} mu(z_S)^2 mu(e | z_S)^2 / mu(e)  -  sum_z mu(z_S)^2 :

which is large if the parents in S tell much about the next symbol; each value z_S is weighted by its frequency, so that
large sets, whose values are rare, are penalised. Training should keep the set with the largest I.

Induction heads of real models are measured on a sequence of random tokens given twice. Random tokens have no grammar,
so the second copy can be predicted only from the first: a head that attends to the token after the last occurrence has
looked up the context. Previous-token heads, which make this possible, should lie in earlier blocks (arXiv:2209.11895,
2409.10559).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.commands.scan.run import scan
from attnscope.core.experiment import Figure, Point, Session, median
from attnscope.data.read import REPEATED
from attnscope.papers.models.induction import Chains, InductionNetwork
from attnscope.papers.trials.curves import Row, Rows, by_seed, curve, select

Phase = Literal["sets_weight", "lags", "sharpness"]
PHASES: tuple[Phase, ...] = ("sets_weight", "lags", "sharpness")
MEASURES = ("induction", "previous_token")


@dataclass(frozen=True)
class Counted:
    """Texts as counts: for each text its last context, how often each symbol followed each context, and the answer."""

    last: Int[Tensor, " row"]
    counts: Float[Tensor, "row context symbol"]
    answer: Int[Tensor, " row"]

    def __getitem__(self, rows: slice) -> Counted:
        return Counted(self.last[rows], self.counts[rows], self.answer[rows])


def counted(ids: Int[Tensor, "row token"], window: int, symbols: int) -> Counted:
    """Count contexts. The last token of a row is its answer; positions without a whole window are skipped."""
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
    """A phase of training: gradient descent on the named tensors for several epochs, at one learning rate."""

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
    """Train with all texts in every step, as published; return the state before each epoch and at the end."""
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
    """Return the validation loss, the parents' set's share, its heads' weight on their lags, and the sharpness."""
    wanted = tuple(lag - 1 for lag in parents)
    return {
        "loss": float(loss_of(network, held)),
        "share": float(network.shares[network.sets.index(wanted)]),
        **{f"lag_{lag}": float(network.lag_weights[lag - 1, lag - 1]) for lag in parents},
        "sharpness": float(network.sharpness),
    }


def rule_of_three(rules: Float[Tensor, "row ..."], parents: tuple[int, ...]) -> Float[Tensor, "row one two three next"]:
    """Return the rule as a function of the last three symbols; all parents must be among the lags 1 to 3."""
    wide = rules
    for lag in (1, 2, 3):
        if lag not in parents:
            wide = wide.unsqueeze(lag)
    return wide.expand(-1, *(rules.shape[-1],) * 4)


def long_run(rule: Float[Tensor, "row one two three next"], steps: int = 400) -> Float[Tensor, "row one two three"]:
    """Return the long-run frequency of each triple of last symbols.

    The chain starts uniform, and the second half of many steps is averaged: a periodic chain has no limit, but the
    average exists and is the frequency in long texts.
    """
    now = torch.full(rule.shape[:-1], rule.shape[-1] ** -3.0, dtype=rule.dtype)
    total = torch.zeros_like(now)
    for step in range(steps):
        now = torch.einsum("rabc,rabce->reab", now, rule)
        total += now * (step >= steps // 2)
    return total / (steps - steps // 2)


def information(rules: Float[Tensor, "row ..."], parents: tuple[int, ...], degree: int) -> dict[tuple[int, ...], float]:
    """Return I(S) for all sets of at most `degree` of the lags 1 to 3. `parents` must be among these lags."""
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
    """Train a network of three heads on `known` texts drawn from the chains; `held` more are for validation."""
    text = chains.draw(known + held, seed)
    texts = counted(text.ids, window, chains.symbols)
    network = InductionNetwork(chains.symbols, 3, window)
    return network, descend(network, texts[:known], texts[known:], plan, session, chains.parents)


def uniform_share(tokens: int) -> float:
    """Return the weight that uniform attention gives one token, averaged over the second copy of a text with BOS."""
    return sum(1 / (place + 2) for place in range(tokens, 2 * tokens)) / tokens


def heads_of(model: str, rows: int, tokens: int, seed: int) -> list[dict[str, Any]]:
    """Return both measures for every head of a model, on BOS followed by `tokens` random tokens given twice."""
    survey = scan(model, REPEATED, measures=MEASURES, samples=rows, max_tokens=2 * tokens + 1, bos="yes", seed=seed)
    induction, previous = (survey.values(name) for name in MEASURES)
    return [
        {
            "layer": layer,
            "head": head,
            "induction": float(induction[layer, head]),
            "previous": float(previous[layer, head]),
        }
        for layer in range(len(induction))
        for head in range(induction.shape[1])
    ]


# The rest makes the figures and remarks of `induction2024` from its rows.

FLOOR = math.log(1 + 2 / math.e)


def figures(rows: Rows, phases: Sequence[int], reference: Mapping[int, float], tokens: int) -> tuple[Figure, ...]:
    """Draw the rows; `reference` has known losses by epoch, `tokens` is the number of random tokens given twice."""
    together, apart = (thinned(select(rows, part=name)) for name in ("together", "phases"))
    losses = [
        *curve(together, "epoch", "loss", "all weights together"),
        *curve(apart, "epoch", "loss", "one kind after the other"),
        *(Point(epoch, loss, "published or measured before", dashed=True) for epoch, loss in reference.items()),
    ]
    caption = "Cross entropy of shares taken as logits; median and range over seeds."
    drawn = [Figure("loss", "Loss on held-out texts", caption, "epoch", "loss", tuple(losses))]
    in_phases = f"Sets to epoch {phases[0]}, lags to {sum(phases[:2])}, then sharpness."
    for name, how, order, some in (
        ("together", "all together", "Sets first, then sharpness and lags.", together),
        ("phases", "one kind after the other", in_phases, apart),
    ):
        caption = f"{order} Sharpness a is divided by its last value."
        title = f"What is learned when: {how}"
        drawn.append(Figure(f"learned_{name}", title, caption, "epoch", "share", tuple(learned_curves(some))))
    title, axes = "Information of each set of parents", ("set of lags", "information, of the best")
    caption = "Modified chi^2 information over that of the best set; one colour for each kind of chain."
    bars = tuple(bars_of(select(rows, part="sets")))
    drawn.append(Figure("information", title, caption, *axes, bars, kind="bars"))
    for name, title in (("pocket", "the embedded model"), ("smollm2", "SmolLM2-135M")):
        if heads := select(rows, part=name):
            drawn.append(models_figure(name, title, heads, tokens))
    return tuple(drawn)


def thinned(rows: Rows) -> list[Row]:
    """Return the rows of every epoch up to 10 and of every fifth epoch after that."""
    return [row for row in rows if row["epoch"] <= 10 or row["epoch"] % 5 == 0]


def learned_curves(rows: Rows) -> list[Point]:
    named = {"share": "p of both parents", "lag_1": "head 1 on lag 1", "lag_2": "head 2 on lag 2"}
    last = {row["seed"]: row["sharpness"] for row in rows}
    relative = [{**row, "sharpness": row["sharpness"] / last[row["seed"]]} for row in rows]
    points = [point for column, series in named.items() for point in curve(rows, "epoch", column, series)]
    return points + curve(relative, "epoch", "sharpness", "sharpness a, of its last")


def bars_of(rows: Rows) -> list[Point]:
    points = []
    for parents in dict.fromkeys(tuple(row["parents"]) for row in rows):
        told = [row["told"] for row in rows if tuple(row["parents"]) == parents]
        for lags in told[0]:
            relative = [by_lags[lags] / max(by_lags.values()) for by_lags in told]
            points.append(Point.over(relative, lags, "parents " + " and ".join(map(str, parents))))
    return points


def models_figure(name: str, title: str, heads: Rows, tokens: int) -> Figure:
    """Draw the largest value of both measures in every block."""
    seeds = list(dict.fromkeys(row["seed"] for row in heads))
    points = [
        Point.over(
            [max(row[column] for row in select(some, layer=layer)) for some in by_seed(heads, seeds)], layer, label
        )
        for column, label in (("previous", "on the token before"), ("induction", "behind the last occurrence"))
        for layer in sorted({row["layer"] for row in heads})
    ]
    points += [Point(p.x, uniform_share(tokens), "uniform", dashed=True) for p in points[: len(points) // 2]]
    caption = f"{tokens} random tokens, twice: the largest attention of any head in each block."
    words = (f"heads_{name}", f"Induction heads in {title}", caption)
    return Figure(*words, "block", "share of attention", tuple(points))


def remarks(measured: Mapping[str, Sequence[float]], missing: bool) -> tuple[str, ...]:
    words = (
        "What follows: a context is learned in an order, the set of heads first: look at heads (attnscope scan MODEL "
        "repeated --measures induction,previous_token), which tell more about a young run than its loss. Training "
        "finds what is most informative about the next token given how often it occurs: rare contexts lose against "
        "shorter ones.",
        "One kind of weight after the other, the loss falls only in the last phase "
        f"({median(measured['part_of_the_fall_in_phase_1']):.2%} of its fall in the first, "
        f"{median(measured['part_of_the_fall_in_phase_2']):.2%} in the second): sharpness is held at .01 until then. "
        "Trained together there is no plateau.",
        f"The loss takes shares for logits, so its floor is {FLOOR:.4f} and not 0; a model that knows all rules is "
        "above it.",
    )
    return (*words, "SmolLM2 was not measured: tools/fetch_models.py brings its weights.") if missing else words
