"""A scan with `--stream-weights` equals the normal scan bit for bit, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnscope.commands.scan import by_block
from attnscope.commands.scan.by_block import rounds
from attnscope.commands.scan.plan import Subject
from attnscope.commands.scan.run import scan
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.errors import RefusalError
from attnscope.data.batches import Batches
from attnscope.hf.intercepting import wrappers as offloaded
from attnscope.hf.intercepting.wrappers import held, is_offloaded
from attnscope.hf.loading.load import load
from tests.hf.tiny import tiny
from tests.specimens import TEXT, byte_tokenizer, tiny_llama, tiny_t5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose weights are in several files."""
    path = tmp_path_factory.mktemp("llama")
    tiny_llama().save_pretrained(path, max_shard_size="40KB")
    assert len(list(path.glob("model-*.safetensors"))) > 2
    return path


@pytest.fixture(scope="module")
def batches() -> list[dict[str, Tensor]]:
    """Two batches, the second with padding."""
    ids = torch.randint(3, 257, (4, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 7:] = 0
    return [{"input_ids": ids[:2]}, {"input_ids": ids[2:], "attention_mask": mask}]


@pytest.fixture(scope="module")
def whole(folder: Path, batches: list[dict[str, Tensor]]) -> Survey:
    return scan(str(folder), batches)


def same(first: Survey, second: Survey) -> bool:
    """Return whether numbers and provenance are equal, except for the location of weights."""

    def described(survey: Survey) -> dict[str, Any]:
        model = {name: value for name, value in survey.provenance["model"].items() if name != "placed"}
        return {**survey.provenance, "model": model, "created": None}

    return first.cells == second.cells and first.cards == second.cards and described(first) == described(second)


def test_streamed_weights_give_the_same_survey(
    folder: Path, batches: list[dict[str, Tensor]], whole: Survey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run in one round, and with little memory in one round per batch. Never more than one block is in memory."""
    held_now: list[nn.Module] = []
    most: list[int] = []

    class Counting:
        def __init__(self, block: nn.Module) -> None:
            self.block, self.inner = block, held(block)

        def __enter__(self) -> None:
            self.inner.__enter__()
            held_now.append(self.block)
            most.append(len(held_now))
            assert not is_offloaded(self.block)

        def __exit__(self, *ignored: Any) -> None:
            self.inner.__exit__(None, None, None)
            held_now.remove(self.block)
            assert is_offloaded(self.block)

    monkeypatch.setattr(by_block, "held", Counting)
    survey = scan(str(folder), batches, stream_weights=True)
    assert same(survey, whole)
    assert survey.provenance["model"]["placed"]["disk"] > survey.provenance["model"]["placed"]["cpu"] / 4
    assert max(most) == 1
    assert len(most) == 3
    monkeypatch.setattr(by_block, "memory_left", lambda: 0)
    monkeypatch.setattr(by_block, "refuse_without_chain", lambda *_: None)
    assert same(scan(str(folder), batches, stream_weights=True), whole)
    assert len(most) == 3 + 3 * 2


def test_half_the_layers_on_disk_give_the_same_survey(
    folder: Path, batches: list[dict[str, Tensor]], whole: Survey
) -> None:
    survey = scan(str(folder), batches, device_map={"": "cpu", "model.layers.1": "disk"})
    assert same(survey, whole)
    assert set(survey.provenance["model"]["placed"]) == {"cpu", "disk"}


def test_a_model_of_ones_own_with_weights_on_disk_is_the_same_model(
    folder: Path, batches: list[dict[str, Tensor]], whole: Survey
) -> None:
    """The model has hooks of another library: hash, weights and numbers are read through them."""
    spread = load(str(folder), device_map={"": "cpu", "model.layers": "disk"}).model
    plain = load(str(folder)).model
    first, second = (scan(model, batches) for model in (spread, plain))
    assert first.cells == second.cells == whole.cells
    assert first.provenance["model"]["hash"] == second.provenance["model"]["hash"]
    assert is_offloaded(spread)


def test_block_weights_are_released_after_an_exception(folder: Path) -> None:
    model = load(str(folder), stream_weights=True).model
    block = model.get_submodule("model.layers.0")
    before = {id(module): vars(module).get("forward") for module in block.modules()}

    def stopped() -> None:
        with held(block):
            assert not is_offloaded(block)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert is_offloaded(block)
    assert before == {id(module): vars(module).get("forward") for module in block.modules()}


def test_streamed_weights_are_released(folder: Path) -> None:
    model = load(str(folder), stream_weights=True).model
    plain = dict(load(str(folder)).model.named_parameters())
    reach = offloaded.in_reach(model)
    assert list(reach) == list(plain)
    assert all(torch.equal(reach[name], plain[name]) for name in reach)
    assert is_offloaded(model)


@pytest.mark.parametrize("family", ["gptj", "gemma2", "jamba"])
def test_families_pass_their_stream_from_block_to_block(family: str) -> None:
    """Blocks that return tuples with maps, blocks with windows, and blocks without attention."""
    model, batch = tiny(family)
    assert scan(model, [batch]).cells == scan(model, [batch], stream_weights=True).cells


def test_shared_blocks_and_two_stacks_are_refused() -> None:
    model, batch = tiny("albert")
    with pytest.raises(RefusalError, match=r"runs 2 times.*`stream_weights=`"):
        scan(model, [batch], stream_weights=True)
    with pytest.raises(RefusalError, match=r"2 stacks of blocks.*`device_map"):
        scan(tiny_t5(), [TEXT], tokenizer=byte_tokenizer(), samples=2, max_tokens=9, stream_weights=True)


def test_state_beside_the_stream_is_refused() -> None:
    """A block that reads the state of an earlier block has another output when it runs alone."""
    model = tiny_llama()
    layers = model.model.layers
    layers[0].register_forward_hook(lambda module, args, output: vars(layers[2]).update(left=output.mean()))

    def with_what_is_left(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        return output + vars(module).pop("left", 0.0)

    layers[2].register_forward_hook(with_what_is_left)
    with pytest.raises(RefusalError, match="block 2 reads more than the stream"):
        scan(model, [{"input_ids": torch.arange(24).reshape(2, 12)}], stream_weights=True)


def test_rounds_hold_as_many_streams_as_there_is_room_for() -> None:
    model = tiny_llama()
    prepared = Batches.of([{"input_ids": torch.arange(24).reshape(2, 12) + i} for i in range(5)])
    subject = Subject.of(model, prepared.batches[0].inputs)
    stream = 24 * subject.anatomy.stacks[0].width * 4
    sizes = [len(part) for part in rounds(subject, prepared, free=2 * 2 * stream)]
    assert sizes == [2, 2, 1]
    assert [len(part) for part in rounds(subject, prepared, free=0)] == [1] * 5


def test_an_interrupted_round_leaves_nothing_behind(
    folder: Path, batches: list[dict[str, Tensor]], whole: Survey, tmp_path: Path
) -> None:
    kept = tmp_path / "partial.json"

    def stop(stage: str, *ignored: int) -> None:
        if stage.startswith("block 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan(str(folder), batches, stream_weights=True, checkpoint=kept, progress=stop)
    assert not kept.exists()
    again = scan(str(folder), batches, stream_weights=True, checkpoint=kept, resume=True)
    assert same(again, whole)
