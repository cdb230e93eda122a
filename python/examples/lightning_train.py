"""Lightning over tokenmill: `python examples/lightning_train.py CONFIG FOLDER STEPS`, and again with more steps to go on.

The data module's state is in Lightning's checkpoint, at the batch that was trained last.
"""

from __future__ import annotations

import sys
from pathlib import Path

import lightning
import torch
from tokenmill.lightning import TokenDataModule
from torch.nn import functional


class Bigrams(lightning.LightningModule):
    """The smallest language model there is: each token predicts the next."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(vocab_size, vocab_size)
        self.losses: list[float] = []
        self.seen: list[int] = []

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        """The loss of a batch."""
        loss = functional.cross_entropy(self.table(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
        self.losses.append(loss.item())
        self.seen.append(int(batch["input_ids"].sum()))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(config: str, folder: str, steps: int, vocab_size: int = 50257) -> Bigrams:
    """Trains up to `steps`, from `folder/last.ckpt` if it is there."""
    lightning.seed_everything(0)
    data = TokenDataModule(config, shift_labels=True)
    model = Bigrams(vocab_size)
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    last = Path(folder) / "last.ckpt"
    trainer.fit(model, datamodule=data, ckpt_path=last if last.exists() else None, weights_only=False)
    trainer.save_checkpoint(last)
    return model


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], int(sys.argv[3])).losses)
