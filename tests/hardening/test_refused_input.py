"""Input that raised an exception, or that was answered with a sentence that misleads."""

from __future__ import annotations

import copy
import json
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save

import attnscope
from attnscope.cli.output import output_folder
from attnscope.commands.head_widths.chart import chart
from attnscope.commands.head_widths.record import HeadWidths
from attnscope.commands.scan.survey.shards import HASH, content_hash, from_bytes
from attnscope.core.errors import RefusalError
from attnscope.core.files import neighbour_meant
from attnscope.core.folders import open_folder
from attnscope.core.progress import Terminated, exit_code, stoppable
from attnscope.data.read import read
from attnscope.engine import on_ray
from attnscope.engine.crew import Workers
from attnscope.hf.loading.load import Loaded, load
from attnscope.hf.loading.options import Sampling
from tests.engine.toy import Squares
from tests.specimens import TEXT, byte_tokenizer, tiny_llama

TEXTS = [
    f"The {a} saw {n} of the {b} and went away. " * 3 for n in range(10) for a, b in (("dog", "cat"), ("fox", "cow"))
]


@pytest.fixture(scope="module")
def pocket() -> Loaded:
    return load("pocket")


@pytest.mark.parametrize("command", ["view", "explain", "paths", "operator", "evaluate", "scan", "collapse", "treat"])
def test_model_on_the_meta_device_is_refused(pocket: Loaded, command: str) -> None:
    model = copy.deepcopy(pocket.model).to("meta")
    given: Any = TEXTS if command in ("evaluate", "scan", "collapse", "treat") else "The dog saw the dog"
    with pytest.raises(RefusalError, match="on torch's meta device and hold no numbers"):
        getattr(attnscope, command)(model, given, tokenizer=pocket.tokenizer)


def test_head_widths_refuses_the_meta_device_and_broken_weights(pocket: Loaded) -> None:
    with pytest.raises(RefusalError, match="meta device"):
        attnscope.head_widths(copy.deepcopy(pocket.model).to("meta"), TEXTS)
    model: Any = copy.deepcopy(pocket.model)
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[0, 0] = math.nan
    with pytest.raises(RefusalError, match=r"The weights model\.layers\.1\.self_attn\.q_proj\.weight .* hold NaN"):
        attnscope.head_widths(model, TEXTS)


@pytest.mark.parametrize("command", ["view", "explain", "paths", "operator", "scan", "collapse", "head_widths"])
@pytest.mark.parametrize("shape", [(0, 5), (1, 0)])
def test_empty_batch_is_refused(pocket: Loaded, command: str, shape: tuple[int, int]) -> None:
    with pytest.raises(RefusalError, match=r"no tokens|without tokens|one sequence|no sequence"):
        getattr(attnscope, command)(pocket, {"input_ids": torch.zeros(shape, dtype=torch.long)})


@pytest.mark.parametrize("gpus", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_gpus_that_are_not_a_number_of_gpus_are_refused(gpus: float, engine: str) -> None:
    with pytest.raises(RefusalError, match=r"`gpus_per_worker=` cannot be"):
        Workers(engine=engine, gpus_per_worker=gpus)


def test_treat_refuses_weights_that_are_all_zero(pocket: Loaded) -> None:
    model = copy.deepcopy(pocket.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    with pytest.raises(RefusalError, match=r"No projections of .* were found to train"):
        attnscope.treat(model, TEXTS, tokenizer=pocket.tokenizer, steps=2)


def test_collapse_keeps_the_random_state_and_the_mode_of_a_model(pocket: Loaded) -> None:
    model: Any = copy.deepcopy(pocket.model).train()
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.1
    before = torch.get_rng_state()
    attnscope.collapse(model, TEXTS, tokenizer=pocket.tokenizer, samples=2, max_tokens=16)
    assert torch.equal(before, torch.get_rng_state())
    assert all(module.training for module in model.modules())


def test_explain_reads_token_ids(pocket: Loaded) -> None:
    ids = [3, 5, 7, 9, 11]
    whole = attnscope.explain(pocket, {"input_ids": torch.tensor([ids])}, methods="relevance")
    for given in (ids, torch.tensor(ids), torch.tensor([ids])):
        assert attnscope.explain(pocket, given, methods="relevance").methods == whole.methods


def test_head_widths_without_heads_are_saved_without_a_map(tmp_path: Path) -> None:
    record = HeadWidths("empty", 4, 1, (5,), "float32", 0.1, 0.01, (), 1.0, False)
    with pytest.raises(RefusalError, match="has no heads to draw"):
        chart(record)
    record.save(tmp_path / "widths.html")
    assert (tmp_path / "widths.html").is_file()


@pytest.mark.parametrize("folder", ["/", "~", "/tmp/.."])
def test_root_and_home_are_not_output_folders(folder: str) -> None:
    with pytest.raises(RefusalError, match="name a new folder"), output_folder(Path(folder).expanduser()):
        pass


def test_empty_name_of_a_store_is_refused() -> None:
    with pytest.raises(RefusalError, match="name of the folder is empty"):
        open_folder("")


def test_a_missing_folder_is_not_suggested_for_itself(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    assert neighbour_meant(tmp_path / "run") == ""
    assert "run" in neighbour_meant(tmp_path / "runs")


def test_a_corpus_that_repeats_itself_is_named_as_such() -> None:
    from attnscope.data.corpus import split

    with pytest.raises(RefusalError, match="repeats itself"):
        split(read(["The dog saw the cat."] * 30))
    with pytest.raises(RefusalError, match="is too small"):
        split(read(["The dog saw the cat."]))


@pytest.mark.parametrize(
    ("name", "value"),
    [("plan", 3), ("origin", 3), ("cards", []), ("weights", None), ("tokens", [1]), ("tokens", {"": "many"})],
)
def test_shard_with_a_wrong_type_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    attnscope.scan(
        tiny_llama(),
        [TEXT],
        tokenizer=byte_tokenizer(),
        sampling=Sampling(samples=2, max_tokens=24, batch_size=2),
        store=tmp_path / "store",
    )
    shard = next((tmp_path / "store").glob("*.shard"))
    arrays = load_arrays(shard.read_bytes())
    arrays.pop(HASH)
    document = {**json.loads(arrays["document"].tobytes()), name: value}
    arrays["document"] = np.frombuffer(json.dumps(document).encode(), np.uint8)
    arrays[HASH] = np.frombuffer(content_hash(arrays), np.uint8)
    with pytest.raises(RefusalError, match="is not a complete shard"):
        from_bytes(save(arrays), "this")


def test_sigterm_while_ray_starts_ends_as_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Starting:
        stopped = False

        def is_initialized(self) -> bool:
            return False

        def init(self, **_: Any) -> None:
            def leave(number: int, _: Any) -> None:
                raise SystemExit(number)

            signal.signal(signal.SIGTERM, leave)
            signal.raise_signal(signal.SIGTERM)

        def shutdown(self) -> None:
            self.stopped = True

    ray = Starting()
    monkeypatch.setattr(on_ray, "_ray", lambda: ray)
    before = signal.getsignal(signal.SIGTERM)
    with stoppable():
        with pytest.raises(Terminated), on_ray.OnRay(Squares(str(tmp_path)), 1, None, 0.0):
            pass
        assert exit_code() == 143
    assert ray.stopped
    assert signal.getsignal(signal.SIGTERM) is before
