"""Hugging Face's `Trainer` over tokenmill: `python examples/hf_trainer.py CONFIG FOLDER STEPS`, and again with more steps to go on.

Needs `transformers` and `accelerate`; no `datasets`. Each rank reads its own blocks, so it works under `torchrun` as it stands.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tokenmill.torch import TokenDataset
from tokenmill.trainers import TrainerMixin
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


class MyTrainer(TrainerMixin, Trainer):
    """A trainer that takes batches as they are, and saves where the data stands with each checkpoint."""


def main(config: str, folder: str, steps: int) -> list[float]:
    """Trains up to `steps`, from the last checkpoint in `folder` if there is one; returns the losses logged."""
    set_seed(0)
    dataset = TokenDataset(config)
    size = dataset.loader.tokenizer["vocab_size"]
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=size, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    )
    arguments = TrainingArguments(
        folder,
        max_steps=steps,
        logging_steps=1,
        save_steps=4,
        lr_scheduler_type="constant",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = MyTrainer(model=model, args=arguments, train_dataset=dataset)
    trainer.train(resume_from_checkpoint=any(Path(folder).glob("checkpoint-*")) or None)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
