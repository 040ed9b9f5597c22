"""Are the operator's maps faithful? Their rows are compared with rollout and raw attention (arXiv:2601.17958).

    classifier       an encoder with biases, trained here on texts that mix words of several classes with neutral words;
                     at the last token it must answer with the class that has the most words
    language model   the embedded model, explained for the next token of real texts

A map scores every token j by T_ij, the block of the operator from token j to the answering token i. All four maps
follow from one set of backward passes, one for each output channel of token i, which give all T_ij. Tokens are then
removed in the order of their scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.commands.evaluate.perturbing import perturbed
from attnscope.commands.explain.aiming import Aim, Question, aim
from attnscope.commands.explain.record import Asked
from attnscope.commands.explain.run import first_look
from attnscope.commands.explain.running import Run, start_of
from attnscope.commands.treat.train import Recipe, train
from attnscope.core.experiment import Session
from attnscope.core.registry import explanations
from attnscope.hf.editing.freeze import freeze
from attnscope.hf.loading.load import Loaded, batches_for, load
from attnscope.hf.loading.one_text import reading
from attnscope.hf.loading.options import Sampling
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.tapping.capture import asked_with, capture
from attnscope.papers.models.nano import Config, Nano
from attnscope.pathways.affine import Affine, beside_jacobian
from attnscope.pathways.network import Network, relative_difference

MAPS = ("norm", "input", "output", "contribution")
BASELINES = ("rollout", "raw_attention")
FLOOR = "random"
COMPARED = (*MAPS, *BASELINES)
METHODS = (*COMPARED, FLOOR)
ORDERS = 4  # number of random orders; their mean is the baseline of chance


@dataclass(frozen=True)
class Words:
    """The classifier's vocabulary: `each` words per class plus `silent` neutral words."""

    classes: int = 3
    each: int = 6
    silent: int = 30
    tokens: int = 24
    speaking: float = 0.3  # probability that a token is a word of a class

    @property
    def vocabulary(self) -> int:
        return self.classes * self.each + self.silent + 1  # the last word is the answering token


def word_texts(words: Words, count: int, rng: torch.Generator) -> tuple[Int[Tensor, "row token"], Int[Tensor, " row"]]:
    """Draw texts, and return them with the class that has the most words; ties go to the smaller class."""
    silent = torch.randint(words.classes * words.each, words.vocabulary - 1, (count, words.tokens), generator=rng)
    speaks = torch.rand(count, words.tokens, generator=rng) < words.speaking
    spoken = torch.randint(0, words.classes * words.each, (count, words.tokens), generator=rng)
    ids = torch.where(speaks, spoken, silent)
    ids[:, -1] = words.vocabulary - 1
    classes = torch.where(ids < words.classes * words.each, ids // words.each, words.classes)
    votes = F.one_hot(classes, words.classes + 1)[..., : words.classes].sum(1)
    return ids, votes.argmax(-1)


def trained_classifier(words: Words, width: int, layers: int, recipe: Recipe, seed: int, session: Session) -> Nano:
    """Train and return an encoder built like BERT: post-norm, with biases and GELU."""
    data: dict[str, Any] = {"vocab_size": words.vocabulary, "out": words.classes, "max_tokens": words.tokens}
    model = Nano(Config(width=width, heads=4, layers=layers, mlp=2 * width, norm="post", **data), seed)

    def loss(nano: nn.Module, rng: torch.Generator) -> Tensor:
        ids, labels = word_texts(words, 64, rng)
        return F.cross_entropy(nano(ids)[:, -1], labels)

    train(model, loss, recipe, seed=seed, advance=session.advance, stage="training the classifier")
    return model.eval().requires_grad_(False)


def accuracy(model: Nano, words: Words, seed: int) -> float:
    ids, labels = word_texts(words, 400, torch.Generator().manual_seed(10_000 + seed))
    with torch.no_grad():
        return float((model(ids)[:, -1].argmax(-1) == labels).float().mean())


def rows_of_maps(run: Run) -> dict[str, Float[Tensor, " token"]]:
    """For the answering token, return per-token scores of the linear map from the embeddings to the last stream."""
    blocks = Affine(run.network, 0, run.network.layers, False)
    (weights,) = start_of(run.captured, run.found).values()
    i, width = int(weights.argmax()), blocks.leaves.shape[1]
    units = blocks.leaves.new_zeros(width, *blocks.leaves.shape)
    units[:, i] = torch.eye(width).to(units)
    row = blocks.transposed_times(units)  # [out, token, width]: all of T_ij
    own = blocks.leaves[i] / blocks.leaves[i].norm()
    arrives = torch.einsum("ctw,tw->tc", row, blocks.enters)
    return {
        "norm": row.square().sum((0, 2)).sqrt(),
        "input": arrives.norm(dim=-1),
        "output": torch.einsum("c,ctw->tw", own, row).norm(dim=-1),
        "contribution": arrives @ own,
    }


def judged(run: Run) -> dict[str, float]:
    """Return negative minus positive area on one text, for every method; random orders are averaged."""
    (stack,) = run.captured.embedding
    scores = {name: {stack: row} for name, row in rows_of_maps(run).items()}
    scores |= {name: run.explained_by(explanations()[name]) for name in BASELINES}
    blind = [
        replace(run, seed=ORDERS * run.seed + number).explained_by(explanations()[FLOOR]) for number in range(ORDERS)
    ]

    def ask(embedding: dict[str, Tensor]) -> Tensor:
        return asked_with(run.loaded.model, run.read.batch, run.places, run.aim.chance, embedding)

    def gap(order: Mapping[str, Tensor]) -> float:
        areas = perturbed(ask, run.captured.embedding, run.baseline(), dict(order))
        return areas.negative - areas.positive

    return {name: gap(order) for name, order in scores.items()} | {FLOOR: sum(map(gap, blind)) / ORDERS}


def classifier_runs(model: Nano, words: Words, texts: int, seed: int) -> Iterator[Run]:
    """Yield one run per text, which explains the class that the model predicts."""
    loaded = load(model, seed=seed)
    ids, _ = word_texts(words, texts, torch.Generator().manual_seed(20_000 + seed))
    for number, row in enumerate(ids):
        with torch.no_grad():
            label = int(model(row[None])[0, -1].argmax())
        yield _run(loaded, {"input_ids": row[None]}, seed + number, label)


def language_runs(model: str, texts: int, tokens: int, seed: int) -> Iterator[Run]:
    loaded = load(model, seed=seed)
    sampling = Sampling(samples=texts, max_tokens=tokens, batch_size=1, seed=seed, bos="auto")
    for number, batch in enumerate(batches_for(loaded, None, sampling)):
        yield _run(loaded, batch.inputs, seed + number, None)


def _run(loaded: Loaded, inputs: dict[str, Any], seed: int, label: int | None) -> Run:
    with quiet():
        read = reading(loaded, inputs, what="Explanations")
        found, places, output = first_look(loaded, read)
        goal = aim(loaded, read, output, Question()) if label is None else _aim_at(label, output)
        captured = capture(loaded.model, read.batch, found, places, goal.number)
        return Run(loaded, read, found, places, goal, captured, seed)


def _aim_at(label: int, output: Float[Tensor, "batch token out"]) -> Aim:
    direction = torch.zeros_like(output)
    direction[:, -1, label] = 1.0

    def number(logits: Tensor) -> Tensor:
        return logits[:, -1, label]

    def chance(logits: Tensor) -> Tensor:
        return logits[:, -1].softmax(-1)[:, label]

    return Aim(number, direction, Asked("logit", str(label)), output.shape[1] - 1, chance)


def checked(run: Run, probes: int, seed: int) -> dict[str, float]:
    """Compare the operator with the model on this text, with and without the offset, and with the Jacobian.

    `freeze` refuses unless `float64` and `float32` are small, so they test nothing. The test is `untouched_...`, which
    compares T x + b with the unmodified model, with its own fused attention and no hooks.
    """
    wide = load(run.loaded, dtype="float64", seed=seed)
    exact, narrow = (_whole(freeze(loaded.model, run.read.batch, run.found)) for loaded in (wide, run.loaded))
    product, narrow_product = (affine.times(affine.enters[None])[0] for affine in (exact, narrow))
    apart = beside_jacobian(exact, probes, seed)
    return {
        "untouched_float64": relative_difference(product + exact.offset, untouched(wide, run)),
        "untouched_float32": relative_difference(narrow_product + narrow.offset, untouched(run.loaded, run)),
        "float64": relative_difference(product + exact.offset, exact.leaves),
        "float32": relative_difference(narrow_product + narrow.offset, narrow.leaves),
        "without_offset": relative_difference(product, exact.leaves),
        "offset_share": float(exact.offset.norm() / exact.leaves.norm()),
        "jacobian_distance": apart.distance,
        "jacobian_cosine": apart.cosine,
    }


@torch.no_grad()
def untouched(loaded: Loaded, run: Run) -> Float[Tensor, "token out"]:
    """Return the output of the unmodified model."""
    output = loaded.model(**run.read.batch)
    answer: Tensor = output if isinstance(output, Tensor) else output[0]
    return answer[0]


def _whole(network: Network) -> Affine:
    return Affine(network, 0, network.layers, True)
