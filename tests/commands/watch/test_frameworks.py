"""A watch as a callback of Trainer and Lightning: training stays bit-equal, and the record is complete."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainingArguments

import attnscope
from attnscope.commands.timeline.read import read_run
from attnscope.core.errors import RefusalError
from tests.commands.watch.training import batch, gpt2, numbers_of


class Rows(Dataset[dict[str, Any]]):
    def __init__(self) -> None:
        self.rows = batch(0, 24)

    def __len__(self) -> int:
        return len(self.rows["input_ids"])

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {name: one[place] for name, one in self.rows.items()}


def trained(folder: Path, callbacks: list[Any], resume: str | None = None, steps: int = 8, **more: Any) -> Any:
    """Train two epochs with gradient accumulation over two batches, bfloat16, checkpointed blocks and evaluations."""
    model = gpt2()
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=steps,
        learning_rate=1e-2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=3,
        logging_steps=1,
        bf16=True,
        gradient_checkpointing=True,
        eval_strategy="steps",
        eval_steps=2,
        **more,
    )
    rows = Rows()
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows, callbacks=callbacks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train(resume_from_checkpoint=resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return model, trainer, losses


def assert_same(one: nn.Module, other: nn.Module) -> None:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def moments(trainer: Any) -> list[torch.Tensor]:
    optimizer = trainer.optimizer if isinstance(trainer, Trainer) else trainer.optimizers[0]
    return [v for state in optimizer.state_dict()["state"].values() for v in state.values()]


def test_a_trainer_trains_the_same_and_resumes_its_record(tmp_path: Path) -> None:
    alone, plain, losses = trained(tmp_path / "a", [], save_strategy="no")
    random = torch.get_rng_state()
    callback = attnscope.watch.for_trainer(tmp_path / "run", every=2)
    watched, trainer, same = trained(tmp_path / "b", [callback], save_steps=3)
    assert torch.equal(torch.get_rng_state(), random)
    assert_same(watched, alone)
    assert all(torch.equal(a, b) for a, b in zip(moments(trainer), moments(plain), strict=True))
    assert same == losses
    assert trainer.state.epoch > 1
    run = read_run(tmp_path / "run")
    assert [look.step for look in run.looks] == [0, 1, 2, 4, 6, 8]
    for look in run.looks[1:]:
        assert look.loss == pytest.approx(losses[look.step - 1], abs=2e-4)  # the Trainer rounds to four places
        assert (numbers_of(look, "gradient_norm", "key") > 0).all()
        assert (numbers_of(look, "update_ratio", "key") > 0).all()
    again = attnscope.watch.for_trainer(tmp_path / "run", every=2)
    trained(tmp_path / "b", [again], resume=str(tmp_path / "b" / "checkpoint-3"), steps=10, save_strategy="no")
    run = read_run(tmp_path / "run")
    assert [look.step for look in run.looks] == [0, 1, 2, 4, 6, 8, 10]
    assert run.header.resumed == (3,)
    tokens = [look.tokens for look in run.looks]
    assert tokens == sorted(set(tokens))


def test_a_critical_alarm_stops_a_trainer(tmp_path: Path) -> None:
    callback: Any = attnscope.watch.for_trainer(
        tmp_path / "run", every=1, stop_on="warning", thresholds={"spike_growth.floor": 0, "spike_growth.growth": 0}
    )
    _, trainer, _ = trained(tmp_path / "a", [callback], save_strategy="no")
    assert trainer.state.global_step == 1  # compared with the initial model
    assert callback.listener.watch.stopped.rule == "spike_growth"


def lit(model: Any) -> Any:
    from lightning.pytorch import LightningModule

    class Lit(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model: Any = model
            self.losses: list[float] = []
            self.norms: list[list[float]] = []

        def training_step(self, part: dict[str, Any], number: int) -> Any:
            loss = self.model(**part).loss
            self.losses.append(loss.item())
            return loss

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            blocks: Any = self.model.transformer
            self.norms.append([float(block.attn.c_proj.weight.grad.norm()) for block in blocks.h])

        def validation_step(self, part: dict[str, Any], number: int) -> None:
            self.model(**part)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    return Lit()


def fitted(
    callbacks: list[Any], folder: Path, module: Any | None = None, steps: int = 8, resume: Path | None = None
) -> Any:
    """Train two epochs with gradient accumulation over two batches and an evaluation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lightning.pytorch import Trainer as LightningTrainer

        module = module or lit(gpt2())
        torch.manual_seed(5)
        trainer = LightningTrainer(
            max_steps=steps,
            val_check_interval=4,
            accumulate_grad_batches=2,
            gradient_clip_val=1e-3,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=callbacks,
            default_root_dir=folder,
        )
        loader = DataLoader(Rows(), batch_size=2)
        trainer.fit(module, loader, loader, ckpt_path=resume)
    return module, trainer


def test_lightning_trains_the_same(tmp_path: Path) -> None:
    alone, plain = fitted([], tmp_path)
    random = torch.get_rng_state()
    watched, trainer = fitted([attnscope.watch.for_lightning(tmp_path / "run", every=2)], tmp_path)
    assert torch.equal(torch.get_rng_state(), random)
    assert_same(watched.model, alone.model)
    assert watched.losses == alone.losses
    assert all(torch.equal(a, b) for a, b in zip(moments(trainer), moments(plain), strict=True))
    assert (trainer.global_step, trainer.current_epoch) == (8, 2)
    run = read_run(tmp_path / "run")
    assert [look.step for look in run.looks] == [0, 1, 2, 4, 6, 8]
    for look in run.looks[1:]:
        both = alone.losses[2 * look.step - 2 : 2 * look.step]
        assert look.loss == pytest.approx(sum(both) / 2, rel=1e-5)
        # before they are clipped, and not once more afterwards
        assert numbers_of(look, "gradient_norm", "output") == pytest.approx(alone.norms[look.step - 1], rel=1e-5)
        assert (numbers_of(look, "update_ratio", "output") > 0).all()
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    again = attnscope.watch.for_lightning(tmp_path / "run", every=2)
    fitted([again], tmp_path, steps=10, resume=tmp_path / "last.ckpt")
    run = read_run(tmp_path / "run")
    assert [look.step for look in run.looks] == [0, 1, 2, 4, 6, 8, 9, 10]
    assert run.header.resumed == (8,)


def test_a_lightning_module_of_several_parts_is_asked_which(tmp_path: Path) -> None:
    module = lit(gpt2())
    module.other = nn.Linear(2, 2)
    with pytest.raises(RefusalError, match="holds model, other"):
        fitted([attnscope.watch.for_lightning(tmp_path / "run")], tmp_path, module)
