"""For Lightning: a data module whose state is exact.

Lightning takes a batch ahead of the one it trains on, where it doesn't know how many there are, and so saves a state of a data loader that
is one batch too far: a resume would leave that batch out. This module keeps the states of the last few batches, and saves the one that
belongs to the batches trained.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from lightning import LightningDataModule

from ._loader import Batch
from ._state import State
from .torch import TokenDataset

__all__ = ["TokenDataModule"]

# States kept: Lightning takes one batch ahead, accumulation none.
_AHEAD_MAX = 8


class TokenDataModule(LightningDataModule):
    """The batches of a config, for ``Trainer.fit(model, datamodule=TokenDataModule("pretrain.toml"))``.

    Args:
        config: As for :class:`tokenmill.Loader`, and so is all else. Rank and world size are the trainer's.
    """

    def __init__(self, config: Any, **options: Any) -> None:
        super().__init__()
        self._config, self._options = config, options
        self.dataset: TokenDataset | None = None
        self._recent: deque[State] = deque(maxlen=_AHEAD_MAX)
        # Batches given, and those that the trainer had processed before.
        self._given = 0
        self._base = 0

    def _processed(self) -> int:
        trainer: Any = self.trainer
        return int(trainer.fit_loop.epoch_loop.batch_progress.total.processed)

    def setup(self, stage: str) -> None:
        """Lists the shards and loads the tokenizer."""
        trainer: Any = self.trainer
        if self.dataset is None:
            self.dataset = TokenDataset(
                self._config, rank=trainer.global_rank, world_size=trainer.world_size, **self._options
            )

    def train_dataloader(self) -> Any:
        """The batches, as they are."""
        return _Recorded(self)

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that was trained on."""
        if self.dataset is None:
            return {}
        ahead = self._given - (self._processed() - self._base)
        if ahead <= 0 or not self._recent:
            return dict(self.dataset.state_dict())
        return dict(self._recent[-ahead])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a state."""
        assert self.dataset is not None, "Lightning sets a data module up before it restores it"
        if state_dict:
            self.dataset.load_state_dict(state_dict)
            self._recent.clear()


class _Recorded:
    """The dataset's batches, the state before each being kept for a while."""

    def __init__(self, data: TokenDataModule) -> None:
        self._data = data

    def __iter__(self) -> Iterator[Batch]:
        data = self._data
        assert data.dataset is not None, "Lightning sets a data module up before it asks for batches"
        data._given, data._base = 0, data._processed()
        while True:
            before = data.dataset.state_dict()
            batch = next(data.dataset, None)
            if batch is None:
                return
            data._recent.append(before)
            data._given += 1
            yield batch
