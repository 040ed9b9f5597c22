"""Where tokens enter a two-way decoder (arXiv:2304.02643): a few prompt tokens that attend to themselves, and the
places of a picture, which attend to them and are attended to.

    found = two_way(model, batch, anatomy)      # the entrances of image and prompt, or () without such a decoder

Its blocks hand two streams on, and are no stack of one. Which calls are about which is told by how many tokens they
have. A stream enters where it is first seen as a row of that many vectors, in the outermost module on the way to the
first attention that reads it. What a picture's encoder did before, in windows perhaps, is no part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Anatomy, Site
from attnscope.hf.anatomy.example import run
from attnscope.hf.seeing.gradients import without_gradients
from attnscope.hf.seeing.intact import evaluating, without_cache
from attnscope.hf.seeing.restoring import Restoring
from attnscope.hf.seeing.tensors import Slot, arguments, float_tensors
from attnscope.hf.tapping.entrances import Entrance
from attnscope.hf.tapping.tap import tap
from attnscope.trace.frame import AttentionFrame

PICTURES = ("pixel_values", "image_embeddings")
IMAGE, PROMPT = "image", "prompt"
Lengths = tuple[int, int]  # of queries and of keys


def two_way(model: nn.Module, batch: Mapping[str, Any], found: Anatomy) -> tuple[Entrance, ...]:
    """Both entrances; none where the model has no such decoder."""
    crosses = [site for site in found.sites if site.site == "cross" and found.stack(site.stack) is None]
    argument = next((name for name in PICTURES if isinstance(batch.get(name), Tensor)), None)
    if argument is None or len({site.stack for site in crosses}) < 2:
        return ()
    ways = [set(_above(site.path)) for site in crosses]
    decoder = max(set.intersection(*ways), key=len, default="")  # what all of them are in
    within = [site for site in found.sites if site.path.startswith(f"{decoder}." if decoder else "")]
    seen, rows = _watched(model, batch, found, within)
    crossing = {lengths for site, lengths in seen if site.site == "cross"}
    attending = {lengths[0] for site, lengths in seen if site.site == "self"}
    if not any(lengths[::-1] in crossing for lengths in crossing) or len(attending) != 1:
        return ()
    (prompt,) = attending
    others = {length for lengths in crossing for length in lengths} - {prompt}
    if len(others) != 1:
        raise RefusalError(
            f"The two streams of {found.model_class} hold equally many tokens, or are more than two, so that attention "
            "between them cannot be told apart: give another point."
        )
    (image,) = others
    made = []
    for name, tokens in ((IMAGE, image), (PROMPT, prompt)):
        first = next(site.path for site, lengths in seen if tokens in lengths)
        place = _outermost(first, tokens, rows)
        if place is None:
            raise RefusalError(
                f"The {tokens} {name} tokens of {found.model_class} enter no module as a row of vectors, so that their "
                "part in the answer cannot be followed: choose another model."
            )
        made.append(Entrance(name, argument if name == IMAGE else PROMPT, place[0], 0, False, place[1]))
    return tuple(made)


def _watched(
    model: nn.Module, batch: Mapping[str, Any], found: Anatomy, sites: list[Site]
) -> tuple[list[tuple[Site, Lengths]], dict[str, list[tuple[Slot, int]]]]:
    """The attention calls of one run with their lengths, and what rows of vectors modules on the way were given first:
    the slot and how many."""
    by_name = {(site.stack, site.site, site.layer): site for site in sites}
    seen: list[tuple[Site, Lengths]] = []
    rows: dict[str, list[tuple[Slot, int]]] = {}

    def receive(frame: Any) -> None:
        if isinstance(frame, AttentionFrame) and (frame.stack, frame.site, frame.layer) in by_name:
            lengths = frame.scores.query.shape[2], frame.scores.key.shape[2]
            seen.append((by_name[frame.stack, frame.site, frame.layer], lengths))

    def watch(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = float_tensors(arguments(args, kwargs))
            rows.setdefault(path, [(slot, one.shape[-2]) for slot, one in given if _a_row(one)])

        return hook

    with Restoring() as changes, evaluating(model), without_cache(model), without_gradients():
        for path in dict.fromkeys(above for site in sites for above in _above(site.path)):
            changes.before(model.get_submodule(path), watch(path))
        with tap(model, found, receive):
            run(model, batch)
    return seen, rows


def _above(path: str) -> list[str]:
    """The modules that a path leads through, outermost first."""
    words = path.split(".")
    return [".".join(words[:count]) for count in range(1, len(words) + 1)]


def _a_row(given: Tensor) -> bool:
    """`[1, token, width]`, or with a second axis of one (several prompts of one picture) in between."""
    return given.ndim in (3, 4) and all(size == 1 for size in given.shape[:-2])


def _outermost(path: str, tokens: int, rows: Mapping[str, list[tuple[Slot, int]]]) -> tuple[str, Slot] | None:
    for above in _above(path):
        for slot, count in rows.get(above, ()):
            if count == tokens:
                return above, slot
    return None
