"""What a record says of the input: its tokens in words, patches with their place, moments with their time."""

from __future__ import annotations

from typing import Any

from attnscope.hf.loading.before_patches import before_patches
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.one_text import Reading, Scene
from attnscope.hf.loading.outputs import word
from attnscope.hf.tapping.entrances import Entrance
from attnscope.hf.tapping.two_way import PROMPT
from attnscope.records.explanation import Input


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
