"""Trains a small Transformer encoder by Hugging Face Accelerate, as its documentation has it.

``pip install accelerate``, then ``accelerate launch accelerate_loop.py`` on GPUs, or without any
``simdev capture accelerate_loop.py --world 8``.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fsdp", action="store_true", help="FSDP2 instead of DDP")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=1)
    o = parser.parse_args()

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["TransformerEncoderLayer"],
    )
    accelerator = Accelerator(
        mixed_precision="bf16",
        gradient_accumulation_steps=o.accumulate,
        fsdp_plugin=plugin if o.fsdp else None,
    )
    layer = nn.TransformerEncoderLayer(o.width, 8, 4 * o.width, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, o.layers), nn.Linear(o.width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    samples = TensorDataset(torch.randn(1024, o.length, o.width), torch.randint(10, (1024,)))
    loader = DataLoader(samples, batch_size=o.batch, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    for epoch in range(3):
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs).mean(1), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
