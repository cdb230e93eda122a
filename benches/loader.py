"""Tokens a second through the Python loader, beside the command on the same config, in turn.

    python benches/loader.py --binary tokenmill CONFIG [--threads 2] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

CODE = """
import json, sys, tokenmill
loader = tokenmill.Loader(sys.argv[1], runtime={"threads": int(sys.argv[2])}, torch=sys.argv[3] == "torch")
for batch in loader:
    pass
print(json.dumps(loader.stats()))
"""


def main() -> None:
    """Times both, and checks first that they deliver the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--binary", required=True)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    command = [arguments.binary, "run", arguments.config, "--threads", arguments.threads, "-q", "--report", "-"]
    script = [sys.executable, "-c", CODE, arguments.config, arguments.threads]
    runs = {"command": command, "Loader, numpy": [*script, "numpy"], "Loader, torch": [*script, "torch"]}
    reports = {name: [] for name in runs}
    for _ in range(arguments.rounds):
        for name, run in runs.items():
            out = subprocess.run(run, capture_output=True, text=True, check=True).stdout
            reports[name].append(json.loads(out))
    digests = {report["digest"] for found in reports.values() for report in found}
    assert len(digests) == 1, "the loader and the command deliver different ids"
    base = statistics.median(report["tokens_per_second"] for report in reports["command"])
    for name, found in reports.items():
        rates = sorted(report["tokens_per_second"] for report in found)
        middle = statistics.median(rates)
        print(f"{name:14} {middle / 1e6:7.2f} M tokens/s ({rates[0] / 1e6:.2f} to {rates[-1] / 1e6:.2f}), {middle / base:.2f} of the command")


if __name__ == "__main__":
    main()
