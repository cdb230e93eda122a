"""Conversations and whole documents: labels, segments and states, as a trainer sees them."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
import tokenmill

TEMPLATE = (
    "{% for m in messages %}{{ '[' + m.role + ']' + m.content + '<eos>' }}{% endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)
EOS, BLOCK = 256, 96
FIELDS = ["input_ids", "labels", "position_ids", "segment_ids"]


@pytest.fixture
def chats(tmp_path: Path) -> dict:
    """Conversations of small letters, and answers in capitals; one in ten has no answer. Two lanes."""
    random.seed(5)
    with open(tmp_path / "chat.jsonl", "w", encoding="utf-8") as file:
        for row in range(120):
            messages = []
            for turn in range(random.randint(1, 3)):
                messages.append({"role": "user", "content": f"q{row}.{turn} " + "x" * random.randint(0, 20)})
                messages.append({"role": "assistant", "content": f"A{row}.{turn}"})
            file.write(json.dumps({"messages": messages[:1] if row % 10 == 3 else messages}) + "\n")
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    return {
        "seed": 3,
        "lanes": 2,
        "block_size": BLOCK,
        "batch_size": 2,
        "tokenizer": {"path": "bytes", "append_eos": False},
        "shuffle": {"span": "2KiB", "window": "1KiB"},
        "packing": {"strategy": "best_fit", "window": 16},
        "source": [
            {
                "name": "chat",
                "paths": [str(tmp_path / "chat.jsonl")],
                "max_epochs": 2,
                "chat": {"template": str(tmp_path / "t.jinja"), "overflow": "split"},
            }
        ],
    }


def segments(batch: dict):
    """Row, begin and end of each segment."""
    for row, ids in enumerate(batch["segment_ids"]):
        begins = [*np.flatnonzero(np.diff(ids, prepend=-1)), BLOCK]
        for begin, end in itertools.pairwise(begins):
            if ids[begin] > 0:
                yield row, begin, end


def masks(text: bytes) -> list[bool]:
    """What of a rendered conversation is trained: behind each `[assistant]`, the turn's end included."""
    trained, inside = [], False
    for at, byte in enumerate(text):
        if text[:at].endswith(b"[assistant]"):
            inside = True
        trained.append(inside)
        inside = inside and byte != 0
    return trained


def test_labels(chats):
    """Trained is what the assistant says, with its end; the first of a segment, padding and all else are -100."""
    batches = list(tokenmill.Loader(chats, cu_seqlens=True))
    assert len(batches) > 20
    whole = 0
    for batch in batches:
        ids, labels = batch["input_ids"], batch["labels"]
        assert (labels[batch["segment_ids"] == 0] == -100).all()
        assert ((labels == -100) | (labels == ids)).all()
        ends = [0]
        for row, begin, end in segments(batch):
            assert labels[row, begin] == -100
            assert (batch["position_ids"][row, begin:end] == np.arange(end - begin)).all()
            text = bytes(0 if token == EOS else token for token in ids[row, begin:end])
            if text.startswith(b"[user]"):
                assert [label != -100 for label in labels[row, begin:end]] == masks(text), text
                whole += 1
            ends.append(row * BLOCK + end)
        assert set(ends) <= set(batch["cu_seqlens"].tolist())
        assert batch["max_seqlen"] == np.diff(batch["cu_seqlens"]).max()
    assert whole > 150
    stats = tokenmill.Loader(chats)
    list(stats)
    assert stats.stats()["sources"]["chat"]["untrained"] == 24


def test_shifted_labels(chats):
    """Shifted, each label is the next token's, and a segment's last is -100: no target crosses a border."""
    plain, shifted = (list(tokenmill.Loader(chats, shift_labels=shift)) for shift in (False, True))
    for a, b in zip(plain, shifted, strict=True):
        assert (a["input_ids"] == b["input_ids"]).all()
        for row, begin, end in segments(a):
            assert (b["labels"][row, begin : end - 1] == a["labels"][row, begin + 1 : end]).all()
            assert b["labels"][row, end - 1] == -100
        assert (b["labels"][b["segment_ids"] == 0] == -100).all()


@pytest.mark.parametrize("strategy", ["best_fit", "greedy"])
def test_resumes_within_a_window(chats, strategy):
    """From the state after any batch, through JSON, the rest is the same in every field."""
    chats["packing"]["strategy"] = strategy
    loader = tokenmill.Loader(chats)
    states, batches = [loader.state_dict()], []
    for batch in loader:
        batches.append(batch)
        states.append(loader.state_dict())
    lanes = [json.loads(lane) for state in states for name, lane in state.items() if name != "header"]
    assert any(lane["sources"]["chat"].get("window_blocks") for lane in lanes)
    assert max(len(json.dumps(lane)) for lane in lanes) < 1024
    for k, state in enumerate(states):
        again = tokenmill.Loader(chats, resume=json.loads(json.dumps(state)))
        found = list(itertools.islice(again, 3))
        assert len(found) == len(batches[k : k + 3])
        for a, b in zip(found, batches[k : k + 3], strict=True):
            assert all((a[field] == b[field]).all() for field in FIELDS), f"from batch {k}"


def test_documents_stay_whole(config):
    """Without conversations: each document is one segment, unless it is longer than a block."""
    config["packing"] = {"strategy": "best_fit", "window": 64, "overflow": "truncate"}
    loader = tokenmill.Loader(config)
    found = []
    for batch in loader:
        assert batch["input_ids"].shape[1] == 64
        for row, ids in enumerate(batch["segment_ids"]):
            for segment in range(1, ids.max() + 1):
                tokens = batch["input_ids"][row][ids == segment]
                assert batch["labels"][row][ids == segment][0] == -100
                assert bytes(tokens[:1].astype(np.uint8)) == b"<", "a document's beginning"
                found.append(bytes(tokens[:8].astype(np.uint8)).split(b">")[0])
    assert len(found) == len(set(found)) == 1600, "each document once"
