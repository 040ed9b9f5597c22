"""The trial of an explanation: which words are replaced, by what, and what the model then answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attnscope
from attnscope.commands.explain import edited_inputs
from attnscope.commands.explain import trial as trial_of
from attnscope.commands.explain.edited_inputs import SOFTNESS
from attnscope.commands.explain.parts import Part
from attnscope.commands.explain.record import Explanation, Scored
from attnscope.commands.explain.replacing import Vocabulary, kind_of, words_of
from attnscope.commands.explain.trial import candidates
from attnscope.commands.explain.tried import Replacement, Trial, Tried, joined
from attnscope.core.errors import RefusalError
from attnscope.hf.loading.load import load
from attnscope.hf.loading.options import Loading
from attnscope.hf.tapping import capture
from attnscope.hf.tapping.suffixes import Prefix
from tests.hf.families import FAMILIES
from tests.hf.small_models import WORDS, small_model, with_exact_norms

TOKENIZER: Any = load("pocket").tokenizer
DOG = "The dog chased its own tail and the dog"


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (("The", " cap", "ital", " of", " Mad", "rid", "."), ["The", " capital", " of", " Madrid", "."]),
        (("[CLS]", "look", "##ing", "up", "[SEP]"), ["[CLS]", "look##ing", "up", "[SEP]"]),
        ((" in", " 1", "9", "8", "4", ",", " he"), [" in", " 1984", ",", " he"]),
        (("C", "(", "=", "O", ")", "N"), ["C", "(", "=", "O", ")", "N"]),  # a molecule: every token is a word
        (("one",), ["one"]),
    ],
)
def test_tokens_are_grouped_into_words(tokens: tuple[str, ...], words: list[str]) -> None:
    assert ["".join(tokens[begin:end]) for begin, end in words_of(tokens)] == words


@given(st.lists(st.sampled_from(["a", " b", "##c", ".", " 7", "7", "\n", "Z"]), min_size=1, max_size=12))
def test_words_cover_all_tokens_in_order(tokens: list[str]) -> None:
    spans = words_of(tokens)
    assert [place for span in spans for place in range(*span)] == list(range(len(tokens)))


def test_pieces_of_a_word_are_joined_as_they_are_written() -> None:
    assert joined(("over", "##bear", "##ing")) == "overbearing"
    assert joined((" Mad", "rid")) == " Madrid"
    assert joined(("##s",)) == "##s"


def test_kinds_tell_words_from_signs_and_digits() -> None:
    assert kind_of("Ġhot") == kind_of("▁cold") == (True, "lower")
    assert kind_of("Hot") == (False, "capitalised")
    assert kind_of("Ġ7") == (True, "digits")
    assert kind_of(",") == (False, "signs")


def vocabulary() -> Vocabulary:
    table = load("pocket").model.get_submodule("model.embed_tokens")
    assert isinstance(table, torch.nn.Embedding)
    return Vocabulary(table, TOKENIZER)


def test_replacements_are_of_the_same_kind_and_length_and_never_the_word_itself() -> None:
    words = vocabulary()
    for token in TOKENIZER(DOG)["input_ids"]:
        if words.special(token):
            continue
        found = words.nearest([token], 4)
        assert found
        for (other,) in found:
            assert other != token
            assert words.kind(other) == words.kind(token)
    long = TOKENIZER(" rabbit", add_special_tokens=False)["input_ids"]
    assert all(len(row) == len(long) for row in words.nearest(long, 4))


def test_replacements_are_ordered_by_the_fall_that_the_gradient_promises() -> None:
    words = vocabulary()
    token = TOKENIZER(DOG)["input_ids"][1]
    gradient = torch.randn(1, words.table.embedding_dim, generator=torch.Generator().manual_seed(0))
    found = words.nearest([token], 64, gradient)
    weight = words.table.weight.detach()
    falls = [float((weight[row[0]] - weight[token]) @ gradient[0]) for row in found]
    assert falls == sorted(falls)
    assert len(found) > 16
    assert falls[0] < 0 < falls[-1]


def scored(*rows: tuple[float, ...]) -> list[Scored]:
    return [Scored(f"m{n}", f"M{n}", "default", True, (row,)) for n, row in enumerate(rows)]


def test_candidates_are_the_first_words_of_every_method_then_the_second() -> None:
    parts = [Part(0, (n,), str(n)) for n in range(4)]
    found = candidates(parts, scored((4.0, 3.0, 2.0, 1.0), (1.0, 2.0, 3.0, 4.0)), 3)
    assert [part.word for part in found] == ["0", "3", "1"]


@pytest.fixture(scope="module")
def dog() -> Explanation:
    return attnscope.explain("pocket", DOG, methods="relevance,gradient_input,raw_attention", dtype="float64")


def test_answers_equal_plain_runs_of_the_edited_texts(dog: Explanation) -> None:
    loaded = load("pocket", loading=Loading(dtype="float64"))
    assert dog.trial is not None
    ids = torch.tensor(TOKENIZER(DOG)["input_ids"])
    assert len(ids) == len(dog.inputs[0].tokens)
    names = TOKENIZER.get_vocab()

    def run(row: torch.Tensor) -> tuple[float, float]:
        with torch.no_grad():
            logits = loaded.model(input_ids=row[None]).logits[0].log_softmax(-1)
        before = float(logits[torch.arange(len(row) - 1), row[1:]].sum())
        return float(logits[-1, answer].exp()), before

    with torch.no_grad():
        answer = int(loaded.model(input_ids=ids[None]).logits[0, -1].argmax())
    own, likely = run(ids)
    assert dog.trial.before == pytest.approx(own, rel=1e-9)
    checked = 0
    for word in dog.trial.words:
        for one in word.replacements:
            if len(word.tokens) > 1 or one.text.replace(" ", "Ġ") not in names:
                continue
            row = ids.clone()
            row[word.tokens[0]] = names[one.text.replace(" ", "Ġ")]
            probability, rest = run(row)
            assert one.answer == pytest.approx(probability, rel=1e-9)
            assert one.fit == pytest.approx(min(1.0, float(torch.tensor((rest - likely) / SOFTNESS).exp())), rel=1e-6)
            checked += 1
    assert checked > 8


def test_control_is_the_replacement_in_the_place_of_another_word_of_its_kind() -> None:
    loaded = load("pocket", loading=Loading(dtype="float64"))
    seen = 0
    for text in ("She looked at the King and then at the Queen, and she", "by a long way. You saw it as", LONG):
        trial = attnscope.explain(loaded, text, methods="relevance,gradient_input", dtype="float64").trial
        assert trial is not None
        ids = torch.tensor(TOKENIZER(text)["input_ids"])
        with torch.no_grad():
            answer = int(loaded.model(input_ids=ids[None]).logits[0, -1].argmax())
        for word in (word for word in trial.words if word.control is not None and len(word.tokens) == 1):
            assert word.control is not None
            assert word.control.text == trial.taking(word)[0].text
            token = next(row[0] for row in _rows(ids, word.tokens[0], loaded) if _spelt(row) == word.control.text)
            answers = []
            for place in {w.tokens[0] for w in trial.words if len(w.tokens) == 1} - set(word.tokens):
                changed = ids.clone()
                changed[place] = token
                with torch.no_grad():
                    answers.append(float(loaded.model(input_ids=changed[None]).logits[0, -1].softmax(-1)[answer]))
            assert any(word.control.answer == pytest.approx(one, rel=1e-9) for one in answers)
            seen += 1
    assert seen


def _spelt(row: tuple[int, ...]) -> str:
    return vocabulary().spelt(row)


def _rows(ids: torch.Tensor, place: int, loaded: Any) -> list[tuple[int, ...]]:
    with torch.no_grad():
        logits = loaded.model(input_ids=ids[None]).logits[0, place - 1]
    own = [int(ids[place])]
    return [*vocabulary().nearest(own, 12), *vocabulary().likeliest(own, 12, logits)]


def test_methods_that_ignore_the_answer_choose_no_words(dog: Explanation) -> None:
    assert dog.trial is not None
    ignoring = replace(dog.method("raw_attention"))
    assert not ignoring.reads_answer
    assert {"rollout", "raw_attention"} == {
        method.name for method in attnscope.explain("pocket", DOG, methods="rollout,raw_attention").methods
    }
    assert attnscope.explain("pocket", DOG, methods="rollout,raw_attention").trial is None


def test_record_with_a_trial_can_be_saved_and_loaded(dog: Explanation, tmp_path: object) -> None:
    path = dog.save(f"{tmp_path}/explanation.json")
    assert Explanation.load(path) == dog


def test_out_of_memory_halves_the_batch(dog: Explanation, monkeypatch: pytest.MonkeyPatch) -> None:
    original = capture.output_with

    def small(*args: object) -> torch.Tensor:
        rows = len(next(iter(args[3].values())))  # type: ignore[attr-defined]
        if rows > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(edited_inputs, "output_with", small)
    monkeypatch.setattr(edited_inputs, "shared_prefix", lambda *_: None)
    again = attnscope.explain("pocket", DOG, methods="relevance,gradient_input,raw_attention", dtype="float64")
    assert again.trial is not None
    assert dog.trial is not None
    assert again.trial.inputs == dog.trial.inputs
    for one, other in zip(again.trial.words, dog.trial.words, strict=True):
        assert one.effect == pytest.approx(other.effect, rel=1e-9)


def test_model_is_unchanged_after_a_trial() -> None:
    loaded = load("pocket")
    ids = torch.tensor([TOKENIZER(DOG)["input_ids"]])
    with torch.no_grad():
        before = loaded.model(input_ids=ids).logits
    attnscope.explain(loaded, DOG, methods="gradient_input")
    with torch.no_grad():
        assert torch.equal(loaded.model(input_ids=ids).logits, before)


def test_text_of_one_token_has_no_trial() -> None:
    found = attnscope.explain("pocket", "The", bos="no", methods="gradient_input")
    assert len(found.inputs[0].tokens) == 1
    assert found.trial is None
    assert found.sentences()[0] == "There is a single token, so there is nothing to compare it with."


def test_special_tokens_and_the_asking_token_alone_leave_nothing_to_try() -> None:
    found = attnscope.explain("pocket", "The", bos="yes", methods="gradient_input")
    assert len(found.inputs[0].tokens) == 2
    assert found.trial is None
    assert found.sentences()[0] == "Nothing was tried on the model, so no word is said to have decided."


def test_tied_words_are_tried_in_reading_order() -> None:
    parts = [Part(0, (n,), str(n)) for n in range(4)]
    assert [part.word for part in candidates(parts, scored((1.0, 1.0, 1.0, 1.0)), 3)] == ["0", "1", "2"]


def test_answer_that_no_replacement_moves_has_no_deciding_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmoved(model: Any, batch: Any, places: Any, vectors: Any) -> torch.Tensor:
        rows = len(next(iter(vectors.values())))
        with torch.no_grad():
            logits: torch.Tensor = model(**batch).logits
        return logits.expand(rows, -1, -1)

    monkeypatch.setattr(edited_inputs, "output_with", unmoved)
    monkeypatch.setattr(edited_inputs, "shared_prefix", lambda *_: None)
    found = attnscope.explain("pocket", DOG, methods="gradient_input")
    assert found.trial is not None
    assert found.trial.deciding == ()
    assert found.trial.pairs
    assert found.sentences()[0].startswith("No single word decided: of ")
    assert "Together" not in found.sentences()[0]


def test_target_outside_the_vocabulary_is_refused_before_anything_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edited_inputs, "output_with", lambda *_: pytest.fail("the model ran"))
    with pytest.raises(RefusalError, match="999999"):
        attnscope.explain("pocket", DOG, target=999_999, methods="gradient_input")


def test_model_without_a_head_is_tried_by_the_number_that_is_explained() -> None:
    model = next(family for family in FAMILIES if family.name == "BERT").model()
    found = attnscope.explain(model, "5 6 7 8 9 10", methods="gradient_input")
    assert found.asked.kind == "norm"
    assert found.trial is not None
    assert found.trial.unit == "number"
    assert found.trial.before == pytest.approx(found.value, rel=1e-5)
    assert all(one.fit == 1 for word in found.trial.words for one in word.replacements)


LONG = f"{DOG} ran after the cat. Then the cat ran up a tree, and the dog sat down under it and looked up at the"


def tried(text: str, monkeypatch: pytest.MonkeyPatch, **changes: object) -> Trial:
    with monkeypatch.context() as patched:
        for name, value in changes.items():
            patched.setattr(trial_of if hasattr(trial_of, name) else edited_inputs, name, value)
        loaded = load("pocket", loading=Loading(dtype="float64"))
        with_exact_norms(loaded.model)
        found = attnscope.explain(loaded, text, methods="relevance,gradient_input", dtype="float64").trial
    assert found is not None
    return found


def assert_same(one: Trial, other: Trial) -> None:
    assert one.inputs == other.inputs
    sides = [(*side.words, *filter(None, [side.asking]), *side.pairs) for side in (one, other)]
    for left, right in zip(*sides, strict=True):
        assert left.tokens == right.tokens
        assert [r.text for r in left.replacements] == [r.text for r in right.replacements]
        for a, b in zip(left.replacements, right.replacements, strict=True):
            assert (a.answer, a.fit) == pytest.approx((b.answer, b.fit), rel=1e-9)


def raising(*_: object) -> torch.Tensor:
    raise ValueError("This cache cannot be cut.")


@pytest.mark.parametrize("text", [DOG, LONG])
def test_trial_with_shared_prefixes_equals_one_with_whole_texts(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tried(text, monkeypatch, shared_prefix=lambda *_: None)
    assert_same(tried(text, monkeypatch), whole)
    monkeypatch.setattr(Prefix, "output_with", raising)
    assert_same(tried(text, monkeypatch), whole)


def test_shared_prefixes_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    begins = []
    original = Prefix.output_with

    def seen(prefix: Prefix, begin: int, vectors: torch.Tensor) -> torch.Tensor:
        begins.append((begin, len(vectors)))
        return original(prefix, begin, vectors)

    monkeypatch.setattr(Prefix, "output_with", seen)
    found = tried(LONG, monkeypatch)
    whole = sum(len(word.replacements) for word in found.words if 0 in word.tokens)
    assert sum(rows for _, rows in begins) >= found.inputs - 2 * whole
    assert all(begin > 0 for begin, _ in begins)


@pytest.mark.parametrize("text", [DOG, LONG])
def test_trial_of_a_long_text_runs_fewer_inputs_and_names_the_same_first_word(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = trial_of.CANDIDATES_OF_LONG
    at_once, staged = (tried(text, monkeypatch, LONG=long, CANDIDATES=few) for long in (1000, 0))
    assert staged.inputs < at_once.inputs
    assert [word.word for word in staged.named[:1]] == [word.word for word in at_once.named[:1]]
    every = {word.tokens: word for word in at_once.words}
    assert every.keys() == {word.tokens for word in staged.words}
    for word in staged.words:
        others = [one.text for one in every[word.tokens].every]
        assert [one.text for one in word.every] == others[: len(word.every)]
        assert len(word.every) == (4 if word.again else 1)
    assert staged.words[0].again


def test_likely_and_similar_words_take_turns(dog: Explanation) -> None:
    assert dog.trial is not None
    words, loaded = vocabulary(), load("pocket", loading=Loading(dtype="float64"))
    ids = TOKENIZER(DOG)["input_ids"]
    with torch.no_grad():
        logits = loaded.model(input_ids=torch.tensor([ids])).logits[0]
    for tried_word in dog.trial.words:
        if len(tried_word.tokens) > 1:
            continue
        (place,) = tried_word.tokens
        likely = words.likeliest([ids[place]], 1, logits[place - 1])
        assert tried_word.replacements[0].text == words.spelt(likely[0])
        near = [words.spelt(row) for row in words.nearest([ids[place]], 8)]
        assert tried_word.replacements[1].text in near
        same = [token for token in logits[place - 1].argsort(descending=True).tolist() if token != ids[place]]
        assert likely[0] == (next(t for t in same if words.kind(t) == words.kind(ids[place])),)


def test_first_word_of_a_text_has_no_likely_words() -> None:
    assert vocabulary().likeliest([TOKENIZER(DOG)["input_ids"][1]], 3, None) == []


def test_a_single_replacement_names_no_word() -> None:
    once = Tried("text", (1,), "dog", (Replacement("cat", 0.1, 1.0),), 2.0)
    twice = replace(once, tokens=(2,), replacements=(*once.replacements, Replacement("cow", 0.2, 1.0)), effect=1.0)
    found = Trial("probability", 0.8, (once, twice))
    assert found.named == ()
    confirmed = replace(twice, again=twice.replacements[:1])
    assert Trial("probability", 0.8, (once, confirmed)).named == (confirmed,)
    assert not found.unmoved(once)
    assert not Trial("probability", 0.01, (once,)).raised(once)
    assert Trial("probability", 0.01, (twice,)).raised(twice)


def test_small_changes_of_a_cosine_near_0_do_not_count() -> None:
    rows = Replacement("cat", 0.02, 1.0), Replacement("cow", 0.01, 1.0)
    word = Tried("text", (1,), "dog", rows, 0.015, rows)
    assert Trial("number", 0.03, (word,)).named == (word,)
    assert Trial("number", 0.03, (word,), least=0.05).named == ()
    assert not Trial("number", 0.03, (word,), least=0.05).deciding


def test_likeness_of_two_texts_needs_a_notable_change() -> None:
    model = next(family for family in FAMILIES if family.name == "BERT").model()
    found = attnscope.explain(model, "5 6 7 8 9 10", "5 6 8 7 9 11", methods="gradient_input")
    assert found.trial is not None
    assert found.trial.least == edited_inputs.LEAST_COSINE


@pytest.mark.parametrize(
    ("name", "shares"), [("llama", True), ("gpt2", True), ("sliding window", False), ("bert", False)]
)
def test_random_models_answer_alike_with_and_without_shared_prefixes(
    name: str, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(name)
    ids = torch.randint(0, WORDS, (1, 30), generator=torch.Generator().manual_seed(0))
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    begins = []
    original = Prefix.output_with

    def seen(prefix: Prefix, begin: int, vectors: torch.Tensor) -> torch.Tensor:
        begins.append(begin)
        return original(prefix, begin, vectors)

    monkeypatch.setattr(Prefix, "output_with", seen)
    shared = attnscope.explain(model, {"input_ids": ids}, methods="gradient_input", dtype="float64").trial
    assert bool(begins) == shares
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    monkeypatch.setattr(edited_inputs, "shared_prefix", lambda *_: None)
    whole = attnscope.explain(model, {"input_ids": ids}, methods="gradient_input", dtype="float64").trial
    assert shared is not None
    assert whole is not None
    assert_same(shared, whole)
