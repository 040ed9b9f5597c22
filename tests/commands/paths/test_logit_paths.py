"""Why a head looks there: sums, weights and removals against the model itself, choices, refusals, sentences."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import attnscope
from attnscope.commands.logit_paths.record import LogitReport, Removed
from attnscope.core.errors import RefusalError
from attnscope.hf.editing.freeze import freeze
from attnscope.pathways.logits import entering
from attnscope.reports.record import verdict
from tests.command import attnscope as typed
from tests.pathways.logit_models import GROUPED, IDS, MODELS, check_sums, made
from tests.reports.sample_logit_paths import sample_logit_paths

TEXT = "The dog chased its own tail and the dog"


def odds(report: LogitReport) -> float:
    """Return the lead as the model's own weights give it: log A_ij minus the mean log A_it of the other keys."""
    seen = torch.tensor([w for t, w in enumerate(report.weights) if t != report.key and w > 0])
    return float(torch.tensor(report.weight).log() - seen.log().mean())


@pytest.mark.parametrize("name", MODELS)
def test_terms_sum_to_the_logit_and_weights_are_the_model_s(name: str) -> None:
    model = made(name)
    report = attnscope.logit_paths(model, {"input_ids": IDS}, head="2.1", query=6, key=3)
    check_sums(report)
    if report.softcap is None:
        assert odds(report) == pytest.approx(report.lead, rel=1e-4, abs=1e-4)
    model.set_attn_implementation("eager")  # type: ignore[operator]
    with torch.no_grad():
        own = model(IDS, output_attentions=True).attentions[2][0, 1, 6]
    assert report.weights == pytest.approx(own.tolist(), abs=1e-5)
    assert LogitReport.from_json(report.to_json()) == report


def random(model: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def test_a_cap_is_told_and_the_logit_is_the_one_before_it() -> None:
    model = random(Gemma2ForCausalLM(Gemma2Config(**GROUPED, bos_token_id=1, attn_logit_softcapping=2.0)))
    model.set_attn_implementation("eager")  # type: ignore[operator]
    report = attnscope.logit_paths(model, {"input_ids": IDS}, head="1.0")
    check_sums(report)
    assert report.softcap == pytest.approx(2.0, rel=1e-9)
    assert any("before the cap" in sentence for sentence in report.sentences())
    with torch.no_grad():
        own = model(IDS, output_attentions=True).attentions[1][0, 0, report.query]
    assert report.weights == pytest.approx(own.tolist(), abs=1e-4)


@pytest.mark.parametrize("name", ["Bloom", "T5"])
def test_position_bias_is_a_term_of_its_own(name: str) -> None:
    if name == "Bloom":
        model = random(BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)))
        batch = {"input_ids": IDS}
    else:
        config = T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
        model = random(T5ForConditionalGeneration(config))
        batch = {"input_ids": IDS, "decoder_input_ids": IDS}
    report = attnscope.logit_paths(model, batch, head="1.1", query=7, key=2)
    check_sums(report)
    assert report.bias_lead != 0
    assert odds(report) == pytest.approx(report.lead, rel=1e-4, abs=1e-4)
    assert any("bias for the distance" in sentence for sentence in report.sentences())


def test_removal_equals_a_hook_on_the_real_head() -> None:
    """The slow way: queries or keys of one token are projected from a stream without the source, in a real run."""
    name = "Llama: grouped keys, rotary"
    report = attnscope.logit_paths(made(name), {"input_ids": IDS}, head="2.1", query=6, key=3)
    found = entering(freeze(made(name), {"input_ids": IDS}), 2)
    model: Any = made(name)
    model.set_attn_implementation("eager")
    layer = model.model.layers[2]
    assert {one.side for one in report.removed} == {"query", "key"}
    for one in report.removed:
        token = 6 if one.side == "query" else 3
        projection = layer.self_attn.q_proj if one.side == "query" else layer.self_attn.k_proj

        def hook(module: Any, args: Any, output: Any, one: Removed = one, token: int = token) -> Any:
            stream = found.stream[:, token] - found.parts[one.source][:, token]
            output = output.clone()
            output[:, token] = nn.functional.linear(layer.input_layernorm(stream), module.weight)
            return output

        handle = projection.register_forward_hook(hook)
        with torch.no_grad():
            own = model(IDS, output_attentions=True).attentions[2][0, 1, 6, 3]
        handle.remove()
        assert one.weight == pytest.approx(float(own), abs=1e-5)


def test_pocket_attends_to_what_followed_because_of_a_previous_token_head() -> None:
    report = attnscope.logit_paths("pocket", TEXT, head="1.3")
    check_sums(report)
    assert (report.query, report.key) == (15, 4)
    assert report.tokens[4] == " cha"  # what followed the first "dog"
    best = max(report.sources, key=lambda source: source.key_lead)
    assert (best.kind, best.block, best.head) == ("head", 0, 0)
    removed = min(report.removed, key=lambda one: one.weight)
    assert (removed.side, report.sources[removed.source]) == ("key", best)
    assert removed.weight < report.weight / 100
    assert "without what block 0 head 0 writes at token 4, this falls to" in verdict(report).sentence
    assert "Chosen: token 15 as the query and token 4 as the key." in report.notes


def test_a_sink_is_not_chosen_and_the_note_says_so() -> None:
    report = attnscope.logit_paths("pocket", "The dog chased its own tail", head="5.0")
    first = max(range(len(report.tokens)), key=lambda token: report.weights[token])
    others = [w for token, w in enumerate(report.weights) if token]
    assert report.weight == max(others)
    assert (first == 0) == any("sink" in note for note in report.notes)


def test_block_0_has_only_the_embedding_upstream() -> None:
    report = attnscope.logit_paths("pocket", TEXT, head="0.0", query=3, key=2)
    assert [source.kind for source in report.sources] == ["embedding", "biases"]
    check_sums(report)
    assert "only embeddings and biases" in verdict(report).sentence


def test_a_query_that_sees_one_key() -> None:
    report = attnscope.logit_paths("pocket", TEXT, head="1.0", query=0, key=0)
    assert (report.others, report.weight) == (0, 1.0)
    assert report.lead == report.logit
    assert "sees no other key" in verdict(report).sentence


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"head": "1"}, "such as '1.3'"),
        ({"head": "9.0"}, "attends in blocks 0-5, not in block 9"),
        ({"head": "1.4"}, "has heads 0 to 3, not 4"),
        ({"head": "1.0", "query": 16}, r"choose `query=` from 0 \('<bos>'\) to 15"),
        ({"head": "1.0", "key": -17}, "choose `key=` from 0"),
        ({"head": "1.0", "query": 3, "key": 5}, "Token 3 cannot see token 5 in this head: choose `key=` among 0-3"),
        ({"head": "1.0", "query": True}, "the number of a token"),
        ({"head": "1.0", "stack": "encoder"}, "no stack 'encoder'"),
        ({"head": "1.0", "top": 0}, "`top=`"),
        ({"head": "1.0", "dtype": "bfloat16"}, "`dtype=`"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RefusalError, match=words):
        attnscope.logit_paths("pocket", TEXT, **options)


def test_command_line(tmp_path: Path) -> None:
    done = typed("paths", "pocket", TEXT, "--head", "1.3", "--from", "15", "--to", "4", "--out", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["format"] == "attnscope-logit_paths"
    (record,) = tmp_path.glob("logit_paths-*.json")
    loaded = attnscope.load(record)
    assert isinstance(loaded, LogitReport)
    assert "Sources of the query by sources of the key" in record.with_suffix(".html").read_text()
    assert len(loaded.table()) == len(loaded.sources)
    for bad, words in (
        (("--from", "3"), "name it with --head"),
        (("--head", "1.3", "--target", " a"), "leave out --target"),
        (("--head", "1.3", "--from", "3", "--to", "5"), "choose --to among 0-3"),
    ):
        refused = typed("paths", "pocket", TEXT, *bad, "--out", tmp_path)
        assert refused.returncode == 2
        assert words in " ".join(refused.stderr.split())


def test_sentences_of_a_report_made_by_hand() -> None:
    report = sample_logit_paths()
    sentence = verdict(report).sentence
    assert sentence.startswith("Block 1 head 0 looks from ' c' (token 2) to ' <b>' (token 1) with 70%; without what")
    assert sentence.endswith("block 0 head 1 writes at token 1, this falls to 4%.")
    calm = verdict(replace(report, removed=report.removed[1:])).sentence
    assert "no single source decides it: without the embedding at token 2, this falls to 65%" in calm
    assert "&lt;b&gt;" in report._repr_html_()
    assert "' <b>'" not in report._repr_html_()
