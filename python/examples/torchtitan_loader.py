"""torchtitan over tokenmill: a trainer's config, for `--module` and `--config`; and for versions before 0.3 a function of a train spec.

    torchrun --nproc-per-node 8 -m torchtitan.train --module examples.torchtitan_loader --config llama3_debugmodel_tokenmill \
        --dataloader.dataset_path pretrain.toml
"""

from __future__ import annotations

from typing import Any

from tokenmill.trainers import LabelledBatches


def llama3_debugmodel_tokenmill() -> Any:
    """torchtitan's smallest model, with tokenmill's batches."""
    from tokenmill.torchtitan import TokenMillDataLoader
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    config = llama3_debugmodel()
    config.dataloader = TokenMillDataLoader.Config(dataset_path="pretrain.toml")
    return config


def build_dataloader(dp_world_size: int, dp_rank: int, job_config: Any, **_: Any) -> LabelledBatches:
    """A `build_dataloader_fn` of versions before 0.3; `training.dataset_path` names tokenmill's config."""
    training = job_config.training
    return LabelledBatches(
        training.dataset_path,
        rank=dp_rank,
        world_size=dp_world_size,
        batch_size=training.local_batch_size,
        block_size=training.seq_len,
    )
