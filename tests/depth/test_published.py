"""The paper's curves as data, and ours beside them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from attnscope.core.errors import RefusalError
from attnscope.depth.published import Published, differences, published


@pytest.mark.parametrize("name", ["BERT", "albert", "XLNet"])
@pytest.mark.parametrize("weights", ["random", "trained"])
def test_all_curves_are_there(name: str, weights: str) -> None:
    found = published(name, weights)
    assert list(found.curves) == ["san", "san+mlp", "san+skip", "whole"]
    assert {len(curve) for curve in found.curves.values()} == {13}
    assert found.curves["san"][-1] < 0.01 < found.curves["whole"][-1]


def test_values_of_the_paper() -> None:
    bert = published("BERT", "trained")
    assert bert.curves["san"][:6] == (0.6872, 0.6758, 0.3153, 0.1389, 0.0308, 0.0035)
    assert (bert.curves["san+skip"][-1], bert.curves["whole"][-1]) == (0.0743, 0.3096)


def test_differences_know_what_a_published_zero_means() -> None:
    ours = {"san": SimpleNamespace(mean=(0.6, 1e-6, 1e-3)), "whole": SimpleNamespace(mean=(0.5,))}
    reference = Published("BERT", "random", {"san": (0.5, 0.0, 0.0)})
    found = differences(ours, reference)
    assert [round(d.apart, 6) for d in found] == [0.1, 0.0, 0.00095]


@pytest.mark.parametrize(("name", "weights"), [("GPT", "random"), ("BERT", "frozen")])
def test_refusals(name: str, weights: str) -> None:
    with pytest.raises(RefusalError):
        published(name, weights)
