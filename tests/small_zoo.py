"""Small networks of the kinds in the zoo (`bench/zoo_networks.py`), each with the calls it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from libraries import timm, transformers
from torch import nn
from zoo_layers import GAN, Encoder, PackedLSTM, Tied, UNet, audio, video

import snip

Example = Callable[[int, int], Any]  # of a batch size and a length or size of image
WORDS = 50


def images(count: int, size: int) -> torch.Tensor:
    return torch.randn(count, 3, size, size)


def tokens(count: int, length: int) -> dict[str, torch.Tensor]:
    words = torch.randint(0, WORDS, (count, length))
    return {"input_ids": words, "labels": words}


def sentences(count: int, length: int) -> dict[str, torch.Tensor]:
    return {"input_ids": tokens(count, length)["input_ids"], "labels": torch.arange(count) % 3}


def sequences(count: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, WORDS, (count, length)), 1 + torch.arange(count) % length


def _timm(name: str) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=5)


def _mixer() -> nn.Module:
    size = {"img_size": 32, "patch_size": 8, "num_blocks": 2, "embed_dim": 32}
    return timm.models.mlp_mixer.MlpMixer(**size, num_classes=5)


def _gpt2() -> nn.Module:
    sizes = {"vocab_size": WORDS, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def _bert() -> nn.Module:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, vocab_size=WORDS, intermediate_size=64, num_labels=3)
    return transformers.BertForSequenceClassification(config)


def llama() -> nn.Module:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(
        **sizes, vocab_size=WORDS, num_key_value_heads=2, intermediate_size=48,
        max_position_embeddings=64, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


class Attention(nn.Module):
    """torch's attention by itself, over sequences whose padding is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, 16), nn.Linear(16, 3)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor, padding: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed(x)
        return self.head(self.attention(x, x, x, key_padding_mask=padding)[0].mean(1))


def padded(count: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, length, 6), torch.arange(length).expand(count, -1) >= length - 2


# By kind: how it is built, what it is called on, and two sizes of that.
SMALL_ZOO: dict[str, tuple[Callable[[], nn.Module], Example, int, int]] = {
    "resnet": (_timm("test_resnet"), images, 32, 48),
    "efficientnet": (_timm("test_efficientnet"), images, 32, 48),
    "convnext": (_timm("test_convnext"), images, 32, 64),
    "vit": (lambda: timm.create_model("test_vit", num_classes=5, img_size=32), images, 32, 32),
    "mlp-mixer": (_mixer, images, 32, 32),
    "gpt-2": (_gpt2, tokens, 12, 7),
    "bert": (_bert, sentences, 12, 7),
    "llama": (llama, tokens, 12, 7),
    "transformer-encoder": (lambda: Encoder(16, 2, 5), images, 32, 24),
    "attention": (Attention, padded, 7, 5),
    "packed-lstm": (lambda: PackedLSTM(WORDS, 12, 5), sequences, 9, 6),
    "u-net": (lambda: UNet(4, 5), images, 16, 24),
    "audio-1d": (lambda: audio(5), lambda n, size: torch.randn(n, 1, 40 * size), 28, 32),
    "video-3d": (lambda: video(5), lambda n, size: torch.randn(n, 3, 8, size, size), 16, 24),
    "gan": (lambda: GAN(16, 4), lambda n, _: torch.randn(n, 16), 0, 0),
    "tied": (lambda: Tied(3 * 8 * 8, 24, 5), images, 8, 8),
}


def pruned(kind: str, sparsity: float = 0.9) -> tuple[nn.Module, Example, int, int]:
    """A network of the zoo with random masks that it holds, and what it is called on."""
    build, example, *sizes = SMALL_ZOO[kind]
    model = build()
    prunable = snip.prunable_parameters(model, _matrix)
    masks = {name: torch.rand(p.shape) >= sparsity for name, p in prunable.items()}
    snip.Masks(masks).apply(model)
    return model, example, *sizes


def _matrix(_name: str, module: nn.Module, parameter: nn.Parameter) -> bool:
    return parameter.ndim > 1 and not isinstance(module, nn.Embedding)
