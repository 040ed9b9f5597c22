"""Real models load with every weight, and their outputs make sense."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from attnscope.core.errors import RefusalError
from attnscope.data.corpus import Corpus
from attnscope.data.read import read
from attnscope.hf.loading.feed import feed
from attnscope.hf.loading.load import Loaded, load
from attnscope.hf.loading.options import Sampling

pytestmark = pytest.mark.real
Material = Callable[[str], Path]

REACTION = "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F"
ANTIBODY = (
    "EVQLVQSGPEVKKPGTSVKVSCKASGFTFMSSAVQWVRQARGQRLEWIGWIVIGSGNTNYAQKFQERVTITRDMSTSTAY"
    "MELSSLRSEDTAVYYCAAPYCSSISCNDGFDIWGQGTMVTVS"
)


def recovered(loaded: Loaded, text: str) -> float:
    """Mask every third symbol of a text, one at a time, and return the share that the model recovers."""
    assert loaded.tokenizer is not None
    ids = torch.tensor(loaded.tokenizer(text)["input_ids"])
    assert loaded.tokenizer.unk_token_id not in ids
    places = torch.arange(1, len(ids) - 1, 3)
    rows = ids.repeat(len(places), 1)
    rows[torch.arange(len(places)), places] = loaded.tokenizer.mask_token_id
    found = loaded.model(input_ids=rows).logits[torch.arange(len(places)), places].argmax(-1)
    return float((found == ids[places]).float().mean())


@pytest.mark.thorough
def test_smollm2_reads_english(material: Material) -> None:
    loaded = load(material("smollm2"))
    assert (loaded.class_name, loaded.kind, loaded.positions) == ("LlamaForCausalLM", "causal", 8192)
    assert loaded.parameters == 134_515_008
    assert loaded.provenance["random_parameters"] == loaded.provenance["unused_weights"] == []
    losses = []
    for batch in feed(loaded, read(material("wikitext2") / "test.raw.gz"), Sampling(samples=4, batch_size=4)):
        ids = batch.inputs["input_ids"]
        assert "attention_mask" not in batch.inputs
        logits = loaded.model(input_ids=ids).logits[:, :-1]
        losses.append(F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"))
    assert 10 < float(torch.cat(losses).mean().exp()) < 40  # perplexity; a random model has 49,152


def test_minilm_embeds_similar_sentences_nearby(material: Material) -> None:
    loaded = load(material("minilm"))
    assert (loaded.class_name, loaded.kind, loaded.positions) == ("BertModel", "masked", 512)
    assert loaded.provenance["random_parameters"] == []
    texts = [
        "The cat sleeps on the sofa.",
        "A kitten is napping on the couch.",
        "Interest rates rose again in May.",
    ]
    vectors = torch.zeros(3, 384)
    for batch in feed(loaded, Corpus.of("texts", texts), Sampling()):
        states = loaded.model(**batch.inputs).last_hidden_state
        assert batch.mask is not None
        mean = (states * batch.mask[..., None]).sum(1) / batch.mask.sum(1, keepdim=True)
        vectors[list(batch.samples)] = F.normalize(mean, dim=-1)
    likeness = vectors @ vectors.T
    assert float(likeness[0, 1]) > 0.5
    assert float(likeness[0, 2]) < 0.2


@pytest.mark.parametrize(
    ("name", "text", "class_name"),
    [
        ("rxnmapper", REACTION, "AlbertForMaskedLM"),
        ("rxnfp", REACTION, "BertForMaskedLM"),
        ("antiberty", ANTIBODY, "BertForMaskedLM"),
    ],
    ids=["rxnmapper", "rxnfp", "antiberty"],
)
def test_masked_symbols_are_recovered(material: Material, name: str, text: str, class_name: str) -> None:
    trained = load(material(name), allow_pickle=True)
    assert trained.class_name == class_name
    assert trained.provenance["random_parameters"] == []
    assert recovered(trained, text) > 0.5
    assert recovered(load(material(name), random_init=True), text) < 0.2


def test_only_heads_of_antiberty_are_unused(material: Material) -> None:
    unused = load(material("antiberty"), allow_pickle=True).provenance["unused_weights"]
    assert {name.rsplit(".", 1)[0] for name in unused} == {
        *("cls.chain", "cls.graft", "cls.species", "bert.pooler.dense"),
    }


def test_microformer_has_weights_and_no_tokenizer(material: Material) -> None:
    with pytest.raises(RefusalError, match="`allow_pickle=True`"):
        load(material("microformer"))
    loaded = load(material("microformer"), allow_pickle=True)
    assert (loaded.class_name, loaded.tokenizer, loaded.positions) == ("GPT2LMHeadModel", None, 512)
    assert loaded.provenance["random_parameters"] == []
    made = feed(loaded, None, Sampling(samples=2, max_tokens=32))
    assert made.name == "random tokens (seed 0)"
    assert made.batches[0].inputs["input_ids"][:, 0].tolist() == [2, 2]


def test_dinov2_has_a_register_of_large_norm() -> None:
    from tools import real_models

    states = real_models.dinov2()(**real_models.photographs(), output_hidden_states=True).hidden_states
    norms = states[11].norm(dim=-1)  # at the input of the last block; tokens are [CLS], four registers, patches
    registers, patches = norms[:, 1:5].sort(dim=1).values, norms[:, 5:]
    assert float(registers[:, -1].min()) > 100
    assert float(registers[:, :-1].max()) < 30
    assert float(patches.max()) < 40


def test_whisper_transcribes_speech() -> None:
    from tools import real_models

    model, heard = real_models.whisper(), real_models.speech()
    ids = heard["decoder_input_ids"]
    memory = model.model.encoder(heard["input_features"])
    for _ in range(30):
        logits = model(encoder_outputs=memory, decoder_input_ids=ids).logits[:, -1]
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
    written = ids[0].tolist()
    said = [1265, 407, 644, 534, 1499, 460, 466, 329, 345]  # " ask not what your country can do for you"
    assert any(written[i : i + len(said)] == said for i in range(len(written)))
