"""tokenmill beside what users would pick instead, in one interleaved run: text MB/s on one core.

usage: peers.py --binary TOKENMILL --peers DIR --corpus DIR --tokenizers DIR [--rounds 3] [--names gpt2,llama3,qwen3] [--cpu 0]

DIR of --peers holds gigatoken_files.py and hf_stream.py, DIR of --corpus {english,multi,code}.jsonl (+ .jsonl.zst, .parquet), DIR of
--tokenizers NAME.json. The peers' packages must be in the Python that runs this. A figure is the median over the rounds; a round
runs the peer and tokenmill one after the other, each as a fresh process on the same core. The peer's first pass is taken: text is
not seen before, as in training.
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name in ("--binary", "--peers", "--corpus", "--tokenizers"):
    parser.add_argument(name, required=True)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--names", default="gpt2,llama3,qwen3")
parser.add_argument("--cpu", default="0")
parser.add_argument("--hf-seconds", type=float, default=10, help="seconds of the hf_stream peer; 0 = leave it out")
a = parser.parse_args()


def run(command):
    done = subprocess.run(["taskset", "-c", a.cpu, *command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def tokenmill(folder, tokenizer, shard):
    config, report = os.path.join(folder, "run.toml"), os.path.join(folder, "report.json")
    with open(config, "w") as file:
        file.write(f'[tokenizer]\npath = "{tokenizer}"\n[[source]]\nname = "a"\npaths = ["{shard}"]\nmax_epochs = 1\n')
    run([a.binary, "run", config, "--threads", "1", "--out", "none", "--quiet", "--report", report])
    with open(report) as file:
        report = json.load(file)
    return report["text_bytes"] / report["seconds"] / 1e6, report["text_bytes"], report["peak_rss_bytes"]


ratios = []
print(f"{'tokenizer':12} {'shard':22} {'tokenmill':>10} {'gigatoken':>10} {'ratio':>6} {'peak MB':>8}   (MB/s of text, medians)")
with tempfile.TemporaryDirectory() as folder:
    for name in a.names.split(","):
        tokenizer = os.path.abspath(os.path.join(a.tokenizers, name + ".json"))
        if not os.path.exists(tokenizer):
            print(f"{name:12} left out: no {tokenizer}")
            continue
        for corpus in ("english", "multi", "code"):
            for ending in ("jsonl", "jsonl.zst", "parquet"):
                shard = os.path.abspath(os.path.join(a.corpus, f"{corpus}.{ending}"))
                if not os.path.exists(shard):
                    print(f"{name:12} {corpus}.{ending} left out: not there")
                    continue
                ours, theirs, peak = [], [], 0
                for _ in range(a.rounds):
                    rate, text_bytes, rss = tokenmill(folder, tokenizer, shard)
                    ours.append(rate)
                    peak = max(peak, rss)
                    peer = [sys.executable, os.path.join(a.peers, "gigatoken_files.py"), tokenizer, shard, "--passes", "1"]
                    theirs.append(text_bytes / json.loads(run(peer))["seconds"] / 1e6)
                ours, theirs = statistics.median(ours), statistics.median(theirs)
                ratios.append(ours / theirs)
                print(f"{name:12} {corpus + '.' + ending:22} {ours:10.1f} {theirs:10.1f} {ratios[-1]:6.2f} {peak / 1e6:8.0f}", flush=True)
        if a.hf_seconds:
            shard = os.path.abspath(os.path.join(a.corpus, "english.jsonl.zst"))
            peer = [sys.executable, os.path.join(a.peers, "hf_stream.py"), tokenizer, shard, "--seconds", str(a.hf_seconds)]
            theirs = json.loads(run(peer).strip().splitlines()[-1])["text_mb_s"]
            ours = tokenmill(folder, tokenizer, shard)[0]
            print(f"{name:12} english.jsonl.zst      {ours:10.1f} {theirs:10.1f} {ours / theirs:6.1f}            beside datasets + tokenizers")
if ratios:
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"geometric mean of the ratios to gigatoken {mean:.2f}, least {min(ratios):.2f}, of {len(ratios)}")
