"""Scans of real weights find known sinks and spikes, and no others.

Every scan is verified first: recomputed attention agrees with the model, and the tap does not change a bit of its
output.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnscope
from attnscope.commands.scan.survey.survey import Survey
from bench.subjects import wikitext
from tools.real_models import dinov2, photographs, speech, whisper

pytestmark = pytest.mark.real
Material = Callable[[str], Path]

ANTIBODY = (
    "EVQLVQSGPEVKKPGTSVKVSCKASGFTFMSSAVQWVRQARGQRLEWIGWIVIGSGNTNYAQKFQERVTITRDMSTSTAY"
    "MELSSLRSEDTAVYYCAAPYCSSISCNDGFDIWGQGTMVTVS"
)
REACTION = "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F"


def trusted(survey: Survey) -> Survey:
    """Check the verification of a survey: equal output to the bit, attention equal up to rounding."""
    verified = survey.provenance["verify"]
    assert verified["checks"]["output"] == 0.0
    assert verified["largest_difference"] < 1e-4
    return survey


@pytest.fixture(scope="module")
def smollm2(material: Material) -> Survey:
    return trusted(attnscope.scan(material("smollm2"), [wikitext()], samples=3, max_tokens=256, batch_size=3))


def test_smollm2_has_a_massive_activation_from_block_11_on_token_0(smollm2: Survey) -> None:
    spike = smollm2.values("spike", site="stream")
    assert spike.shape == (31,)
    assert spike[11] < 1e3
    assert spike[12] > 1e4
    at_twelve = smollm2.column("spike", "value", "model", "stream")[12]
    assert at_twelve.usual() == [{"channel": 507, "token": 0}]
    found = [f for f in attnscope.diagnose(smollm2) if f.kind == "massive_activation" and f.details["step"] == "up"]
    assert [f.layers for f in found] == [(11,)]
    assert "token 0" in found[0].sentence


def test_smollm2_heads_sink_from_block_12(smollm2: Survey) -> None:
    mass = smollm2.values("sink_mass")
    late, early = (mass[12:] > 0.3).mean(), (mass[:12] > 0.3).mean()
    assert late > 0.5
    assert early < late / 2
    sinks = [f for f in attnscope.diagnose(smollm2) if f.kind == "sink"]
    assert len(sinks) == 1
    assert {*range(12, 30)} <= {*sinks[0].layers}


def test_minilm_heads_sink_on_cls(material: Material) -> None:
    survey = trusted(attnscope.scan(material("minilm"), [wikitext()], samples=8, max_tokens=128))
    mass = survey.values("sink_mass")
    assert mass.shape == (6, 12)
    assert 0.4 < mass.max() < 0.9
    assert survey.values("spike", site="stream").max() < 100


def test_antiberty_has_no_sink(material: Material) -> None:
    survey = trusted(attnscope.scan(material("antiberty"), [" ".join(ANTIBODY)] * 2, allow_pickle=True))
    assert survey.values("sink_mass").max() < 0.3
    assert not [f for f in attnscope.diagnose(survey) if f.kind == "sink"]


def test_rxnmapper_shows_one_shared_block_as_twelve_blocks(material: Material) -> None:
    survey = trusted(attnscope.scan(material("rxnmapper"), [REACTION] * 2, allow_pickle=True))
    assert survey.values("entropy").shape == (12, 8)
    assert len({tuple(row) for row in np.round(survey.values("entropy"), 6)}) == 12


def test_a_register_of_dinov2_stands_out() -> None:
    """Four registers follow [CLS]; one of them has a norm far above all other tokens."""
    model = dinov2()
    survey = trusted(attnscope.scan(model, [photographs()]))
    spike = survey.column("spike", "value", *survey.places("spike")[0])
    first = spike[11].usual()[0]
    assert first is not None
    assert first["token"] in range(1, 5)
    norms: list[torch.Tensor] = []
    hook = model.encoder.layer[10].register_forward_hook(lambda m, a, out: norms.append(_first(out)))
    with torch.inference_mode():
        model(**photographs())
    hook.remove()
    lengths = norms[0].norm(dim=-1).mean(0)
    assert lengths[1:5].max() > 4 * lengths[5:].median()


def test_whisper_shows_encoder_decoder_and_cross_attention() -> None:
    batch = {**speech(), "decoder_input_ids": torch.tensor([[50257, 50362, 843, 523]])}
    survey = trusted(attnscope.scan(whisper(), [batch]))
    assert survey.values("entropy", stack="encoder").shape == (4, 6)
    assert survey.values("entropy", stack="decoder", site="self").shape == (4, 6)
    assert survey.values("entropy", stack="decoder", site="cross").shape == (4, 6)


def _first(output: Any) -> torch.Tensor:
    tensor: torch.Tensor = output if isinstance(output, torch.Tensor) else output[0]
    return tensor
