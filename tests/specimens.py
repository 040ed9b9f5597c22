"""Small models with a tokenizer, saved as folders: what the scan and command-line tests run on."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind. " * 40


def byte_tokenizer(*, adds_bos: bool = True) -> PreTrainedTokenizerFast:
    """One token a byte, and a BOS before every text, or one that is known and never put there."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<bos>": 0, **{letter: i + 1 for i, letter in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>")


def tiny_llama(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=0,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def tiny_t5(seed: int = 0) -> T5ForConditionalGeneration:
    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=257,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config).eval()


def save_specimen(folder: Path, seed: int = 0) -> Path:
    """A Llama folder as `save_pretrained` leaves it, tokenizer beside the weights."""
    tiny_llama(seed).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def write_gguf(path: Path, architecture: str = "llama", add_bos: bool | None = None) -> None:
    """A one-layer Llama of 32-bit numbers with a tokenizer of five words, and what the header says of BOS."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_block_count(1)
    writer.add_feed_forward_length(24)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<s>", "a", "b", "ab", "Ġ"])
    writer.add_token_types([3, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (5, 16), "output_norm": (16,), "output": (5, 16)}
    shapes |= {"blk.0.attn_norm": (16,), "blk.0.ffn_norm": (16,)}
    shapes |= {"blk.0.attn_q": (16, 16), "blk.0.attn_k": (8, 16), "blk.0.attn_v": (8, 16)}
    shapes |= {"blk.0.attn_output": (16, 16), "blk.0.ffn_gate": (24, 16), "blk.0.ffn_up": (24, 16)}
    shapes |= {"blk.0.ffn_down": (16, 24)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
