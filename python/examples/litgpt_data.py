"""LitGPT over tokenmill: a data module whose batches hold `block_size + 1` ids, as `litgpt pretrain` wants them.

    litgpt pretrain pythia-14m --data examples.litgpt_data.TokenMill --data.config pretrain.toml
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from tokenmill.trainers import WithNext
from torchdata.stateful_dataloader import StatefulDataLoader

try:
    from litgpt.data import DataModule
except ImportError:  # To read this file without LitGPT.
    DataModule = object


@dataclass
class TokenMill(DataModule):
    """Blocks of a config's sources, tokenized while the model trains."""

    config: str
    val_config: str | None = None
    num_workers: int = 0
    batch_size: int = field(init=False, repr=False, default=1)
    block_size: int = field(init=False, repr=False, default=2048)

    def connect(self, tokenizer: Any = None, batch_size: int = 1, max_seq_length: int | None = None) -> None:
        """LitGPT says how large batches are; the tokenizer is the config's."""
        self.batch_size = batch_size
        self.block_size = max_seq_length or self.block_size

    def train_dataloader(self) -> StatefulDataLoader:
        """Batches of ids, `[batch_size, block_size + 1]`."""
        return self._batches(self.config)

    def val_dataloader(self) -> StatefulDataLoader:
        """As many of `val_config`, of which LitGPT takes `eval.max_iters`. Without one it is given the first of the training blocks: it wants some."""
        if self.val_config is None:
            logging.getLogger("tokenmill").warning("no val_config: the loss of validation is that of the first training blocks")
        return self._batches(self.val_config or self.config)

    def _batches(self, config: str) -> StatefulDataLoader:
        blocks = WithNext(config, block_size=self.block_size)
        return StatefulDataLoader(blocks, batch_size=self.batch_size, num_workers=self.num_workers, drop_last=True)
