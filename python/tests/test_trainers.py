"""The examples, with the trainers they are for: each is stopped, goes on, and learns from what it would have."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
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


def test_torchtitan(written):
    """The real base class builds the loader as its trainer does; its state, saved by lane, goes on at another degree."""
    components = pytest.importorskip("torchtitan.components.dataloader")
    from tokenmill.torchtitan import TokenMillDataLoader

    def build(rank: int, degree: int) -> TokenMillDataLoader:
        config = TokenMillDataLoader.Config(dataset_path=written)
        assert config.to_dict()["dataset_path"] == written
        built = config.build(
            dp_world_size=degree, dp_rank=rank, tokenizer=None, seq_len=64, local_batch_size=4 // degree, snapshot_every_n_steps=10
        )
        assert isinstance(built, components.BaseDataLoader)
        return built

    whole = iter(build(0, 1))
    ranks = [build(rank, 2) for rank in range(2)]
    both = [iter(rank) for rank in ranks]
    for _ in range(3):
        inputs, labels = next(whole)
        parts = [next(rank) for rank in both]
        assert torch.equal(inputs["input"].sort(0).values, torch.cat([part[0]["input"] for part in parts]).sort(0).values)
        assert torch.equal(labels[:, :-1], inputs["input"][:, 1:])
    one = build(0, 1)
    one.load_state_dict({**ranks[0].state_dict(), **ranks[1].state_dict()})
    for (inputs, labels), _ in zip(one, range(5), strict=False):
        expected = next(whole)
        assert all(torch.equal(inputs[key], expected[0][key]) for key in ("input", "positions")) and torch.equal(labels, expected[1])
    with pytest.raises(ValueError, match="dataset_path"):
        TokenMillDataLoader.Config().build(dp_world_size=1, dp_rank=0, seq_len=64, local_batch_size=4)


def test_torchtitan_before_its_dataloader_was_configurable(written):
    """What a train spec's function builds gives the loader's blocks."""
    job = types.SimpleNamespace(training=types.SimpleNamespace(dataset_path=written, local_batch_size=2, seq_len=64))
    batches = example("torchtitan_loader").build_dataloader(2, 1, job_config=job, tokenizer=None)
    inputs, labels = next(iter(batches))
    expected = next(tokenmill.Loader(written, rank=1, world_size=2, batch_size=2))
    assert (inputs["input"].numpy() == expected["input_ids"]).all()
    assert (labels[:, :-1].numpy() == expected["labels"][:, 1:]).all()


def test_litgpt(written):
    """The data module gives the loader's blocks."""
    data = example("litgpt_data").TokenMill(written)
    data.connect(batch_size=4, max_seq_length=64)
    batch = next(iter(data.train_dataloader()))
    expected = next(tokenmill.Loader(written, block_size=65, batch_size=4))
    assert (batch.numpy() == expected["input_ids"]).all()
    assert next(iter(data.val_dataloader())).shape == (4, 65)


LITGPT = """
import os
from pathlib import Path
from litgpt import pretrain
from litgpt.args import EvalArgs, TrainArgs
from litgpt.config import Config
from litgpt_data import TokenMill

config, folder, resume = os.environ["CONFIG"], Path(os.environ["FOLDER"]), os.environ["RESUME"] == "yes"
train = TrainArgs(save_interval=2, log_interval=1, global_batch_size=4, micro_batch_size=4, max_tokens=4 * 64 * 4, max_norm=1.0, min_lr=1e-5,
                  lr_warmup_steps=2, tie_embeddings=False)
model = Config(name="tiny", block_size=64, n_layer=1, n_embd=16, n_head=2, padded_vocab_size=320)
pretrain.setup("tiny", model_config=model, out_dir=folder, precision="32-true", data=TokenMill(config), devices=1, logger_name="csv",
               train=train, eval=EvalArgs(interval=1000, max_iters=1), resume=resume)
"""


def test_litgpt_pretrains_and_goes_on(written, tmp_path):
    """LitGPT's own `pretrain`, gone on with from its second step, has the losses of the run in one piece."""
    pytest.importorskip("litgpt")
    script = tmp_path / "train.py"
    script.write_text(LITGPT)

    def losses(resume: str) -> dict[str, str]:
        # LitGPT parses the command line of who calls it.
        command = [sys.executable, str(script), "tiny"]
        environment = {**os.environ, "PYTHONPATH": str(EXAMPLES), "CONFIG": written, "FOLDER": str(tmp_path / "out"), "RESUME": resume}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stderr
        return dict(re.findall(r"step (\d+) \| loss train: ([\d.]+)", done.stdout))

    whole = losses("no")
    assert list(whole) == ["1", "2", "3", "4"]
    for later in ("step-00000004", "final"):
        shutil.rmtree(tmp_path / "out" / later)
    assert losses("yes") == {step: whole[step] for step in ("3", "4")}
