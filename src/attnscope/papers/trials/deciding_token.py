"""A toy task in which one token decides: a key token among fillers gives the class, and the first token answers.

After training, attention and its gradients are recorded in two ways: as maps, as in the paper, and as attention calls,
which need no map.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.commands.evaluate.perturbing import Perturbed, averaged, perturbed
from attnscope.commands.treat.train import Recipe, train
from attnscope.core.experiment import Session
from attnscope.explanations.raw_attention import raw_attention
from attnscope.explanations.relevance import relevance
from attnscope.explanations.rollout import rollout
from attnscope.matrix.relevance import AttentionCall
from attnscope.matrix.scores import Scores
from attnscope.papers.models.nano import Config, Nano

STACK = "model"
ANSWERING = 0  # the id, and the position, of the answering token
METHODS = {"relevance": relevance, "rollout": rollout, "raw attention": raw_attention}
RANDOM_ORDERS = 8


@dataclass(frozen=True)
class Toy:
    classes: int
    words: int  # number of fillers in the vocabulary
    tokens: int  # tokens per text, without the first

    def texts(
        self, count: int, seed: int
    ) -> tuple[Int[Tensor, "text token"], Int[Tensor, " text"], Int[Tensor, " text"]]:
        """Return token ids, the position of the key token, and its class."""
        rng = torch.Generator().manual_seed(seed)
        ids = torch.randint(1 + self.classes, 1 + self.classes + self.words, (count, 1 + self.tokens), generator=rng)
        places = torch.randint(1, 1 + self.tokens, (count,), generator=rng)
        classes = torch.randint(0, self.classes, (count,), generator=rng)
        ids[:, 0] = ANSWERING
        ids[torch.arange(count), places] = 1 + classes
        return ids, places, classes


class Recording:
    """Attention that keeps its inputs, pattern and output, so that their gradients can be computed."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, Tensor, Tensor, float, Tensor, Tensor]] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        assert mask is None
        pattern = (scale * query @ key.mT).softmax(-1)
        mixed = pattern @ value
        self.seen.append((query, key, value, scale, pattern, mixed))
        return mixed


def trained(toy: Toy, layers: int, steps: int, seed: int, session: Session) -> tuple[Nano, Recording]:
    """Return the trained model in float64 and the recording of its attention."""
    recording = Recording()
    vocabulary, tokens = 1 + toy.classes + toy.words, 1 + toy.tokens
    sizes = Config(width=32, heads=4, layers=layers, mlp=64, vocab_size=vocabulary, out=toy.classes, max_tokens=tokens)
    model = Nano(sizes, seed, recording)

    def loss(_: object, rng: torch.Generator) -> Tensor:
        ids, _places, classes = toy.texts(48, int(torch.randint(2**31, (1,), generator=rng)))
        recording.seen.clear()
        return F.cross_entropy(model(ids)[:, 0], classes)

    train(model, loss, Recipe(steps, 3e-3), seed=seed, advance=session.advance, stage=f"training {layers} blocks")
    return model.double().eval().requires_grad_(False), recording


@torch.no_grad()
def accuracy(model: Nano, toy: Toy, seed: int) -> float:
    ids, _, classes = toy.texts(400, seed)
    return float((model(ids)[:, 0].argmax(-1) == classes).double().mean())


def from_vectors(model: Nano, vectors: Float[Tensor, "text token width"]) -> Float[Tensor, "text class"]:
    """Return the model's answer, given token embeddings."""
    assert model.positions is not None
    stream = vectors + model.positions.weight[: vectors.shape[1]]
    for block in model.blocks:
        stream = block(stream, None)
    answer: Tensor = model.output(model.last_norm(stream))
    return answer[:, 0]


@dataclass(frozen=True)
class Trace:
    """The attention on one text, as calls, and as maps A with their gradients dA."""

    calls: tuple[AttentionCall, ...]
    maps: tuple[tuple[Float[Tensor, "head query key"], Float[Tensor, "head query key"]], ...]

    def abar(self) -> list[Float[Tensor, "query key"]]:
        """Return Abar (equation 5) of every block from maps: the mean over heads of (dA * A)^+."""
        return [(gradient * pattern).clamp_min(0).mean(0) for pattern, gradient in self.maps]

    def dense(self) -> Float[Tensor, "query key"]:
        """Return R (equation 6) from maps: start with R = I, then set R <- R + Abar R in every block."""
        steps = self.abar()
        total = torch.eye(len(steps[0]), dtype=steps[0].dtype)
        for step in steps:
            total = total + step @ total
        return total

    def row(self, name: str = "relevance") -> Float[Tensor, " key"]:
        """Return the scores that a method gives for the first token, computed without a map."""
        first = torch.zeros(self.calls[0].scores.query.shape[2], dtype=torch.float64)
        first[0] = 1
        scores: Tensor = METHODS[name](calls=self.calls, start={STACK: first})[STACK]
        return scores


@torch.enable_grad()
def trace(model: Nano, recording: Recording, ids: Int[Tensor, " token"], label: int) -> Trace:
    recording.seen.clear()
    vectors = model.embedding(ids[None]).requires_grad_(True)
    logit = from_vectors(model, vectors)[0, label]
    seen = tuple(recording.seen)
    gradients = torch.autograd.grad(logit, [call[4] for call in seen] + [call[5] for call in seen])
    calls, maps = [], []
    for layer, (query, key, value, scale, pattern, _) in enumerate(seen):
        scores = Scores(query.detach(), key.detach(), scale)
        behind = gradients[len(seen) + layer].transpose(1, 2)
        calls.append(AttentionCall(STACK, STACK, layer, scores, value.detach(), behind))
        maps.append((pattern[0].detach(), gradients[layer][0]))
    return Trace(tuple(calls), tuple(maps))


def perturb(
    model: Nano, ids: Int[Tensor, " token"], label: int, scores: Float[Tensor, " token"] | None, seed: int
) -> Perturbed:
    """Measure the answer while tokens other than the first are removed, in the order of `scores` or at random."""
    assert isinstance(model.embedding, nn.Embedding)
    vectors = model.embedding(ids)
    nothing = model.embedding.weight.mean(0).expand_as(vectors[1:])

    def ask(inputs: dict[str, Tensor]) -> Tensor:
        rest = inputs[STACK]
        whole = torch.cat([vectors[:1].expand(len(rest), 1, -1), rest], dim=1)
        return from_vectors(model, whole).softmax(-1)[:, label]

    rng = torch.Generator().manual_seed(seed)
    orders = [torch.rand(len(ids) - 1, generator=rng) for _ in range(RANDOM_ORDERS)] if scores is None else [scores[1:]]
    return averaged([perturbed(ask, {STACK: vectors[1:]}, {STACK: nothing}, {STACK: order}) for order in orders])
