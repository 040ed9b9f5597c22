"""Real models load whole: every weight finds its place, and what comes out makes sense."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attnscope.core.errors import RefusalError
from attnscope.corpus.corpus import Corpus
from attnscope.corpus.read import read
from attnscope.hf.feed import feed
from attnscope.hf.load import load

pytestmark = pytest.mark.real
Material = Callable[[str], Path]

REACTION = "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F"
ANTIBODY = "EVQLVQSGPEVKKPGTSVKVSCKASGFTFMSSAVQWVRQARGQRLEWIGWIVIGSGNTNYAQKFQERVTITRDMSTSTAYMELSSLRSEDTAVYYCAAPYCSSISCNDGFDIWGQGTMVTVS"


def guesses(name: Path, text: str, hidden: range) -> float:
    """The share of hidden symbols that the model puts back, each hidden alone."""
    loaded = load(name, allow_pickle=True)
    ids = torch.tensor(loaded.tokenizer(text)["input_ids"])
    rows = ids.repeat(len(hidden), 1)
    places = torch.tensor(list(hidden))
    rows[torch.arange(len(hidden)), places] = loaded.tokenizer.mask_token_id
    found = loaded.model(input_ids=rows).logits[torch.arange(len(hidden)), places].argmax(-1)
    return float((found == ids[places]).float().mean())


def test_smollm2_reads_english(material: Material) -> None:
    loaded = load(material("smollm2"))
    assert (loaded.class_name, loaded.kind, loaded.positions) == ("LlamaForCausalLM", "causal", 8192)
    assert loaded.parameters == 134_515_008
    assert loaded.provenance["random_parameters"] == loaded.provenance["unused_weights"] == []
    losses = []
    for batch in feed(loaded, read(material("wikitext2") / "test.raw.gz"), samples=8, batch_size=4):
        ids = batch.inputs["input_ids"]
        assert "attention_mask" not in batch.inputs
        logits = loaded.model(input_ids=ids).logits[:, :-1]
        losses.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))
    assert 10 < float(torch.stack(losses).mean().exp()) < 40  # perplexity; of a random model: 49,152


def test_minilm_knows_what_is_alike(material: Material) -> None:
    loaded = load(material("minilm"))
    assert (loaded.class_name, loaded.kind, loaded.positions) == ("BertModel", "masked", 512)
    assert loaded.provenance["random_parameters"] == []
    texts = [
        "The cat sleeps on the sofa.",
        "A kitten is napping on the couch.",
        "Interest rates rose again in May.",
    ]
    vectors = torch.zeros(3, 384)
    for batch in feed(loaded, Corpus.of("texts", texts)):
        states = loaded.model(**batch.inputs).last_hidden_state
        mean = (states * batch.mask[..., None]).sum(1) / batch.mask.sum(1, keepdim=True)
        vectors[list(batch.samples)] = torch.nn.functional.normalize(mean, dim=-1)
    likeness = vectors @ vectors.T
    assert likeness[0, 1] > 0.5 > 0.2 > likeness[0, 2]


def test_rxnmapper(material: Material) -> None:
    assert load(material("rxnmapper"), allow_pickle=True).class_name == "AlbertForMaskedLM"
    assert guesses(material("rxnmapper"), REACTION, range(1, 40)) > 0.8


def test_rxnfp(material: Material) -> None:
    assert load(material("rxnfp"), allow_pickle=True).class_name == "BertForMaskedLM"
    assert guesses(material("rxnfp"), REACTION, range(1, 40)) > 0.8


def test_antiberty(material: Material) -> None:
    loaded = load(material("antiberty"), allow_pickle=True)
    assert loaded.class_name == "BertForMaskedLM"
    assert all(
        "species" in w or "chain" in w or "graft" in w or "pooler" in w
        for w in loaded.provenance["unused_weights"]
    )
    assert guesses(material("antiberty"), ANTIBODY, range(1, 90)) > 0.7


def test_microformer_has_weights_and_no_tokenizer(material: Material) -> None:
    with pytest.raises(RefusalError, match="--allow-pickle"):
        load(material("microformer"))
    loaded = load(material("microformer"), allow_pickle=True)
    assert (loaded.class_name, loaded.tokenizer, loaded.positions) == ("GPT2LMHeadModel", None, 512)
    assert loaded.provenance["random_parameters"] == []
    made = feed(loaded, None, samples=2, max_tokens=32)
    assert made.name == "random tokens (seed 0)"
    assert made.batches[0].inputs["input_ids"][:, 0].tolist() == [2, 2]


def test_dinov2_has_a_register_that_stands_out() -> None:
    import real_models

    states = real_models.dinov2()(**real_models.photographs(), output_hidden_states=True).hidden_states[-1]
    norms = states.norm(dim=-1)  # image token: [CLS], four registers, patches
    registers, patches = norms[:, 1:5], norms[:, 5:]
    assert bool((registers.max(dim=1).values > 3 * patches.median(dim=1).values).all())


def test_whisper_writes_what_is_said() -> None:
    import real_models

    model, heard = real_models.whisper(), real_models.speech()
    ids = heard["decoder_input_ids"]
    memory = model.model.encoder(heard["input_features"])
    for _ in range(30):
        logits = model(encoder_outputs=memory, decoder_input_ids=ids).logits[:, -1]
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
    written = ids[0].tolist()
    said = [1265, 407, 644, 534, 1499, 460, 466, 329, 345]  # " ask not what your country can do for you"
    assert any(written[i : i + len(said)] == said for i in range(len(written)))
