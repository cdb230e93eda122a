"""Which rank this process is, among those that get different data."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

# What frameworks call the dimensions of a device mesh along which data differs.
DATA_PARALLEL = ("dp", "ddp", "fsdp", "hsdp", "data", "batch", "data_parallel", "dp_replicate", "dp_shard", "replicate", "shard")


def of_mesh(mesh: Any, dims: str | Sequence[str] | None) -> tuple[int, int]:
    """``(rank, world size)`` of data parallelism in a ``DeviceMesh``: ranks that differ along other dimensions only get the same."""
    names = tuple(mesh.mesh_dim_names or ())
    shape = tuple(mesh.mesh.shape)
    if dims is not None:
        chosen: tuple[str, ...] = (dims,) if isinstance(dims, str) else tuple(dims)
        unknown = [name for name in chosen if name not in names]
        if unknown:
            raise ValueError(f"mesh_dims has {unknown}, expected some of the mesh's {list(names)}")
    elif len(shape) == 1:
        chosen = names
    else:
        chosen = tuple(name for name in names if name in DATA_PARALLEL)
        if not chosen:
            raise ValueError(f"none of the mesh's dimensions {list(names)} is known to be data parallel: name them by mesh_dims")
    places = [names.index(name) for name in chosen] if names else list(range(len(shape)))
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError("this process is not in the mesh")
    rank, world_size = 0, 1
    for place in places:
        rank = rank * shape[place] + coordinate[place]
        world_size *= shape[place]
    return rank, world_size


def detect() -> tuple[int, int]:
    """``(rank, world size)`` of ``torch.distributed`` if it is initialized, else of RANK and WORLD_SIZE, else ``(0, 1)``."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if (rank is None) != (world_size is None):
        raise ValueError(f"RANK is {rank} and WORLD_SIZE is {world_size} in the environment, expected both or neither")
    if rank is None or world_size is None:
        return 0, 1
    return int(rank), int(world_size)
