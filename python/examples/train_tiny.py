"""A complete training run in plain PyTorch: a small transformer that learns bytes of the sample data, on a CPU, in a minute.

    python examples/train_tiny.py --steps 200 --folder run

Stop it any way, even by SIGKILL, and call it again: it goes on from its last checkpoint, and the losses in `run/losses.jsonl` are
those of a run never stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

import tokenmill
import torch
from torch import nn
from torch.nn import functional

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.toml"


class Model(nn.Module):
    """A decoder of two layers. Tokens attend to earlier tokens of their own document only."""

    def __init__(self, vocab_size: int, width: int = 64, heads: int = 4, block_size: int = 256) -> None:
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(block_size, width)
        layer = dict(norm1=nn.LayerNorm, norm2=nn.LayerNorm)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    **{name: kind(width) for name, kind in layer.items()},
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of a batch."""
        ids, segments = batch["input_ids"], batch["segment_ids"]
        rows, size = ids.shape
        x = self.tokens(ids) + self.positions(batch["position_ids"])
        mask = (segments[:, :, None] == segments[:, None, :]).tril()[:, None]
        for layer in self.layers:
            q, k, v = layer["qkv"](layer["norm1"](x)).view(rows, size, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + layer["out"](attended.transpose(1, 2).reshape(rows, size, -1))
            x = x + layer["down"](functional.gelu(layer["up"](layer["norm2"](x))))
        logits = self.head(self.norm(x))
        # Labels are shifted by the loader; -100 is not trained.
        return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def main() -> None:
    """Trains, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default=CONFIG)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path("run"))
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument("--kill-at", type=int, help="kill this process after a step, to see that it doesn't matter")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    checkpoint = arguments.folder / "checkpoint.pt"

    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = tokenmill.Loader(
        arguments.config,
        batch_size=4,
        block_size=256,
        torch=True,
        shift_labels=True,
        tokenizer={"path": "bytes"},
        **{"source.prose.max_epochs": 0, "source.code.max_epochs": 0},
    )
    model = Model(loader.tokenizer["vocab_size"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step, losses = 0, []
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step, losses = saved["step"], saved["losses"]
        print(f"going on from step {step}")
    while step < arguments.steps:
        loss = model(next(loader))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        step += 1
        if step % 20 == 0:
            print(f"step {step} loss {losses[-1]:.4f}", flush=True)
        if step % arguments.checkpoint_every == 0 or step == arguments.steps:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": loader.state_dict(),
                "step": step,
                "losses": losses,
            }
            torch.save(state, checkpoint.with_suffix(".tmp"))
            os.replace(checkpoint.with_suffix(".tmp"), checkpoint)
        if step == arguments.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    text = "".join(json.dumps({"step": number, "loss": loss}) + "\n" for number, loss in enumerate(losses, 1))
    (arguments.folder / "losses.jsonl").write_text(text)


if __name__ == "__main__":
    main()
