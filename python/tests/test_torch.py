"""PyTorch: data loaders with workers, distributed checkpoints at other world sizes, an even end, trainers' contracts."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tokenmill

torch = pytest.importorskip("torch")
stateful = pytest.importorskip("torchdata.stateful_dataloader")

from test_loader import rows, same, toml_of  # noqa: E402
from tokenmill.torch import TokenDataset, full_state, lanes_of  # noqa: E402
from tokenmill.trainers import LabelledBatches, WithNext  # noqa: E402

HERE = Path(__file__).parent


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_workers_give_the_batches_of_none(config, workers):
    """Where batch_size * num_workers divides the rank's lanes, batches are the same in the same order, up to where lanes begin to end."""
    config["block_size"] = 512
    expected = rows(tokenmill.Loader(config, torch=True))
    loader = torch.utils.data.DataLoader(TokenDataset(config), batch_size=None, num_workers=workers)
    found = rows(loader)
    assert sorted(found) == sorted(expected)
    same(found[: len(expected) * 3 // 4], expected[: len(expected) * 3 // 4])


@pytest.mark.parametrize("workers", [3, 5, 8])
def test_other_numbers_of_workers_repeat_nothing(config, workers):
    """With any number of workers each block comes once."""
    config["block_size"] = 512
    expected = rows(tokenmill.Loader(config))
    loader = torch.utils.data.DataLoader(TokenDataset(config), batch_size=None, num_workers=workers)
    assert sorted(rows(loader)) == sorted(expected)


def test_too_many_workers(config):
    """More workers than lanes is an error that says so."""
    loader = torch.utils.data.DataLoader(TokenDataset(config, rank=0, world_size=4), batch_size=None, num_workers=3)
    with pytest.raises(ValueError, match="3 workers share 2 lanes"):
        list(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_single_blocks(config, workers):
    """batched=False leaves the batching to the data loader, and gives the same batches."""
    expected = list(tokenmill.Loader(config, torch=True))
    loader = torch.utils.data.DataLoader(TokenDataset(config, batched=False), batch_size=2, num_workers=workers)
    for a, b in zip(itertools.islice(loader, 100), expected, strict=False):
        same(rows([a]), rows([b]))


@pytest.mark.parametrize(("workers", "method"), [(0, "fork"), (1, "fork"), (3, "fork"), (4, "fork"), (1, "spawn")])
def test_stateful_data_loader(config, workers, method):
    """The state of a StatefulDataLoader resumes exactly, several times in a row, with workers of both kinds."""
    config["block_size"] = 1024

    def make():
        context = method if workers else None
        return stateful.StatefulDataLoader(
            TokenDataset(config), batch_size=None, num_workers=workers, multiprocessing_context=context
        )

    expected, found, state = rows(make()), [], None
    for stop in (3, 1, 11, None):
        loader = make()
        if state is not None:
            loader.load_state_dict(state)
        for number, batch in enumerate(loader, 1):
            found += rows([batch])
            if number == stop:
                state = loader.state_dict()
                break
        del loader
    same(found, expected)


def test_state_for_another_number_of_workers(endless):
    """The lanes in a StatefulDataLoader's state go on at another world size and without workers."""
    loader = stateful.StatefulDataLoader(TokenDataset(endless), batch_size=None, num_workers=2)
    found = rows(itertools.islice(loader, 12))
    iterator = iter(loader)
    found = rows(next(iterator) for _ in range(12))
    state = lanes_of(loader.state_dict())
    ranks = [tokenmill.Loader(endless, rank=rank, world_size=2, batch_size=1, resume=state) for rank in range(2)]
    found += [row for _ in range(16) for rank in ranks for row in rows([next(rank)])]
    same(found, rows(itertools.islice(tokenmill.Loader(endless), 28)))


CHECKPOINT = """
import json, sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from tokenmill.torch import TokenDataset
sys.path.insert(0, sys.argv[1])
from test_loader import rows
config, folder, load, batches, out = sys.argv[2:7]
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
dataset = TokenDataset(open(config).read(), batch_size=8 // world_size)
if load == "load":
    state = {"loader": dataset}
    dcp.load(state, checkpoint_id=folder)
found = [row.hex() for _ in range(int(batches)) for row in rows([next(dataset)])]
if load != "load":
    dcp.save({"loader": dataset}, checkpoint_id=folder)
json.dump(found, open(f"{out}-{rank}", "w"))
dist.barrier()
dist.destroy_process_group()
"""


def torchrun(script: str, ranks: int, *arguments: str) -> subprocess.CompletedProcess:
    """Runs a script's text on ranks of this machine."""
    path = Path(arguments[0]) / f"script-{abs(hash(script))}.py"
    path.write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *arguments[1:]], env=environment, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done


def test_distributed_checkpoint(endless, tmp_path):
    """Saved by two ranks with torch.distributed.checkpoint, loaded by one, two and four: the union is the global sequence."""
    import json

    config = tmp_path / "config.toml"
    config.write_text(toml_of(endless))
    folder = str(tmp_path / "ck")

    def run(world_size: int, mode: str, batches: int) -> list[str]:
        out = str(tmp_path / f"{mode}-{world_size}")
        torchrun(CHECKPOINT, world_size, str(tmp_path), str(HERE), str(config), folder, mode, str(batches), out)
        ranks = [json.loads(Path(f"{out}-{rank}").read_text()) for rank in range(world_size)]
        return [row for blocks in zip(*ranks, strict=True) for row in blocks]

    expected = [row.hex() for row in rows(itertools.islice(tokenmill.Loader(endless, batch_size=8), 8))]
    same(run(2, "save", 4), expected[:32])
    for world_size in (1, 2, 4):
        same(run(world_size, "load", 4), expected[32:])


def test_distributed_checkpoint_with_new_shards(endless, corpus, tmp_path):
    """Where shards were appended, each rank needs the lanes of all: a state of its own lanes is an error, `full_state` goes on."""
    import shutil

    import torch.distributed.checkpoint as dcp

    for path in corpus.glob("web-*.jsonl"):
        shutil.copy(path, tmp_path)
    endless["source"] = [{"name": "web", "paths": [str(tmp_path / "web-*.jsonl")], "on_new_shards": "next_epoch"}]
    begun = TokenDataset(endless)
    for _ in range(5):
        next(begun)
    folder = str(tmp_path / "ck")
    dcp.save({"loader": begun}, checkpoint_id=folder, no_dist=True)
    shutil.copy(tmp_path / "web-00.jsonl", tmp_path / "web-99.jsonl")
    for rank in range(2):
        dataset = TokenDataset(endless, rank=rank, world_size=2)
        with pytest.raises(tokenmill.Error, match="shards were appended"):
            dcp.load({"loader": dataset}, checkpoint_id=folder, no_dist=True)
        state = {"loader": full_state(dataset)}
        dcp.load(state, checkpoint_id=folder, no_dist=True)
        dataset.load_state_dict(state["loader"])
        again = tokenmill.Loader(endless, rank=rank, world_size=2, resume=begun.state_dict())
        assert dataset.state_dict() == again.state_dict()
        same(rows(itertools.islice(dataset, 200)), rows(itertools.islice(again, 200)))


EVEN = """
import sys
import torch.distributed as dist
import tokenmill
from tokenmill.torch import even
dist.init_process_group("gloo")
rank = dist.get_rank()
for mode in ("drop", "pad"):
    loader = tokenmill.Loader(open(sys.argv[1]).read(), torch=True, batch_size=1)
    batches = even(loader, mode=mode)
    count = sum(1 for _ in batches)
    masked = batches.padded_batches
    print(f"{mode} rank {rank} count {count} own {loader.stats()['batches']} dropped {batches.dropped_batches} padded {masked}", flush=True)
dist.barrier()
"""


def test_even(config, tmp_path):
    """Ranks that have different numbers of batches end together, by dropping or by padding."""
    import re

    path = tmp_path / "config.toml"
    path.write_text(toml_of(config))
    out = torchrun(EVEN, 4, str(tmp_path), str(path)).stdout
    lines = re.findall(r"(\w+) rank (\d) count (\d+) own (\d+) dropped (\d+) padded (\d+)", out)
    assert len(lines) == 8, out
    for mode in ("drop", "pad"):
        own = [int(line[3]) for line in lines if line[0] == mode]
        counts = {int(line[2]) for line in lines if line[0] == mode}
        expected = [len(list(tokenmill.Loader(config, rank=rank, world_size=4, batch_size=1))) for rank in range(4)]
        assert counts == {min(expected) if mode == "drop" else max(expected)}
        if mode == "pad":
            assert sorted(own) == sorted(expected)


def test_contracts(config):
    """torchtitan's pairs and LitGPT's tensors hold what the loader gives."""
    plain = list(tokenmill.Loader(config, torch=True, shift_labels=True))
    titan = LabelledBatches(config)
    for (inputs, labels), batch in zip(titan, plain, strict=True):
        assert torch.equal(inputs["input"], batch["input_ids"]) and torch.equal(labels, batch["labels"])
    titan = LabelledBatches(config)
    iterator = iter(titan)
    next(iterator)
    again = LabelledBatches(config)
    again.load_state_dict({})
    again.load_state_dict(titan.state_dict())
    assert torch.equal(next(iter(again))[1], next(iterator)[1])
    litgpt = list(WithNext(config))
    assert all(block.shape == (65,) and block.dtype == torch.int64 for block in litgpt)
    expected = tokenmill.Loader(config, block_size=65, batch_size=1)
    assert all((a == torch.from_numpy(b["input_ids"][0])).all() for a, b in zip(litgpt, expected, strict=True))
