"""torchtitan over tokenmill: ``TokenMillDataLoader.Config(dataset_path="pretrain.toml")`` as ``dataloader`` of a trainer's config.

torchtitan's own loaders keep the state of each rank under a key of the rank's number, which can't be loaded at another degree of
data parallelism. Here each lane has a key of its own: any degree that divides ``lanes`` loads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchtitan.components.dataloader import BaseDataLoader

from .trainers import LabelledBatches

__all__ = ["TokenMillDataLoader"]


class TokenMillDataLoader(LabelledBatches, BaseDataLoader):  # type: ignore[no-untyped-call]
    """Batches of ``({"input": …, "positions": …}, labels)``, int64 ``[local_batch_size, seq_len]`` each; labels are the next tokens.

    Args:
        config: ``dataset_path`` is that of tokenmill's config. Its ``block_size`` and ``batch_size`` are left aside for what torchtitan says.
        dp_world_size: Degree of data parallelism.
        dp_rank: This rank in it.
        seq_len: Tokens in a block.
        local_batch_size: Blocks in a batch.
        other: What torchtitan says besides, of no meaning here: the tokenizer is that of tokenmill's config.

    Raises:
        ValueError: No ``dataset_path``.
        Error: As :class:`tokenmill.Loader`.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """As torchtitan's; ``dataset`` isn't looked at."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        **other: Any,
    ) -> None:
        if config.dataset_path is None:
            raise ValueError("no dataset_path, expected the path of tokenmill's config")
        super().__init__(
            config.dataset_path,
            rank=dp_rank,
            world_size=dp_world_size,
            batch_size=local_batch_size,
            block_size=seq_len,
        )
