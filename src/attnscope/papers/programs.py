"""program: build a transformer with compressed heads that runs a small program exactly, on inputs up to a length.

    built = program("reverse", symbols=4, length=6)
    built.run([[0, 3, 1], [2, 2, 0]])               # [[1, 3, 0], [0, 2, 2]]
    built.model                                     # a nano model, for scan and the tap
    built.widths                                    # per selector: width found, proved lower bound, one-hot width

The programs, and the reasons why they are exact, are in `papers/models/programs.py`. The one-hot width counts one
coordinate for each value of the keys, plus the same extra coordinates as here (for END, or for the position).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from attnscope.commands.compile.compress import Compressed, compress
from attnscope.core.errors import RefusalError, nearest
from attnscope.papers.models.nano import Nano
from attnscope.papers.models.programs import PROGRAMS, Program, Texts


@dataclass(frozen=True)
class SelectorWidth:
    """The width of a head: that of its codes, for which `bound` is a proved lower bound, plus any extra coordinates."""

    selector: str
    width: int
    bound: int
    one_hot: int


@dataclass(frozen=True, eq=False)
class Built:
    program: Program
    model: Nano
    symbols: int
    length: int
    heads: Mapping[str, Compressed]

    @property
    def widths(self) -> tuple[SelectorWidth, ...]:
        selectors = self.program.selectors(Texts(self.symbols, self.length))
        return tuple(
            SelectorWidth(
                name, head.width + selectors[name].beside, head.bounds.best.width,
                head.certificate.keys + selectors[name].beside,
            )
            for name, head in self.heads.items()
        )  # fmt: skip

    @property
    def width(self) -> int:
        """The sum of the widths of all heads."""
        return sum(selector.width for selector in self.widths)

    @property
    def one_hot_width(self) -> int:
        return sum(selector.one_hot for selector in self.widths)

    @torch.no_grad()
    def run(self, texts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the model's answer at every position of these texts; texts of equal length are batched."""
        by_text: list[list[int]] = [[] for _ in texts]
        for length in sorted({len(text) for text in texts}):
            which = [number for number, text in enumerate(texts) if len(text) == length]
            tokens = self.tokens([texts[number] for number in which])
            answers = self.model(input_ids=tokens).argmax(-1)
            answers = answers[:, 1:] if self.program.starts else answers[:, :-1]
            for number, answer in zip(which, answers.tolist(), strict=True):
                by_text[number] = answer
        return by_text

    def tokens(self, texts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return token ids for texts of equal length, with the extra token START or END added."""
        for text in texts:
            if not 1 <= len(text) <= self.length or not all(0 <= symbol < self.symbols for symbol in text):
                raise RefusalError(
                    f"This model reads 1 to {self.length} symbols from 0 to {self.symbols - 1}: build a larger one."
                )
        rows = torch.tensor([list(text) for text in texts])
        extra = torch.full((len(rows), 1), self.symbols)
        return torch.cat([extra, rows] if self.program.starts else [rows, extra], dim=1)


def program(name: str, *, symbols: int = 4, length: int = 6, seed: int = 0) -> Built:
    """Compress the selectors of the program with this name, and build it for texts of up to `length` symbols."""
    if name not in PROGRAMS:
        raise RefusalError(f"There is no program called '{name}'.{nearest(name, PROGRAMS)}")
    chosen = PROGRAMS[name]
    symbols = chosen.symbols or symbols
    if symbols < 2 or length < 1:
        raise RefusalError("A program needs at least 2 symbols and texts of length 1 or more: give larger numbers.")
    texts = Texts(symbols, length)
    heads = {
        key: compress(selector.chosen, margin=selector.margin, seed=seed)
        for key, selector in chosen.selectors(texts).items()
    }
    model = chosen.build(texts, {key: compressed.head for key, compressed in heads.items()})
    return Built(chosen, model.eval(), symbols, length, heads)
