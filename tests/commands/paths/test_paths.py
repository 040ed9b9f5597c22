"""Decomposition of predictions: sums, predictions, values and refusals, on small models of several kinds."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    ViTConfig,
    ViTForImageClassification,
)

from attnscope.commands.paths.record import Goal, PathReport
from attnscope.commands.paths.run import paths
from attnscope.core.errors import RefusalError
from attnscope.hf.editing.freeze import freeze
from attnscope.hf.loading.outputs import word
from attnscope.pathways.graded import Graded
from attnscope.pathways.lengths import lengths
from tests.specimens import byte_tokenizer, tiny_llama, tiny_t5

TEXT = "the dog and the"


@pytest.fixture(scope="module")
def report() -> PathReport:
    return paths(tiny_llama(), TEXT, tokenizer=byte_tokenizer(), draws=4, top=5)


def bert(kind: Any, seed: int = 0, **more: Any) -> Any:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=257,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=48,
        max_position_embeddings=40,
        initializer_range=0.3,
        **more,
    )
    model = kind(config).eval()
    with torch.no_grad():  # biases begin at zero, and constants would not show
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
    return model


def own_logits(model: Any, **inputs: Any) -> torch.Tensor:
    """Return the logits of the unchanged model in float64."""
    with torch.no_grad():
        return model.double()(**inputs).logits[0]


def ids(text: str) -> torch.Tensor:
    return torch.tensor([byte_tokenizer()(text)["input_ids"]])


def test_lengths_add_up_to_the_models_own_logit(report: PathReport) -> None:
    own = own_logits(tiny_llama(), input_ids=ids(TEXT))[-1]
    assert report.value == pytest.approx(float(own.max()), abs=1e-5)  # its norms cast to float32, ours do not
    assert report.difference < 1e-11
    assert report.linear_difference < 1e-10
    assert sum(row.value for row in report.lengths) == pytest.approx(report.total, abs=1e-12)
    assert len(report.lengths) == 4
    assert [row.paths for row in report.lengths] == [1, 12, 48, 64]
    assert report.target.startswith("logit of '")
    assert report.position == len(report.tokens) - 1


def test_all_lengths_predict_like_the_model(report: PathReport) -> None:
    own = own_logits(tiny_llama(), input_ids=ids(TEXT))
    last = report.lengths[-1].up_to
    chances = own[-1].softmax(-1)
    assert last.predicted == word(byte_tokenizer(), int(chances.argmax()))
    assert last.probability == pytest.approx(float(chances.max()), abs=1e-5)
    loss = torch.nn.functional.cross_entropy(own[:-1], ids(TEXT)[0, 1:])
    assert last.loss == pytest.approx(float(loss), abs=1e-4)
    assert last.distance < 1e-10
    assert last.value == pytest.approx(report.value, abs=1e-11)


def test_up_to_and_without_follow_from_the_lengths(report: PathReport) -> None:
    reached = 0.0
    for row in report.lengths:
        reached += row.value
        assert row.up_to.value == pytest.approx(reached, abs=1e-11)
        assert row.without.value == pytest.approx(report.value - row.value, abs=1e-11)
    first = report.lengths[0]
    # Paths through no head: what the last token's own embedding becomes on its way, which no other token changes.
    assert first.up_to.distance > 0.01
    assert 0 <= (first.up_to.target_probability or 0) <= 1


def test_without_the_shortest_paths_the_tails_constant_stays() -> None:
    """The part after the last block adds a bias to any stream, which is not a path and is never removed."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 257, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    with torch.no_grad():
        model.transformer.ln_f.bias.normal_()
    batch = {"input_ids": ids(TEXT)}
    report = paths(model, batch, draws=0, mlp=False, top=1, target=7)
    network = freeze(model.double(), batch)
    expected = lengths(network).without(0)[0, -1]
    first = report.lengths[0].without
    assert first.value == pytest.approx(float(expected[7]), abs=1e-11)
    assert first.target_probability == pytest.approx(float(expected.softmax(-1)[7]), abs=1e-11)
    assert report.lengths[0].up_to.value == pytest.approx(report.lengths[0].value, abs=1e-11)
    nothing = torch.zeros_like(network.streams[-1])[None, None, None]
    tail = network.finish(Graded.of(network.streams[-1], nothing, 0, "none"))
    constant = float(tail.parts.sum((0, 1, 2))[0, -1, 7])
    assert report.value - report.lengths[0].value + constant == pytest.approx(first.value, abs=1e-11)
    assert abs(constant) > 1e-3


def test_padding_is_refused() -> None:
    batch = {"input_ids": ids(TEXT), "attention_mask": torch.ones_like(ids(TEXT))}
    report = paths(tiny_llama(), batch, draws=0, mlp=False, top=1)
    batch["attention_mask"][0, -2:] = 0
    with pytest.raises(RefusalError, match="attention_mask marks some tokens as padding"):
        paths(tiny_llama(), batch, draws=0, mlp=False, top=1)
    assert report.difference < 1e-11


def test_values_of_heads_add_up(report: PathReport) -> None:
    heads = sum(sum(row) for row in report.head_values)
    assert heads == pytest.approx(report.value - report.lengths[0].value, abs=1e-11)
    for k, row in enumerate(report.lengths[1:], 1):
        through = sum(head[k] for layer in report.head_lengths for head in layer)
        assert through == pytest.approx(k * row.value, abs=1e-10)  # a path of k heads is in k of these sums


def test_mlps_are_edges_and_players(report: PathReport) -> None:
    assert report.edges is not None
    assert sum(report.edges) == pytest.approx(report.value, abs=1e-11)
    assert len(report.edges) == 7  # three heads and three MLPs at most
    players = report.players
    assert players is not None
    worth = sum(map(sum, (*players.heads, *players.mlps)))
    assert worth == pytest.approx(players.everything - players.nothing, abs=1e-10)
    assert players.nothing == pytest.approx(report.edges[0], abs=1e-10)


def test_the_largest_paths_are_listed_with_their_tokens(report: PathReport) -> None:
    sizes = [abs(chain.contribution) for chain in report.top]
    assert len(sizes) == 5
    assert sizes == sorted(sizes, reverse=True)
    alone = [chain for chain in report.top if not chain.heads]
    for chain in alone:  # the one path of length zero begins at the token that is asked
        assert chain.position == report.position
        assert chain.contribution == pytest.approx(report.lengths[0].stream, abs=1e-11)
    for chain in report.top:
        assert chain.token == report.tokens[chain.position]


def test_the_mean_path_is_the_mean_of_all_single_paths(report: PathReport) -> None:
    every = paths(tiny_llama(), TEXT, tokenizer=byte_tokenizer(), draws=0, mlp=False, top=125)
    for row, own in zip(every.lengths, report.lengths, strict=True):
        single = [chain.contribution for chain in every.top if len(chain.heads) == row.length]
        assert len(single) == row.paths
        assert own.mean == pytest.approx(sum(single) / len(single), abs=1e-11)


def test_energies_equal_those_of_the_paths(report: PathReport) -> None:
    first = report.lengths[0]
    assert first.energy == pytest.approx(first.stream**2, rel=1e-10)  # one path
    assert first.energy_error == pytest.approx(0, abs=1e-12)
    assert all(row.energy is not None and row.energy > 0 for row in report.lengths)
    without = paths(tiny_llama(), TEXT, tokenizer=byte_tokenizer(), draws=0, mlp=False, top=1)
    assert without.lengths[1].energy is None
    assert without.edges is None
    assert without.players is None
    assert without.value == report.value


def test_a_difference_is_the_difference_of_two_logits(report: PathReport) -> None:
    quick: dict[str, Any] = {"tokenizer": byte_tokenizer(), "draws": 0, "mlp": False, "top": 1}
    first, second = (paths(tiny_llama(), TEXT, target=word, **quick) for word in ("a", "b"))
    both = paths(tiny_llama(), TEXT, target="a", against="b", **quick)
    assert both.value == pytest.approx(first.value - second.value, abs=1e-11)
    for a, b, c in zip(first.lengths, second.lengths, both.lengths, strict=True):
        assert c.value == pytest.approx(a.value - b.value, abs=1e-11)
    assert both.target == "logit of 'a' minus that of 'b' after the last token"
    assert both.goal == Goal("difference", "a", "b", "after the last token")
    assert first.goal == Goal("logit", "a", where="after the last token")
    earlier = paths(tiny_llama(), TEXT, target="a", position=2, **quick)
    assert earlier.position == 2
    assert earlier.goal == Goal("logit", "a", where="after token 2")
    assert earlier.value == pytest.approx(
        float(own_logits(tiny_llama(), input_ids=ids(TEXT))[2, ids("a")[0, 1]]), abs=1e-5
    )
    assert paths(tiny_llama(), TEXT, target="a", position=-1, **quick).value == first.value


def test_a_float32_model_is_decomposed_to_1e4(report: PathReport) -> None:
    model = tiny_llama()
    single = paths(model, TEXT, tokenizer=byte_tokenizer(), dtype="float32", draws=0, mlp=False, top=1)
    assert single.dtype == "float32"
    assert single.difference < 1e-4 * abs(single.value)
    assert single.value == pytest.approx(report.value, rel=1e-4)
    assert next(model.parameters()).dtype == torch.float32  # a copy was measured


def test_target_of_a_classifier_is_a_class() -> None:
    model = bert(BertForSequenceClassification, id2label={0: "bad", 1: "so-so", 2: "good"})
    quick: dict[str, Any] = {"tokenizer": byte_tokenizer(), "draws": 0, "mlp": False, "top": 2}
    own = own_logits(bert(BertForSequenceClassification, num_labels=3), input_ids=ids(TEXT))
    report = paths(model, TEXT, **quick)
    assert report.output == "classes"
    assert report.value == pytest.approx(float(own.max()), abs=1e-9)
    assert report.difference < 1e-11
    last = report.lengths[-1].up_to
    assert last.predicted == ("bad", "so-so", "good")[int(own.argmax())]
    assert last.loss is None
    assert any(row.constants for row in report.lengths)  # biases
    named, numbered = (paths(model, TEXT, target=which, **quick) for which in ("GOOD", "2"))
    assert (named.target, named.goal) == ("logit of 'good'", Goal("logit", "good"))
    assert named.value == numbered.value == pytest.approx(float(own[2]), abs=1e-9)
    for which in ("great", "7"):
        with pytest.raises(RefusalError, match=r"bad|entries 0 to 2"):
            paths(model, TEXT, target=which, **quick)
    with pytest.raises(RefusalError, match="one answer for the whole text"):
        paths(model, TEXT, position=1, **quick)


def test_target_of_a_masked_model_is_at_its_mask() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.mask_token = "_"
    model = bert(BertForMaskedLM)
    found = paths(model, "the d_g and", tokenizer=tokenizer, draws=0, mlp=False, top=1)
    assert found.position == found.tokens.index("_")
    assert found.target.endswith(f"at token {found.position}")
    assert found.goal is not None
    assert found.goal.where == f"at token {found.position}"
    own = own_logits(bert(BertForMaskedLM), input_ids=torch.tensor([tokenizer("the d_g and")["input_ids"]]))
    assert found.value == pytest.approx(float(own[found.position].max()), abs=1e-9)
    assert found.lengths[-1].up_to.loss is None  # it sees the next token


def test_target_of_a_model_without_a_head_is_the_residual_norm() -> None:
    quick: dict[str, Any] = {"tokenizer": byte_tokenizer(), "draws": 2, "top": 2}
    model = bert(BertModel)
    report = paths(model, TEXT, **quick)
    with torch.no_grad():
        stream = bert(BertModel).double()(input_ids=ids(TEXT)).last_hidden_state[0]
    assert report.output == "states"
    assert report.value == pytest.approx(float((stream - stream.mean(0)).norm()), rel=1e-9)
    assert report.difference < 1e-9
    assert report.lengths[-1].up_to.predicted is None
    assert report.lengths[-1].up_to.distance < 1e-9
    assert "states and no logits" in report.notes[0]
    assert report.goal == Goal("residual_norm")
    assert paths(model, TEXT, target="stream_norm", **quick).goal == Goal("stream_norm")
    assert sum(row.residual_share or 0 for row in report.lengths) == pytest.approx(1, abs=1e-9)
    with pytest.raises(RefusalError, match="residual_norm"):
        paths(model, TEXT, target="a", **quick)
    with pytest.raises(RefusalError, match="a token or class as target, not a norm"):
        paths(model, TEXT, against="a", **quick)


def test_images_come_as_ready_batches() -> None:
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48, image_size=16, patch_size=8
    )
    model = ViTForImageClassification(config).eval()
    image = {"pixel_values": torch.randn(1, 3, 16, 16)}
    report = paths(model, image, draws=0, mlp=False, top=2)
    assert report.tokens == ()
    assert report.output == "classes"
    assert report.difference < 1e-11
    assert all(row.residual is not None for row in report.lengths)
    with pytest.raises(RefusalError, match="pixel_values"):
        paths(model, "a photograph")
    with pytest.raises(RefusalError, match="one sequence"):
        paths(model, {"pixel_values": torch.randn(2, 3, 16, 16)})


def test_default_stack_of_two_is_the_decoder() -> None:
    found = paths(tiny_t5(), TEXT, tokenizer=byte_tokenizer(), stack=None, draws=0, mlp=False, top=1)
    assert found.stack == "decoder"
    assert found.difference < 1e-10
    assert any("encoder" in note for note in found.notes)
    with pytest.raises(RefusalError, match="There is no stack called 'middle'"):
        paths(tiny_t5(), TEXT, tokenizer=byte_tokenizer(), stack="middle")


def test_note_on_a_single_token() -> None:
    tokenizer = byte_tokenizer()
    found = paths(tiny_llama(), {"input_ids": torch.tensor([[7]])}, tokenizer=tokenizer, draws=0, mlp=False, top=1)
    assert any("single token" in note for note in found.notes)
    assert all(row.residual is None for row in found.lengths)
    assert found.whole_residual is None
    assert found.lengths[-1].up_to.loss is None
    assert found.difference < 1e-11
    assert any("single token" in note for note in found.to_json()["notes"])
    assert found.sentences()


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("long " * 40, {}, "reads 64 at most"),
        ({"input_ids": torch.ones(1, 70, dtype=torch.long)}, {}, "reads 64 at most"),
        (TEXT, {"target": "cat"}, r"is 3 tokens \('c', 'a', 't'\)"),
        ("  ", {}, "The text is empty"),
        (TEXT, {"tokenizer": None}, "has no tokenizer"),
        (TEXT, {"position": 99}, "position 99"),
        (TEXT, {"target": "a", "against": "a"}, "choose two that differ"),
        (TEXT, {"target": 4000}, "entries 0 to 256"),
        (TEXT, {"dtype": "bfloat16"}, "`dtype=` cannot be .bfloat16."),
        (TEXT, {"top": 0}, "`top=` cannot be 0"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(text: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(RefusalError, match=words):
        paths(tiny_llama(), text, **{"tokenizer": byte_tokenizer(), **options})


def test_broken_weights_are_refused() -> None:
    broken = tiny_llama()
    with torch.no_grad():
        broken.model.layers[1].mlp.up_proj.weight[0, 0] = math.nan
    with pytest.raises(
        RefusalError, match=r"weights model\.layers\.1\.mlp\.up_proj\.weight of LlamaForCausalLM hold NaN"
    ):
        paths(broken, TEXT, tokenizer=byte_tokenizer())


def test_arguments_of_wrong_types_are_refused() -> None:
    """In a subprocess, because beartype would raise before the refusal."""
    code = """
import torch, attnscope
from tests.specimens import byte_tokenizer, tiny_llama
for text, options in (
    (["a dog"], {}), (torch.tensor([[1, 2]]), {}), ("a dog", {"position": "last"}), ("a dog", {"target": [" a"]})
):
    try:
        attnscope.paths(tiny_llama(), text, tokenizer=byte_tokenizer(), **options)
    except attnscope.RefusalError as refusal:
        print(refusal)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = ("not a list", "not a Tensor", "-1 is the last one", "a single token or class")
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert all(words in line for words, line in zip(expected, lines, strict=True))


def test_without_a_tokenizer_a_text_is_read_as_token_numbers() -> None:
    report = paths(tiny_llama(), "5, 17 3", target="7", draws=0, mlp=False, top=1)
    own = own_logits(tiny_llama(), input_ids=torch.tensor([[5, 17, 3]]))
    assert report.value == pytest.approx(float(own[-1, 7]), abs=1e-5)


def test_note_on_a_masked_model_without_a_mask() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.mask_token_id = 5
    report = paths(bert(BertForMaskedLM), TEXT, tokenizer=tokenizer, draws=0, mlp=False, top=1)
    assert any("No token is masked" in note for note in report.notes)


def test_a_word_outside_the_vocabulary_gets_its_nearest_tokens() -> None:
    from attnscope.hf.loading.load import load

    loaded = load("pocket", dtype="float64")
    with pytest.raises(RefusalError, match=r"3 tokens .*Nearest tokens: ' thing'"):
        paths(loaded, TEXT, target="thinge")
    asked = paths(loaded, "The old man and", target="he", draws=0, mlp=False, top=1)
    assert any("' he' with a leading space is another token" in note for note in asked.notes)


def test_a_report_survives_a_round_trip_as_json(report: PathReport, tmp_path: Path) -> None:
    path = report.save(tmp_path / "paths.json")
    assert PathReport.load(path) == report
    data = json.loads(path.read_text())
    assert data["lengths"][1]["value"] == report.lengths[1].value
    assert data["difference"] == report.difference
    (tmp_path / "newer.json").write_text(json.dumps({**data, "version": 99}))
    with pytest.raises(RefusalError, match="run `attnscope paths` again"):
        PathReport.load(tmp_path / "newer.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(RefusalError, match="is not a paths file"):
        PathReport.load(tmp_path / "broken.json")
    with pytest.raises(RefusalError, match="There is no file"):
        PathReport.load(tmp_path / "nowhere.json")


def test_notebooks_get_a_table_and_text_is_escaped(report: PathReport) -> None:
    nasty = replace(report, model="<script>alert(1)</script>")
    assert "<table>" in nasty._repr_html_()
    assert "<script>" not in nasty._repr_html_()
    assert report.target in repr(report)
    assert len(repr(report)) < 300
