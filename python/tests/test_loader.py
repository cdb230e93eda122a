"""The loader: arrays, states, processes, signals, errors."""

from __future__ import annotations

import copy
import gc
import itertools
import json
import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tokenmill

FIELDS = ["input_ids", "labels", "position_ids", "segment_ids"]


def rows(batches) -> list[bytes]:
    """Every block of the batches in all its fields."""
    return [
        b"".join(np.ascontiguousarray(batch[field][row]).tobytes() for field in FIELDS)
        for batch in batches
        for row in range(len(batch["input_ids"]))
    ]


def same(found: list, expected: list) -> None:
    """As ==, with a short message."""
    assert len(found) == len(expected)
    differ = [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b]
    assert not differ, f"{len(differ)} of {len(expected)} blocks differ, the first is {differ[0]}"


def test_arrays(config):
    """Types, shapes and layout are those documented, and the fields agree with each other."""
    batches = list(tokenmill.Loader(config, cu_seqlens=True))
    assert len(batches) > 50
    whole = [batch for batch in batches if len(batch["input_ids"]) == 2]
    assert len(whole) >= len(batches) - 1
    for batch in whole:
        ids, segments = batch["input_ids"], batch["segment_ids"]
        for field in FIELDS:
            array = batch[field]
            assert array.shape == (2, 64) and array.flags.c_contiguous and array.flags.writeable
            assert array.dtype == (np.int32 if field == "segment_ids" else np.int64)
        assert (batch["labels"] == np.where(segments == 0, -100, ids)).all()
        for row in range(2):
            begins = np.flatnonzero(np.diff(segments[row], prepend=-1))
            assert segments[row][0] == 1 and (np.diff(segments[row][segments[row] > 0]) <= 1).all()
            for begin, end in itertools.pairwise([*begins, 64]):
                expected = np.zeros(end - begin) if segments[row][begin] == 0 else np.arange(end - begin)
                assert (batch["position_ids"][row][begin:end] == expected).all()
        ends = batch["cu_seqlens"]
        assert ends.dtype == np.int32 and ends[0] == 0 and ends[-1] == 128 and 64 in ends
        assert batch["max_seqlen"] == np.diff(ends).max() and isinstance(batch["max_seqlen"], int)
        assert len(ends) - 1 == sum(len(np.unique(segments[row])) for row in range(2))


def test_shifted_labels(config):
    """Shifted labels are the next token's; a block's last has none."""
    plain, shifted = (list(tokenmill.Loader(config, shift_labels=shift)) for shift in (False, True))
    for a, b in zip(plain, shifted, strict=True):
        assert (a["input_ids"] == b["input_ids"]).all()
        assert (b["labels"][:, :-1] == a["labels"][:, 1:]).all() and (b["labels"][:, -1] == -100).all()


def test_torch_shares_memory(config):
    """torch=True gives tensors of the same values."""
    torch = pytest.importorskip("torch")
    for a, b in zip(tokenmill.Loader(config), tokenmill.Loader(config, torch=True), strict=True):
        assert all(torch.equal(torch.from_numpy(a[field]), b[field]) and b[field].is_contiguous() for field in FIELDS)


def test_command_line_gives_the_same(config, tmp_path):
    """The command and the loader deliver the same stream: the digests of all ids are equal."""
    binary = os.environ.get("TOKENMILL_BINARY")
    if not binary:
        pytest.skip("TOKENMILL_BINARY isn't set")
    loader = tokenmill.Loader(config)
    batches = sum(1 for _ in loader)
    stats = loader.stats()
    path = tmp_path / "config.toml"
    path.write_text(toml_of(config))
    out = subprocess.run([binary, "run", path, "-q", "--report", "-"], capture_output=True, text=True, check=True)
    report = json.loads(out.stdout)
    assert (stats["digest"], stats["batches"], stats["tokens"]) == (report["digest"], batches, report["tokens"])
    assert set(report) == set(stats)


def toml_of(config: dict) -> str:
    """TOML of a config as the fixtures have it."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in config.items() if not isinstance(value, (dict, list))]
    for key, value in config.items():
        if isinstance(value, dict):
            lines += [f"[{key}]", *(f"{k} = {json.dumps(v)}" for k, v in value.items())]
    for source in config["source"]:
        lines += ["[[source]]", *(f"{k} = {json.dumps(v)}" for k, v in source.items())]
    return "\n".join(lines)


def test_configs(config, tmp_path, monkeypatch):
    """A path, TOML text and a dict are the same; overrides reach every key; mistakes name the file."""
    expected = rows(tokenmill.Loader(config))
    text = toml_of(config)
    path = tmp_path / "run.toml"
    path.write_text(text)
    for given in (text, path, str(path)):
        same(rows(tokenmill.Loader(given)), expected)
    one = tokenmill.Loader(text, batch_size=1, block_size=32, runtime={"threads": 1}, **{"source.web.weight": 0.5})
    assert (one.config["block_size"], one.config["batch_size"], one.config["source"][0]["weight"]) == (32, 1, 0.5)
    assert tokenmill.Loader(text, shuffle__window="1KiB").config["shuffle"]["window"] in ("1KiB", 1024)
    assert next(one)["input_ids"].shape == (1, 32)
    with pytest.raises(tokenmill.Error, match="nearest known key is \"block_size\"") as error:
        tokenmill.Loader(config, blok_size=3)
    assert error.value.kind == "config"
    path.write_text(text + "\nnonsense = 1\n")
    with pytest.raises(tokenmill.Error, match="run.toml"):
        tokenmill.Loader(path)
    with pytest.raises(tokenmill.Error) as error:
        tokenmill.Loader(tmp_path / "none.toml")
    assert error.value.kind == "not_found"
    # Relative paths are relative to the file.
    (tmp_path / "data.txt").write_text("some text " * 500)
    path.write_text('block_size = 8\nlanes = 1\n[tokenizer]\npath = "bytes"\n[[source]]\nname = "a"\npaths = ["data.txt"]\n')
    monkeypatch.chdir("/")
    assert next(tokenmill.Loader(path))["input_ids"].shape == (8, 8)


@pytest.mark.parametrize("world_size", [1, 2])
def test_resumes_from_every_batch(config, world_size):
    """From the state after any batch, through JSON or pickle, the rest is that of the run never stopped."""
    config["block_size"] = 1024
    for rank in range(world_size):
        loader = tokenmill.Loader(config, rank=rank, world_size=world_size)
        states, batches = [loader.state_dict()], []
        for batch in loader:
            batches.append(batch)
            states.append(loader.state_dict())
        assert {tuple(state) for state in states} == {("header", *(f"lane_{lane:05}" for lane in range(rank, 8, world_size)))}
        for k in range(0, len(states), 1 if world_size == 1 else 7):
            again = tokenmill.Loader(config, rank=rank, world_size=world_size, resume=json.loads(json.dumps(states[k])))
            assert again.state_dict() == states[k]
            same(rows(again), rows(batches[k:]))
            assert again.state_dict() == states[-1]


def test_world_size_changes(endless):
    """The union of ranks is one global sequence, also when their number changes: 8, 2, 4, 1."""
    expected = rows(itertools.islice(tokenmill.Loader(endless, batch_size=8), 12))
    got, states = [], None
    for world_size in (8, 2, 4, 1):
        loaders = [
            tokenmill.Loader(endless, rank=rank, world_size=world_size, batch_size=8 // world_size, resume=states)
            for rank in range(world_size)
        ]
        for _ in range(3):
            ranks = [rows([next(loader)]) for loader in loaders]
            got += [ranks[block % world_size][block // world_size] for block in range(8)]
        states = tokenmill.merge_states(loader.state_dict() for loader in loaders)
    same(got, expected)


def test_states_that_do_not_fit(config):
    """Every misuse of a state is an error that says so, and leaves the loader where it was."""
    loader = tokenmill.Loader(config)
    next(loader)
    state = loader.state_dict()
    rest = rows(copy.deepcopy(loader))
    ranks = [tokenmill.Loader(config, rank=rank, world_size=2) for rank in range(2)]
    wrong = {
        "expected a mapping with 'header'": {"step": 3},
        "lacks lane_00001": ranks[0].state_dict(),
        "isn't JSON": {**state, "lane_00003": "{"},
        "header isn't JSON": {**state, "header": b"\xff"},
        "seed: found 3, expected 4": tokenmill.Loader({**config, "seed": 4}).state_dict(),
    }
    for message, bad in wrong.items():
        with pytest.raises(tokenmill.Error, match=message) as error:
            loader.load_state_dict(bad)
        assert error.value.kind == "state_mismatch", message
    with pytest.raises(tokenmill.Error, match="expected it once"):
        tokenmill.merge_states([ranks[0].state_dict(), ranks[0].state_dict()])
    next(ranks[0])
    with pytest.raises(tokenmill.Error, match="another run or moment"):
        tokenmill.merge_states([rank.state_dict() for rank in ranks])
    same(rows(loader), rest)


def test_checkpoints_of_the_command(config, tmp_path):
    """`save` writes what `resume` reads, and what the command reads."""
    loader = tokenmill.Loader(config)
    for _ in range(5):
        next(loader)
    path = loader.save(tmp_path / "ck")
    assert path.name == "rank-00000-of-00001.json" and path.parent.name == "step-00000005"
    again = tokenmill.Loader(config, resume=tmp_path / "ck")
    same(rows(again), rows(loader))
    with pytest.raises(tokenmill.Error) as error:
        tokenmill.Loader(config, resume=tmp_path / "none")
    assert error.value.kind == "not_found"


def test_ranks_are_detected(config, monkeypatch):
    """RANK and WORLD_SIZE, a mesh with other dimensions, or what is said."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = tokenmill.Loader(config)
    assert (loader.rank, loader.world_size) == (1, 4)
    loader = tokenmill.Loader(config, rank=0, world_size=2)
    assert (loader.rank, loader.world_size) == (0, 2)
    monkeypatch.delenv("RANK")
    with pytest.raises(ValueError, match="both or neither"):
        tokenmill.Loader(config)
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(tokenmill.Error, match="doesn't divide lanes"):
        tokenmill.Loader(config, rank=0, world_size=3)

    class Mesh:
        mesh_dim_names = ("dp_replicate", "dp_shard", "tp")
        mesh = np.zeros((2, 2, 3))

        def get_coordinate(self):
            return [1, 0, 2]

    loader = tokenmill.Loader(config, mesh=Mesh())
    assert (loader.rank, loader.world_size) == (2, 4)
    loader = tokenmill.Loader(config, mesh=Mesh(), mesh_dims="dp_replicate")
    assert (loader.rank, loader.world_size) == (1, 2)
    with pytest.raises(ValueError, match="expected some of"):
        tokenmill.Loader(config, mesh=Mesh(), mesh_dims="pp")


def test_pickle_and_copy(config):
    """A pickled loader goes on from where it was."""
    loader = tokenmill.Loader(config)
    head = [next(loader) for _ in range(7)]
    again = pickle.loads(pickle.dumps(loader))
    rest = rows(loader)
    same(rows(again), rest)
    same(rows(head) + rest, rows(tokenmill.Loader(config)))


def _rest(loader, queue):
    queue.put(rows(loader))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("begun", [False, True])
def test_processes(config, method, begun):
    """A loader used in another process, forked or spawned, before or after its first batch, goes on there and here."""
    loader = tokenmill.Loader(config)
    if begun:
        next(loader)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=_rest, args=(loader, queue))
    process.start()
    found = queue.get(timeout=60)
    process.join(timeout=60)
    assert process.exitcode == 0
    same(found, rows(loader))


def test_close_goes_on(config):
    """Closing ends the threads, not the run; an ended loader stays at its end."""
    expected = rows(tokenmill.Loader(config))
    gc.collect()
    before = settled_threads()
    with tokenmill.Loader(config) as loader:
        got = [next(loader)]
        assert threads() > before
    assert settled_threads() == before
    got.extend(loader)
    same(rows(got), expected)
    assert list(loader) == []
    loader.close()
    assert list(loader) == []


def threads() -> int:
    """Threads of this process, the native ones too."""
    return len(os.listdir("/proc/self/task"))


def settled_threads() -> int:
    """The number of threads, once those that were told to end have."""
    count = threads()
    for _ in range(50):
        time.sleep(0.02)
        count = min(count, threads())
    return count


def test_len_and_even(config):
    """Without `even` the length isn't known; with it, all ranks have it."""
    with pytest.raises(TypeError, match="not known"):
        len(tokenmill.Loader(config))
    for even in ("drop", "pad"):
        loaders = [tokenmill.Loader(config, rank=rank, world_size=4, even=even) for rank in range(4)]
        lengths = [len(loader) for loader in loaders]
        batches = [list(loader) for loader in loaders]
        assert lengths == [len(rank) for rank in batches] and len(set(lengths)) == 1
        assert all(len(batch["input_ids"]) == 2 for rank in batches for batch in rank)


def test_skip_batches(config):
    """Batches passed over leave the others as they were."""
    whole = list(tokenmill.Loader(config))
    same(rows(tokenmill.Loader(config, skip_batches=[(2, 5), (9, 10)])), rows(whole[:2] + whole[5:9] + whole[10:]))


def test_locate(config):
    """Each block's documents are named, and their text is in it."""
    loader = tokenmill.Loader(config)
    batches = list(loader)
    for index in (0, 11, len(batches) - 1):
        located = loader.locate(index)
        assert len(located) == len(batches[index]["input_ids"])
        for row, documents in enumerate(located):
            assert batches[index]["segment_ids"][row].max() == len(documents)
            for document in documents:
                place, within = document["tokens_in_block"], document["tokens_in_document"]
                ids = batches[index]["input_ids"][row][place["start"] : place["end"]]
                text = Path(document["shard"]).read_bytes()[document["bytes"]["start"] : document["bytes"]["end"]]
                if document["source"] == "web":
                    text = json.loads(text)["text"].encode()
                expected = (list(text) + [256])[within["start"] : within["end"]]
                assert list(ids) == expected
    with pytest.raises(IndexError):
        loader.locate(len(batches))
    # Where some lanes end before others, and after a resume in the middle.
    half = tokenmill.Loader(config)
    for _ in range(10):
        next(half)
    again = tokenmill.Loader(config, resume=half.state_dict())
    list(again)
    assert again.locate(len(batches) - 1) == loader.locate(len(batches) - 1)
    assert again.locate(3) == loader.locate(3)


def test_errors_have_places(config, tmp_path, corpus):
    """A bad record is an exception with its kind and place, after what came before; it can be pickled."""
    lines = (corpus / "web-00.jsonl").read_text().splitlines(keepends=True)
    lines[70] = '{"text": 3}\n'
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(lines))
    config["source"] = [{"name": "web", "paths": [str(path)]}]
    config.update(lanes=1, shuffle={"enabled": False})
    loader = tokenmill.Loader(config)
    with pytest.raises(tokenmill.Error, match='"text" is a number') as raised:
        list(loader)
    error = pickle.loads(pickle.dumps(raised.value))
    byte = len("".join(lines[:70]).encode())
    assert (error.kind, error.shard, error.record, error.byte) == ("bad_record", str(path), 70, byte)
    assert str(error) == str(raised.value)
    with pytest.raises(tokenmill.Error):
        next(loader)
    skipping = tokenmill.Loader(config, errors__bad_record="skip")
    for _ in range(20):
        next(skipping)


def test_logs(config, caplog):
    """What the library logs arrives in Python's logging."""
    state = tokenmill.Loader(config).state_dict()
    with caplog.at_level(logging.INFO):
        tokenmill.Loader(config, rank=0, world_size=2, resume=state)
    assert any("world size changed" in record.message and record.name.startswith("tokenmill") for record in caplog.records)


WAITING = """
import signal, sys, tokenmill
# Who started the tests in the background has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
loader = tokenmill.Loader(sys.argv[1])
print("ready", flush=True)
try:
    while True:
        next(loader)
except KeyboardInterrupt:
    state = loader.state_dict()
    print("interrupted", flush=True)
    next(loader)
    print("went on", flush=True)
"""


def test_ctrl_c(endless, tmp_path):
    """Ctrl-C becomes a KeyboardInterrupt within 0.2 s (a second, on a busy machine), and the loader can go on."""
    endless["block_size"] = 1 << 20
    path = tmp_path / "run.toml"
    path.write_text(toml_of(endless))
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(path)], stdout=subprocess.PIPE, text=True
    )
    # One that doesn't hear it fails the test, and doesn't outlive it.
    watch = threading.Timer(60, process.kill)
    watch.start()
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert time.monotonic() - begin < 5
        assert process.stdout.readline() == "went on\n"
    finally:
        watch.cancel()
        process.kill()
        process.wait()


def test_lock_is_released(endless):
    """Another thread runs while the loader works."""
    endless["block_size"] = 1 << 18
    loader = tokenmill.Loader(endless)
    turns, done = 0, threading.Event()

    def count():
        nonlocal turns
        while not done.is_set():
            turns += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    for _ in range(4):
        next(loader)
    done.set()
    thread.join()
    assert turns > 10


def resident() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_over_many_batches(endless):
    """10,000 batches and as many states leave no memory behind."""
    loader = tokenmill.Loader(endless)
    for _ in range(1000):
        next(loader)
    gc.collect()
    before = resident()
    for number in range(10_000):
        next(loader)
        if number % 10 == 0:
            loader.state_dict()
    gc.collect()
    assert resident() - before < 30 << 20
