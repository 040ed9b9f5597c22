"""The checks of shapes and types in tests find planted mistakes of every kind."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.checking import install

PLANTED = """
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING
from jaxtyping import Float
from torch import Tensor
if TYPE_CHECKING:
    from elsewhere import Unknown

Square = Float[Tensor, "side side"]

def plain(x: int) -> str: return "a" if x else x
def shaped(a: Float[Tensor, "row column"], b: Float[Tensor, " column"]) -> Float[Tensor, " row"]: return a @ b
def wrong(a: Float[Tensor, "row column"]) -> Float[Tensor, " row"]: return a[0]
def named(a: Square) -> None: ...
def sized(n: int) -> Float[Tensor, " {n}"]: return __import__("torch").ones(3)
def of_unknown(a: Unknown, n: int) -> int: return n

@dataclass(frozen=True)
class Made:
    x: int
    def method(self, a: Float[Tensor, " three"], b: Float[Tensor, " three"]) -> Made: return self

def outside(limit: int):
    def inside(a: Float[Tensor, "row row"], *rest: int, scale: float = 1.5) -> int: return limit
    return inside
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    place = tmp_path_factory.mktemp("planted")
    (Path(place) / "planted_mistakes.py").write_text(PLANTED)
    sys.path.insert(0, str(place))
    install("planted_mistakes")
    try:
        yield importlib.import_module("planted_mistakes")
    finally:
        sys.path.remove(str(place))
        sys.meta_path.pop(0)
        sys.modules.pop("planted_mistakes", None)


def test_correct_calls_pass_the_checks(planted: ModuleType) -> None:
    square, row = torch.ones(2, 2), torch.ones(3)
    assert planted.plain(1) == "a"
    assert planted.shaped(torch.ones(2, 3), row).shape == (2,)
    assert planted.sized(3).shape == (3,)
    assert planted.of_unknown(object(), 2) == 2
    assert planted.Made(1).method(row, row).x == 1
    assert planted.outside(4)(square, 1, 2, scale=0.5) == 4
    assert planted.outside(5)(square) == 5


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.plain("x"),
        lambda m: m.plain(0),
        lambda m: m.shaped(torch.ones(2, 3), torch.ones(4)),
        lambda m: m.shaped(torch.ones(2, 3).long(), torch.ones(3)),
        lambda m: m.wrong(torch.ones(2, 3)),
        lambda m: m.named(torch.ones(2, 3)),
        lambda m: m.sized(4),
        lambda m: m.of_unknown(object(), "n"),
        lambda m: m.Made("x"),
        lambda m: m.Made(1).method(torch.ones(3), torch.ones(2)),
        lambda m: m.outside(1)(torch.ones(2, 3)),
        lambda m: m.outside(1)(torch.ones(2, 2), "x"),
        lambda m: m.outside(1)(torch.ones(2, 2), scale="x"),
        lambda m: m.outside("x")(torch.ones(2, 2)),
    ],
    ids=range(14),
)
def test_wrong_shapes_and_types_are_found(planted: ModuleType, call: object) -> None:
    assert callable(call)
    with pytest.raises(TypeError):
        call(planted)
