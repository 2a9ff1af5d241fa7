"""Neighbours in a converted graph that are faster as one call."""

from __future__ import annotations

import operator
from typing import Any

from torch import fx, nn

from snip.engine.layers.conv import SparseConvolution
from snip.engine.layers.layouts import batch_size
from snip.engine.layers.linear import SparseLinear, linear_chain
from snip.engine.layers.norm import BlockNorm, conv_norm
from snip.engine.layers.recurrent import SparseRecurrent


def join_chains(graph: fx.Graph) -> None:
    """Make one call of linear layers each of which only the next one reads."""
    for node in list(graph.nodes):
        if node.target != "on_columns":
            continue
        layer, before = node.args
        if before.target not in ("on_columns", linear_chain) or len(before.users) > 1:
            continue
        chained = before.target is linear_chain
        x, *layers = before.args if chained else before.args[::-1]
        _replace(graph, node, before, linear_chain, (x, *layers, layer))


def join_norms(graph: fx.Graph, root: nn.Module) -> None:
    """Make one call of a batch norm and the convolution that only it reads."""
    for node in list(graph.nodes):
        if node.target != "on_blocks" or not isinstance(_owner(node, root), BlockNorm):
            continue
        norm, before, batch = node.args
        if before.target != "on_blocks" or len(before.users) > 1:
            continue
        layer = _owner(before, root)
        if isinstance(layer, SparseConvolution) and not layer.relu:
            conv, x, _ = before.args
            _replace(graph, node, before, conv_norm, (x, batch, conv, norm))


def join_steps(graph: fx.Graph, root: nn.Module) -> None:
    """Leave out conversions in front of recurrent layers, and outputs that nothing reads."""
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        source: Any = node.args[0]
        batched = len(source.meta.get("shape", ())) == 3  # not one sequence alone
        if batched and isinstance(root.get_submodule(str(node.target)), SparseRecurrent):
            _join_source(graph, root, node)
            _join_last_output(graph, root, node)


def _join_source(graph: fx.Graph, root: nn.Module, node: fx.Node) -> None:
    """Let a linear layer that only this recurrent layer reads write the layout that it reads."""
    source: Any = node.args[0]
    if source.op != "call_module" or len(source.users) > 1:
        return
    if isinstance(root.get_submodule(str(source.target)), SparseLinear):
        with graph.inserting_before(source):
            module = graph.get_attr(str(source.target))
            found = graph.call_method("for_steps", (module, *source.args))
        source.replace_all_uses_with(found)
        graph.erase_node(source)


def _join_last_output(graph: fx.Graph, root: nn.Module, node: fx.Node) -> None:
    """Where only the last output is read, rnn(x)[0][:, -1], compute just that.

    Otherwise the backward pass would make the gradient of all outputs: zeros, but for the last.
    """
    for unread in [user for user in node.users if not user.users and _picks(user, 1)]:
        graph.erase_node(unread)
    layer: Any = root.get_submodule(str(node.target))
    if layer.bidirectional:
        return  # its last output has the first step, not the last, of the direction back
    outputs = next(iter(node.users), node)
    last = next(iter(outputs.users), node)
    if len(node.users) != 1 or len(outputs.users) != 1 or not _picks(outputs, 0):
        return
    if not _picks(last, (slice(None), -1) if layer.batch_first else -1):
        return
    with graph.inserting_before(node):
        module = graph.get_attr(str(node.target))
        found = graph.call_method("last_output", (module, *node.args))
    last.replace_all_uses_with(found)
    for old in (last, outputs, node):
        graph.erase_node(old)


def _picks(node: fx.Node, index: Any) -> bool:
    """Whether a node is x[index]."""
    return node.target is operator.getitem and node.args[1] == index


def drop_unused(graph: fx.Graph) -> None:
    """Remove batch sizes and modules that nothing reads after all."""
    for node in reversed(list(graph.nodes)):
        if not node.users and (node.target is batch_size or node.op == "get_attr"):
            graph.erase_node(node)


def _replace(
    graph: fx.Graph, node: fx.Node, before: fx.Node, function: Any, args: tuple[Any, ...]
) -> None:
    """Put one call in the place of a node and the one before it."""
    with graph.inserting_before(node):
        joined = graph.call_function(function, args)
    node.replace_all_uses_with(joined)
    graph.erase_node(node)
    graph.erase_node(before)


def _owner(node: fx.Node, root: nn.Module) -> nn.Module:
    """The module whose method a node calls."""
    module: Any = node.args[0]
    return root.get_submodule(str(module.target))
