"""The zoo: networks that people bring, each with a batch, a loss and how it is called.

The networks are built from configurations of the real libraries, with random weights: nothing is
downloaded. Pictures are CIFAR-10 where it is found, otherwise MNIST, which is inside Snip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from libraries import timm, torchvision, transformers
from torch import Tensor, nn
from zoo_layers import GAN, Encoder, PackedLSTM, Tied, UNet, audio, video

import snip
from snip.data import load

CLASSES = 10
WORDS = 256  # text is read as bytes


@dataclass(frozen=True)
class Network:
    """One row of the zoo."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Any]
    loss_fn: Callable[[nn.Module, Any], Tensor] | None = None  # None: cross-entropy of a pair
    inputs: Callable[[Any], Any] = lambda batch: batch[0]  # of a batch: what the model is called on


def pictures(size: int, count: int = 16) -> Callable[[], tuple[Tensor, Tensor]]:
    """A batch of real pictures with three channels, scaled to size x size, and their labels."""

    def batch() -> tuple[Tensor, Tensor]:
        images, labels = next(iter(_pictures().training_batches(count)))
        images = images.expand(-1, 3, -1, -1)
        return F.interpolate(images, (size, size), mode="bilinear"), labels

    return batch


def _pictures() -> Any:
    try:
        return load("cifar-10")
    except snip.FileError:
        return load("mnist")


def _segments() -> tuple[Tensor, Tensor]:
    """Pictures with a class per pixel: ten levels of brightness."""
    images, _ = pictures(64)()
    brightness = images.mean(dim=1)
    ranks = brightness.flatten().argsort().argsort().reshape(brightness.shape)
    return images, ranks * CLASSES // ranks.numel()


def _sounds() -> tuple[Tensor, Tensor]:
    """A tone per class in noise, a fifth of a second at 16 kHz."""
    labels = torch.arange(16) % CLASSES
    time = torch.arange(3200) / 16000
    tones = torch.sin(2 * torch.pi * (200 + 150 * labels[:, None]) * time)
    return (tones + 0.5 * torch.randn(16, 3200))[:, None], labels


def _clips() -> tuple[Tensor, Tensor]:
    """Eight frames of a picture that moves to the right, a pixel a frame."""
    images, labels = pictures(32, 8)()
    return torch.stack([images.roll(t, dims=-1) for t in range(8)], dim=2), labels


def _text() -> Tensor:
    """Eight windows of 64 bytes of the licence: a text that stays the same."""
    text = (Path(__file__).parent.parent / "LICENSE").read_bytes()
    starts = torch.arange(8) * (len(text) - 64) // 8
    return torch.tensor([list(text[int(start) : int(start) + 64]) for start in starts])


def _tokens() -> dict[str, Tensor]:
    return {"input_ids": _text(), "labels": _text()}


def _sentences() -> dict[str, Tensor]:
    return {"input_ids": _text(), "labels": torch.arange(8) % CLASSES}


def _sequences() -> tuple[Tensor, Tensor, Tensor]:
    """Texts of different lengths, and the class of each."""
    return _text().repeat(2, 1), torch.arange(16, 64, 3), torch.arange(16) % CLASSES


def _noise() -> Tensor:
    return torch.randn(16, 64)


def _own_loss(model: nn.Module, batch: Any) -> Tensor:
    """The loss that a model of transformers returns when it is given labels."""
    return model(**batch).loss


def _sequence_loss(model: nn.Module, batch: Any) -> Tensor:
    tokens, lengths, labels = batch
    return F.cross_entropy(model(tokens, lengths), labels)


def _gan_loss(model: nn.Module, batch: Any) -> Tensor:
    return F.softplus(-model(batch)).mean()


def _tied_loss(model: nn.Module, batch: Any) -> Tensor:
    images, labels = batch
    logits, restored = model(images)
    return F.cross_entropy(logits, labels) + F.mse_loss(restored, images.flatten(1))


def _gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=64, n_embd=256, n_layer=4, n_head=4,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def _bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=1024, num_labels=CLASSES,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def _llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=704, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def _timm(name: str, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=CLASSES, **settings)


def _vgg() -> nn.Module:
    return torchvision.models.vgg11_bn(num_classes=CLASSES)


def _whole(batch: Any) -> Any:
    return batch


ZOO = (
    Network("resnet-18", _timm("resnet18"), pictures(64)),
    Network("resnet-26d", _timm("resnet26d"), pictures(64)),
    Network("vgg-11-bn", _vgg, pictures(64)),
    Network("mobilenet-v3", _timm("mobilenetv3_small_100"), pictures(64)),
    Network("efficientnet-b0", _timm("efficientnet_b0"), pictures(64)),
    Network("convnext", _timm("convnext_atto"), pictures(64)),
    Network("vit", _timm("vit_tiny_patch16_224", img_size=64, patch_size=8), pictures(64)),
    Network("mlp-mixer", _timm("mixer_s16_224", img_size=128), pictures(128)),
    Network("gpt-2", _gpt2, _tokens, _own_loss, _whole),
    Network("bert", _bert, _sentences, _own_loss, _whole),
    Network("llama", _llama, _tokens, _own_loss, _whole),
    Network("transformer-encoder", Encoder, pictures(64)),
    Network("packed-lstm", PackedLSTM, _sequences, _sequence_loss, lambda batch: batch[:2]),
    Network("u-net", UNet, _segments),
    Network("audio-1d", audio, _sounds),
    Network("video-3d", video, _clips),
    Network("gan", GAN, _noise, _gan_loss, _whole),
    Network("tied", Tied, pictures(32), _tied_loss),
)
