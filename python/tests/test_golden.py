"""The golden files of the Rust tests: the same corpora, made here again, have the same digests through Python.

The corpora are those of `tests/it/corpus.rs`, the configs those of `tests/it/golden.rs`. Cases whose files only Rust can write (lz4, zstd) are
left out.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenmill

GOLDEN = json.loads((Path(__file__).parents[2] / "tests" / "golden" / "digests.json").read_text())
SEPARATOR = "\n<|end|>\n"
HEAD = {"lanes": 4, "block_size": 64, "batch_size": 4, "shuffle": {"span": 3000, "window": 700}, "tokenizer": {"path": "bytes"}}

IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
QUARTERS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15), (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def blake3_head(data: bytes) -> int:
    """The first eight bytes of the BLAKE3 hash of at most 64 bytes: one compression (the BLAKE3 paper, section 2.2)."""
    assert len(data) <= 64
    words = list(struct.unpack("<16I", data.ljust(64, b"\0")))
    # Flags: first and last block of the only part, which is the root.
    v = [*IV, *IV[:4], 0, 0, len(data), 1 | 2 | 8]
    for _ in range(7):
        for place, (a, b, c, d) in enumerate(QUARTERS):
            for word, turn_d, turn_b in ((words[2 * place], 16, 12), (words[2 * place + 1], 8, 7)):
                v[a] = (v[a] + v[b] + word) & 0xFFFFFFFF
                v[d] = turned(v[d] ^ v[a], turn_d)
                v[c] = (v[c] + v[d]) & 0xFFFFFFFF
                v[b] = turned(v[b] ^ v[c], turn_b)
        words = [words[place] for place in ORDER]
    return (v[0] ^ v[8]) | (v[1] ^ v[9]) << 32


def turned(word: int, bits: int) -> int:
    """A 32-bit word rotated to the right."""
    return (word >> bits | word << (32 - bits)) & 0xFFFFFFFF


def key(seed: int, purpose: str, name: str, number: int) -> int:
    """As `order::key` of the library."""
    text = b"".join(struct.pack("<Q", len(part.encode())) + part.encode() for part in (purpose, name))
    return blake3_head(struct.pack("<Q", seed) + text + struct.pack("<Q", number))


def document(name: str, number: int, size_max: int) -> str:
    """As `corpus::document` of the Rust tests."""
    seed = key(1, "document", name, number)
    text, counter = f"{name}#{number}:", 1
    size = key(seed, "test", "", 0) % size_max
    words = ["alpha", "beta", "γάμμα", "delta", "éps", '"quoted"', "\\slash", "{brace}", "tab\t", "😀"]
    while len(text.encode()) < size:
        text += " " + words[key(seed, "test", "", counter) % 10]
        counter += 1
    return text


def source(folder: Path, name: str, ending: str, shards: int, documents: int, compress: Callable[[bytes], bytes] = bytes) -> dict:
    """Writes a source's shards, and gives its part of the config."""
    (folder / name).mkdir()
    every = [document(name, number, 150) for number in range(documents)]
    for shard in range(shards):
        part = every[shard::shards]
        if ending.startswith("jsonl"):
            lines = [{"id": number, "text": text, "meta": {"n": [1, 2]}} for number, text in enumerate(part)]
            whole = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
        else:
            whole = SEPARATOR.join(part)
        (folder / name / f"{shard:03}.{ending}").write_bytes(compress(whole.encode()))
    config = {"name": name, "paths": [f"{folder / name}/*"]}
    return config if ending.startswith("jsonl") else {**config, "separator": SEPARATOR}


def digest(config: dict) -> str:
    """The digest of the first 60 batches."""
    with tokenmill.Loader(config) as loader:
        for _ in range(60):
            next(loader)
        return loader.stats()["digest"]


def test_hash():
    """Of nothing and of three bytes, as published."""
    assert blake3_head(b"").to_bytes(8, "little").hex() == "af1349b9f5f9a1a6"
    assert blake3_head(b"abc").to_bytes(8, "little").hex() == "6437b3ac38465133"


@pytest.mark.parametrize(
    ("case", "ending", "compress"),
    [
        ("Jsonl", "jsonl", bytes),
        ("JsonlGzip", "jsonl.gz", gzip.compress),
        ("JsonlXz", "jsonl.xz", lzma.compress),
        ("JsonlBzip2", "jsonl.bz2", bz2.compress),
        ("Text", "txt", bytes),
        ("TextGzip", "txt.gz", gzip.compress),
    ],
)
def test_formats(tmp_path, case, ending, compress):
    """One source of three shards, in each format."""
    assert digest({**HEAD, "source": [source(tmp_path, "a", ending, 3, 120, compress)]}) == GOLDEN[case]


def test_mixtures(tmp_path):
    """Two sources; with another seed, without a shuffle, and with another tokenizer."""
    web = {**source(tmp_path, "web", "jsonl", 9, 200), "weight": 0.7}
    code = {**source(tmp_path, "code", "txt", 2, 200), "weight": 0.3}
    head = {**HEAD, "source": [web, code]}
    assert digest(head) == GOLDEN["mixture"]
    assert digest({**head, "seed": 7}) == GOLDEN["seed 7"]
    assert digest({**head, "shuffle": {"enabled": False}}) == GOLDEN["not shuffled"]
    assert digest({**head, "tokenizer": {"path": "gpt2"}}) == GOLDEN["gpt2"]
