"""Hand-built transformers equal a plain loop on every input up to a length."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.heads.head import Head
from attnscope.papers.models.programs import PROGRAMS, Texts
from attnscope.papers.programs import Built, program

NAMES = list(PROGRAMS)
PAGE = Path(__file__).parents[3] / "docs" / "patterns.md"
SIZES = {"reverse": (16, 64), "histogram": (64, 64), "sort": (8, 32), "balanced": (2, 64), "match": (2, 16)}


def every_text(symbols: int, length: int) -> list[tuple[int, ...]]:
    return [text for size in range(1, length + 1) for text in itertools.product(range(symbols), repeat=size)]


@pytest.mark.parametrize("name", NAMES)
def test_every_text_up_to_a_length_is_answered_exactly(name: str) -> None:
    symbols, length = (2, 11) if PROGRAMS[name].symbols else (4, 6)
    built = program(name, symbols=symbols, length=length)
    texts = every_text(symbols, length)
    assert len(texts) == {4: 5460, 2: 4094}[symbols]
    assert built.run(texts) == [PROGRAMS[name].answers(text) for text in texts]


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_has_a_clear_margin(name: str) -> None:
    """The logits of the best and the next answer are 1 apart."""
    symbols, length = (2, 8) if PROGRAMS[name].symbols else (3, 5)
    built = program(name, symbols=symbols, length=length)
    place = slice(1, None) if built.program.starts else slice(None, -1)
    for size in range(1, length + 1):
        texts = list(itertools.product(range(symbols), repeat=size))
        with torch.no_grad():
            best = built.model(input_ids=built.tokens(texts))[:, place].topk(2).values
        assert float((best[..., 0] - best[..., 1]).min()) > 0.99


@pytest.mark.parametrize("name", NAMES)
def test_longer_texts_of_more_symbols(name: str) -> None:
    symbols, length = SIZES[name]
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, symbols, rng.integers(1, length + 1)).tolist() for _ in range(400)]
    texts += [rng.integers(0, symbols, length).tolist() for _ in range(100)]
    texts += [[0] * length, [symbols - 1] * length, [0, 1] * (length // 2), [0] * (length // 2) + [1] * (length // 2)]
    assert program(name, symbols=symbols, length=length).run(texts) == [PROGRAMS[name].answers(text) for text in texts]


@pytest.mark.parametrize("name", NAMES)
def test_one_hot_heads_give_the_same_answers_at_the_stated_width(name: str) -> None:
    built = program(name, symbols=3, length=4)
    heads = {}
    for what, selector in built.program.selectors(Texts(built.symbols, 4)).items():
        keys = torch.eye(selector.chosen.shape[1])
        queries = torch.from_numpy(selector.chosen).float() * selector.margin * len(keys) ** 0.5
        heads[what] = Head(queries, keys, causal=False, method="one-hot")
    model = built.program.build(Texts(built.symbols, 4), heads)
    one_hot = Built(built.program, model, built.symbols, 4, built.heads)
    texts = every_text(built.symbols, 4)
    assert one_hot.run(texts) == built.run(texts)
    assert model.config.head_width == max(one.one_hot for one in built.widths)
    assert built.model.config.head_width == max(one.width for one in built.widths)


def test_widths_do_not_grow_with_the_number_of_values() -> None:
    assert [program("reverse", symbols=4, length=n).width for n in (6, 24)] == [3, 3]
    assert [program("histogram", symbols=a, length=6).width for a in (4, 24)] == [3, 3]
    assert [program("sort", symbols=a, length=4).width for a in (3, 6)] == [2, 5]  # one head for each symbol but one
    place = program("reverse", symbols=4, length=6).widths[1]
    assert place.width == place.bound == 2  # no narrower codes select places


@pytest.mark.parametrize("name", NAMES)
def test_the_tap_sees_what_the_heads_select(name: str) -> None:
    built = program(name, symbols=3, length=5)
    text = [0, 1, 1, 0, 1]
    ids = built.tokens([text])
    survey = attnscope.scan(built.model, [{"input_ids": ids}], measures=("entropy",))
    layers, heads = survey.values("entropy").shape
    assert (layers, heads) == (built.model.config.layers, built.model.config.heads)
    if name == "reverse":  # each of the heads selects one token, and END asks for one as well
        assert float(survey.values("entropy").max()) < 1e-6
    if name == "histogram":  # two and three tokens and END share alike, and END sees all six
        mean = (2 * np.log(3) + 3 * np.log(4) + np.log(6)) / 6
        assert float(survey.values("entropy")[0, 0]) == pytest.approx(mean, rel=1e-4)


def test_refusals() -> None:
    with pytest.raises(RefusalError, match="Did you mean 'sort'"):
        program("sorted")
    with pytest.raises(RefusalError, match="at least 2 symbols"):
        program("sort", symbols=1)
    built = program("sort", symbols=3, length=4)
    for text in ([], [0] * 5, [3]):
        with pytest.raises(RefusalError, match="1 to 4 symbols from 0 to 2"):
            built.run([text])


def table() -> str:
    """The table of docs/patterns.md: heads of equal widths are counted together."""
    lines = [
        "| program | symbols, length | heads: width (codes proved; one-hot) | all heads | one-hot |",
        "|---|---|---|---|---|",
    ]
    for name in NAMES:
        for symbols, length in ((2, 11) if PROGRAMS[name].symbols else (4, 6), SIZES[name]):
            built = program(name, symbols=symbols, length=length)
            heads = Counter((one.width, one.bound, one.one_hot) for one in built.widths)
            shown = ", ".join(f"{count} x {w} ({bound}; {hot})" for (w, bound, hot), count in heads.items())
            lines.append(f"| `{name}` | {symbols}, {length} | {shown} | {built.width} | {built.one_hot_width} |")
    return "\n".join(lines)


def test_the_page_has_the_widths_that_are_found() -> None:
    assert table() in PAGE.read_text()
