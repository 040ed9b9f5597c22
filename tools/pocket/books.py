"""Read the books for pocket, and train the tokenizer on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tools.pocket.params import BOS, PAD, Params


def read_book(path: Path) -> tuple[str, str]:
    """Return title and text, without the Project Gutenberg notice and with prose lines joined to paragraphs."""
    text = path.read_bytes().decode("latin-1").replace("\r\n", "\n")
    heading = re.match(r"\[([^\]]+)\]", text)
    title, text = (heading[1], text[heading.end() :]) if heading else (path.stem, text)
    text = re.split(r"\n(?:End of|\*\*\* ?END OF)[^\n]*Project Gutenberg", text, flags=re.IGNORECASE)[0]
    text = re.sub(r"[ \t]+\n", "\n", text)
    text = re.sub(r"(?<=[^\n]{55})\n(?=[^\s])", " ", text)  # join full lines; lines of verse are shorter
    return title, re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def split(text: str, held_out: float) -> tuple[str, str]:
    """Split off the last share `held_out` of a book, from the start of a paragraph. It is never trained on."""
    earliest = int(len(text) * (1 - held_out))
    cut = max(earliest, text.find("\n\n", earliest)) + 2
    return text[:cut], text[cut:]


def learn_tokenizer(texts: Sequence[str], params: Params) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE, which encodes any text without loss; every text starts with BOS."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=params.vocab,
        show_progress=False,
        special_tokens=[BOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(texts, trainer)
    forms = {"single": f"{BOS} $A", "pair": f"{BOS} $A $B:1"}
    bpe.post_processor = processors.TemplateProcessing(**forms, special_tokens=[(BOS, 0)])
    limits = {"model_max_length": params.context, "clean_up_tokenization_spaces": False}
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=BOS, pad_token=PAD, **limits)


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> torch.Tensor:
    ids = [np.array(tokenizer(text, add_special_tokens=False, verbose=False).input_ids) for text in texts]
    return torch.from_numpy(np.concatenate(ids)).long()
