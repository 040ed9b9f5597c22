"""Train a small decoder from scratch and measure its sinks, spikes, entropy, loss and time per training step.

    row = grown(Growth(steps=400), seed=0, name="pre-norm", session=session)

Sinks are counted as in arXiv:2410.10781: a head has a sink on a sequence if alpha_0 = mean_i A_i0 is above .3; the sink
rate is the share of triples (sequence, block, head) with a sink. If weights may be negative, |A| is used; a row that
sums to more than 1 is scaled down to 1, and one that sums to less is unchanged, because the rest is not attention.
Entropy is computed from rows scaled to sum to one. A spike is the largest |x| in the stream after any half block;
`spike_over_median` divides it by the median |x| there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.commands.treat.train import Recipe, train
from attnscope.core.decoding import plain
from attnscope.core.experiment import Session
from attnscope.measures.sink_mass import sink_mass
from attnscope.papers.models.decoder import SOFTMAX, Decoder, Seen, Shape
from attnscope.papers.models.tasks import CopyTask, Text, characters, copying
from attnscope.papers.trials.curves import Rows, select

HELD = 1_000_003  # added to the seed for held-out rows


@dataclass(frozen=True)
class Growth:
    """All settings of a trained model except the seed. `data` is `copying` or `characters`."""

    steps: int
    data: str = "copying"
    rows: int = 4096
    held: int = 64
    batch: int = 16
    rate: float = 1e-2
    decay: float = 0.0
    tokens: int = 48
    bos: bool = True
    symbols: int = 32
    triggers: int = 8
    width: int = 64
    heads: int = 2
    head_width: int | None = None
    layers: int = 2
    hidden: int = 160
    pattern: str = SOFTMAX
    parts: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()
    starts: tuple[tuple[str, float], ...] = ()

    def text(self, rows: int, seed: int, held_out: bool) -> Text:
        if self.data == "characters":
            return characters(self.tokens, rows, seed, bos=self.bos, held_out=held_out)
        return copying(CopyTask(self.symbols, self.triggers, tokens=self.tokens, bos=self.bos), rows, seed)

    def shape(self, vocabulary: int) -> Shape:
        own = ("width", "heads", "layers", "hidden", "head_width", "pattern", "parts", "settings", "starts")
        return Shape(vocabulary, **{name: getattr(self, name) for name in own})


def grown(growth: Growth, seed: int, name: str, session: Session) -> dict[str, Any]:
    """Train a model, measure it, and return one row of plain numbers."""
    model, held = trained(growth, seed, name, session)
    seen = model.observe(held.ids[:, :-1])
    answers = F.cross_entropy(seen.logits.flatten(0, 1), held.ids[:, 1:].flatten())
    return {
        "arm": name,
        "seed": seed,
        "loss": float(answers),
        "floor": held.floor,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **attention_of(seen),
        **stream_of(seen),
    }


def trained(growth: Growth, seed: int, name: str, session: Session) -> tuple[Decoder, Text]:
    """Return the trained model and the held-out rows."""
    text, held = growth.text(growth.rows, seed, False), growth.text(growth.held, seed + HELD, True)
    model = Decoder(growth.shape(text.vocabulary), seed)

    def loss(model: nn.Module, rng: torch.Generator) -> Tensor:
        rows = text.ids[torch.randint(0, len(text.ids), (growth.batch,), generator=rng)]
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    train(
        model,
        loss,
        Recipe(growth.steps, growth.rate, decay=growth.decay, beta2=0.95),
        seed=seed,
        kept=session.state_path(f"{growth.data}-{name}-{seed}"),
        plan={"growth": plain(asdict(growth))},
        advance=session.advance,
        stage=f"{name}, seed {seed}",
    )
    return model, held


def attention_of(seen: Seen) -> dict[str, Any]:
    """Return the sink rate, alpha_0 of every head and relative entropy, or None for each if columns are not tokens."""
    if any(pattern is None for pattern in seen.patterns):
        return {"sink_rate": None, "alpha": None, "entropy": None}
    sizes = [at_most_one(pattern.double()) for pattern in seen.patterns if pattern is not None]
    rates = [sink_rate(size) for size in sizes]
    return {
        "sink_rate": sum(rates) / len(rates),
        "alpha": [size[..., 0].mean((0, 2)).tolist() for size in sizes],
        "entropy": sum(map(relative_entropy, sizes)) / len(sizes),
    }


def at_most_one(pattern: Float[Tensor, "batch head query key"]) -> Float[Tensor, "batch head query key"]:
    """Return |A|, with rows that sum to more than 1 scaled down to 1."""
    sizes = pattern.abs()
    return sizes / sizes.sum(-1, keepdim=True).clamp_min(1.0)


def sink_rate(pattern: Float[Tensor, "batch head query key"]) -> float:
    """Return the share of pairs (sequence, head) whose mean weight on the first key is above .3."""
    everyone = torch.ones(pattern.shape[0], pattern.shape[2], dtype=torch.bool)
    return float(sink_mass(first_key_mass=pattern[..., 0], query_mask=everyone)["rate"].value.double().mean())


def relative_entropy(pattern: Float[Tensor, "batch head query key"]) -> float:
    """Return the mean over rows but the first of entropy / ln(visible keys): 1 for uniform attention, 0 for one key."""
    p = pattern / pattern.sum(-1, keepdim=True).clamp_min(1e-30)
    most = torch.arange(2, pattern.shape[-2] + 1, dtype=p.dtype).log()
    return float((torch.special.entr(p).sum(-1)[..., 1:] / most).mean())


def stream_of(seen: Seen) -> dict[str, Any]:
    """Return the three largest channels after every half block, and the size and place of the spike."""
    top, over = [], []
    for stream in seen.streams:
        sizes = stream.double().abs()
        top.append(sizes.amax((0, 1)).topk(min(3, sizes.shape[-1])).values.tolist())
        over.append(top[-1][0] / max(float(sizes.median()), 1e-30))
    peaks = [largest for largest, *_ in top]
    where = peaks.index(max(peaks))
    first = seen.streams[where].double().abs()[:, 0].max()
    return {
        "top_channels": top,
        "spike": max(peaks),
        "spike_over_median": max(over),
        "spike_after": where,
        "spike_on_first_token": float(first) == max(peaks),
    }


def over_seeds(rows: Rows, arm: str, column: str) -> list[float]:
    """Return the value of a column for each seed of an arm, or NaN where it is missing."""
    return [math.nan if row[column] is None else float(row[column]) for row in select(rows, arm=arm)]


def step_times(
    growths: Mapping[str, Growth], reference: str, repeats: int, seed: int, session: Session
) -> dict[str, Any]:
    """Return each model's step time (forward and backward) divided by the step time of `reference`.

    Models take turns, so that other load on the machine affects all equally. Use the CPU time of the fastest step; the
    first turn is a warm-up.
    """
    first = growths[reference]
    rows = first.text(first.batch, seed, False)
    models = {name: Decoder(growth.shape(rows.vocabulary), seed) for name, growth in growths.items()}
    fastest: dict[str, float] = {}
    for turn in range(repeats + 1):
        session.advance("timing", turn, repeats + 1)
        for name, model in models.items():
            start = time.process_time()
            F.cross_entropy(model(rows.ids[:, :-1]).flatten(0, 1), rows.ids[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]
            took = time.process_time() - start
            model.zero_grad(set_to_none=True)
            if turn:
                fastest[name] = min(took, fastest.get(name, took))
    return {"seed": seed, "paces": {name: took / max(fastest[reference], 1e-9) for name, took in fastest.items()}}
