"""The examples, with the trainers they are for: each is stopped, goes on, and learns from what it would have."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import types
from pathlib import Path

import pytest
import tokenmill
from test_loader import toml_of

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> types.ModuleType:
    """The example as a module."""
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def written(endless: dict, tmp_path: Path) -> str:
    """A config without end, as a file."""
    path = tmp_path / "config.toml"
    path.write_text(toml_of(endless))
    return str(path)


def test_training_run_is_killed_and_goes_on(tmp_path):
    """The losses of a run killed twice by SIGKILL are, to the last digit, those of a run never stopped."""

    def run(folder: str, *arguments: str) -> int:
        command = [sys.executable, str(EXAMPLES / "train_tiny.py"), "--steps", "40", "--folder", str(tmp_path / folder)]
        return subprocess.run([*command, *arguments], capture_output=True, timeout=300).returncode

    assert run("whole") == 0
    assert run("parts", "--kill-at", "13") == -9
    assert run("parts", "--kill-at", "31") == -9
    assert run("parts") == 0
    whole, parts = ((tmp_path / folder / "losses.jsonl").read_text() for folder in ("whole", "parts"))
    assert whole.count("\n") == 40 and whole == parts


def test_hugging_face_trainer(written, tmp_path):
    """Losses after a resume are those of a run in one piece; the data isn't read and thrown away."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    hf = example("hf_trainer")
    whole = hf.main(written, str(tmp_path / "whole"), 8)
    hf.main(written, str(tmp_path / "parts"), 4)
    parts = hf.main(written, str(tmp_path / "parts"), 8)
    assert len(whole) == 8 and whole == parts


def test_lightning(written, tmp_path):
    """What Lightning has taken ahead is not left out after a resume."""
    pytest.importorskip("lightning")
    module = example("lightning_train")
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = module.main(written, str(tmp_path / "whole"), 9, 259)
    first = module.main(written, str(tmp_path / "parts"), 4, 259)
    second = module.main(written, str(tmp_path / "parts"), 9, 259)
    assert first.seen + second.seen == whole.seen
    assert first.losses + second.losses == whole.losses


def test_torchtitan_and_litgpt_examples(written):
    """What the two examples build gives the loader's blocks."""
    job = types.SimpleNamespace(training=types.SimpleNamespace(dataset_path=written, local_batch_size=2, seq_len=64))
    batches = example("torchtitan_loader").build_dataloader(2, 1, job_config=job, tokenizer=None)
    inputs, labels = next(iter(batches))
    expected = next(tokenmill.Loader(written, rank=1, world_size=2, batch_size=2))
    assert (inputs["input"].numpy() == expected["input_ids"]).all()
    assert (labels[:, :-1].numpy() == expected["labels"][:, 1:]).all()
    data = example("litgpt_data").TokenMill(written)
    data.connect(batch_size=4, max_seq_length=64)
    batch = next(iter(data.train_dataloader()))
    expected = next(tokenmill.Loader(written, block_size=65, batch_size=4))
    assert (batch.numpy() == expected["input_ids"]).all()
