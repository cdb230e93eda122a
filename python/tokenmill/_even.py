"""Ranks of a finite run that end at the same step, by asking each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed

from ._loader import Batch


class Even:
    """Batches of a rank that ends when the others do; see :func:`even`.

    ``dropped_batches`` and ``padded_batches`` count what was left out and added on this rank.
    """

    def __init__(self, loader: Any, group: Any, mode: str) -> None:
        if mode not in ("drop", "pad"):
            raise ValueError(f'mode is {mode!r}, expected "drop" or "pad"')
        self._loader, self._group, self._mode = loader, group, mode
        self._state: Any = None
        self._template: Batch | None = None
        self._own_ended = False
        self.dropped_batches = 0
        self.padded_batches = 0

    def __iter__(self) -> Iterator[Batch]:
        batches = iter(self._loader)
        while True:
            # What is taken may have to be dropped: the state is then the one before.
            self._state = self._loader.state_dict()
            batch: Batch | None = None
            if not self._own_ended:
                batch = next(batches, None)
                self._own_ended = batch is None
            all_have, any_has = self._ask(batch is not None)
            if self._mode == "drop" and not all_have:
                self.dropped_batches += batch is not None
                return
            if not any_has:
                return
            if batch is None:
                batch = self._masked()
                self.padded_batches += 1
            else:
                self._template = batch
            self._state = None
            yield batch

    def _ask(self, have: bool) -> tuple[bool, bool]:
        """Whether all ranks have a batch, and whether any has."""
        backend = distributed.get_backend(self._group)
        device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        least = torch.tensor([int(have), -int(have)], device=device)
        distributed.all_reduce(least, distributed.ReduceOp.MIN, self._group)
        return int(least[0]) == 1, int(least[1]) == -1

    def _masked(self) -> Batch:
        """A batch of padding: nothing in it is trained."""
        like = self._template
        if like is None:
            loader = self._loader.loader if hasattr(self._loader, "loader") else self._loader
            shape = (loader.batch_size, int(loader.config["block_size"]))
            like = {key: torch.zeros(shape, dtype=torch.int64) for key in ("input_ids", "labels", "position_ids")}
            like["segment_ids"] = torch.zeros(shape, dtype=torch.int32)
        batch: Batch = {}
        for key, value in like.items():
            if key == "cu_seqlens":
                rows, size = like["input_ids"].shape
                batch[key] = torch.arange(0, rows * size + 1, size, dtype=torch.int32)
            elif key == "max_seqlen":
                batch[key] = like["input_ids"].shape[1]
            else:
                batch[key] = torch.full_like(value, -100 if key == "labels" else 0)
        return batch

    def state_dict(self) -> Any:
        """The loader's state, without a batch that was taken and dropped."""
        return self._state if self._state is not None else self._loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Goes on from a state of the loader."""
        self._state, self._own_ended = None, False
        self._loader.load_state_dict(state)


def even(loader: Any, group: Any = None, mode: str = "drop") -> Even:
    """Makes the ranks of a finite run end at the same step, by asking each other before each batch.

    Args:
        loader: A loader with ``torch=True``, or a dataset with ``num_workers=0``.
        group: The process group of the ranks; None: all.
        mode: ``"drop"``: all end when the first one has no batch left. ``"pad"``: all go on until the last one has none; those that ended get
            batches of which nothing is trained (labels -100, segment ids 0).

    Cost: an ``all_reduce`` of two integers a batch. ``Loader(even=…)`` needs none, but counts all blocks beforehand.
    """
    return Even(loader, group, mode)
