"""For PyTorch: a dataset for its data loaders and checkpoints, an even end for ranks, and what trainers plug in.

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

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from . import _state
from ._error import Error
from ._loader import Batch, Loader

__all__ = ["Even", "LabelledBatches", "TokenDataset", "TrainerMixin", "WithNext", "even", "full_state", "lanes_of"]


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
            self._in_turn = batch_size or _written_batch_size(config, options)
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


def _written_batch_size(config: Any, options: Mapping[str, Any]) -> int:
    return Loader(config, **{**options, "resume": None}).batch_size


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
    import json

    return {**part, _state.HEADER: json.dumps({**header, "step": step})}


class Even:
    """See :func:`even`."""

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
            have = self._all_reduce(batch is not None)
            if self._mode == "drop" and not have.all:
                self.dropped_batches += batch is not None
                return
            if not have.any:
                return
            if batch is None:
                batch = self._masked(have)
                self.padded_batches += 1
            else:
                self._template = batch
            self._state = None
            yield batch

    class _Have:
        def __init__(self, ranks: list[int]) -> None:
            self.all, self.any = all(ranks), any(ranks)

    def _all_reduce(self, have: bool) -> Even._Have:
        from torch import distributed

        backend = distributed.get_backend(self._group)
        device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        least = torch.tensor([int(have), -int(have)], device=device)
        distributed.all_reduce(least, distributed.ReduceOp.MIN, self._group)
        return Even._Have([int(least[0]), -int(least[1])])

    def _masked(self, have: Even._Have) -> Batch:
        """A batch of padding: nothing in it is trained."""
        like = self._template
        if like is None:
            loader = self._loader.loader if isinstance(self._loader, TokenDataset) else self._loader
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


def even(loader: Loader | TokenDataset, group: Any = None, mode: str = "drop") -> Even:
    """Makes the ranks of a finite run end at the same step, by asking each other before each batch.

    Args:
        loader: A loader with ``torch=True``, or a dataset with ``num_workers=0``.
        group: The process group of the ranks; None: all.
        mode: ``"drop"``: all end when the first one has no batch left. ``"pad"``: all go on until the last one has none; those that ended get
            batches of which nothing is trained (labels -100, segment ids 0).

    Cost: an ``all_reduce`` of two integers a batch. ``Loader(even=…)`` needs none, but counts all blocks beforehand.
    """
    return Even(loader, group, mode)


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
        size = block_size or int(Loader(config, **options).config["block_size"])
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
        import json
        import os

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
            import glob
            import json
            import os

            folder = resume_from_checkpoint
            if folder is True:
                from transformers.trainer_utils import get_last_checkpoint

                folder = get_last_checkpoint(self.args.output_dir)  # type: ignore[attr-defined]
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
