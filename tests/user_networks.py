"""Networks as users write them, with what an accelerated network must not break."""

from __future__ import annotations

import abc
import inspect
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


class Base(nn.Module, abc.ABC):
    """A base class with a metaclass of its own, which requires a title of each class below it."""

    titles: list[str] = []  # noqa: RUF012

    def __init_subclass__(cls, *, title: str) -> None:
        super().__init_subclass__()
        Base.titles.append(title)

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 10)

    @abc.abstractmethod
    def head(self, hidden: torch.Tensor) -> torch.Tensor: ...

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x)


class Rich(Base, title="rich"):
    """Every kind of member; `forward` and `hidden` use zero-argument super()."""

    label = "a class attribute"

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(10, 8, bias=False)
        self.settings = {"scale": 2.0}

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(super().hidden(x))

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.second(hidden) * self.settings["scale"]

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.hidden(pixels))

    @property
    def width(self) -> int:
        return self.first.out_features

    @staticmethod
    def double(x: float) -> float:
        return 2 * x

    @classmethod
    def create(cls) -> Rich:
        return cls()


class Special(nn.Module):
    """Methods that Python looks up on the class."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 4)])
        self.in_order = list(self.layers)  # a list that torch knows nothing about
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> object:
        if name == "depth":
            return len(self.layers)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("snip"):
            raise AttributeError(name)
        super().__setattr__(name, value)

    def __call__(self, x: torch.Tensor, **settings: object) -> torch.Tensor:
        self.calls.append("before")
        return super().__call__(x, **settings)

    def __len__(self) -> int:
        return 7

    def __contains__(self, name: str) -> bool:
        return name in dict(self.named_parameters())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.in_order:
            x = layer(F.relu(x))
        return x


class Blocks(nn.Module):
    """One of each layer that runs sparse, a shared module, a tied weight, odd settings."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, (3, 5), padding="same", dilation=(1, 2), groups=2)
        self.norm = nn.BatchNorm2d(4)
        self.twice = nn.Conv2d(4, 4, 1, bias=False)
        self.again = self.twice
        self.embed = nn.Linear(24, 6)
        self.rnn = nn.GRU(6, 6, batch_first=True)
        self.tied = nn.Linear(6, 6, bias=False)
        self.other = nn.Linear(6, 6, bias=False)
        self.other.weight = self.tied.weight
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.conv(x)))
        x = self.again(F.relu(self.twice(x)))
        x = self.embed(x.transpose(1, 2).flatten(2))
        x = self.rnn(x)[0][:, -1]
        return self.head(self.other(F.relu(self.tied(x))))


class Pretrained(nn.Module):
    """What Hugging Face's PreTrainedModel and Trainer do to a model, in a few lines."""

    def __init__(self, config: dict[str, int]) -> None:
        super().__init__()
        self.config = config
        self.body = nn.Linear(config["inputs"], config["hidden"])
        self.classifier = nn.Linear(config["hidden"], config["labels"])

    def forward(
        self, pixels: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        logits = self.classifier(torch.tanh(self.body(pixels)))
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    def save_pretrained(self, folder: Path) -> None:
        config = {**self.config, "architectures": [type(self).__name__]}
        (folder / "config.json").write_text(json.dumps(config))
        torch.save(self.state_dict(), folder / "model.pt")

    @classmethod
    def from_pretrained(cls, folder: Path) -> Pretrained:
        config = json.loads((folder / "config.json").read_text())
        (architecture,) = config.pop("architectures")
        assert architecture == cls.__name__
        model = cls(config)
        model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
        return model

    def used_columns(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        known = inspect.signature(self.forward).parameters
        return {name: value for name, value in batch.items() if name in known}
