"""One run of a model on one text, and what explanations read of it, by name: each thing is made when it is asked
for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.core.explanation import Method
from attnscope.explaining.aiming import Aim
from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.editing.freeze import freeze
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.material import out_of_memory
from attnscope.hf.loading.one_text import Reading
from attnscope.hf.loading.outputs import mask_token_of
from attnscope.hf.tapping.capture import Captured, asked_with, gradient_under
from attnscope.hf.tapping.entrances import Entrance
from attnscope.hf.tapping.zeroing import moved_by_zeroing
from attnscope.pathways.adjoint import pulled_back
from attnscope.pathways.network import Network

ROWS = 4096  # of a table of vectors, looked up at a time


@dataclass(frozen=True)
class Run:
    """What is needed to make any field that an explanation can read."""

    loaded: Loaded
    read: Reading
    found: Anatomy
    places: tuple[Entrance, ...]
    aim: Aim
    captured: Captured
    seed: int

    def explained_by(self, method: Method) -> dict[str, Float[Tensor, " token"]]:
        """The numbers of one explanation, by stack."""
        if method.card.stacks == "one" and len(self.places) > 1:
            raise RefusalError(
                f"{method.card.name} follows one stack of tokens, and {self.loaded.class_name} has an encoder and a "
                "decoder: choose another method, relevance for one."
            )
        answer: dict[str, Tensor] = method(**{name: getattr(self, f"_{name}")() for name in method.reads})
        return answer

    def _calls(self) -> Any:
        return self.captured.calls

    def _start(self) -> dict[str, Tensor]:
        return start_of(self.captured, self.found)

    def _embedding(self) -> dict[str, Tensor]:
        return self.captured.embedding

    def _embedding_gradient(self) -> dict[str, Tensor]:
        return self.captured.embedding_gradient

    def _baseline(self) -> dict[str, Tensor]:
        return self.baseline()

    def baseline(self) -> dict[str, Float[Tensor, "token width"]]:
        """An input that says nothing, by stack."""
        return {
            place.stack: nothing_said(self.loaded, place).expand_as(self.captured.embedding[place.stack]).clone()
            for place in self.places
        }

    def _ask(self) -> Callable[[dict[str, Tensor]], Tensor]:
        return self.ask

    def ask(self, vectors: dict[str, Float[Tensor, "batch token width"]]) -> Float[Tensor, " batch"]:
        """The number for other vectors; where memory runs out, half of them at a time."""
        try:
            return asked_with(self.loaded.model, self.read.batch, self.places, self.aim.number, vectors)
        except RuntimeError as error:
            rows = len(next(iter(vectors.values())))
            if not out_of_memory(error) or rows < 2:
                raise
        halves = ({stack: one[piece] for stack, one in vectors.items()} for piece in _halves(rows))
        return torch.cat([self.ask(half) for half in halves])

    def _gradient_under(self) -> Callable[..., dict[str, Tensor]]:
        return partial(gradient_under, self.loaded.model, self.read.batch, self.places, self.aim.number)

    def _zeroed(self) -> Callable[[str], Tensor]:
        def zeroed(stack: str) -> Tensor:
            tokens = len(self.captured.embedding[stack])
            return moved_by_zeroing(self.loaded.model, self.read.batch, self.found, stack, tokens)

        return zeroed

    def _contributions(self) -> Callable[[], dict[str, Tensor]]:
        return self.contributions

    def contributions(self) -> dict[str, Float[Tensor, "token width"]]:
        """What each token sends through the network that is frozen at this text."""
        network: Network = freeze(self.loaded.model, self.read.batch, self.found)
        adjoint, _ = pulled_back(network, lambda output: (output * self.aim.direction).sum())
        return {self.places[-1].stack: (network.streams[0] * adjoint)[0].detach()}

    def _seed(self) -> int:
        return self.seed


def _halves(rows: int) -> tuple[slice, slice]:
    return slice(0, rows // 2), slice(rows // 2, rows)


def start_of(captured: Captured, found: Anatomy) -> dict[str, Float[Tensor, " token"]]:
    """From which tokens the number is read: those at which a gradient reaches the last self-attention, weighed by its
    norm. For a logit that is the one token that predicts; for a mean over tokens it is all of them."""
    own = [call for call in captured.calls if not call.crosses]
    if not own:
        raise RefusalError(f"{found.model_class} has no self-attention: there is no relevance to carry.")
    # Of two towers the one that runs last need not be the one that answers, or that reads the tokens.
    reached = [call for call in own if bool(call.gradient.any())]
    last = next(iter([call for call in reached if call.stack in captured.embedding][-1:] or reached[-1:]), None)
    if last is None:
        raise RefusalError(
            f"No gradient reaches any attention of {found.model_class}: the answer does not depend on it here."
        )
    _refuse_other_tokens(captured, found, last.stack)
    sizes = last.gradient[0].flatten(1).norm(dim=-1)
    return {last.stack: sizes / sizes.sum()}


def _refuse_other_tokens(captured: Captured, found: Anatomy, stack: str) -> None:
    """Rows of a window, or of tokens that were joined, are no rows of the sequence: who is who is not known."""
    read = {stack, *(call.keys_from for call in captured.calls if call.stack == stack)}
    first: dict[str, int] = {}
    for call in captured.calls:
        if call.stack not in read or call.crosses:
            continue
        windows, tokens = call.scores.query.shape[0], call.scores.query.shape[2]
        before = first.setdefault(call.stack, tokens)
        what = f"attends within {windows} windows of a sequence apart"
        what = what if windows > 1 else f"makes {tokens} tokens of {before}"
        if windows > 1 or tokens != before:
            raise RefusalError(
                f"{found.model_class} {what} (layer {call.layer} of '{call.stack}'), and relevance is carried from "
                "token to token of one sequence: choose another model; `scan` shows the attention of this one."
            )


@torch.no_grad()
def nothing_said(loaded: Loaded, place: Entrance) -> Float[Tensor, " width"]:
    """The vector of a token that says nothing: the mask, where a model knows one, or the mean of all vectors."""
    table = loaded.model.get_submodule(place.path)
    assert isinstance(table, nn.Embedding)
    mask = mask_token_of(loaded.tokenizer) if loaded.kind == "masked" else None
    device = table.weight.device
    if mask is not None and mask < table.num_embeddings:
        vector: Tensor = table.forward(torch.tensor([[mask]], device=device)).flatten()
        return vector
    total = torch.zeros((), device=device)
    for begin in range(0, table.num_embeddings, ROWS):
        rows = torch.arange(begin, min(begin + ROWS, table.num_embeddings), device=device)
        total = total + table.forward(rows[None])[0].sum(0)
    return total / table.num_embeddings


def baseline_words(loaded: Loaded) -> str:
    mask = mask_token_of(loaded.tokenizer) if loaded.kind == "masked" else None
    return "the mean of all vectors of the vocabulary" if mask is None else "the mask"
