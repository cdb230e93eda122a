"""What trainers plug in: LitGPT, Hugging Face's ``Trainer``, torchtitan before 0.3. :mod:`tokenmill.lightning` and :mod:`tokenmill.torchtitan` are for those.

Each is a few lines; examples for all of them are in ``examples/``.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset

from . import _state
from ._loader import Batch, config_of
from .torch import TokenDataset

__all__ = ["LabelledBatches", "TrainerMixin", "WithNext"]


class LabelledBatches:
    """torchtitan's contract: an iterable of ``({"input": …}, labels)`` that has a state. Labels are the next tokens.

    Use it as the ``DataLoader`` of a train spec: ``build_dataloader_fn=lambda dp_world_size, dp_rank, **_: LabelledBatches(config,
    rank=dp_rank, world_size=dp_world_size)``. The state has a key a lane, so it may be loaded at another ``dp_world_size``.
    """

    def __init__(self, config: Any, **options: Any) -> None:
        self.dataset = TokenDataset(config, shift_labels=True, **options)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for batch in self.dataset:
            yield {"input": batch["input_ids"], "positions": batch["position_ids"]}, batch["labels"]

    def state_dict(self) -> _state.State:
        """As :meth:`TokenDataset.state_dict`."""
        return self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As :meth:`TokenDataset.load_state_dict`; an empty state, as torchtitan gives for none, is a fresh start."""
        if state:
            self.dataset.load_state_dict(state)


class WithNext(IterableDataset[torch.Tensor]):
    """LitGPT's contract: tensors of ``block_size + 1`` ids, of which a model is given all but the last and learns all but the first.

    The config's ``block_size`` is taken as the model's; blocks have one token more, so consecutive ones don't overlap.
    """

    def __init__(self, config: Any, *, block_size: int | None = None, **options: Any) -> None:
        super().__init__()
        size = block_size or int(config_of(config, options)["block_size"])
        self.dataset = TokenDataset(config, batched=False, block_size=size + 1, **options)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for block in self.dataset:
            yield block["input_ids"]

    def state_dict(self) -> _state.State:
        """As :meth:`TokenDataset.state_dict`."""
        return self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As :meth:`TokenDataset.load_state_dict`."""
        self.dataset.load_state_dict(state)


class TrainerMixin:
    """For Hugging Face's ``Trainer``: ``class MyTrainer(TrainerMixin, Trainer)``, with ``train_dataset=TokenDataset(config)``.

    The dataset gives each rank its own batches already, so the trainer's own splitting and batching is left out. The state is saved
    with each checkpoint (``tokenmill-….json`` in its folder, one for each rank) and taken up by ``train(resume_from_checkpoint=…)``
    instead of reading and throwing away what was seen.
    """

    _tokenmill_delivered: _state.State | None = None

    def get_train_dataloader(self) -> Any:
        """The dataset's batches as they are."""
        dataset: TokenDataset = self.train_dataset  # type: ignore[attr-defined]
        args = self.args  # type: ignore[attr-defined]
        # Nothing has to be skipped: the dataset's own state says where it stands.
        args.ignore_data_skip = True
        return _Counted(self, dataset)

    def _save_checkpoint(self, *args: Any, **options: Any) -> Any:
        result = super()._save_checkpoint(*args, **options)  # type: ignore[misc]
        folder = os.path.join(self._get_output_dir(trial=None), f"checkpoint-{self.state.global_step}")  # type: ignore[attr-defined]
        dataset: TokenDataset = self.train_dataset  # type: ignore[attr-defined]
        path = os.path.join(folder, f"tokenmill-{dataset.loader.rank:05}.json")
        os.makedirs(folder, exist_ok=True)
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(dataset.state_dict(), file)
        os.replace(path + ".tmp", path)
        return result

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **options: Any) -> Any:
        """As ``Trainer.train``."""
        if resume_from_checkpoint:
            folder = resume_from_checkpoint
            if folder is True:
                from transformers import trainer_utils

                folder = trainer_utils.get_last_checkpoint(self.args.output_dir)  # type: ignore[attr-defined, no-untyped-call]
            states = []
            for path in sorted(glob.glob(os.path.join(glob.escape(folder), "tokenmill-*.json"))):
                with open(path, encoding="utf-8") as file:
                    states.append(json.load(file))
            dataset: TokenDataset = self.train_dataset  # type: ignore[attr-defined]
            dataset.load_state_dict(_state.merge_states(states))
        return super().train(resume_from_checkpoint, *args, **options)  # type: ignore[misc]


class _Counted:
    """Batches for a ``Trainer``, on its device, with what it looks for in a data loader."""

    def __init__(self, trainer: Any, dataset: TokenDataset) -> None:
        self._trainer, self.dataset = trainer, dataset
        self.batch_size = dataset.loader.batch_size
        self.sampler = self.batch_sampler = None

    def __iter__(self) -> Iterator[Batch]:
        device = self._trainer.args.device
        for batch in self.dataset:
            yield {key: batch[key].to(device, non_blocking=True) for key in ("input_ids", "labels", "position_ids")}

    def set_epoch(self, epoch: int) -> None:
        """Trainers call it."""
