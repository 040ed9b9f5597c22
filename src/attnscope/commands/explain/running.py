"""One run of a model on one input, and the fields that explanations read from it. Fields are computed on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.commands.explain.aiming import Aim
from attnscope.commands.explain.record import Input
from attnscope.core.errors import RefusalError
from attnscope.core.explanation import Method
from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.editing.freeze import freeze
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.memory import out_of_memory
from attnscope.hf.loading.one_input import before_patches
from attnscope.hf.loading.one_text import Reading, Scene
from attnscope.hf.loading.outputs import mask_token_of, word
from attnscope.hf.tapping.capture import Captured, asked_with, gradient_under
from attnscope.hf.tapping.entrances import Entrance
from attnscope.hf.tapping.media_entrances import PROMPT, entering_rows
from attnscope.hf.tapping.zeroing import moved_by_zeroing
from attnscope.pathways.affine import Affine
from attnscope.pathways.network import Network
from attnscope.pathways.operator_maps import directions
from attnscope.pathways.targets import pulled_back, pulled_back_by_length

ROUNDINGS = 16  # smaller changes of the answer, in units of its rounding error, are noise
ROWS = 4096  # token vectors that are looked up at a time


def inputs_of(
    loaded: Loaded, read: Reading, places: tuple[Entrance, ...], lengths: dict[str, int]
) -> tuple[Input, ...]:
    """Return each token sequence that enters the model: words, patches with their place, or moments with their time."""
    return tuple(_input(loaded, read, place, lengths[place.stack], len(places) > 1) for place in places)


def _input(loaded: Loaded, read: Reading, place: Entrance, length: int, several: bool) -> Input:
    if place.looks_up:
        words = tuple(word(loaded.tokenizer, int(i)) for i in read.batch[place.argument][0])
        return Input("text" if read.scenes and several else place.stack, words)
    if place.argument == PROMPT:
        return Input(PROMPT, tuple(f"[{number}]" for number in range(length)))
    scene = next((scene for scene in read.scenes if scene.argument == place.argument), None)
    if scene is None:
        return Input("features", tuple(f"feature {number}" for number in range(length)))
    if scene.kind == "sound":
        step = None if scene.window is None else scene.window / length
        named = tuple(f"moment {n}" if step is None else f"{n * step:.2f} s" for n in range(length))
        return Input("sound", named, "sound", seconds=scene.seconds, window=scene.window)
    return _image(loaded, read, scene, length)


def _image(loaded: Loaded, read: Reading, scene: Scene, length: int) -> Input:
    """Return the patches row by row, after the tokens before them: words, [CLS], registers."""
    ids: Any = read.batch.get("input_ids")
    words = () if ids is None else tuple(word(loaded.tokenizer, int(i)) for i in ids[0])
    grid = scene.grid
    if grid is None or grid[0] * grid[1] > length:
        return Input("image", tuple(f"token {number}" for number in range(length)), "image")
    before = length - grid[0] * grid[1]
    mixed = words if 0 < len(words) <= before else ()
    names = (*mixed, *before_patches(loaded.model, before - len(mixed)))
    patches = tuple(f"patch {row},{column}" for row in range(grid[0]) for column in range(grid[1]))
    return Input("image", (*names, *patches), "image", grid, scene.shown)


@dataclass(frozen=True)
class Run:
    """A run of the model, with all that is needed to compute any field that an explanation reads."""

    loaded: Loaded
    read: Reading
    found: Anatomy
    places: tuple[Entrance, ...]
    aim: Aim
    captured: Captured
    seed: int

    def explained_by(self, method: Method) -> dict[str, Float[Tensor, " token"]]:
        """Return the scores of one explanation, by stack."""
        stacks = {place.stack for place in self.places}
        if method.card.stacks == "one" and len(self.places) > 1:
            names = "an encoder and a decoder" if stacks == {"encoder", "decoder"} else " and ".join(sorted(stacks))
            raise RefusalError(
                f"{method.card.name} follows one stack of tokens, and {self.loaded.class_name} has {names}: "
                "choose another method, such as relevance."
            )
        answer: dict[str, Tensor] = method(**{name: self._field(name) for name in method.reads})
        return answer

    def _field(self, name: str) -> Any:
        """Compute the field of this name for an explanation (`core.explanation` lists all fields)."""
        model, batch, number = self.loaded.model, self.read.batch, self.aim.number
        makers: dict[str, Callable[[], Any]] = {
            "calls": lambda: self.captured.calls,
            "start": lambda: start_of(self.captured, self.found),
            "embedding": lambda: self.captured.embedding,
            "embedding_gradient": lambda: self.captured.embedding_gradient,
            "baseline": self.baseline,
            "ask": lambda: self.ask,
            "gradient_under": lambda: partial(gradient_under, model, batch, self.places, number),
            "zeroed": lambda: self.zeroed,
            "contributions": lambda: self.contributions,
            "made_of": lambda: self.made_of,
            "seed": lambda: self.seed,
        }
        return makers[name]()

    def baseline(self) -> dict[str, Float[Tensor, "token width"]]:
        """Return the vectors of a neutral input, by stack. For pictures and sounds it is a blank one."""
        streams = tuple(place for place in self.places if not place.looks_up)
        made = entering_rows(self.loaded.model, self.read.blank(), streams) if streams else {}
        found = {stack: rows[0] for stack, rows in made.items()}
        for place in self.places:
            if place.looks_up:
                like = self.captured.embedding[place.stack]
                found[place.stack] = neutral_vector(self.loaded, place).expand_as(like).clone()
        return {place.stack: found[place.stack] for place in self.places}

    def ask(self, vectors: dict[str, Float[Tensor, "batch token width"]]) -> Float[Tensor, " batch"]:
        """Return the target for other input vectors. If memory runs out, the batch is halved."""
        try:
            return asked_with(self.loaded.model, self.read.batch, self.places, self.aim.number, vectors)
        except RuntimeError as error:
            rows = len(next(iter(vectors.values())))
            if not out_of_memory(error) or rows < 2:
                raise
        halves = (slice(0, rows // 2), slice(rows // 2, rows))
        return torch.cat([self.ask({stack: one[half] for stack, one in vectors.items()}) for half in halves])

    def expected_sum(self, method: Method) -> float | None:
        """Return what all scores of a method should add up to; None if the run cannot compute it."""
        kind = method.card.sums_to
        if kind == "difference":
            with torch.no_grad():
                neutral = self.ask({stack: vectors[None] for stack, vectors in self.baseline().items()})
                return float(self.captured.value - neutral)
        if kind == "through paths":
            _, constants = pulled_back(self.network, self._answered)
            return float(self._answered(self.network.output)) - constants
        return None if kind is None else 1.0

    def zeroed(self, stack: str) -> Float[Tensor, "layer token token"]:
        tokens = len(self.captured.embedding[stack])
        return moved_by_zeroing(self.loaded.model, self.read.batch, self.found, stack, tokens)

    def contributions(self) -> dict[str, Float[Tensor, "token width"]]:
        """Return the contribution of each token through the frozen network."""
        adjoint, _ = pulled_back(self.network, self._answered)
        return {self.places[-1].stack: (self.network.streams[0] * adjoint)[0].detach()}

    def lengths(self) -> tuple[Float[Tensor, "token length"], Float[Tensor, " length"]]:
        """Return the contributions of tokens and of constants, by the number of heads that paths pass."""
        adjoint, constants = pulled_back_by_length(self.network, self._answered)
        return (self.network.streams[0] * adjoint)[:, 0].sum(-1).mT, constants

    def _answered(self, output: Tensor) -> Tensor:
        return (output * self.aim.direction).sum()

    @cached_property
    def network(self) -> Network:
        """The model frozen at this input, shared by all methods that need it."""
        return freeze(self.loaded.model, self.read.batch, self.found)

    def made_of(self) -> dict[str, Float[Tensor, "token width"]]:
        """Return each token's part of the states that give the answer, projected onto these states."""
        blocks = Affine(self.network, 0, self.network.layers, False)
        stack = self.places[-1].stack
        weights = start_of(self.captured, self.found)[stack][:, None].to(blocks.leaves)
        back = blocks.transposed_times((weights * directions(blocks))[None])[0]
        return {stack: back * blocks.enters}


def start_of(captured: Captured, found: Anatomy) -> dict[str, Float[Tensor, " token"]]:
    """Return the weight of each token from which the answer is read, by stack.

    These are the tokens at which a gradient reaches the last self-attention, weighted by its norm: for a logit the
    token that predicts, for a mean over tokens all of them. Each of two towers has its own start. A stack that another
    stack reads, such as an encoder, is reached through that stack and has no start. A stream that attends to another
    stream after it was read (the prompt of a two-way decoder) starts at that later attention.
    """
    own = {call.stack: (place, call) for place, call in enumerate(captured.calls) if not call.crosses}
    if not own:
        raise RefusalError(f"{found.model_class} has no self-attention, which relevance needs: choose another method.")
    if any(call.crosses and call.keys_from not in own for call in captured.calls):
        own = dict([max(own.items(), key=lambda one: one[1][0])])
    # Ignore cross-attention that does not affect the answer, such as an unused pooling.
    crossing = [(place, call) for place, call in enumerate(captured.calls) if call.crosses]
    read_at = {call.keys_from: place for place, call in crossing if bool(call.gradient.any())}
    for stack in own:
        if own[stack][0] < read_at.get(stack, -1):
            own[stack] = [one for one in enumerate(captured.calls) if one[1].stack == stack][-1]
    starts = {}
    for stack, (place, last) in own.items():
        exact = torch.promote_types(last.gradient.dtype, torch.float32)  # half precision overflows
        sizes = last.gradient[0].flatten(1).to(exact).norm(dim=-1)
        if place > read_at.get(stack, -1) and bool(sizes.sum() > 0):
            starts[stack] = sizes / sizes.sum()
    if not starts:
        raise RefusalError(
            f"The answer of {found.model_class} does not depend on its attention here: explain another number."
        )
    _refuse_noise(captured, found)
    for stack in starts:
        _refuse_other_tokens(captured, found, stack)
    return starts


def _refuse_noise(captured: Captured, found: Anatomy) -> None:
    """Refuse an answer that attention changes by a few rounding errors only, because its gradients are noise too.

    The dependence is bounded by the gradient at attention times the largest value. An example is the norm of a state
    that was just normalised.
    """
    most = sum(float(call.gradient.norm()) * float(call.value.abs().max()) for call in captured.calls)
    if most <= ROUNDINGS * torch.finfo(captured.output.dtype).eps * abs(captured.value):
        raise RefusalError(
            f"The answer of {found.model_class} depends on its attention by less than rounding, so relevance would be "
            "noise: explain another number, or try `dtype='float64'`."
        )


def _refuse_other_tokens(captured: Captured, found: Anatomy, stack: str) -> None:
    """Refuse attention within windows or over merged tokens, whose rows are not tokens of the sequence."""
    read = {stack, *(call.keys_from for call in captured.calls if call.stack == stack)}
    first: dict[str, int] = {}
    for call in captured.calls:
        if call.stack not in read or call.crosses:
            continue
        windows, tokens = call.scores.query.shape[0], call.scores.query.shape[2]
        before = first.setdefault(call.stack, tokens)
        what = f"attends within {windows} separate windows" if windows > 1 else f"merges {before} tokens into {tokens}"
        if windows > 1 or tokens != before:
            raise RefusalError(
                f"{found.model_class} {what} (block {call.layer} of '{call.stack}'), and relevance needs one sequence "
                "of tokens: choose another model, or look at the attention of this one with `scan`."
            )


@torch.no_grad()
def neutral_vector(loaded: Loaded, place: Entrance) -> Float[Tensor, " width"]:
    """Return the vector of a token without information: the mask, if the model has one, or the mean of all vectors."""
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


def baseline_words(loaded: Loaded, read: Reading | None = None) -> str:
    kinds = {scene.kind for scene in read.scenes} if read is not None else set()
    blank = {"image": "that of a picture of one mean colour", "sound": "that of silence"}
    media = [blank[kind] for kind in sorted(kinds)]
    if media and read is not None and read.ids is None:
        return " and ".join(media)
    return " and ".join([*media, _word_baseline(loaded)])


def _word_baseline(loaded: Loaded) -> str:
    mask = mask_token_of(loaded.tokenizer) if loaded.kind == "masked" else None
    return "the mean of all vectors of the vocabulary" if mask is None else "the mask"
