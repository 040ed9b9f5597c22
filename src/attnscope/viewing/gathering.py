"""Frames as they come, made into maps at once: what is too large is refused at the first frame of its kind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from attnscope.core.errors import RefusalError
from attnscope.core.numerals import numeral
from attnscope.core.progress import Advance
from attnscope.core.words import count
from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.loading.before_patches import before_patches
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.one_text import Reading
from attnscope.hf.loading.outputs import word
from attnscope.hf.tapping.tap import Frame
from attnscope.records.explanation import Input
from attnscope.records.view import HeadMap, Part
from attnscope.trace.frame import AttentionFrame
from attnscope.viewing.maps import layer_maps

# Bytes of a page for one weight, deflated and in base64. SmolLM2 needs 0.65 on 128 tokens and 0.33 on 512 (bench.view):
# rows grow longer, and most of their weights are nothing.
BYTES = 0.5
MOST_BEFORE = 16  # [CLS], registers


@dataclass(frozen=True)
class Shape:
    """What maps of one part have in common."""

    stack: str
    site: str
    keys_from: str
    queries: int
    keys: int
    causal: bool

    @property
    def entries(self) -> int:
        return self.queries * (self.queries + 1) // 2 if self.causal else self.queries * self.keys


@dataclass
class Gathered:
    """Maps by part. Mutable while the model runs."""

    found: Anatomy
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    max_mb: float
    progress: Advance
    maps: dict[Shape, list[HeadMap]] = field(default_factory=dict)
    windows: dict[Shape, set[int | None]] = field(default_factory=dict)
    disagreement: float = 0.0
    done: int = 0
    size: int = 0  # bytes so far
    seen: Counter[tuple[str, str, int]] = field(default_factory=Counter)

    def receive(self, frame: Frame) -> None:
        if not isinstance(frame, AttentionFrame):
            return
        place = (frame.stack, frame.site, frame.layer)
        self.seen[place] += 1
        if frame.mixed.shape[0] != 1 or self.seen[place] > 1:
            raise RefusalError(
                f"{self.found.model_class} attends in pieces in layer {frame.layer} (windows of a picture, or chunks): "
                "a view shows one row of tokens that look at each other. Choose another model."
            )
        self.progress("layers", self.done, len(self.found.sites))
        self.done += 1
        if frame.layer not in self.layers:
            return
        site = next(s for s in self.found.sites if (s.stack, s.site, s.layer) == place)
        shape = Shape(
            frame.stack,
            frame.site,
            site.keys_from,
            int(frame.query_mask[0].sum()),
            int(frame.key_mask[0].sum()),
            site.causal and frame.site == "self",
        )
        heads = [head for head in range(frame.mixed.shape[2]) if head in self.heads]
        if not heads:
            return
        self._refuse_too_large(shape, len(heads))
        made = layer_maps(frame, causal=shape.causal, heads=heads)
        self.maps.setdefault(shape, []).extend(made.heads)
        self.windows.setdefault(shape, set()).add(frame.scores.window)
        self.disagreement = max(self.disagreement, made.disagreement)
        self.size += sum(len(one.packed) for one in made.heads)

    def _refuse_too_large(self, shape: Shape, heads: int) -> None:
        """At the first frame of a part by what such maps usually need, afterwards by what they do need."""
        layers = sum(
            s.stack == shape.stack and s.site == shape.site for s in self.found.sites if s.layer in self.layers
        )
        before = self.maps.get(shape, [])
        left = heads * layers - len(before)
        each = BYTES * shape.entries if not before else sum(len(one.packed) for one in before) / len(before)
        estimate = (self.size + left * each) / 1e6
        if estimate > self.max_mb:
            size = f"{count(layers, 'layer')} x {count(heads, 'head')} x {shape.queries:,} tokens"
            raise RefusalError(
                f"The page would have about {numeral(estimate, 2)} MB ({size}) and {self.max_mb:g} are allowed: "
                "shorten the text, choose layers or heads "
                "(--layer 0-3), or allow more with --max-mb."
            )


def parts_of(gathered: Gathered, found: Anatomy) -> tuple[Part, ...]:
    """What was gathered, by name: `decoder` looks at itself, `decoder cross` at the encoder."""
    if not gathered.maps:
        raise RefusalError(f"{found.model_class} has no such head in those layers: choose with --layer and --head.")
    plain = [_plain(shape) for shape in gathered.maps]
    inputs = _names(gathered)
    return tuple(
        Part(
            name=name
            if plain.count(name) == 1
            else f"{name} {shape.queries} x {shape.keys}{'' if shape.causal else ' both ways'}",
            queries=inputs[shape.stack, shape.queries],
            keys=inputs[shape.keys_from, shape.keys],
            causal=shape.causal,
            window=next(iter(windows)) if len(windows := gathered.windows[shape]) == 1 else None,
            heads=tuple(maps),
        )
        for name, (shape, maps) in zip(plain, gathered.maps.items(), strict=True)
    )


def _plain(shape: Shape) -> str:
    return shape.stack if shape.site == "self" else f"{shape.stack} {shape.site}"


def _names(gathered: Gathered) -> dict[tuple[str, int], str]:
    """Rows of tokens by stack and length; most stacks have one length."""
    rows = dict.fromkeys(
        pair for shape in gathered.maps for pair in ((shape.stack, shape.queries), (shape.keys_from, shape.keys))
    )
    lengths = Counter(stack for stack, _ in rows)
    return {row: row[0] if lengths[row[0]] == 1 else f"{row[0]} of {row[1]}" for row in rows}


def inputs_of(gathered: Gathered, loaded: Loaded, read: Reading) -> tuple[Input, ...]:
    """The tokens of every row in words; their numbers where they are not words (patches, sound)."""
    return tuple(Input(name, _words(loaded, read, *row)) for row, name in _names(gathered).items())


def _words(loaded: Loaded, read: Reading, stack: str, tokens: int) -> tuple[str, ...]:
    ids = {
        name: value[0]
        for name, value in read.batch.items()
        if name.endswith("input_ids") and getattr(value, "ndim", 0) == 2 and value.shape[1] == tokens
    }
    own = [name for name in ids if name.startswith(stack)]
    if not own and stack != "decoder":
        own = [name for name in ids if name == "input_ids"]
    if not own:
        return _places(loaded, read, tokens)
    return tuple(word(loaded.tokenizer, int(number)) for number in ids[own[0]])


def _places(loaded: Loaded, read: Reading, tokens: int) -> tuple[str, ...]:
    """Patches by row and column, behind what stands before them; without a known grid the numbers of tokens."""
    grid = next((scene.grid for scene in read.scenes if scene.grid is not None), None)
    if grid is None or not 0 <= tokens - grid[0] * grid[1] <= MOST_BEFORE:
        return tuple(str(place) for place in range(tokens))
    before = before_patches(loaded.model, tokens - grid[0] * grid[1])
    return (*before, *(f"{row},{column}" for row in range(grid[0]) for column in range(grid[1])))
