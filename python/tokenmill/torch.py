"""For PyTorch: a dataset for its data loaders and checkpoints, and an even end for ranks; :mod:`tokenmill.trainers` has what trainers plug in.

```python
dataset = TokenDataset("pretrain.toml", batch_size=8)
loader = torchdata.stateful_dataloader.StatefulDataLoader(dataset, batch_size=None, num_workers=2)
```

The pipeline has threads of its own, so ``num_workers=0`` is as fast; workers save the copy into a batch, no more.

What resumes where:

* ``StatefulDataLoader.state_dict()``: with the same number of workers, and the same rank and world size.
* ``TokenDataset.state_dict()``, with ``num_workers=0``, and :func:`lanes_of` of a ``StatefulDataLoader``'s state: at any world size that
  divides ``lanes``, with any number of workers. Each lane has a key of its own, so ``torch.distributed.checkpoint`` saves each once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from . import _state
from ._even import Even, even
from ._error import Error
from ._loader import Batch, Loader, config_of

__all__ = ["Even", "TokenDataset", "even", "full_state", "lanes_of"]


class TokenDataset(IterableDataset[Batch]):
    """Batches, or single blocks, as tensors.

    Args:
        config: As for :class:`tokenmill.Loader`, and so is all else.
        batched: Give batches of ``batch_size`` blocks, for ``DataLoader(dataset, batch_size=None)``. If False, give single blocks, for a
            data loader that makes batches: ``DataLoader(dataset, batch_size=8)``.

    With ``num_workers`` above 0 the rank's lanes are dealt to the workers. Where ``batch_size * num_workers`` divides their number
    (``batch_size`` being the dataset's, or the config's if ``batched`` is False), batches are those of ``num_workers=0``, in the same order; else
    each block comes once, in an order that depends on the number of workers. There can't be more workers than lanes.
    """

    def __init__(self, config: Any, *, batched: bool = True, batch_size: int | None = None, **options: Any) -> None:
        super().__init__()
        options["torch"] = True
        self._loader = Loader(config, batch_size=batch_size if batched else 1, **options)
        self._batched = batched
        # Blocks that a data loader takes from a worker at a time.
        self._in_turn = self._loader.batch_size
        if not batched:
            self._in_turn = batch_size or config_of(config, options)["batch_size"]
        self._part: Loader | None = None

    @property
    def loader(self) -> Loader:
        """What reads: the rank's loader, or in a worker process its part of it."""
        return self._loader if self._part is None else self._part

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        if worker is not None and self._part is None:
            self._part = self._loader.part(worker.id, worker.num_workers, self._in_turn)
        return self

    def __next__(self) -> Batch:
        batch = next(self.loader)
        if self._batched:
            return batch
        return {key: value[0] if value.dim() == 2 else value for key, value in batch.items() if hasattr(value, "dim")}

    def state_dict(self) -> _state.State:
        """As :meth:`tokenmill.Loader.state_dict`; in a worker process, of the worker's lanes."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As :meth:`tokenmill.Loader.load_state_dict`."""
        self.loader.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Does nothing, as :meth:`tokenmill.Loader.set_epoch`."""

    def close(self) -> None:
        """Ends the threads."""
        self.loader.close()


def full_state(dataset: TokenDataset | Loader) -> _state.State:
    """A state with the keys of all lanes, for ``torch.distributed.checkpoint.load`` where a rank has to see all of them.

    That is so where shards were appended: they begin after the last epoch that any lane is in. Values of lanes that aren't this rank's are empty.
    """
    loader = dataset.loader if isinstance(dataset, TokenDataset) else dataset
    lanes = int(loader.config["lanes"])
    return {**{_state.lane_key(lane): "" for lane in range(lanes)}, **loader.state_dict()}


def lanes_of(state: Mapping[str, Any]) -> _state.State:
    """The lanes in the state of a ``StatefulDataLoader``, whose workers have some each: a state for any number of workers and ranks.

    Raises:
        Error: There is none of tokenmill in it, or the workers have given different numbers of blocks to each lane: where
            ``batch_size * num_workers`` doesn't divide the rank's lanes, or between two rounds of the workers.
    """
    found: list[Mapping[str, Any]] = []

    def walk(node: Any) -> None:
        if isinstance(node, Mapping):
            if _state.HEADER in node and any(str(key).startswith("lane_") for key in node):
                found.append(node)
            else:
                for value in node.values():
                    walk(value)

    walk(state)
    if not found:
        raise Error("state mismatch: no state of tokenmill in it, expected that of a StatefulDataLoader over a TokenDataset", "state_mismatch")
    headers = [_state.header_of(part) for part in found]
    # Each worker counts its own batches; together they have given all of them.
    steps = sum(header["step"] for header in headers)
    return _state.merge_states([_with_step(part, header, steps) for part, header in zip(found, headers, strict=True)])


def _with_step(part: Mapping[str, Any], header: dict[str, Any], step: int) -> Mapping[str, Any]:
    return {**part, _state.HEADER: json.dumps({**header, "step": step})}
