"""One run of a model on one text, and what explanations read of it, by name: each thing is made when it is asked
for."""

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
from attnscope.hf.loading.one_input import before_patches
from attnscope.hf.loading.one_text import Reading, Scene
from attnscope.hf.loading.outputs import mask_token_of, word
from attnscope.hf.loading.running import out_of_memory
from attnscope.hf.tapping.capture import Captured, asked_with, gradient_under
from attnscope.hf.tapping.entrances import Entrance
from attnscope.hf.tapping.media_entrances import PROMPT, entering_rows
from attnscope.hf.tapping.zeroing import moved_by_zeroing
from attnscope.pathways.affine import Affine
from attnscope.pathways.network import Network
from attnscope.pathways.operator_maps import directions
from attnscope.pathways.targets import pulled_back, pulled_back_by_length

# What a record says of the input: its tokens in words, patches with their place, moments with their time.


def inputs_of(
    loaded: Loaded, read: Reading, places: tuple[Entrance, ...], lengths: dict[str, int]
) -> tuple[Input, ...]:
    """One for each row of tokens that enters the model."""
    return tuple(_input(loaded, read, place, lengths[place.stack], len(places) > 1) for place in places)


def _input(loaded: Loaded, read: Reading, place: Entrance, length: int, several: bool) -> Input:
    if place.looks_up:
        words = tuple(word(loaded.tokenizer, int(i)) for i in read.batch[place.argument][0])
        return Input("text" if read.scenes and several else place.stack, words)
    if place.argument == PROMPT:
        return Input(PROMPT, tuple(f"[{number}]" for number in range(length)))
    scene = next((one for one in read.scenes if one.argument == place.argument), None)
    if scene is None:
        return Input("features", tuple(f"feature {number}" for number in range(length)))
    if scene.kind == "sound":
        step = None if scene.window is None else scene.window / length
        named = tuple(f"moment {n}" if step is None else f"{n * step:.2f} s" for n in range(length))
        return Input("sound", named, "sound", seconds=scene.seconds, window=scene.window)
    return _image(loaded, read, scene, length)


def _image(loaded: Loaded, read: Reading, scene: Scene, length: int) -> Input:
    """Patches row by row; before them what is no patch: words of the same row, [CLS], registers."""
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


ROUNDINGS = 16  # of a number, below which nothing is told from rounding
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
                f"{method.card.name} follows one stack of tokens, and {self.loaded.class_name} has {self._stacks()}: "
                "choose another method, relevance for one."
            )
        answer: dict[str, Tensor] = method(**{name: getattr(self, f"_{name}")() for name in method.reads})
        return answer

    def _stacks(self) -> str:
        names = {place.stack for place in self.places}
        return "an encoder and a decoder" if names == {"encoder", "decoder"} else " and ".join(sorted(names))

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
        """An input that says nothing, by stack: of pictures and sounds, what a blank one sends in their place."""
        streams = tuple(place for place in self.places if not place.looks_up)
        blank = entering_rows(self.loaded.model, self.read.blank(), streams) if streams else {}
        return {
            place.stack: (
                nothing_said(self.loaded, place).expand_as(self.captured.embedding[place.stack]).clone()
                if place.looks_up
                else blank[place.stack][0]
            )
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
        adjoint, _ = pulled_back(self.network, self._answered)
        return {self.places[-1].stack: (self.network.streams[0] * adjoint)[0].detach()}

    def lengths(self) -> tuple[Float[Tensor, "token length"], Float[Tensor, " length"]]:
        """The same by how many heads it passes on its way, and what constants add by length."""
        adjoint, constants = pulled_back_by_length(self.network, self._answered)
        return (self.network.streams[0] * adjoint)[:, 0].sum(-1).mT, constants

    def _answered(self, output: Tensor) -> Tensor:
        return (output * self.aim.direction).sum()

    @cached_property
    def network(self) -> Network:
        """The model, frozen at this text: for all methods that ask for it."""
        return freeze(self.loaded.model, self.read.batch, self.found)

    def _made_of(self) -> Callable[[], dict[str, Tensor]]:
        return self.made_of

    def made_of(self) -> dict[str, Float[Tensor, "token width"]]:
        """What each token puts into the states from which the number is read, along each of them: one pass back."""
        blocks = Affine(self.network, 0, self.network.layers, False)
        stack = self.places[-1].stack
        weights = self._start()[stack][:, None].to(blocks.leaves)
        back = blocks.transposed_times((weights * directions(blocks))[None])[0]
        return {stack: back * blocks.enters}

    def _seed(self) -> int:
        return self.seed


def _halves(rows: int) -> tuple[slice, slice]:
    return slice(0, rows // 2), slice(rows // 2, rows)


def start_of(captured: Captured, found: Anatomy) -> dict[str, Float[Tensor, " token"]]:
    """From which tokens the number is read: those at which a gradient reaches the last self-attention, weighed by its
    norm. For a logit that is the one token that predicts; for a mean over tokens it is all of them. Two towers are each
    read by themselves; a stack that others read (an encoder) is reached through them. A stream that attends to another
    after it was read itself (the prompt of a two-way decoder) begins there."""
    own = {call.stack: (place, call) for place, call in enumerate(captured.calls) if not call.crosses}
    if not own:
        raise RefusalError(f"{found.model_class} has no self-attention: there is no relevance to carry.")
    if any(call.crosses and call.keys_from not in own for call in captured.calls):
        own = dict([max(own.items(), key=lambda one: one[1][0])])
    # A pooling that takes no part in the answer reads nothing of it.
    crossing = [(place, call) for place, call in enumerate(captured.calls) if call.crosses]
    read_at = {call.keys_from: place for place, call in crossing if bool(call.gradient.any())}
    for stack in own:
        if own[stack][0] < read_at.get(stack, -1):
            own[stack] = [one for one in enumerate(captured.calls) if one[1].stack == stack][-1]
    starts = {}
    for stack, (place, last) in own.items():
        exact = torch.promote_types(last.gradient.dtype, torch.float32)  # half precision has no room for a map's row
        sizes = last.gradient[0].flatten(1).to(exact).norm(dim=-1)
        if place > read_at.get(stack, -1) and bool(sizes.sum() > 0):
            starts[stack] = sizes / sizes.sum()
    if not starts:
        raise RefusalError(
            f"No gradient reaches any attention of {found.model_class}: the answer does not depend on it here."
        )
    _refuse_noise(captured, found)
    for stack in starts:
        _refuse_other_tokens(captured, found, stack)
    return starts


def _refuse_noise(captured: Captured, found: Anatomy) -> None:
    """By how much the number moves with what attention writes: the gradient there times the largest value. Where this
    is a few roundings, gradients are made of rounding too (the norm of a state that was just normalised)."""
    most = sum(float(call.gradient.norm()) * float(call.value.abs().max()) for call in captured.calls)
    if most <= ROUNDINGS * torch.finfo(captured.output.dtype).eps * abs(captured.value):
        raise RefusalError(
            f"The answer of {found.model_class} depends on its attention by less than rounding, and relevance would be "
            "noise: ask for another number, or try `dtype='float64'`."
        )


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
