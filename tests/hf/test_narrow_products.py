"""Half precision is refused on a processor that would crash, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attnscope.core import amx_check as tiles
from attnscope.core.amx_check import LIMIT, LIMITED_TO, announces_amx
from attnscope.core.errors import RefusalError
from attnscope.hf.intercepting.restoring import looking_at


@pytest.fixture
def crashing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIMIT, raising=False)
    monkeypatch.setattr(tiles, "announces_amx", lambda: True)
    monkeypatch.setattr(tiles, "_child_crashes", lambda: True)


@pytest.mark.usefixtures("crashing")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_are_refused_with_advice(dtype: torch.dtype) -> None:
    with pytest.raises(RefusalError, match=f"{LIMIT}={LIMITED_TO}"), looking_at(torch.nn.Linear(2, 2).to(dtype)):
        pass


@pytest.mark.usefixtures("crashing")
def test_float32_models_run() -> None:
    # Compute no product here: torch reads the environment at the first one in a process.
    with looking_at(torch.nn.Linear(2, 2)) as entered:
        assert entered is None


@pytest.mark.usefixtures("crashing")
def test_half_precision_models_run_if_the_limit_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, LIMITED_TO)
    model = torch.nn.Linear(2, 2).bfloat16()
    with looking_at(model):
        assert model.weight.dtype == torch.bfloat16


def test_amx_tiles_are_read_from_the_kernel(tmp_path: Path) -> None:
    told = tmp_path / "cpuinfo"
    told.write_text("flags\t\t: fpu avx512_bf16 amx_bf16 amx_tile amx_int8\n")
    assert announces_amx(told)
    told.write_text("flags\t\t: fpu avx2\n")
    assert not announces_amx(told)
    assert not announces_amx(tmp_path / "nothing")
