"""Small networks of transformers, data for them, and a training with its Trainer."""

from pathlib import Path

import torch
from libraries import transformers


def gpt2():
    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(
        **sizes, bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config)


def vit():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.ViTConfig(
        **sizes, intermediate_size=64, image_size=16, patch_size=8, num_labels=4
    )
    torch.manual_seed(0)
    return transformers.ViTForImageClassification(config)


def words(count=32):
    drawn = torch.randint(0, 50, (count, 12), generator=torch.Generator().manual_seed(5))
    return [{"input_ids": row, "labels": row} for row in drawn]


def images(count=32):
    drawn = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(5))
    return [{"pixel_values": row, "labels": i % 4} for i, row in enumerate(drawn)]


KINDS = {"gpt2": (gpt2, words), "vit": (vit, images)}


def trained(model, data, folder: Path, *callbacks, resume=None, **settings):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=8, report_to=[],
        use_cpu=True, disable_tqdm=True, learning_rate=1e-3, logging_strategy="no",
        **{"save_strategy": "no", **settings},
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[*callbacks])
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def collated(data):
    return {key: torch.stack([torch.as_tensor(row[key]) for row in data]) for key in data[0]}
