"""`attnscope.compare`: compare models or surveys. Models are scanned first; surveys need no torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from attnscope.commands.compare.record import Comparison
from attnscope.commands.compare.record import compare as compare_surveys
from attnscope.commands.compare.weights import WeightsChange
from attnscope.commands.records import opened
from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.errors import RefusalError, refuse_missing_torch
from attnscope.core.files import named_path
from attnscope.core.names import files_named
from attnscope.core.progress import AdvanceReading, silent
from attnscope.hf.loading.options import Loading, Sampling, SeededCorpusOptions, with_options

if TYPE_CHECKING:
    from torch import nn

    from attnscope.data.windows import Tokenizer
    from attnscope.hf.loading.load import Loaded, Ready, Text

_WEIGHTS = (".safetensors", ".gguf", ".bin")


@with_options(SeededCorpusOptions)
def compare(
    *sources: Survey | str | Path | nn.Module | Loaded,
    corpus: Text | Ready | None = None,
    tokenizer: Tokenizer | None = None,
    measures: str | Iterable[str] = "default",
    thresholds: Thresholds | None = None,
    loading: Loading = Loading(),
    sampling: Sampling = Sampling(samples=64),
    keep_text: bool = True,
    progress: AdvanceReading | None = None,
    **kwargs: Unpack[SeededCorpusOptions],
) -> Comparison:
    """Compare models or surveys with the first one: which has the larger loss, and where they part.

    Models are scanned with the same settings, and their tensors are compared. If surveys and models are mixed, models
    are scanned with the settings of the first survey.

    Parameters
    ----------
    *sources : Survey, str, Path, torch.nn.Module or Loaded
        Two or more surveys, paths of surveys, names or folders of models, or models in memory.
    corpus : str, Path, iterable of texts, or ready batches, optional
        What the models read. Default: the corpus of a survey among the sources, or the embedded corpus.
    tokenizer : Tokenizer, optional
        The tokenizer of models in memory.
    measures : str or iterable of str
        Names of measures (`attnscope.catalog()`) and of sets such as "default" and "deep".
    thresholds : Thresholds, optional
        Changed thresholds of findings.
    loading : Loading
        How models are loaded.
    sampling : Sampling
        Which sequences are read.
    dtype, device, random_init, allow_pickle, trust_remote_code : see `Loading`
        Fields of `loading` as keywords.
    samples, max_tokens, batch_size, seed, field, bos : see `Sampling`
        Fields of `sampling` as keywords. By default 64 sequences are read.
    keep_text : bool
        Store the texts of the few sequences that findings point at.
    progress : callable, optional
        Called as `progress(stage, done, total, tokens)`.

    Returns
    -------
    Comparison
        Losses, where the models part, tensors that differ, paired findings, and every number that changed.

    Raises
    ------
    RefusalError
        If fewer than two sources are given, a model cannot be scanned, the corpus of a survey cannot be read again, or
        two surveys have no number at the same place.

    Examples
    --------
    >>> first, second = (attnscope.scan("pocket", samples=4, seed=seed) for seed in (0, 1))
    >>> comparison = attnscope.compare(first, second)
    >>> comparison = attnscope.compare("pocket", model, samples=4)
    """
    if len(sources) < 2:
        raise RefusalError("A comparison needs two surveys or models: give another one.")
    named = [is_survey(source) for source in sources]
    surveys = [opened(source, Survey) if known else None for source, known in zip(sources, named, strict=True)]
    if all(named):
        return compare_surveys(*(survey for survey in surveys if survey is not None), thresholds=thresholds)
    with refuse_missing_torch():
        from attnscope.commands.compare.models import ScanSettings, scanned, settings_of, weights_change

    settings = ScanSettings(corpus, tokenizer, measures, loading, sampling, keep_text)
    example = next((survey for survey in surveys if survey is not None), None)
    if example is not None:
        settings = settings_of(example, settings)
    first: Loaded | None = None
    made: list[Survey] = []
    weights: list[WeightsChange] = []
    for number, source in enumerate(sources):
        survey = surveys[number]
        if survey is None:
            given: Any = source
            survey, loaded = scanned(given, settings, _told(progress or silent, number, len(sources)))
            if number == 0:
                first = loaded
            elif first is not None:
                weights.append(weights_change(first.model, loaded.model, number))
            _refuse_another_text(example, survey, corpus)
        made.append(survey)
    return compare_surveys(*made, thresholds=thresholds, weights=weights)


def is_survey(source: object) -> bool:
    """Return whether a source is a survey or the path of one, rather than a model.

    A folder is a model if it has weights or a configuration, and no survey. A name of which there is no file is a
    model, unless it ends like a record.
    """
    if isinstance(source, Survey):
        return True
    if not isinstance(source, str | Path):
        return False
    if isinstance(source, str) and not source.strip():
        raise RefusalError("The name of a survey or model is empty: give a file name, a folder, or 'pocket'.")
    path = named_path(source, "survey or model")
    if path.is_dir():
        model = any(file.name == "config.json" or file.suffix in _WEIGHTS for file in path.iterdir())
        return not model or any(files_named(path, name) for name in (Survey.FILE, f"{Survey.FILE}.gz"))
    if path.is_file():
        return path.suffix in (".json", ".gz") and not _is_config(path)
    return path.suffix in (".json", ".gz") or isinstance(source, Path)


def _is_config(path: Path) -> bool:
    """Return whether a file is the configuration of a model."""
    with path.open("rb") as opened_file:
        head = opened_file.read(1 << 16)
    return b'"model_type"' in head and b'"attnscope-' not in head[:200]


def _refuse_another_text(example: Survey | None, survey: Survey, corpus: object) -> None:
    """Refuse if the corpus that a survey names has changed since."""
    if example is None or corpus is not None:
        return
    was, now = ((each.provenance.get("corpus") or {}) for each in (example, survey))
    if was.get("hash") != now.get("hash"):
        raise RefusalError(
            f"The corpus '{was.get('name')!s:.80}' of the survey has changed since: scan that model again, or name"
            " the text with `corpus=`."
        )


def _told(tell: AdvanceReading, number: int, total: int) -> AdvanceReading:
    def told(stage: str, done: int, of: int, tokens: int = 0) -> None:
        tell(f"model {number + 1} of {total}: {stage}", done, of, tokens)

    return told
