"""`explain` on small models: targets, scores, and refusals."""

from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel

import attnscope
from attnscope.commands.explain.record import Explanation
from attnscope.core.errors import RefusalError
from attnscope.explanations.integrated_gradients import NEAR
from tests.specimens import byte_tokenizer, tiny_llama, tiny_t5

TEXT = "which one?"
QUICK: dict[str, Any] = {"methods": "gradient_input", "tokenizer": byte_tokenizer()}
SMALL: dict[str, Any] = {
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


def explain(model: Any, text: Any = TEXT, **options: Any) -> Explanation:
    return attnscope.explain(model, text, **{**QUICK, **options})


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_llama()


@pytest.fixture(scope="module")
def encoder() -> Any:
    torch.manual_seed(0)
    return BertModel(BertConfig(**SMALL)).eval()


def test_default_target_is_the_most_likely_token(llama: Any) -> None:
    found = explain(llama)
    ids = torch.tensor([byte_tokenizer()(TEXT)["input_ids"]])
    with torch.no_grad():
        logits = llama(input_ids=ids).logits[0, -1]
    assert found.value == float(logits.max())
    assert found.position == ids.shape[1] - 1
    assert found.asked.kind == "logit"
    assert found.target == f"logit of '{found.asked.word}' after the last token"
    assert found.inputs[0].tokens == ("<bos>", *TEXT)
    assert found.baseline == "the mean of all vectors of the vocabulary"


def test_path_contribution_is_split_by_length(llama: Any) -> None:
    """In float64, the frozen network equals the model to 1e-10."""
    found = explain(llama, methods="path_contribution", dtype="float64")
    split = found.lengths
    assert split is not None
    assert split.total == pytest.approx(found.value, abs=1e-5)
    assert [sum(row) for row in split.tokens] == pytest.approx(list(found.scores("path_contribution")), abs=1e-9)
    assert len(split.constants) == len(split.sums) == 4
    assert sum(split.sums) == pytest.approx(split.total)
    assert explain(llama).lengths is None


def test_difference_of_two_targets(llama: Any) -> None:
    one, other, both = (
        explain(llama, **asked) for asked in ({"target": "a"}, {"target": "b"}, {"target": "a", "against": "b"})
    )
    assert both.value == pytest.approx(one.value - other.value, abs=1e-6)
    # Gradients are linear in the target: float32 sums of 32 channels.
    differences = [a - b for a, b in zip(one.scores("gradient_input"), other.scores("gradient_input"), strict=True)]
    assert both.scores("gradient_input") == pytest.approx(differences, abs=1e-5)
    assert both.target == "logit of 'a' minus that of 'b' after the last token"


def test_sets_names_and_lists_of_methods(llama: Any) -> None:
    found = explain(llama, methods=["random", "relevance", "rollout"])
    assert found.names == ("relevance", "rollout", "random")
    assert [one.group for one in found.methods] == ["default", "default", "floor"]
    assert set(found.agreement()) == {("relevance", "rollout")}


def test_integrated_gradients_are_complete(llama: Any) -> None:
    """They add up to the answer minus the answer for mean vectors, which is computed here directly."""
    found = explain(llama, methods="integrated_gradients", dtype="float64")
    table = llama.model.embed_tokens.weight
    nothing = table.mean(0).expand(1, len(found.inputs[0].tokens), -1).double()
    model = tiny_llama().double()
    entry = byte_tokenizer()(found.asked.word, add_special_tokens=False)["input_ids"][0] if found.asked.word else 0
    with torch.no_grad():
        empty = float(model(inputs_embeds=nothing).logits[0, -1, entry])
    assert found.method("integrated_gradients").total == pytest.approx(found.value - empty, rel=NEAR)
    assert found.method("integrated_gradients").sums_to == pytest.approx(found.value - empty)


@pytest.mark.parametrize("methods", ["integrated_gradients", "path_contribution", "rollout", "value_zeroing"])
def test_sums_that_a_run_can_compute_are_checked(methods: str) -> None:
    (own,) = attnscope.explain("pocket", "The dog chased its own tail and the", methods=methods).methods
    assert own.sums_to is not None
    assert own.passes


def test_masked_model_is_explained_at_the_mask() -> None:
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    model = BertForMaskedLM(BertConfig(**{**SMALL, "vocab_size": 258})).eval()
    found = attnscope.explain(model, "a<mask>c", methods="occlusion", tokenizer=tokenizer)
    assert found.inputs[0].tokens[found.position or 0] == "<mask>"
    assert found.baseline == "the mask"
    assert found.scores("occlusion")[found.position or 0] == pytest.approx(0, abs=1e-6)


def test_states_are_explained_by_norm_or_similarity(encoder: Any) -> None:
    found = explain(encoder, methods="gradient_input,path_contribution,relevance")
    ids = torch.tensor([byte_tokenizer()(TEXT)["input_ids"]])
    with torch.no_grad():
        states = encoder(input_ids=ids).last_hidden_state[0]
    assert found.value == pytest.approx(float(states.mean(0).norm()), rel=1e-6)
    assert (found.asked.kind, found.position) == ("norm", None)
    assert any("states and no logits" in note for note in found.notes)
    same = explain(encoder, against=TEXT)
    assert same.value == pytest.approx(1, abs=1e-6)
    assert same.scores("gradient_input") == pytest.approx(
        [0.0] * ids.shape[1], abs=1e-5
    )  # a text equals itself, so no token can raise the similarity
    other = explain(encoder, against="something else", methods="path_contribution")
    assert other.asked.kind == "similarity"
    assert other.asked.other == "something else"
    assert -1 < other.value < 1


def test_model_in_memory_is_unchanged(llama: Any) -> None:
    model = tiny_llama().train()
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    explain(model, methods="all")
    assert model.training
    assert [parameter.requires_grad for parameter in model.parameters()] == wanted
    assert all(parameter.grad is None for parameter in model.parameters())


def test_single_token_is_explained_with_a_note(llama: Any) -> None:
    found = explain(llama, {"input_ids": torch.tensor([[7]])}, methods="relevance,occlusion")
    assert any("single token" in note for note in found.notes)
    assert found.sentences()[0]


def test_a_pair_of_source_and_target() -> None:
    found = explain(tiny_t5(), ("a source", "a target"), methods="relevance")
    assert [one.name for one in found.inputs] == ["encoder", "decoder"]
    assert all(len(row) == len(read.tokens) for row, read in zip(found.methods[0].scores, found.inputs, strict=True))
    assert sum(found.methods[0].scores[0]) > 0


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (TEXT, {"target": "☃", "against": "a"}, "tokens here, and a continuation is explained as a whole"),
        (TEXT, {"target": 9999}, "entries 0 to 256, not 9999"),
        (TEXT, {"target": "a", "against": "a"}, "choose two different ones"),
        (TEXT, {"position": 99}, "no position 99"),
        (TEXT, {"methods": "relevence"}, "Did you mean 'relevance'"),
        (TEXT, {"methods": ""}, "No explanation was chosen"),
        (TEXT, {"bos": "maybe"}, "`bos=` cannot be 'maybe'"),
        (TEXT, {"dtype": "int8"}, "`dtype=` cannot be 'int8'"),
        ("", {}, "The text is empty"),
        ("a" * 100, {}, "reads 64 at most"),
        ({"pixel_values": torch.zeros(1, 3, 8, 8)}, {}, "does not run on this input"),
        ({"input_ids": torch.tensor([[1, 2], [3, 4]])}, {}, "Explanations take one sequence"),
        (("a", "b"), {}, "has no decoder to read a target"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(llama: Any, text: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(attnscope.RefusalError, match=message):
        explain(llama, text, **options)


def test_options_of_logits_are_refused_for_an_encoder(encoder: Any) -> None:
    for options, message in (
        ({"target": "a"}, "has no logits: omit `target=`"),
        ({"position": 2}, "omit `position=`"),
        ({"against": 5}, "`against=` must be another text"),
    ):
        with pytest.raises(attnscope.RefusalError, match=message):
            explain(encoder, **options)


def test_broken_weights_are_refused() -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    with pytest.raises(attnscope.RefusalError, match="hold NaN or infinite numbers"):
        explain(model)


def test_out_of_memory_halves_the_batch(monkeypatch: pytest.MonkeyPatch, llama: Any) -> None:
    from attnscope.commands.explain import running
    from attnscope.hf.tapping import capture

    whole = explain(llama, methods="occlusion").scores("occlusion")
    original, asked = capture.asked_with, []

    def small(model: Any, batch: Any, places: Any, number: Any, vectors: Any) -> Any:
        rows = len(next(iter(vectors.values())))
        asked.append(rows)
        if rows > 3:
            raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes")
        return original(model, batch, places, number, vectors)

    monkeypatch.setattr(running, "asked_with", small)
    assert explain(llama, methods="occlusion").scores("occlusion") == pytest.approx(whole, abs=1e-5)
    assert max(asked) > 3

    def never(*ignored: Any) -> Any:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(running, "asked_with", never)
    with pytest.raises(attnscope.RefusalError, match="does not fit into memory: give a text of 5 tokens"):
        explain(llama, methods="occlusion")


def test_scores_of_single_tokens_add_up_to_the_continuation() -> None:
    options: dict[str, Any] = {"tokenizer": byte_tokenizer(), "dtype": "float64"}
    found = attnscope.explain(tiny_llama(), "which", target=" one is", methods="relevance,gradient_input", **options)
    ids = torch.tensor([byte_tokenizer()("which one is")["input_ids"]])
    with torch.no_grad():
        logits = tiny_llama().double()(input_ids=ids).logits[0]
    expected = [float(logits[place - 1, ids[0, place]]) for place in range(6, ids.shape[1])]
    assert [step.value for step in found.steps] == pytest.approx(expected, rel=1e-9)
    assert found.value == pytest.approx(sum(expected), rel=1e-9)
    assert found.inputs[0].tokens == ("<bos>", *"which one i")
    # Llama computes norms in float32 for weights of any precision: a few thousand rounding errors.
    near = 4e3 * torch.finfo(torch.float32).eps * max(map(abs, found.scores("gradient_input")))
    assert list(found.matrix("gradient_input").sum(axis=1)) == pytest.approx(found.scores("gradient_input"), abs=near)
    # No token has a score for one that was predicted before it.
    table = found.matrix("relevance").to_numpy()
    assert max(table[6 + step :, step].max(initial=0) for step in range(len(expected))) < 1e-10
    assert table.max() > 1e-4
    read_back = Explanation.from_json(found.to_json())
    assert read_back == found


def test_generated_continuation_is_explained() -> None:
    found = attnscope.explain(tiny_llama(), "which", generate=3, methods="gradient_input", tokenizer=byte_tokenizer())
    ids = torch.tensor([byte_tokenizer()("which")["input_ids"]])
    for step in found.steps:
        with torch.no_grad():
            row = tiny_llama()(input_ids=ids).logits[0, -1]
        assert step.value == pytest.approx(float(row.max()), abs=1e-5)
        ids = torch.cat([ids, row.argmax()[None, None]], dim=1)
    written = attnscope.explain(
        tiny_t5(), ("a source", "a target"), generate=4, methods="gradient_input", tokenizer=byte_tokenizer()
    )
    assert [step.word for step in written.steps] == ["<bos>", *"a t"]  # as the tokenizer begins a target


def test_one_word_of_several_tokens_is_a_continuation() -> None:
    """Its value is the sum of the logits of its pieces, each at the position that predicts it."""
    model = tiny_llama()
    found = explain(model, target="☃")
    assert found.asked is not None
    assert found.asked.kind == "continuation"
    pieces = byte_tokenizer()("☃", add_special_tokens=False)["input_ids"]
    assert len(pieces) == len(found.steps) == 3
    assert found.asked.word == "☃"  # readable, although each of its three tokens is a part of a character
    assert found.continued_at == len(byte_tokenizer()(TEXT)["input_ids"])
    ids = torch.tensor([[*byte_tokenizer()(TEXT)["input_ids"], *pieces]])
    with torch.no_grad():
        logits = model(input_ids=ids[:, :-1]).logits[0, -3:]
    # Sums of three logits in float32.
    assert found.value == pytest.approx(sum(float(logits[n, piece]) for n, piece in enumerate(pieces)), rel=1e-5)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (" ", {}, "The text is empty"),
        ("nowhere.png", {}, "There is no file"),
        (TEXT, {"generate": 0}, "must be 1 to 256"),
        (TEXT, {"generate": 2, "target": "a"}, "omit one of them"),
    ],
)
def test_bad_options_are_refused_before_a_model_is_loaded(text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusalError, match=message):
        attnscope.explain("a model that is nowhere", text, **options)
