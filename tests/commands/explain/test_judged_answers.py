"""The answers that `evaluate` follows: one logit, a masked token, two towers, joined streams, zero, and labels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import attnscope
from attnscope.commands.evaluate import run as judging
from attnscope.commands.evaluate.perturbing import NoAnswerError, perturbed
from attnscope.commands.explain.aiming import Aim, Question, aim, of_terms
from attnscope.commands.explain.embedding_aim import of_two_towers
from attnscope.commands.explain.record import Asked
from attnscope.hf.intercepting.restoring import with_gradients
from attnscope.hf.loading.load import load
from tests.command import attnscope as command
from tests.commands.explain.deciding import texts, trained
from tests.hf.tiny import tiny
from tests.specimens import byte_tokenizer, tiny_llama
from tools.every_family import first_sequence

SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.mark.parametrize("bias", [2.0, -2.0])
def test_single_logit_is_followed_as_yes_or_no(bias: float) -> None:
    """A softmax over one logit is always 1. The answer is sigmoid(logit), or sigmoid(-logit) below 0, and changes when
    tokens are removed."""
    torch.manual_seed(0)
    model = hf.BertForSequenceClassification(hf.BertConfig(vocab_size=64, num_labels=1, **SIZES)).eval()
    torch.nn.init.constant_(model.classifier.bias, bias)
    torch.nn.init.normal_(model.classifier.weight)
    batch = {"input_ids": torch.tensor([[5, 6, 7, 8, 9, 10]])}
    with torch.no_grad():
        logit = float(model(**batch).logits)
    assert logit * bias > 0
    explained = attnscope.explain(model, batch, methods="gradient_input")
    assert explained.value == pytest.approx(abs(logit))
    assert explained.asked.word == ("LABEL_0" if bias > 0 else "not LABEL_0")
    asked = attnscope.explain(model, batch, target=0, methods="gradient_input")
    assert asked.value == pytest.approx(logit)
    batches = [{"input_ids": torch.randint(5, 60, (1, 6))} for _ in range(4)]
    curve = attnscope.evaluate(model, batches, methods="occlusion").method("occlusion").falling
    assert curve[0] == 1
    assert min(curve) < 0.999
    weight = 1.0 if bias > 0 else -1.0
    given = torch.tensor([[3.0], [-1.0]])
    answers = of_terms(given[:1], ((None, 0, weight),), Asked("logit"), None).chance(given)
    assert torch.equal(answers, (weight * given[:, 0]).sigmoid())


def masked() -> tuple[Any, Any]:
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    return hf.BertForMaskedLM(hf.BertConfig(vocab_size=len(tokenizer), **SIZES)).eval(), tokenizer


@with_gradients()
def test_masked_models_are_evaluated_at_a_hidden_token() -> None:
    model, tokenizer = masked()
    loaded = load(model, tokenizer=tokenizer)
    ids = torch.tensor([tokenizer("a plain text of letters")["input_ids"]])
    places = set()
    for seed in range(6):
        one = judging._run(loaded, {"input_ids": ids}, seed, None, None)
        assert one.read.ids is not None
        (place,) = (one.read.ids == tokenizer.mask_token_id).nonzero().flatten().tolist()
        assert one.aim.position == place
        assert one.read.ids.tolist() == [*ids[0, :place], tokenizer.mask_token_id, *ids[0, place + 1 :]]
        assert int(ids[0, place]) not in tokenizer.all_special_ids
        places.add(place)
    assert len(places) > 1
    assert one.read.ids is not None
    again = judging._run(loaded, {"input_ids": one.read.ids[None]}, 0, None, None)  # already masked, so it is unchanged
    assert torch.equal(again.read.batch["input_ids"][0], one.read.ids)
    found = attnscope.evaluate(model, ["a plain text of letters"], methods="random", tokenizer=tokenizer, max_tokens=12)
    assert any("one random token is masked" in note for note in found.notes)


def test_evaluate_and_explain_name_calls_by_streams() -> None:
    """LXMERT passes two streams through six stacks. Both functions name calls by streams."""
    model, batch = tiny("lxmert")
    loaded = load(model)
    with torch.enable_grad():
        one = judging._run(loaded, first_sequence(batch), 0, None, None)
    streams = {place.stack for place in one.places}
    assert {call.stack for call in one.captured.calls} <= streams
    assert {call.keys_from for call in one.captured.calls} <= streams


@pytest.mark.parametrize("bias", [None, -10.0])
def test_two_towers_answer_with_their_cosine(bias: float | None) -> None:
    """With CLIP's scale of 100, a sigmoid is 1 for every cosine above 0.2. SigLIP has a bias too."""
    model, _ = tiny("clip")
    with torch.no_grad():
        model.logit_scale.fill_(float(torch.tensor(100.0).log()))
    if bias is not None:
        model.logit_bias = torch.nn.Parameter(torch.tensor([bias]))
    loaded = load(model)
    for cosine in (0.3, 0.25, -0.1):
        output = torch.tensor([[100 * cosine + (bias or 0.0)]])
        answer = float(of_two_towers(loaded, output, Question()).chance(output))
        # A few rounding errors of numbers up to 100, divided by 100.
        assert answer == pytest.approx(max(cosine, 0.0), abs=1e-5)


def test_zero_answers_are_skipped_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoAnswerError, match="0 before a token is removed"):
        perturbed(lambda given: given["m"].sum((1, 2)), *({"m": torch.zeros(4, 2)},) * 2, {"m": torch.arange(4.0)})
    ids, _, _ = texts(3, 5)
    batches = [{"input_ids": row[None]} for row in ids]
    whole = attnscope.evaluate(trained(), batches, methods="random")
    real, calls = aim, []

    def sometimes(*args: Any, **kwargs: Any) -> Aim:
        calls.append(1)
        goal = real(*args, **kwargs)
        return replace(goal, chance=_nothing) if len(calls) == 2 else goal

    monkeypatch.setattr(judging, "aim", sometimes)
    found = attnscope.evaluate(trained(), batches, methods="random")
    assert found.texts == 2
    assert any(note.startswith("1 text left out: the answer is 0 there") for note in found.notes)
    assert found.tokens == whole.tokens * 2 // 3
    gaps = whole.method("random").gaps
    assert found.method("random").gaps == (gaps[0], gaps[2])


def _nothing(given: Tensor) -> Tensor:
    return torch.zeros(len(given))


def test_labels_are_followed_and_counted() -> None:
    """One text gets a wrong class. Letters of a text are token numbers."""
    ids, _, classes = texts(6, 5)
    words = ["".join(chr(int(i)) for i in row) for row in ids]
    model = trained()
    labels: list[str | int] = [int(one) for one in classes]
    found = attnscope.evaluate(
        model, words, labels=labels, methods="random", max_tokens=12, tokenizer=_plain(), samples=6
    )
    assert found.answer == "the probability of the true class"
    assert found.accuracy is not None
    assert found.accuracy.mean == 1.0
    assert found.documents == tuple(sorted(found.documents))
    wrong = [(labels[0] + 1) % 3, *labels[1:]]  # type: ignore[operator]
    named = attnscope.evaluate(
        model, words, labels=[f"LABEL_{one}" for one in wrong], methods="random", max_tokens=12, tokenizer=_plain()
    )
    assert named.accuracy is not None
    assert named.accuracy.mean == pytest.approx(5 / 6)
    # A corpus that is shorter than `max_tokens` is judged whole.
    short = attnscope.evaluate(
        model, [words[0][:7]], labels=labels[:1], methods="random", max_tokens=12, tokenizer=_plain()
    )
    assert (short.texts, short.tokens) == (1, 7)


def _plain() -> Any:
    """Return a tokenizer whose tokens are characters, without BOS."""

    class Plain:
        unk_token_id = None

        def __call__(self, text: str, **ignored: Any) -> dict[str, Any]:
            return {"input_ids": [ord(letter) for letter in text]}

        def convert_ids_to_tokens(self, number: int) -> str:
            return str(number)

        def decode(self, ids: list[int]) -> str:
            return " ".join(map(str, ids))

    return Plain()


def test_missing_labels_are_refused(tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("no labels here")
    lines_ = tmp_path / "some.jsonl"
    lines_.write_text('{"text": "a", "label": 0}\n{"text": "b"}\n')
    for corpus, labels, message in (
        (plain, "label", "has no labels: give a .jsonl file"),
        (tmp_path, "label", "has no labels|holds"),
        (lines_, "label", "line 2, has no class in the field 'label'"),
        (lines_, "klass", "line 1, has no class in the field 'klass'"),
        (["a", "b"], [0], "2 texts and 1 labels"),
        (None, "label", "Labels need a corpus"),
    ):
        with pytest.raises(attnscope.RefusalError, match=message):
            attnscope.evaluate(trained(), corpus, labels=labels, tokenizer=_plain(), max_tokens=8)
    with pytest.raises(attnscope.RefusalError, match="has no classes to compare with labels"):
        attnscope.evaluate(
            tiny_llama(), ["a text"], labels=[0], methods="random", tokenizer=byte_tokenizer(), max_tokens=6
        )
    with pytest.raises(attnscope.RefusalError, match="There is no class 'nobody'"):
        attnscope.evaluate(
            trained(), ["".join(map(chr, range(4, 12)))], labels=["nobody"], tokenizer=_plain(), max_tokens=8
        )
    refused = command("explain", "pocket", "a text", "--labels", "x")
    assert refused.returncode == 2
    assert "--labels works only with --evaluate" in refused.stderr
    early = command("explain", "a model that is nowhere", lines_, "--evaluate", "--labels", "label")
    assert early.returncode == 2
    assert "line 2, has no class in the field 'label'" in early.stderr
