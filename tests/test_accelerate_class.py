"""An accelerated network is an object of the user's own class."""

import copy
import inspect
import pickle

import pytest
import torch
from accelerate_parts import accelerated, close
from libraries import transformers
from torch import fx, nn
from user_networks import Base, Pretrained, Rich, Special

import snip
from snip.engine.kernels.library import available
from snip.engine.layers.packing import PackedModule
from snip.network.parameters import Accelerated

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("empty_cache"),
]


def sequential():
    return nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 4))


def test_it_is_the_users_class_under_the_users_names():
    model, x = Rich(), torch.randn(5, 12)
    fast = accelerated(model, x)
    assert isinstance(fast, Rich)
    assert isinstance(fast, Accelerated)
    assert not isinstance(model, Accelerated)
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(type(fast), name) == getattr(Rich, name)
    assert inspect.getsource(type(fast)) == inspect.getsource(Rich)
    assert repr(fast).startswith("AcceleratedRich(")
    assert type(copy.deepcopy(fast)) is type(fast) is type(accelerated(Rich(), x))


def test_all_members_of_the_class_work():
    model, x = Rich(), torch.randn(5, 12)
    fast = accelerated(model, x)
    assert (fast.width, fast.double(3), fast.label) == (10, 6, "a class attribute")
    assert type(fast.create()) is type(type(fast).create()) is Rich
    assert fast.settings == model.settings
    assert fast.settings is not model.settings
    assert (fast.second.in_features, fast.second.bias) == (10, None)
    close(fast.hidden(x), model.hidden(x))
    close(fast.head(model.hidden(x)), model.head(model.hidden(x)))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = fast.no_such_name


def test_forward_has_the_users_signature_and_can_be_called_itself():
    model, x = Rich(), torch.randn(5, 12)
    fast = accelerated(model, x)
    assert inspect.signature(fast.forward) == inspect.signature(model.forward)
    assert fast.forward.__doc__ == "Logits."
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            for made in (fast(x), fast.forward(x), fast(pixels=x), fast.forward(pixels=x)):
                close(made, model(x))
            close(fast(pixels=x[None]), model(x[None]))
            for call in (fast, fast.forward):
                with pytest.raises(TypeError):
                    call(x, x)
                with pytest.raises(TypeError):
                    call(images=x)


def test_what_a_user_does_for_each_class_is_done_for_the_users_classes_only():
    before = list(Base.titles)
    accelerated(Rich(), torch.randn(5, 12))
    assert Base.titles == before


def test_methods_that_python_looks_up_on_the_class():
    model, x = Special(), torch.randn(5, 6)
    fast = accelerated(model, x)
    close(fast(x), model(x))
    assert fast.calls[-1] == "before"
    assert fast.depth == 2
    assert len(fast) == 7
    assert "layers.0.weight" in fast
    assert all(isinstance(layer, PackedModule) for layer in fast.in_order)
    assert [*fast.layers] == fast.in_order
    twin = pickle.loads(pickle.dumps(fast))
    assert [*twin.layers] == twin.in_order
    close(twin(x), model(x))


def test_a_sequential_has_a_length_items_and_slices():
    model, x = sequential(), torch.randn(7, 12)
    fast = accelerated(model, x)
    assert len(fast) == 5
    assert fast[3] is fast.get_submodule("3")
    assert [type(layer) for layer in fast][1::2] == [nn.ReLU, nn.ReLU]
    for end in range(1, 6):
        # A layer alone computes what the user's layer does, though the network runs it with the
        # ReLU behind it.
        assert type(fast[:end]) is nn.Sequential
        close(fast[:end](x), model[:end](x))
    through = x
    for layer in fast:
        through = layer(through)
    close(through, model(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("way", ["sparse", "dense"])
def test_a_convolution_alone_has_no_relu_either(dtype, way):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3), nn.ReLU())
    x = torch.randn(20, 2, 5, 5)
    fast = accelerated(model, x, ways={"0": way, "3": way}).to(dtype)
    model, x = model.to(dtype), x.to(dtype)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            close(fast[0](x), model[0](x))
            close(fast[3](model[:3](x)), model[:4](x))
            close(fast(x), model(x))


def test_what_hugging_face_does_to_a_model(tmp_path):
    model = Pretrained({"inputs": 12, "hidden": 9, "labels": 4})
    pixels, labels = torch.randn(6, 12), torch.randint(0, 4, (6,))
    fast = accelerated(model, pixels, loss_fn=lambda m, b: m(b[0], b[1])["loss"])
    batch = {"pixels": pixels, "labels": labels, "idx": torch.arange(6)}
    assert list(fast.used_columns(batch)) == ["pixels", "labels"]
    expected = model(**model.used_columns(batch))
    found = fast(**fast.used_columns(batch))
    for key, value in expected.items():
        close(found[key], value)
    fast.save_pretrained(tmp_path)
    for kind in (Pretrained, type(fast)):
        again = kind.from_pretrained(tmp_path)
        assert type(again) is Pretrained
        close(again(pixels)["logits"], expected["logits"])


def test_a_real_model_of_transformers(tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    config = transformers.BertConfig(
        **sizes, num_attention_heads=2, vocab_size=30, max_position_embeddings=12
    )
    model = transformers.BertForSequenceClassification(config).eval()
    tokens = torch.randint(0, 30, (4, 8))
    loss = lambda m, b: m(input_ids=b[0], labels=b[1]).loss  # noqa: E731
    fast = accelerated(model, tokens, loss_fn=loss)
    close(fast(input_ids=tokens).logits, model(input_ids=tokens).logits)
    assert inspect.signature(fast.forward) == inspect.signature(model.forward)
    fast.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert again.config.architectures == ["BertForSequenceClassification"]
    close(again(input_ids=tokens).logits, model(input_ids=tokens).logits)


def test_hooks_on_layers_are_called():
    model, x = sequential(), torch.randn(7, 12)
    heard = []
    model[0].register_forward_hook(lambda _layer, _args, output: heard.append(output))
    model[1].register_forward_pre_hook(lambda _layer, args: (args[0] + 1,))
    fast = accelerated(model, x)
    close(fast(x), model(x))
    heard.clear()
    fast(x), model(x)
    close(*heard)


def test_a_graph_module_is_a_users_class_too():
    model, x = fx.symbolic_trace(sequential()), torch.randn(7, 12)
    fast = accelerated(model, x)
    assert isinstance(fast, fx.GraphModule)
    close(fast(x), model(x))
    assert type(copy.deepcopy(fast)) is type(fast)
    close(copy.deepcopy(fast)(x), model(x))
    close(snip.densify(fast)(x), model(x))
    outer = nn.Sequential(fx.symbolic_trace(sequential()), nn.Linear(4, 3))
    fast = accelerated(outer, x)
    close(fast(x), outer(x))
    close(snip.densify(copy.deepcopy(fast))(x), outer(x))
    close(snip.densify(pickle.loads(pickle.dumps(fast)))(x), outer(x))


def test_a_deepcopy_of_the_users_knows_nothing_of_sparse_layers_and_is_not_asked():
    class Copies(Rich, title="copies"):
        def __deepcopy__(self, memo):
            twin = memo[id(self)] = type(self)()
            for name, value in vars(self).items():
                vars(twin)[name] = copy.deepcopy(value, memo)
            return twin

    model, x = Copies(), torch.randn(5, 12)
    fast = accelerated(model, x)
    assert isinstance(fast.first, PackedModule)
    assert type(copy.deepcopy(fast)) is type(fast)
    assert type(snip.densify(fast)) is Copies
    close(copy.deepcopy(fast)(x), model(x))
    close(snip.densify(fast)(x), model(x))


def test_children_of_an_accelerated_network_are_not_exchanged():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    batch = torch.randn(5, 6), torch.tensor([0, 1, 2, 1, 0])
    snip.prune(model, batch, sparsity=0.5)
    fast = snip.accelerate(model, batch, ways={})
    changes = (
        lambda: fast.append(nn.Softmax(1)),
        lambda: fast.pop(-1),
        lambda: setattr(fast, "0", nn.Linear(6, 8)),
        lambda: delattr(fast, "1"),
    )
    for change in changes:
        with pytest.raises(snip.InputError, match="densify"):
            change()
    fast.note = "other attributes are the user's own"
    assert len(fast) == 3
    torch.testing.assert_close(fast(batch[0]), model(batch[0]))


@pytest.mark.parametrize("function", [snip.release, snip.held_masks, snip.initialize])
def test_masks_of_an_accelerated_network_are_asked_of_the_ordinary_one(function):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    batch = torch.randn(5, 6), torch.tensor([0, 1, 2, 1, 0])
    masks = snip.prune(model, batch, sparsity=0.5)
    fast = snip.accelerate(model, batch, ways={})
    with pytest.raises(snip.InputError, match="densify"):
        function(fast)
    assert snip.held_masks(snip.densify(fast)) == masks


@pytest.mark.parametrize(("settings", "message"), [({"ways": "dense"}, "ways is 'dense'")])
def test_wrong_kinds_are_refused(settings, message):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    batch = torch.randn(5, 6), torch.tensor([0, 1, 2, 1, 0])
    masks = snip.prune(model, batch, sparsity=0.5)
    with pytest.raises(snip.InputError, match=message):
        snip.accelerate(model, batch, **settings)
    assert snip.accelerate(model, batch, masks=dict(masks), ways={}) is not model
