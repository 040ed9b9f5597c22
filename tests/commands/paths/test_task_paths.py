"""Heads over a task: values of single prompts, removed heads, resumed runs, and refusals."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel

import attnscope
from attnscope.commands.paths.run import paths
from attnscope.commands.task_paths.record import TaskPaths
from attnscope.commands.task_paths.run import task_paths
from attnscope.commands.task_paths.words import interval
from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.editing.surgery import one_head_removed, prunable, without_heads
from tests.command import attnscope as command
from tests.specimens import byte_tokenizer, save_specimen, tiny_llama

PROMPTS = [
    {"text": "the dog", "target": "s", "against": "t"},
    {"text": "a cat is", "target": "n", "against": "e"},
    {"text": "we go", "target": "e", "against": "s"},
]


def run(prompts: Any = PROMPTS, **options: Any) -> TaskPaths:
    return task_paths(tiny_llama(), prompts, tokenizer=byte_tokenizer(), **options)


@pytest.fixture(scope="module")
def task() -> TaskPaths:
    return run()


def ids(text: str) -> torch.Tensor:
    return torch.tensor([byte_tokenizer()(text)["input_ids"]])


def test_values_equal_those_of_single_prompts(task: TaskPaths) -> None:
    assert [row.place for row in task.prompts] == ["Prompt 1", "Prompt 2", "Prompt 3"]
    prompt = PROMPTS[1]
    alone = paths(
        tiny_llama(), prompt["text"], target=prompt["target"], against=prompt["against"], tokenizer=byte_tokenizer(),
        draws=0, mlp=False, top=1,
    )  # fmt: skip
    row = task.prompts[1]
    assert row.values == alone.head_values
    assert row.value == alone.value
    assert row.alone == pytest.approx(alone.lengths[0].value, abs=1e-12)
    for result in task.prompts:
        assert result.alone + sum(map(sum, result.values)) == pytest.approx(result.value, abs=1e-11)
    first = task.heads[0]
    column = [result.values[first.block][first.head] for result in task.prompts]
    assert first.value == pytest.approx(sum(column) / 3)
    assert len(task.heads) == len(task.places) == 12
    assert task.table()["value"].abs().is_monotonic_decreasing


def test_removals_equal_runs_with_zeroed_weights(task: TaskPaths) -> None:
    """Set the weights of one head to zero at a time."""
    model = tiny_llama().double()
    sites = prunable(model, anatomy(model, {"input_ids": ids("the dog")}))
    right, wrong = (int(ids(word)[0, -1]) for word in ("s", "t"))
    removal = task.prompts[0].removal
    assert removal is not None

    def asked() -> tuple[float, float]:
        with torch.no_grad():
            row = model(ids("the dog")).logits[0, -1]
        return float(row[right] - row[wrong]), float(-row.log_softmax(-1)[right])

    whole = asked()
    for block, head in ((0, 1), (2, 3)):
        with without_heads(model, sites, [(block, head)]):
            without = asked()
        # Sums in another order, through norms that this model casts to float32.
        assert removal.target[block][head] == pytest.approx(whole[0] - without[0], abs=1e-5)
        assert removal.loss[block][head] == pytest.approx(without[1] - whole[1], abs=1e-5)
    assert max(abs(value) for row in removal.target for value in row) > 1e-2  # it matters


def test_a_removed_head_writes_nothing_or_its_mean_and_the_model_is_restored() -> None:
    model = tiny_llama()
    site = prunable(model, anatomy(model, {"input_ids": ids("abc")}))[1]
    assert site.projections.output is not None
    projection = model.get_submodule(site.projections.output.parameter.rpartition(".")[0])
    seen: list[torch.Tensor] = []
    hook = projection.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    two = ids("abc").expand(2, -1)
    with torch.no_grad():
        whole = model(two).logits
        hook.remove()
        for by in ("zero", "mean"):
            with one_head_removed(model, site, [0, 2], by):
                hook = projection.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
                model(two)
                hook.remove()
        with pytest.raises(ZeroDivisionError), one_head_removed(model, site, [0, 2], "zero"):
            raise ZeroDivisionError
        assert torch.equal(model(two).logits, whole)
    before, zero, mean = (x.reshape(2, x.shape[1], site.heads, -1) for x in seen)
    for row, head in ((0, 0), (1, 2)):
        assert zero[row, :, head].abs().max() == 0
        assert torch.equal(mean[row, :, head], before[row, :, head].mean(0, keepdim=True).expand_as(mean[row, :, head]))
        others = [number for number in range(site.heads) if number != head]
        assert torch.equal(zero[row][:, others], before[row][:, others])
    with pytest.raises(RefusalError, match="does not separate heads"), one_head_removed(model, site, [0], "zero"):
        model(two)


class Stop:
    """Progress that raises KeyboardInterrupt after a number of prompts."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.began: list[int] = []

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage == "prompts":
            self.began.append(done)
            if done == self.after:
                raise KeyboardInterrupt


def test_resumed_run_equals_unbroken_run(task: TaskPaths, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=kept, progress=Stop(2))
    assert len(kept.read_text().splitlines()) == 3
    header, rest = kept.read_bytes().split(b"\n", 1)
    kept.write_bytes(header + b"\n" + rest.replace(b"\n", b"*", 1))  # a damaged line end costs no prompt
    with kept.open("a") as stream:  # killed while it wrote
        stream.write('{"place": "Pro')
    going_on = Stop(99)
    resumed = run(checkpoint=kept, resume=True, progress=going_on)
    assert going_on.began == [2, 3]
    assert resumed.prompts == task.prompts
    assert len(kept.read_text().splitlines()) == 4


def test_resuming_with_other_settings_is_refused(tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=kept, progress=Stop(1), removal="none")
    was = kept.read_bytes()
    with pytest.raises(RefusalError, match="another dtype, removal: give the same options"):
        run(checkpoint=kept, resume=True, dtype="float32")
    with pytest.raises(RefusalError, match="another prompts"):
        run(PROMPTS[:2], checkpoint=kept, resume=True, removal="none")
    assert kept.read_bytes() == was
    kept.write_bytes(was.replace(b'"values"', b'"worths"'))
    assert len(run(checkpoint=kept, resume=True, removal="none").prompts) == len(PROMPTS)  # its prompt is done again
    assert b'"worths"' in (tmp_path / "kept.jsonl.damaged").read_bytes()
    kept.write_text("{}\n")
    with pytest.raises(RefusalError, match="not an interrupted run"):
        run(checkpoint=kept, resume=True, removal="none")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RefusalError, match="is a folder"):
        run(checkpoint=tmp_path / "folder", removal="none")


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ({"text": "a", "target": "st"}, "Prompt 2: 'st' is 2 tokens"),
        ({"text": "a", "target": 9999}, "Prompt 2: The output has entries"),
        ({"text": "a" * 5000, "target": "s"}, "Prompt 2: .*5,?001 tokens"),
    ],
)
def test_bad_prompt_is_refused_before_any_work(prompt: Any, said: str) -> None:
    began = Stop(99)
    with pytest.raises(RefusalError, match=said):
        run([{"text": "a", "target": "s"}, prompt], progress=began)
    assert began.began == []


def test_other_refusals() -> None:
    with pytest.raises(RefusalError, match="the same token: choose two that differ"):
        run([{"text": "a", "target": "s", "against": "s"}])
    with pytest.raises(RefusalError, match="choose one of zero, mean, none"):
        run(removal="half")
    with pytest.raises(RefusalError, match="choose one of float64, float32"):
        run(dtype="bfloat16")
    with pytest.raises(RefusalError, match="no stack called 'decodr'"):
        run(stack="decodr")
    config = BertConfig(vocab_size=257, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    with pytest.raises(RefusalError, match="states and no logits"):
        task_paths(BertModel(config).eval(), [{"text": "a", "target": "s"}], tokenizer=byte_tokenizer())


def test_sentences_mention_few_prompts_and_agreement(task: TaskPaths) -> None:
    assert any("too few to be sure" in one for one in task.sentences())
    assert any("Spearman" in one for one in task.sentences())
    assert "differ most" in task.sentences()[-2]
    single = replace(task, prompts=task.prompts[:1])
    assert "no error bar" in single.sentences()[0]
    assert "inf" not in str(single._repr_html_())
    assert all(interval(head) == "unknown" for head in replace(task, prompts=task.prompts[:2]).heads if head.error)
    bare = replace(task, removal=None, prompts=tuple(replace(one, removal=None) for one in task.prompts))
    assert bare.agreement == ()
    assert not any("Spearman" in one for one in bare.sentences())


def test_the_command(tmp_path: Path) -> None:
    model = save_specimen(tmp_path / "model")
    file = tmp_path / "task.jsonl"
    file.write_text("\n".join(map(json.dumps, PROMPTS)), encoding="utf-8")
    out = tmp_path / "out"
    done = command("paths", model, file, "--out", out, "--removal", "mean")
    assert done.returncode == 0, done.stderr
    assert "Heads, the largest mean value first" in done.stdout
    assert sorted(path.name for path in out.iterdir()) == ["task_paths.html", "task_paths.json"]
    saved = attnscope.load(out)
    assert isinstance(saved, TaskPaths)
    assert saved.removal == "mean"
    assert saved.task == "task.jsonl"
    for words, expected in (
        (("paths", model, "a text", "--resume"), "give a .jsonl file"),
        (("paths", model, file, "--target", "a"), "have their own targets"),
        (("paths", model, tmp_path / "none.jsonl"), "none.jsonl"),
    ):
        refused = command(*words, cwd=tmp_path)
        assert refused.returncode == 2
        assert expected in " ".join(refused.stderr.split())
