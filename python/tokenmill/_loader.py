"""The loader: a config in, batches out, with a state that says what was delivered."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from . import _ranks, _state
from ._error import Error
from ._tokenmill import Run, Stream, read_config, take_log

Batch = dict[str, Any]


_LEFT_BEHIND: list[Run] = []


def _log() -> None:
    for level, name, text in take_log():
        logging.getLogger(name).log(level, "%s", text)


def _flatten(overrides: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """``key.path=value`` for each value; ``runtime__threads=2`` and ``runtime={"threads": 2}`` are the same."""
    for key, value in overrides.items():
        path = prefix + key.replace("__", ".")
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{path}.")
        elif isinstance(value, os.PathLike):
            yield f"{path}={json.dumps(os.fspath(value))}"
        else:
            # A scalar or a list of them is the same in JSON and in TOML.
            yield f"{path}={json.dumps(value, ensure_ascii=False)}"


def _text_of(config: Any) -> tuple[str, bool, str, str | None]:
    """``(text, whether it is JSON, folder that paths are relative to, name for errors)``."""
    if isinstance(config, Mapping):
        return json.dumps(config, default=os.fspath), True, "", None
    if isinstance(config, str) and ("\n" in config or "=" in config) and not Path(config).is_file():
        return config, False, "", None
    if isinstance(config, (str, os.PathLike)):
        path = Path(config)
        try:
            return path.read_text(encoding="utf-8"), False, str(path.parent), str(path)
        except FileNotFoundError:
            raise Error(f"not found: can't read the config {path}: no such file", "not_found") from None
        except OSError as error:
            raise Error(f"read failed: can't read the config {path}: {error}", "read") from None
    raise TypeError(f"config is a {type(config).__name__}, expected a path, a dict or TOML text")


@contextlib.contextmanager
def _naming(name: str | None) -> Iterator[None]:
    """Adds the file's name to an error about what is written in it."""
    try:
        yield
    except Error as error:
        if name is None or error.kind != "config":
            raise
        raise Error(f"{error} ({name})", error.kind, error.shard, error.record, error.byte) from None


def config_of(config: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The config that a loader of these options would have, before its shards are listed and its tokenizer is loaded."""
    own = inspect.signature(Loader).parameters
    text, is_json, base, name = _text_of(config)
    overrides = list(_flatten({key: value for key, value in options.items() if key not in own}))
    with _naming(name):
        whole: dict[str, Any] = json.loads(read_config(text, is_json, base, overrides))
    return whole


class Loader:
    """Batches of packed blocks, tokenized on the fly.

    Args:
        config: Path of a TOML file, TOML text, or a dict of the same structure. Relative paths in a file are relative to its folder.
        rank: This rank among those that get different data. Default: of ``mesh``, else of ``torch.distributed`` if it is
            initialized, else of RANK and WORLD_SIZE in the environment, else 0 of 1.
        world_size: Number of these ranks; it has to divide the config's ``lanes``.
        mesh: A ``DeviceMesh``. Ranks that differ in other dimensions only (tensor, pipeline, context parallel) get the same batches.
        mesh_dims: The names of its data-parallel dimensions. Default: those with a name such as ``dp``, ``dp_replicate``, ``dp_shard``.
        batch_size: Blocks in a batch. Default: the config's.
        resume: Where to go on from: a state, or the path of a checkpoint as ``tokenmill run --resume`` takes it.
        torch: Give tensors, which share the arrays' memory.
        shift_labels: ``labels`` are the next tokens, for losses that don't shift by themselves.
        cu_seqlens: Add ``cu_seqlens`` and ``max_seqlen`` for attention over sequences of different lengths.
        even: ``"drop"`` or ``"pad"``: all ranks of a finite run give the same number of batches; see the README for the cost.
        skip_batches: Pairs ``(first, end)`` of batches to pass over, by number since the run's first start.
        **overrides: Keys of the config: ``block_size=4096``, ``runtime={"threads": 2}`` or ``runtime__threads=2``,
            ``**{"source.web.weight": 0.5}``.

    A batch is a dict of C-contiguous numpy arrays that own their memory, B blocks of S tokens:

    ============== ======== ========== =========================================================================
    input_ids      int64    [B, S]     token ids
    labels         int64    [B, S]     targets, -100 where nothing is trained
    position_ids   int64    [B, S]     from 0 at each document
    segment_ids    int32    [B, S]     number of the document in its block, from 1; 0 is padding
    cu_seqlens     int32    [N + 1]    ends of the documents over the flattened batch, from 0; padding is one more
    max_seqlen     int                 the longest of them
    ============== ======== ========== =========================================================================

    Threads start at the first batch. A loader can be pickled, and used in a forked process: it goes on from where it is, by
    itself. One thread at a time may iterate.

    Raises:
        Error: The config, the tokenizer or a path can't be used, or a state doesn't fit.
    """

    def __init__(
        self,
        config: Any,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        mesh_dims: str | Sequence[str] | None = None,
        batch_size: int | None = None,
        resume: Any = None,
        torch: bool = False,
        shift_labels: bool = False,
        cu_seqlens: bool = False,
        even: str | None = None,
        skip_batches: Sequence[tuple[int, int]] = (),
        **overrides: Any,
    ) -> None:
        # Set first: `close` is called on a loader whose construction failed, too.
        self._stream: Stream | None = None
        self._stream_pid = 0
        if (rank is None) != (world_size is None):
            raise ValueError(f"rank is {rank} and world_size is {world_size}, expected both or neither")
        if mesh is not None and rank is not None:
            raise ValueError("both mesh and rank were given, expected one of them")
        if even not in (None, "drop", "pad"):
            raise ValueError(f'even is {even!r}, expected "drop" or "pad"')
        if mesh is not None:
            rank, world_size = _ranks.of_mesh(mesh, mesh_dims)
        elif rank is None or world_size is None:
            rank, world_size = _ranks.detect()
        if rank < 0 or world_size < 1:
            raise ValueError(f"rank {rank} of {world_size}, expected 0 or more of 1 or more")
        self._rank, self._world_size = rank, world_size
        # The part of the rank's lanes that is delivered here; None is all of them.
        self._lanes: list[int] | None = None
        self._threads = 0
        # Processes that share the rank's work and its memory.
        self._sharing = 1
        if batch_size is not None:
            overrides = {**overrides, "batch_size": batch_size}
        self._source = (_text_of(config), list(_flatten(overrides)))
        # The module, loaded now rather than at the first batch: it takes seconds.
        self._torch: Any = importlib.import_module("torch") if torch else None
        self._shift_labels, self._cu_seqlens = shift_labels, cu_seqlens
        self._even = even
        self._skip = [(int(first), int(end)) for first, end in skip_batches]
        self._run = self._load()
        self._run.lanes_of(rank, world_size)
        # Where a stream begins when it is started: a checkpoint's bytes, None being the run's beginning.
        self._from: bytes | None = None
        self._ended = False
        if resume is not None:
            self._resume(resume)

    def _load(self) -> Run:
        (text, is_json, base, name), overrides = self._source
        self._run_pid = os.getpid()
        try:
            with _naming(name):
                return Run(text, is_json, base, overrides)
        finally:
            _log()

    def _live(self) -> Run:
        """The run, loaded anew in a forked process if stores other than this machine's files are read: their threads stay behind."""
        if self._run_pid != os.getpid() and self._run.remote():
            # To end it would wait for threads that aren't there.
            _LEFT_BEHIND.append(self._run)
            self._run = self._load()
        return self._run

    def _resume(self, resume: Any) -> None:
        if isinstance(resume, (str, os.PathLike)):
            self._go_on_from(self._live().load_checkpoint(os.fspath(resume)))
        elif isinstance(resume, Mapping):
            self.load_state_dict(resume)
        else:
            raise TypeError(f"resume is a {type(resume).__name__}, expected a path or a state")

    def _go_on_from(self, checkpoint: bytes) -> None:
        try:
            self._live().resume(self._rank, self._world_size, self._lanes, checkpoint)
        finally:
            _log()
        self.close()
        # All lanes are kept: where new shards begin depends on them.
        self._from = checkpoint

    # Iteration

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        if self._ended:
            raise StopIteration
        stream = self._running()
        try:
            batch: Batch | None = stream.next(self._shift_labels, self._cu_seqlens)
        finally:
            _log()
        if batch is None:
            self._ended = True
            raise StopIteration
        if self._torch is not None:
            from_numpy = self._torch.from_numpy
            return {key: from_numpy(value) if hasattr(value, "dtype") else value for key, value in batch.items()}
        return batch

    def _running(self) -> Stream:
        if self._stream is not None and self._stream_pid != os.getpid():
            # The parent's threads are not in this process: go on from where it stood.
            self._from = self._stream.checkpoint()
            self._stream.abandon()
            self._stream = None
        if self._stream is None:
            try:
                self._stream = self._live().start(
                    self._rank,
                    self._world_size,
                    self._lanes,
                    self._from,
                    self._threads,
                    self._sharing,
                    self._even,
                    self._skip,
                )
            finally:
                _log()
            self._stream_pid = os.getpid()
        return self._stream

    def __len__(self) -> int:
        """Batches that are left, where it is known: with ``even``, once the counts were made.

        Raises:
            TypeError: It isn't: where a block ends is known only by tokenizing.
        """
        if self._even is None:
            raise TypeError('the number of batches is not known before they are tokenized; even="drop" or "pad" counts them')
        left = self._running().batches_left()
        assert left is not None, "even runs have an end"
        return left

    def __bool__(self) -> bool:
        """True, whatever is known of the length."""
        return True

    def set_epoch(self, epoch: int) -> None:
        """Does nothing. Each epoch of a source has an order of its own, and the state knows which one it is in; frameworks call this."""

    # State

    def _checkpoint(self) -> bytes:
        if self._stream is not None:
            return self._stream.checkpoint()
        return self._live().resume(self._rank, self._world_size, self._lanes, self._from)

    def state_dict(self) -> _state.State:
        """The state after the last batch delivered: ``{"header": …, "lane_00017": …}``, text each.

        It has the same keys from before the first batch on: the header, which all ranks have alike, and one for each lane of this rank.
        """
        return _state.split(self._checkpoint())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state. It may hold lanes of other ranks, and be of another world size, as long as it has this rank's lanes.

        Raises:
            Error: ``state_mismatch``: the state is of another run; all differences are named. Nothing has changed then.
        """
        owned = self._run.lanes_of(self._rank, self._world_size) if self._lanes is None else self._lanes
        self._go_on_from(_state.join(state, owned))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes a checkpoint as ``tokenmill run --checkpoint`` does; returns the file's path. Each rank writes its own."""
        return Path(self._live().save_checkpoint(os.fspath(folder), self._checkpoint()))

    # What it is, and what it did

    @property
    def rank(self) -> int:
        """This rank among those that get different data."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of these ranks."""
        return self._world_size

    @property
    def config(self) -> dict[str, Any]:
        """The config with everything filled in."""
        whole: dict[str, Any] = json.loads(self._run.config())
        return whole

    @property
    def batch_size(self) -> int:
        """Blocks in a batch."""
        return int(self.config["batch_size"])

    @property
    def tokenizer(self) -> dict[str, Any]:
        """``engine, reason, vocab_size, eos, bos, pad`` of the tokenizer."""
        names = ("engine", "reason", "vocab_size", "eos", "bos", "pad")
        return dict(zip(names, self._run.tokenizer(), strict=True))

    def decode(self, ids: Any) -> str:
        """The text of a sequence of ids."""
        return self._run.decode([int(token) for token in ids])

    def stats(self) -> dict[str, Any]:
        """What the command's report has, counted since this loader's first batch; empty before it."""
        if self._stream is None:
            return {}
        report: dict[str, Any] = json.loads(self._stream.stats())
        return report

    def locate(self, batch_index: int) -> list[list[dict[str, Any]]]:
        """The documents of a batch that this rank has delivered: for each of its blocks, a dict for each document in it.

        Args:
            batch_index: Number of the batch since the run's first start, from 0, the batch size having been what it is now.

        Each dict has ``source, shard, epoch, record, bytes, document_tokens, tokens_in_document, tokens_in_block``, ranges as
        ``{"start": …, "end": …}``. Cost: the lanes are read and tokenized again up to the blocks, from where this loader began.
        """
        begin = self._from
        blocks = _blocks_of(json.loads(self._checkpoint()), batch_index, self.batch_size)
        found = []
        for block in blocks:
            states = [begin] if begin is not None and _lies_before(json.loads(begin), block) else []
            found.append(json.loads(self._live().locate(block, states)))
        return found

    # Its end

    def close(self) -> None:
        """Ends the threads. The loader stands where it was: iterating again goes on, and so does its state."""
        stream, self._stream = self._stream, None
        self._ended = False
        if stream is None:
            return
        self._from = stream.checkpoint()
        if self._stream_pid == os.getpid():
            stream.close()
        else:
            stream.abandon()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None and self._stream_pid == os.getpid():
            stream.close()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if self._stream is not None:
            state["_from"] = self._stream.checkpoint()
        state["_stream"], state["_run"] = None, None
        # A module can't be pickled.
        state["_torch"] = self._torch is not None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._torch = importlib.import_module("torch") if state["_torch"] else None
        self._run = self._load()

    def __repr__(self) -> str:
        return f"<tokenmill.Loader rank {self._rank} of {self._world_size}, batches of {self.batch_size}>"

    # Parts of a rank

    def part(self, worker: int, workers: int, batch_size: int | None = None) -> Loader:
        """The share that process ``worker`` of ``workers`` of a data loader delivers of this rank's blocks.

        A data loader takes a batch from each worker in turn. Where ``batch_size * workers`` divides the number of the rank's lanes, the
        lanes are dealt so that this gives the batches of one process, in the same order. Else lanes are dealt one by one: each block
        is delivered once, in an order that depends on the number of workers. ``batch_size`` is that of the data loader, if it
        is not this loader's.

        Raises:
            ValueError: There are more workers than lanes.
        """
        owned = self._run.lanes_of(self._rank, self._world_size)
        if workers > len(owned):
            raise ValueError(f"{workers} workers share {len(owned)} lanes of the rank, expected at most as many workers as lanes")
        in_turn = batch_size or self.batch_size
        in_turn = in_turn if len(owned) % (in_turn * workers) == 0 else 1
        part = Loader.__new__(Loader)
        part.__dict__.update(self.__getstate__())
        part._run, part._torch = self._live(), self._torch
        part._lanes = [lane for place, lane in enumerate(owned) if place // in_turn % workers == worker]
        part._sharing = workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if self.config["runtime"]["threads"] == 0:
            part._threads = max(1, cores // workers)
        return part


def _blocks_of(state: dict[str, Any], batch_index: int, batch_size: int) -> list[int]:
    """The global numbers of a delivered batch's blocks; ``state`` is where the rank stands."""
    if not 0 <= batch_index < state["step"]:
        raise IndexError(f"batch {batch_index} has not been delivered: expected 0 to {state['step'] - 1}")
    lanes = [(cursor["lane"], cursor["blocks"] + cursor.get("padded", 0)) for cursor in state["cursors"]]
    # In rising order of the global number: round by round over the lanes that have a block in it.
    first, blocks = batch_index * batch_size, list[int]()
    least = min(count for _, count in lanes)
    number = min(first // len(lanes), least)
    seen = number * len(lanes)
    while len(blocks) < batch_size and any(count > number for _, count in lanes):
        for lane, count in lanes:
            if count <= number:
                continue
            if first <= seen < first + batch_size:
                blocks.append(number * int(state["lanes"]) + lane)
            seen += 1
        number += 1
    return blocks


def _lies_before(state: dict[str, Any], block: int) -> bool:
    """Whether the block comes after the place that a checkpoint's bytes describe."""
    lanes = int(state["lanes"])
    return any(cursor["lane"] == block % lanes and cursor["blocks"] <= block // lanes for cursor in state["cursors"])
