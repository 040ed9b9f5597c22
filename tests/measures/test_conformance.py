"""What every registered measure must do. A new file in `measures` is tested here automatically."""

import dataclasses
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import attnscope.measures
from attnscope.core.card import Card
from attnscope.core.decoding import decode, encode
from attnscope.core.measure import Located, Measure
from attnscope.core.registry import measures
from attnscope.matrix.scores import Scores

BATCH, TOKENS, HEADS, DIM, WIDTH = 4, 14, 3, 5, 8
Fields = dict[str, Any]
PROJECTIONS = ("query", "key", "value", "output")

every_measure = pytest.mark.parametrize("measure", measures().values(), ids=measures())
of_sequences = pytest.mark.parametrize(
    "measure",
    [m for m in measures().values() if m.card.scope in ("stream", "attention")],
    ids=[n for n, m in measures().items() if m.card.scope in ("stream", "attention")],
)
NOT_BATCHED = {"output_weight", "query_weight", "key_weight", "value_weight", "scale"}
PADDED_DIMS = {  # axis of tokens in these fields; all other fields of an attention frame have queries or keys last
    "stream": (1,),
    "stream_before": (1,),
    "token_mask": (1,),
    "query_mask": (1,),
    "key_mask": (1,),
    "media": (1,),
    "tokens": (1,),
    "gate": (1,),
    "mixed": (1,),
    "head_overlap": (),
    "mass_by_distance": (),
}


def _noise(seed: int, *shape: int) -> Tensor:
    """Return noise that bfloat16 represents exactly, so that a change of dtype changes no input."""
    noise = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return noise.bfloat16().double()


@pytest.fixture
def fields(statistics: Callable[..., Fields]) -> Fields:
    """Return every field that a measure may read, for sequences without padding."""
    query, key = _noise(0, BATCH, HEADS, TOKENS, DIM), _noise(1, BATCH, HEADS, TOKENS, DIM)
    future = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    pattern = (query @ key.mT / math.sqrt(DIM)).masked_fill(future, -torch.inf).softmax(dim=-1)
    value = _noise(2, BATCH, HEADS, TOKENS, DIM)
    exact = {n: t if t.dtype == torch.bool else t.bfloat16().double() for n, t in statistics(pattern).items()}
    return {
        **exact,
        "stream": (3 * _noise(3, BATCH, TOKENS, WIDTH) + 1).bfloat16().double(),
        "stream_before": _noise(4, BATCH, TOKENS, WIDTH),
        "token_mask": torch.ones(BATCH, TOKENS, dtype=torch.bool),
        "scores": Scores(query=query, key=key, scale=1 / math.sqrt(DIM), causal=True),
        "causal": True,
        "media": (torch.arange(TOKENS) % 5 < 2).expand(BATCH, TOKENS).clone(),
        "tokens": torch.randint(0, 5, (BATCH, TOKENS), generator=torch.Generator().manual_seed(9)),
        "value": value,
        "gate": _noise(10, BATCH, TOKENS, HEADS, DIM).abs(),
        "mixed": (pattern @ value).transpose(1, 2).bfloat16().double(),
        "output_weight": _noise(5, HEADS, DIM, WIDTH),
        "query_weight": _noise(6, HEADS, WIDTH, DIM),
        "key_weight": _noise(7, HEADS, WIDTH, DIM),
        "value_weight": _noise(8, HEADS, WIDTH, DIM),
        "scale": 0.5,
        "weight": {part: _noise(9, WIDTH, DIM) for part in PROJECTIONS},
        "weight_before": {part: _noise(10, WIDTH, DIM) for part in PROJECTIONS},
        "gradient": {part: _noise(11, WIDTH, DIM) for part in PROJECTIONS},
    }


def _ask(measure: Measure, fields: Fields) -> dict[str, Located]:
    return measure(**{name: fields[name] for name in measure.reads})


def _map(fields: Fields, change: Callable[[str, Tensor], Tensor]) -> Fields:
    """Apply a function to every tensor, also inside the scores."""
    changed: Fields = {}
    for name, thing in fields.items():
        if isinstance(thing, Tensor):
            changed[name] = change(name, thing)
        elif isinstance(thing, Scores):
            inside: dict[str, Any] = {n: change(n, t) for n, t in vars(thing).items() if isinstance(t, Tensor)}
            changed[name] = dataclasses.replace(thing, **inside)
        else:
            changed[name] = thing
    return changed


def _sequences(fields: Fields, which: Any) -> Fields:
    return _map(fields, lambda name, t: t if name in NOT_BATCHED else t[which])


def _assert_same(found: dict[str, Located], expected: dict[str, Located], rtol: float, atol: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    for part, answer in expected.items():
        torch.testing.assert_close(
            found[part].value.double(), answer.value.double(), rtol=rtol, atol=atol, equal_nan=True
        )
        assert found[part].where.keys() == answer.where.keys()
        for label, place in answer.where.items():
            assert torch.equal(found[part].where[label], place), label


@every_measure
def test_the_card_explains_the_measure(measure: Measure):
    card = measure.card
    assert measure.function.__module__ == f"attnscope.measures.{card.name}"
    assert re.fullmatch(r"arXiv:\d{4}\.\d{5}", card.citation)
    assert card.title
    assert card.unit
    assert re.fullmatch(r"[A-Z][^\n]*[^.\s]\.", card.summary)
    assert not re.search(r"[.!?] [A-Z]", card.summary), "a summary is one sentence"
    assert card.low < card.high
    assert card.sites
    assert len(set(card.parts)) == len(card.parts) > 0
    if card.alarm is not None:
        assert card.low <= card.alarm.threshold <= card.high
        assert card.alarm.meaning
    assert decode(Card, json.loads(json.dumps(encode(card)))) == card


@every_measure
def test_shape_parts_and_range(measure: Measure, fields: Fields):
    answer = _ask(measure, fields)
    assert tuple(answer) == measure.card.parts
    shape = {"stream": (BATCH,), "attention": (BATCH, HEADS), "weights": (HEADS,), "training": ()}[measure.card.scope]
    for located in answer.values():
        assert located.value.shape == shape
        assert located.value.dtype in (torch.float32, torch.float64)
        assert located.value.isfinite().all()
        assert (located.value >= measure.card.low).all()
        assert (located.value <= measure.card.high).all()
        for place in located.where.values():
            assert place.shape == shape
            assert place.dtype == torch.int64
            assert (place >= 0).all()


@every_measure
def test_asking_twice_gives_the_same_bits_and_changes_no_input(measure: Measure, fields: Fields):
    before = _map(fields, lambda _, t: t.clone())
    first, second = _ask(measure, fields), _ask(measure, fields)
    _assert_same(first, second, rtol=0.0, atol=0.0)
    for name in measure.reads:
        if isinstance(fields[name], Tensor):
            assert torch.equal(fields[name], before[name])


@every_measure
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_inputs_give_the_same_numbers(measure: Measure, fields: Fields, dtype: torch.dtype):
    narrow = _map(fields, lambda _, t: t.to(dtype) if t.is_floating_point() else t)
    found = _ask(measure, narrow)
    for located in found.values():
        assert located.value.dtype in (torch.float32, torch.float64)
    _assert_same(found, _ask(measure, fields), rtol=1e-4, atol=1e-5)


@of_sequences
@pytest.mark.parametrize(("left", "right"), [(5, 0), (0, 5), (2, 3)])
def test_padding_is_invisible(measure: Measure, fields: Fields, pad: Callable[..., Tensor], left: int, right: int):
    """In padding, streams and mixed values hold NaN, and statistics hold zero."""

    def widen(name: str, tensor: Tensor) -> Tensor:
        if name in NOT_BATCHED:
            return tensor
        fill = False if tensor.dtype == torch.bool else 0.0
        fill = torch.nan if name in ("stream", "stream_before", "mixed") else fill
        fill = 7.0 if name in ("query", "key") else fill
        dims = PADDED_DIMS.get(name, (2,))
        return pad(tensor, left, right, fill, dims)

    padded = _map(fields, widen)
    padded["scores"] = dataclasses.replace(padded["scores"], allowed=padded["key_mask"][:, None, None, :])
    _assert_same(_ask(measure, padded), _ask(measure, fields), rtol=1e-6, atol=1e-9)


@of_sequences
def test_sequences_do_not_see_each_other(measure: Measure, fields: Fields):
    together = _ask(measure, fields)
    order = torch.tensor([2, 0, 3, 1])
    shuffled = {
        part: Located(located.value[order], {label: place[order] for label, place in located.where.items()})
        for part, located in together.items()
    }
    _assert_same(_ask(measure, _sequences(fields, order)), shuffled, rtol=1e-9)
    for index in range(BATCH):
        alone = _ask(measure, _sequences(fields, slice(index, index + 1)))
        for part, located in together.items():
            torch.testing.assert_close(alone[part].value[0], located.value[index], rtol=1e-9, atol=1e-9)


@of_sequences
def test_nan_in_one_sequence_affects_only_that_sequence(measure: Measure, fields: Fields):
    """NaN in one sequence gives NaN for that sequence only, so that it can be counted and located."""

    def with_nan(name: str, tensor: Tensor) -> Tensor:
        if name in NOT_BATCHED or not tensor.is_floating_point():
            return tensor
        tensor = tensor.clone()
        tensor[1] = torch.nan
        return tensor

    broken, healthy = _ask(measure, _map(fields, with_nan)), _ask(measure, fields)
    others = [0, 2, 3]
    for part, located in healthy.items():
        torch.testing.assert_close(broken[part].value[others], located.value[others], rtol=1e-9, atol=1e-9)
    assert broken[measure.card.parts[0]].value[1].isnan().all()


@of_sequences
def test_a_sequence_of_nothing_but_padding_is_finite(measure: Measure, fields: Fields):
    empty = _map(fields, lambda _, t: t.clone())
    for mask in ("token_mask", "query_mask", "key_mask"):
        empty[mask][1] = False
    for name, tensor in empty.items():
        if isinstance(tensor, Tensor) and name not in NOT_BATCHED and name not in PADDED_DIMS:
            tensor[1] = 0.0
    empty["scores"] = dataclasses.replace(empty["scores"], allowed=empty["key_mask"][:, None, None, :])
    for located in _ask(measure, empty).values():
        assert located.value.isfinite().all()


def test_every_file_is_in_the_catalog_and_has_a_test_file():
    folder = Path(attnscope.measures.__path__[0])
    assert sorted(measures()) == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    tested = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert set(measures()) <= tested
    assert {m.card.group for m in measures().values()} == {"default", "deep", "training"}
