"""An attention below a root, its accelerated twin, and sequences and masks for both."""

import itertools
import warnings

import torch
from networks import packed_gradient
from torch import nn

import snip

BATCH, TOKENS, WIDTH = 3, 5, 8
PADDING = torch.arange(TOKENS) >= torch.tensor([[5], [3], [2]])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(TOKENS)


class Caller(nn.Module):
    """Passes everything on: the attention itself is below the root, as it is in a network."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


def total(outputs):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    parts = (y for y in outputs if y is not None)
    return sum((y * torch.linspace(-1, 2, y.numel()).view(y.shape)).sum() for y in parts)


def pair_of(inner, *args, sparsity=0.5, ways=None, wrapped=True, drawn="bias"):
    """A pruned model and its accelerated twin, in which every layer that can run sparse does."""
    model = Caller(inner) if wrapped else inner
    with torch.no_grad():
        for name, parameter in inner.named_parameters():
            if name.endswith("bias"):  # torch begins with zeros, which would be pruned
                parameter.normal_(std=0.3 if name.endswith(drawn) else 0.0)
    loss_fn = lambda model, args: total(model(*args)).square()  # noqa: E731
    snip.prune(model, args, sparsity=sparsity, loss_fn=loss_fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snip.SnipWarning)
        fast = snip.accelerate(model, args, ways=ways or {})
    assert fast is not model
    return model, fast


def assert_same(model, fast, *args, **kwargs):
    """Outputs in both modes, with and without gradients, and all gradients."""
    for training, grads in itertools.product((True, False), (True, False)):
        model.train(training), fast.train(training)
        with torch.set_grad_enabled(grads):
            expected, found = model(*args, **kwargs), fast(*args, **kwargs)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            if not grads:
                continue
            weights = dict(fast.named_parameters())
            gradients = torch.autograd.grad(total(found), list(weights.values()))
            wanted = torch.autograd.grad(
                total(expected), [model.get_parameter(name) for name in weights]
            )
            for name, mine, theirs in zip(weights, gradients, wanted, strict=True):
                theirs = packed_gradient(fast, name, theirs)
                torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def sequences(batch_first, tokens=TOKENS):
    x = torch.randn(BATCH, tokens, WIDTH)
    return x if batch_first else x.transpose(0, 1).contiguous()
