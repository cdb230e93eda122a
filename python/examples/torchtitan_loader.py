"""torchtitan over tokenmill: a function to give as `build_dataloader_fn` of a train spec.

torchtitan wants `(inputs, labels)` and a state. Its own loaders pickle the state of each rank under a key of the rank's number, which
can't be loaded at another degree of data parallelism. Here a lane has a key of its own: any degree that divides `lanes` loads it.
"""

from __future__ import annotations

from typing import Any

from tokenmill.trainers import LabelledBatches


def build_dataloader(dp_world_size: int, dp_rank: int, job_config: Any, **_: Any) -> LabelledBatches:
    """The loader of a data-parallel rank; `training.dataset_path` names tokenmill's config."""
    training = job_config.training
    return LabelledBatches(
        training.dataset_path,
        rank=dp_rank,
        world_size=dp_world_size,
        batch_size=training.local_batch_size,
        block_size=training.seq_len,
    )
