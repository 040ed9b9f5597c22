"""If a block attends twice per pass, a sequence counts once: with the mean value and the location of the larger one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnscope.commands.scan.observer import _Observation, _one_per_place
from attnscope.commands.scan.run import scan
from tests.specimens import TEXT, byte_tokenizer, tiny_llama

PLACE = ("most_received", "value", "decoder", "self", 0)


def test_the_place_belongs_to_the_larger_value() -> None:
    first = _Observation(PLACE, np.array([[0.2, 0.8]]), {"key": np.array([[3, 4]])})
    second = _Observation(PLACE, np.array([[0.6, 0.4]]), {"key": np.array([[7, 8]])})
    (joined,) = _one_per_place([first, second])
    np.testing.assert_allclose(joined.values, [[0.4, 0.6]])
    np.testing.assert_array_equal(joined.where["key"], [[7, 4]])


def test_a_resumed_scan_gives_the_same_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reasons for missing measures are equal whether a scan was interrupted or not."""
    from attnscope.hf.anatomy import weights as weights_module

    whole_weights = weights_module.weights

    def without_queries(*args: Any) -> object:
        from dataclasses import replace

        return (replace(frame, query_weight=None) for frame in whole_weights(*args))

    monkeypatch.setattr("attnscope.commands.scan.shard.weights_in_turn", without_queries)
    options: dict[str, Any] = {"tokenizer": byte_tokenizer(), "samples": 4, "max_tokens": 12, "batch_size": 2}
    unbroken = scan(tiny_llama(), [TEXT], **options)
    assert "query_weight" in unbroken.provenance["not_measured"]["qk_spectrum"]
    partial = tmp_path / "partial.json"
    seen: list[int] = []

    def stop_after_the_first_batch(stage: str, done: int, total: int, tokens: int) -> None:
        seen.append(done)
        if stage == "scanning" and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan(tiny_llama(), [TEXT], **options, checkpoint=partial, progress=stop_after_the_first_batch)
    resumed = scan(tiny_llama(), [TEXT], **options, checkpoint=partial, resume=True)
    assert resumed.provenance["not_measured"] == unbroken.provenance["not_measured"]
    assert resumed.cells == unbroken.cells
