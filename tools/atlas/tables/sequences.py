"""Models of other sequences than text: reactions, molecules, antibodies, microbes, T-cell receptors."""

from __future__ import annotations

from tools.atlas.entry import Checkpoint, files, material

_RXNFP = ("rxnfp==0.1.0", "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf")
_IGLM = ("iglm==0.1.0", "6bb7b65c531583b10d3723dbfbc06e95b2cb30e3cc8cbf2fbc7eb22945e1c2be")
_BERT = {"model_type": "bert"}


def _iglm(name: str, folder: str, shape: str) -> Checkpoint:
    package = files(*_IGLM, "iglm/trained_models", f"{folder}/config.json", f"{folder}/pytorch_model.bin", "vocab.txt")
    return Checkpoint(
        name=name,
        about=f"{folder}, GPT-2 of antibodies, {shape}",
        family="gpt2",
        stack="decoder",
        domain="antibodies",
        licence="academic",
        packages=(package,),
        layout="stored_folder",
        settings={"class": "GPT2LMHeadModel", "symbol": "_RESIDUE", "frame": "$A [SEP]"},
        corpus="heavy_chains",
        check="next_token",
        dropped=(r"\.attn\.(bias|masked_bias)$",),
    )


TABLE = (
    _iglm("iglm", "IgLM", "4 layers, 8 heads"),
    _iglm("iglm-small", "IgLM-S", "3 layers, 6 heads"),
    Checkpoint(
        name="rxnmapper",
        about="RXNMapper, ALBERT of chemical reactions, one shared block 12 times, 8 heads",
        family="albert",
        stack="encoder",
        domain="reactions",
        licence="MIT",
        packages=(material("rxnmapper"),),
        layout="stored_folder",
        settings={"class": "AlbertForMaskedLM", "symbol": "_SMILES"},
        corpus="reactions",
        check="masked_token",
        dropped=(r"^albert\.pooler\.",),
    ),
    Checkpoint(
        name="rxnfp-pretrained",
        about="rxnfp, BERT of chemical reactions, 12 layers, 4 heads",
        family="bert",
        stack="encoder",
        domain="reactions",
        licence="MIT",
        packages=(material("rxnfp"),),
        layout="stored_folder",
        settings={"class": "BertForMaskedLM", "config": _BERT, "symbol": "_SMILES"},
        corpus="reactions",
        check="masked_token",
        dropped=(r"^bert\.pooler\.", r"^cls\.seq_relationship\."),
    ),
    Checkpoint(
        name="rxnfp-classes",
        about="rxnfp fine-tuned to classify reactions, 12 layers, 4 heads",
        family="bert",
        stack="encoder",
        domain="reactions",
        licence="MIT",
        packages=(
            files(*_RXNFP, "rxnfp/models/transformers/bert_ft", "config.json", "pytorch_model.bin", "vocab.txt"),
        ),
        layout="stored_folder",
        settings={"class": "BertModel", "config": _BERT, "symbol": "_SMILES"},
        corpus="reactions",
        check="reaction_classes",
        renames=((r"^bert\.", ""),),
        dropped=(r"^classifier\.", r"^cls\."),
    ),
    Checkpoint(
        name="rxnfp-classes-10k",
        about="rxnfp fine-tuned on 10,000 reactions of 50 classes, 12 layers, 4 heads",
        family="bert",
        stack="encoder",
        domain="reactions",
        licence="MIT",
        packages=(
            files(
                *_RXNFP, "rxnfp/models/transformers/bert_ft_10k_25s", "config.json", "pytorch_model.bin", "vocab.txt"
            ),
        ),
        layout="stored_folder",
        settings={"class": "BertModel", "config": _BERT, "symbol": "_SMILES"},
        corpus="reactions",
        check="reaction_classes",
        renames=((r"^bert\.", ""),),
        dropped=(r"^classifier\.", r"^cls\."),
    ),
    Checkpoint(
        name="antiberty",
        about="AntiBERTy, BERT of antibodies, 8 layers, 8 heads",
        family="bert",
        stack="encoder",
        domain="antibodies",
        licence="MIT",
        packages=(material("antiberty"),),
        layout="stored_folder",
        settings={"class": "BertForMaskedLM", "config": _BERT, "symbol": "_RESIDUE"},
        corpus="antibodies",
        check="masked_token",
        renames=((r"^bert\.(?=bert|cls)", ""),),
        dropped=(r"(species|chain|graft)", r"^bert\.pooler\.", r"^cls\.seq_relationship\."),
    ),
    Checkpoint(
        name="deepsa",
        about="DeepSA, ELECTRA-small fine-tuned on molecules for synthetic accessibility, 12 layers, 4 heads",
        family="electra",
        stack="encoder",
        domain="molecules",
        licence="not stated",
        packages=(
            files(
                "deepsa==0.1.2",
                "c09182a6dbcc690265403d3b6dac57e76d0387e4bfb18404b7fd63b11f6ba98a",
                "deepsa/model",
                *("model.ckpt", "hf_text/config.json", "hf_text/tokenizer.json", "hf_text/tokenizer_config.json"),
            ),
        ),
        layout="stored_folder",
        settings={"class": "ElectraModel"},
        corpus="molecules",
        check="molecules",
        renames=((r"^model\.model\.", ""),),
        dropped=(r"^model\.head\.",),
        check_settings={"pooling": "first", "head": ("model.head",)},
    ),
)
