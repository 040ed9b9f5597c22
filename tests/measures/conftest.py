"""A dense float64 pattern as reference: every statistic that a measure may read, by its definition."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnscope.matrix.scores import Scores
from attnscope.matrix.spans import sink_keys

Fields = dict[str, Any]


def _statistics(pattern: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None) -> Fields:
    """All statistics of a pattern [batch head query key], with zeros for padding."""
    batch, _, queries, keys = pattern.shape
    query_mask = torch.ones(batch, queries, dtype=torch.bool) if query_mask is None else query_mask
    key_mask = torch.ones(batch, keys, dtype=torch.bool) if key_mask is None else key_mask
    rows = torch.where(query_mask[:, None, :, None] & key_mask[:, None, None, :], pattern, 0.0)
    place, other = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    first = key_mask.to(torch.uint8).argmax(dim=-1)
    unit = (rows / rows.norm(dim=-1, keepdim=True).clamp_min(1e-300)).transpose(1, 2)  # [batch, query, head, key]
    counted = query_mask.sum(-1).clamp_min(1)[:, None, None]
    return {
        "row_entropy": torch.special.entr(rows).sum(dim=-1),
        "row_sum_squares": rows.square().sum(dim=-1),
        "row_mass": rows.sum(dim=-1),
        "row_peak": rows.amax(dim=-1),
        "row_top_logit": rows.log().amax(dim=-1).masked_fill(rows.sum(dim=-1) == 0, 0.0),  # of logits ln A
        "first_key_mass": torch.stack([row[..., key] for row, key in zip(rows, first, strict=True)]),
        "self_mass": (rows * (place == other)).sum(dim=-1),
        "previous_mass": (rows * (place - 1 == other)).sum(dim=-1),
        "mean_distance": (rows * (place - other).abs()).sum(dim=-1),
        "received": rows.sum(dim=-2),
        "mass_by_distance": _mass_by_distance(rows, query_mask, key_mask),
        "head_overlap": (unit @ unit.mT).sum(1) / counted,
        "query_mask": query_mask,
        "key_mask": key_mask,
    }


def _mass_by_distance(rows: Tensor, query_mask: Tensor, key_mask: Tensor) -> Tensor:
    kept = rows.masked_fill(sink_keys(rows.sum(dim=-2), query_mask, key_mask)[:, :, None], 0.0)
    apart = (torch.arange(rows.shape[2])[:, None] - torch.arange(rows.shape[3])).abs()
    return torch.stack([(kept * (apart == d)).sum(dim=(-2, -1)) for d in range(max(rows.shape[2:]))], dim=-1)


def _random_pattern(
    seed: int, *shape: int, causal: bool = False, sharpness: float = 2.0, dtype: torch.dtype = torch.float64
) -> Tensor:
    logits = sharpness * torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    if causal:
        logits = logits.masked_fill(torch.ones(shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return logits.softmax(dim=-1)


def _pattern_scores(pattern: Tensor) -> Scores:
    batch, heads, queries, keys = pattern.shape
    return Scores(
        query=pattern.new_zeros(batch, heads, queries, 1),
        key=pattern.new_zeros(batch, heads, keys, 1),
        scale=1.0,
        pattern=pattern,
    )


def _pad(values: Tensor, left: int, right: int, fill: float, dims: tuple[int, ...] = (1,)) -> Tensor:
    """Pad dimensions by this many entries on the left and on the right."""
    shape = [size + (left + right) * (dim in dims) for dim, size in enumerate(values.shape)]
    inside = tuple(slice(left, left + size) if dim in dims else slice(None) for dim, size in enumerate(values.shape))
    wide = torch.full(shape, fill, dtype=values.dtype)
    wide[inside] = values
    return wide


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def statistics() -> Callable[..., Fields]:
    return _statistics


@pytest.fixture
def random_pattern() -> Callable[..., Tensor]:
    return _random_pattern


@pytest.fixture
def pattern_scores() -> Callable[[Tensor], Scores]:
    return _pattern_scores


@pytest.fixture
def pad() -> Callable[..., Tensor]:
    return _pad


@pytest.fixture
def identity() -> Tensor:
    return torch.eye(8, dtype=torch.float64)[None, None]


@pytest.fixture
def uniform() -> Tensor:
    return torch.full((1, 1, 8, 8), 1 / 8, dtype=torch.float64)


@pytest.fixture
def uniform_causal() -> Tensor:
    lower = torch.tril(torch.ones(8, 8, dtype=torch.float64))
    return (lower / lower.sum(dim=-1, keepdim=True))[None, None]


@pytest.fixture
def first_column() -> Tensor:
    """A rank-one pattern: every query attends to the first key."""
    pattern = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    pattern[..., 0] = 1.0
    return pattern


@pytest.fixture
def known(identity: Tensor, uniform: Tensor, uniform_causal: Tensor, first_column: Tensor) -> dict[str, Tensor]:
    return {"identity": identity, "uniform": uniform, "uniform_causal": uniform_causal, "first_column": first_column}


@pytest.fixture(params=["left", "right"])
def padded_statistics(request: pytest.FixtureRequest) -> Callable[[Tensor], Fields]:
    """Return the statistics of a pattern inside padding, whose rows hold arbitrary numbers."""
    left, right = (3, 0) if request.param == "left" else (0, 3)

    def of(pattern: Tensor) -> Fields:
        wide = _pad(pattern, left, right, 0.7, dims=(2, 3))
        mask = _pad(torch.ones(pattern.shape[0], pattern.shape[2], dtype=torch.bool), left, right, False)
        return _statistics(wide, mask, mask)

    return of


@pytest.fixture(params=["left", "right"])
def padded_stream(request: pytest.FixtureRequest) -> Callable[[Tensor], Fields]:
    """Return a stream inside padding of NaN."""
    left, right = (3, 0) if request.param == "left" else (0, 3)

    def of(stream: Tensor) -> Fields:
        mask = _pad(torch.ones(stream.shape[:2], dtype=torch.bool), left, right, False)
        return {"stream": _pad(stream, left, right, torch.nan), "token_mask": mask}

    return of


@pytest.fixture
def whole() -> Callable[[Tensor], Fields]:
    """Return a stream without padding."""

    def of(stream: Tensor) -> Fields:
        return {"stream": stream, "token_mask": torch.ones(stream.shape[:2], dtype=torch.bool)}

    return of


@pytest.fixture
def noise() -> Tensor:
    return torch.randn(3, 10, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5


@pytest.fixture
def ask() -> Callable[..., Any]:
    """Call a measure with the fields that it reads; a single part is returned as a tensor."""

    def of(measure: Any, fields: Fields) -> Any:
        parts = measure(**{name: fields[name] for name in measure.reads})
        return parts["value"].value if tuple(parts) == ("value",) else parts

    return of
