"""Blocks without softmax attention keep their numbers and are named by their kind."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

import attnscope
from attnscope.commands.records import report
from attnscope.commands.scan.diagnose import diagnose
from attnscope.commands.scan.figures import head_maps
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.reports.colours import MISSING
from tests.hf.tiny import tiny

PLANTED = 2  # a Mamba block of Jamba, which attends in block 4 only


@functools.cache
def probed(model_type: str) -> tuple[Any, dict[str, Any], Anatomy]:
    model, batch = tiny(model_type)
    return model, batch, anatomy(model, batch)


@functools.cache
def spiking() -> tuple[Any, Survey]:
    model, batch = tiny("jamba")
    with torch.no_grad():
        model.model.layers[PLANTED].mamba.out_proj.weight.mul_(2000)
    return model, attnscope.scan(model, [batch])


@pytest.mark.parametrize(
    ("model_type", "kinds"),
    [
        ("jamba", ["Mamba"] * 4 + ["attention"]),
        ("bamba", ["Mamba", "Mamba", "attention", "Mamba"]),
        ("qwen3_next", ["linear attention"] * 3 + ["attention"]),
        ("recurrent_gemma", ["recurrent", "recurrent", "attention"]),
        ("nemotron_h", ["Mamba", "MLP", "attention", "MLP"]),
        ("minimax", ["attention", "linear attention"]),
    ],
)
def test_blocks_keep_their_numbers_and_kinds(model_type: str, kinds: list[str]) -> None:
    model, _, found = probed(model_type)
    (stack,) = found.stacks
    assert [block.kind for block in stack.blocks] == kinds
    for number, block in enumerate(stack.blocks):
        assert block.layer == number
        assert model.get_submodule(block.path) is model.model.layers[number]
    assert {site.layer for site in found.sites} == {n for n, kind in enumerate(kinds) if kind == "attention"}
    assert stack.chained


def test_streams_are_measured_in_every_block_and_heads_only_in_attending_blocks() -> None:
    model, survey = spiking()
    blocks = len(model.model.layers)
    assert survey.values("spike").shape == (blocks + 1,)
    assert np.isfinite(survey.values("spike")).all()
    entropy = survey.values("entropy")
    assert np.isfinite(entropy[4]).all()
    assert np.isnan(entropy[:4]).all()
    assert survey.kind_of_block("model", PLANTED) == "Mamba"
    assert survey.kind_of_block("model", 4) is None
    (stack,) = survey.provenance["model"]["stacks"]
    assert stack["tokens"] == survey.provenance["corpus"]["tokens"]


def test_spike_of_a_mamba_block_is_assigned_to_it() -> None:
    _, survey = spiking()
    (found,) = [f for f in diagnose(survey) if f.kind == "massive_activation"]
    assert f"block {PLANTED} (Mamba)" in found.sentence
    assert found.details["block"] == PLANTED
    assert found.details["write"] == "block"
    growth = survey.values("norm_growth")
    assert int(np.nanargmax(growth)) == PLANTED + 1  # at the input of the next block: the growth in one block


def test_pages_leave_out_missing_heads(tmp_path: Any) -> None:
    _, survey = spiking()
    maps = head_maps(survey, survey.table())
    assert maps
    assert all((m.steps()[:4] == MISSING).all() and (m.steps()[4] >= 0).all() for m in maps if m.layers == 5)
    assert not any('class="void"' in m.drawing() for m in maps)
    page = report(survey, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Blocks 0-3 of the model (Mamba) have no softmax attention: stream only." in page


def test_collapse_notes_its_cut_and_paths_refuse_hybrids() -> None:
    model, batch = tiny("jamba")
    found = attnscope.collapse(model, [batch], variants=["san", "whole"], bounds=False)
    assert found.layers == 5
    assert len(found.curves["san"].mean) == 6
    assert any(note.startswith("Blocks 0-3 of the model (Mamba)") and "kept and cut" in note for note in found.notes)
    with pytest.raises(RefusalError, match=r"Block 0 of JambaForCausalLM has no softmax attention \(Mamba\)"):
        attnscope.paths(model, {name: rows[:1] for name, rows in batch.items()}, draws=0)


def test_mlp_block_passes_its_stream_on_if_mlps_are_cut() -> None:
    model, batch = tiny("nemotron_h")
    found = attnscope.collapse(model, [batch], variants=["san"], bounds=False)
    means = found.curves["san"].mean
    assert means[2] == pytest.approx(means[1], rel=1e-9)  # block 1 is an MLP alone
    assert any("(MLP)" in note and "unchanged" in note for note in found.notes)
