"""What `Snip(accelerate=True)` gains inside Lightning's and transformers' trainers.

    python bench/trainers.py                 # about three minutes
    python bench/trainers.py --steps 300

Whole trainings of so many steps with the callback, from the first batch to the last, pruning and
accelerating included, against the same with `accelerate=False`, which trains dense under the masks.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import warnings
from collections.abc import Callable
from functools import partial

import torch
from libraries import transformers
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from snip.common.timing import best_times
from snip.models import build

SPARSITY = 0.98
Fit = Callable[[bool, int], None]


def with_lightning(fast: bool, steps: int) -> None:
    """LeNet-300-100 on drawn pictures, batch 100, SGD."""
    import lightning.pytorch as pl

    from snip.integrations.lightning import Snip

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = build("lenet-300-100", seed=0)

        def training_step(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    data = TensorDataset(torch.randn(1000, 1, 28, 28), torch.randint(0, 10, (1000,)))
    trainer = pl.Trainer(
        max_steps=steps, max_epochs=-1, accelerator="cpu", logger=False, barebones=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[Snip(sparsity=SPARSITY, accelerate=fast)],
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(data, batch_size=100))


def with_transformers(fast: bool, steps: int) -> None:
    """GPT-2 with four blocks of width 256 on drawn words, 8 x 64 of them, AdamW."""
    from snip.integrations.transformers import Snip

    torch.manual_seed(0)
    sizes = {"vocab_size": 1000, "n_positions": 64, "n_embd": 256, "n_layer": 4, "n_head": 4}
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, use_cache=False)
    )
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 1000, (64, 64))]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, max_steps=steps, per_device_train_batch_size=8, report_to=[],
            use_cpu=True, disable_tqdm=True, logging_strategy="no", save_strategy="no",
        )  # fmt: skip
        callbacks = [Snip(sparsity=SPARSITY, accelerate=fast)]
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=callbacks)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


CASES: dict[str, tuple[Fit, int]] = {
    "Lightning, LeNet-300-100, SGD": (with_lightning, 10),
    "transformers' Trainer, small GPT-2, AdamW": (with_transformers, 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="Trainer's; Lightning has ten times")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    transformers.utils.logging.set_verbosity_error()
    for name, (fit, times) in CASES.items():
        steps = options.steps * times
        ways = {"dense": partial(fit, False, steps), "accelerated": partial(fit, True, steps)}
        best = best_times(ways, rounds=options.rounds)
        ratio = best["dense"] / best["accelerated"]
        print(
            f"{name}, {SPARSITY:.0%} pruned, {steps:,} steps: {best['dense']:.2f} s dense, "
            f"{best['accelerated']:.2f} s accelerated, {ratio:.2f}x",
            flush=True,
        )


if __name__ == "__main__":
    main()
