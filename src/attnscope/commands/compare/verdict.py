"""The verdict of a comparison: losses first, then where the models part, then which weights differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnscope.commands.compare.changes import labels, names
from attnscope.commands.compare.finding_rows import inside_sentence, row
from attnscope.commands.compare.losses import LossChange, exposures
from attnscope.commands.compare.paired_findings import IMPROVEMENTS, REGRESSIONS, FindingChange
from attnscope.commands.compare.parting import Parting
from attnscope.commands.compare.record import Comparison
from attnscope.commands.compare.weights import TensorChange, WeightsChange
from attnscope.core.words import blocks, count, number, percent
from attnscope.reports.document import Section, Table
from attnscope.reports.words import Level, Verdict

MOST_TENSORS, BRIEF_TENSORS = 40, 5
FUTURE = "sees_the_future"  # the finding that voids a loss


def verdict(comparison: Comparison) -> Verdict:
    """Say whether the loss rose or a finding that is wrong appeared, where the models part, and which weights differ.

    Of several surveys, the verdict is about the worst one.
    """
    index = _worst(comparison)
    where = f" in {names(comparison)[index]}" if len(comparison.surveys) > 2 else ""
    level, lead = _lead(comparison, index, where)
    told = () if where and level != "critical" else where_sentences(comparison, index)  # one of several is not enough
    return Verdict(level, " ".join((*lead, *told)))


def _worst(comparison: Comparison) -> int:
    """Return the survey with the largest rise of the loss, or else with a new finding that is wrong, or the second."""
    rises = {loss.survey: loss.difference for loss in comparison.losses if loss.worse}
    if rises:
        return max(rises, key=lambda index: rises[index])
    exposed = [loss.survey for loss in comparison.losses if loss.future]
    return next(iter([*exposed, *(pair.survey for pair in wrong(comparison))]), 1)


def wrong(comparison: Comparison, index: int | None = None) -> list[FindingChange]:
    """Return the findings that became wrong, in one survey or in all."""
    return [pair for pair in comparison.findings if pair.status in REGRESSIONS and index in (None, pair.survey)]


def _lead(comparison: Comparison, index: int, where: str) -> tuple[Level, tuple[str, ...]]:
    """Return the level, and the sentences on the loss and on findings that are wrong."""
    loss = next((each for each in comparison.losses if each.survey == index), None)
    broken = wrong(comparison, index)
    told = () if loss is None else (f"{_capital(loss.sentence)}.",)
    seen = (loss is not None and loss.future) or any(pair.kind == FUTURE for pair in broken)
    found = _found(comparison, [pair for pair in broken if pair.kind != FUTURE or not seen], where)
    if loss is not None and loss.worse:
        later = (f"{_capital(_sees_later(comparison, index))}.",) if seen and not _placed(comparison, index) else ()
        return "critical", (f"Worse{where}: {loss.sentence}.", *later, *found)
    if seen:
        return "critical", (f"Worse{where}: {_sees_later(comparison, index)}.", *told, *found)
    if found:
        return "critical", (*found, *told)
    changed = [pair for pair in comparison.findings if pair.status != "same"]
    if loss is not None and loss.better:
        return "calm", (f"Better{where}: {loss.sentence}.",)
    parted = next((each for each in comparison.partings if each.survey == index), None)
    calm = not changed or (loss is None and not comparison.losses)
    level: Level = "calm" if calm and (parted is None or parted.kind == "same") else "note"
    return level, told or (
        f"Nothing that is wrong is new (the loss is unknown): {_rest(changed) or 'the findings are the same'}.",
    )


def _found(comparison: Comparison, broken: Sequence[FindingChange], where: str) -> tuple[str, ...]:
    """Return `New: NaN or infinity 0 → 1 head (wrong), and 2 more.`"""
    if not broken:
        return ()
    line = row(comparison, broken[0])
    more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
    lead = "Worse" if broken[0].status == "worse" else "New"
    return (f"{lead}{where}: {inside_sentence(line.title)}{line.tail}{more}.",)


def _rest(pairs: Sequence[FindingChange]) -> str:
    """Return `1 finding that was wrong is gone, 2 findings changed`."""
    gone = sum(pair.status in IMPROVEMENTS for pair in pairs)
    changed = sum(pair.status == "changed" for pair in pairs)
    words = []
    if gone:
        words.append(
            f"{count(gone, 'finding')} that {'was' if gone == 1 else 'were'} wrong {'is' if gone == 1 else 'are'} gone"
        )
    if changed:
        words.append(f"{count(changed, 'finding')} changed")
    return ", ".join(words)


def _sees_later(comparison: Comparison, index: int) -> str:
    seen = exposures(comparison.surveys[index])[0]
    start = "" if seen.layer is None else f", from {blocks([seen.layer])} on"
    return f"the {seen.stack} sees later tokens{start}"


def _placed(comparison: Comparison, index: int) -> bool:
    """Return whether the models part where the second one begins to see later tokens: that sentence says so."""
    seen = exposures(comparison.surveys[index])[0]
    place = (seen.stack, seen.layer, "attention")
    return any((each.stack, each.layer, each.half) == place for each in comparison.partings if each.survey == index)


def where_sentences(comparison: Comparison, index: int) -> tuple[str, ...]:
    """Return where a model parts from the first, and which weights differ; nothing that is unknown."""
    parted = next((each for each in comparison.partings if each.survey == index), None)
    weights = next((each for each in comparison.weights if each.survey == index), None)
    if parted is None or weights is None:
        return (*([] if parted is None else [parted.sentence]), *([] if weights is None else [_weights(weights)]))
    tensor = agreeing(parted, weights)
    if tensor is None:
        if weights.equal and not weights.rounded and parted.kind != "same":
            return (
                parted.sentence,
                f"All {weights.compared:,} tensors are equal: the configuration or the code differs.",
            )
        return parted.sentence, _weights(weights)
    others = len(weights.tensors) - 1
    beyond = " by more than rounding to 16 bits" if weights.rounded else ""
    rest = f"It is the only one of {weights.compared:,} tensors that differs{beyond}."
    if others:
        rest = f"{others:,} more of {weights.compared:,} tensors differ{'s' if others == 1 else ''}{beyond}."
    return f"{parted.sentence.rstrip('.')}; {tensor.name} differs there ({tensor.words}).", rest


def agreeing(parted: Parting, weights: WeightsChange) -> TensorChange | None:
    """Return the tensor with the largest difference that belongs to where the models part."""
    if parted.hint or parted.kind == "same":
        return None
    if parted.half == "output":
        return next((tensor for tensor in weights.tensors if tensor.part == "outside"), None)
    inside = [each for each in weights.tensors if (each.stack, each.layer) == (parted.stack, parted.layer)]
    halves = (parted.half, "norm") if parted.half is not None else ("attention", "mlp", "norm")
    return next((tensor for tensor in inside if tensor.part in halves), None)


def _weights(weights: WeightsChange) -> str:
    if weights.equal:
        return _rounded(weights) if weights.rounded else f"All {weights.compared:,} tensors are equal."
    top, number_of = weights.tensors[0], len(weights.tensors)
    if number_of == 1:
        return f"One of {weights.compared:,} tensors differs: {top.name} ({top.words})."
    return f"{number_of:,} of {weights.compared:,} tensors differ, most {top.name} ({top.words})."


def _rounded(weights: WeightsChange) -> str:
    which = "All" if weights.rounded == weights.compared else f"{weights.rounded:,} of"
    return f"{which} {weights.compared:,} tensors differ by rounding to 16 bits only."


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def loss_section(comparison: Comparison) -> tuple[Section, ...]:
    """Return the losses of all surveys as a table; nothing if they are unknown."""
    if not comparison.losses:
        return ()
    changes = {loss.survey: loss for loss in comparison.losses}
    units = {loss.unit for loss in comparison.losses}
    lines = []
    for index, (label, survey) in enumerate(zip(labels(comparison), comparison.surveys, strict=True)):
        trial = survey.trial
        if trial is None or not trial.loss:
            continue
        lines.append(
            (
                label,
                *(_loss(n) for n in (trial.mean_loss, trial.bits_per_byte, trial.unigram)),
                _apart(changes.get(index), with_unit=len(units) > 1),
            )
        )
    unit = f", {_short(next(iter(units)))}" if len(units) == 1 else ""
    heading = ("", "nats/token", "bits/byte", "unigram", f"difference{unit}")
    paired = all(loss.paired for loss in comparison.losses)
    how = (
        "Both predict the same tokens, so differences are taken window by window"
        if paired
        else "Tokens differ, so nats per token cannot be compared"
    )
    note = (
        f"The unigram model knows only the frequencies of tokens. {how}. "
        "The range holds the true difference in 95 of 100 such samples of windows."
    )
    return (Section("Losses", tables=(Table(heading, tuple(lines), note=note),)),)


def _loss(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _short(unit: str) -> str:
    return unit.split(maxsplit=1)[0]


def _apart(loss: LossChange | None, with_unit: bool) -> str:
    if loss is None or math.isnan(loss.difference):
        return "–"
    if loss.difference == loss.low == loss.high == 0:
        return "none"
    span = f" ({loss.low:+.3f} to {loss.high:+.3f})" if math.isfinite(loss.high - loss.low) else " (too few windows)"
    return f"{loss.difference:+.3f}{span}{f' {_short(loss.unit)}' if with_unit else ''}"


def weights_section(comparison: Comparison) -> tuple[Section, ...]:
    """Return the tensors that differ, largest difference first, for each model that was at hand."""
    if not comparison.weights:
        return ()
    tables, sentences = [], []
    for weights in comparison.weights:
        name = names(comparison)[weights.survey]
        which = f"{name}: " if len(comparison.surveys) > 2 else ""
        if weights.equal or which:
            sentences.append(f"{which}{_weights(weights)}")
        if weights.equal:
            continue
        lines = [_tensor(tensor) for tensor in weights.tensors[:MOST_TENSORS]]
        left = len(weights.tensors) - len(lines)
        tables.append(
            Table(
                ("tensor", "block", "difference", "entries", "what"),
                tuple(lines),
                caption=name if which else "",
                note=f"{left:,} more differ." if left else "",
                align="lrrrl",
                brief=BRIEF_TENSORS,
            )
        )
    background = (
        "The difference of a tensor is the Frobenius norm of the difference, divided by the norm of the first tensor; "
        "entries is the share of its entries that differ.",
    )
    return (Section("Weights that differ", background, tuple(sentences), tables=tuple(tables), link="Weights"),)


def _tensor(tensor: TensorChange) -> tuple[str, ...]:
    block = "–" if tensor.layer is None else f"{tensor.layer}"
    if tensor.happened != "differs":
        return tensor.name, block, "–", "–", tensor.words
    relative = "–" if math.isnan(tensor.relative) else number(tensor.relative)
    share = "<1%" if 0 < tensor.share < 0.005 else percent(tensor.share)
    return tensor.name, block, relative, share, tensor.words
