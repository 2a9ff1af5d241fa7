"""The callback for Lightning, with Lightning's own Trainer."""

import pytest
import torch
from lightning_parts import Lit, Saving, _quiet, fitted, loader, trainer  # noqa: F401
from needed import needed
from torch import nn
from torch.nn.functional import cross_entropy

import snip
from snip.integrations.lightning import Snip


def test_it_prunes_on_the_first_batch_and_the_zeros_stay(tmp_path):
    callback = Snip(sparsity=0.8)
    module, _ = fitted(tmp_path, callback)
    assert len(module.scored[0]) == 8
    torch.manual_seed(0)
    assert snip.prune(Lit().net, module.scored, sparsity=0.8) == callback.masks  # by hand
    assert callback.masks == snip.held_masks(module.net)
    callback.masks.check(module.net)
    assert callback.masks.kept == round(0.2 * callback.masks.total)
    plain, _ = fitted(tmp_path, None)  # the same batches as without it
    assert module.seen == plain.seen
    assert not any(torch.equal(module.net[i].weight, plain.net[i].weight) for i in (1, 3))


def test_options_of_prune_parts_and_a_loss_of_ones_own(tmp_path):
    losses = []

    def loss_fn(network, batch):
        losses.append(network)
        return cross_entropy(network(batch[0]), batch[1])

    callback = Snip(sparsity=0.5, module="net", biases="keep", scope="layer", loss_fn=loss_fn)
    module, _ = fitted(tmp_path, callback)
    assert losses
    assert all(network is module.net for network in losses)
    assert list(callback.masks) == ["1.weight", "3.weight"]
    assert callback.masks.provenance.scope == "layer"


def test_resumed_from_a_checkpoint_it_is_not_pruned_again(tmp_path):
    torch.manual_seed(0)
    whole, first, data = Lit(), Snip(sparsity=0.8), loader(shuffle=False)
    trainer(tmp_path, first, Saving(tmp_path / "half.ckpt", 5), steps=10).fit(whole, data)
    torch.load(tmp_path / "half.ckpt", weights_only=True)  # nothing but tensors and plain values
    second = Snip(sparsity=0.1)  # which it would be pruned to if it were pruned again
    again, _ = fitted(tmp_path, second, steps=10, shuffle=False, ckpt_path=tmp_path / "half.ckpt")
    assert second.masks == first.masks
    assert second.masks.provenance == first.masks.provenance
    second.masks.check(again.net)
    assert again.seen == whole.seen[5:]
    for name, value in whole.state_dict().items():  # to the bit
        assert torch.equal(again.state_dict()[name], value)
    held, _ = fitted(tmp_path, Snip(sparsity=0.1), module=again)  # neither if it is trained on
    assert snip.held_masks(held.net) == first.masks


class Flat(Lit):
    """With layers of its own, a loss in a dict, and a batch of two loaders."""

    def __init__(self):
        super().__init__()
        del self.net
        self.a, self.b, self.net = nn.Linear(64, 32), nn.Linear(32, 4), None

    def training_step(self, batch):
        images, labels = batch["x"]
        return {"loss": cross_entropy(self.b(self.a(images.flatten(1)).relu()), labels)}

    def on_train_batch_start(self, batch, batch_idx):
        assert set(batch) == {"x", "y"}


def test_a_module_that_is_the_network_itself_runs_dense_with_a_sentence(tmp_path):
    module, callback = Flat(), Snip(sparsity=0.7, accelerate=True)
    work = trainer(tmp_path, callback)
    with pytest.warns(snip.SnipWarning, match="not in one child of it"):
        work.fit(module, {"x": loader(), "y": loader()})
    assert list(callback.masks) == ["a.weight", "a.bias", "b.weight", "b.bias"]
    callback.masks.check(module)


def test_the_other_name_of_the_library(tmp_path):
    other = needed("pytorch_lightning")

    class Module(other.LightningModule):
        training_step, configure_optimizers = Lit.training_step, Lit.configure_optimizers

        def __init__(self):
            super().__init__()
            self.net, self.optimizer = nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), "SGD"
            self.scored = None

    module, callback = Module(), Snip(sparsity=0.5)
    trainer(tmp_path, callback, library=other).fit(module, loader())
    callback.masks.check(module.net)


def test_what_is_refused(tmp_path):
    with pytest.raises(snip.InputError, match="did you mean 'method'"):
        Snip(sparsity=0.5, methods="snip")
    for settings, words in (
        ({"sparsity": 1.5}, "sparsity is 1.5"),
        ({"sparsity": 0.5, "method": "lwc"}, "'lwc' prunes while it trains"),
        ({"sparsity": 0.5, "scope": "layers"}, "did you mean 'layer'"),
    ):
        with pytest.raises(snip.InputError, match=words):  # before any data is read
            Snip(**settings)
    with pytest.raises(snip.InputError, match="unknown module 'nett': did you mean 'net'"):
        fitted(tmp_path, Snip(sparsity=0.5, module="nett"))
    manual = Lit()
    manual.automatic_optimization = False
    with pytest.raises(snip.InputError, match="optimises by hand"):
        fitted(tmp_path, Snip(sparsity=0.5), manual)
    silent = Lit()
    silent.training_step = lambda batch: None
    with pytest.raises(snip.InputError, match="returned no loss"):
        fitted(tmp_path, Snip(sparsity=0.5), silent)
    for module in (manual, silent):
        assert snip.held_masks(module.net) is None
        assert "log" not in vars(module)
