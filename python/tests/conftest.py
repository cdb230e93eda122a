"""A small corpus with documents of different lengths in several shards, in three formats, and a config over it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight JSONL shards of 150 documents and four of plain text; each document begins with a number of its own."""
    folder = tmp_path_factory.mktemp("corpus")
    random.seed(7)
    words = "the cat sat on a mat und der Hund läuft schnell über die Straße 東京 は 大きい def f(x): return x + 1".split()
    number = 0
    for shard in range(8):
        with open(folder / f"web-{shard:02}.jsonl", "w", encoding="utf-8") as file:
            for _ in range(150):
                text = f"<{number}> " + " ".join(random.choices(words, k=random.randint(1, 120)))
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                number += 1
    for shard in range(4):
        with open(folder / f"notes-{shard:02}.txt", "w", encoding="utf-8") as file:
            for _ in range(100):
                file.write(f"<{number}> " + " ".join(random.choices(words, k=random.randint(1, 60))) + "\n\n")
                number += 1
    return folder


@pytest.fixture
def config(corpus: Path) -> dict:
    """A finite run over both sources: 8 lanes, blocks of 64, batches of 2."""
    return {
        "seed": 3,
        "lanes": 8,
        "block_size": 64,
        "batch_size": 2,
        "tokenizer": {"path": "bytes"},
        "shuffle": {"span": "8KiB", "window": "2KiB"},
        "packing": {"tail": "pad"},
        "source": [
            {"name": "web", "paths": [str(corpus / "web-*.jsonl")], "weight": 0.7, "max_epochs": 1},
            {"name": "notes", "paths": [str(corpus / "notes-*.txt")], "separator": "\n\n", "weight": 0.3, "max_epochs": 1},
        ],
        "runtime": {"threads": 2},
    }


@pytest.fixture
def endless(config: dict) -> dict:
    """The same without an end."""
    for source in config["source"]:
        source["max_epochs"] = 0
    return config
