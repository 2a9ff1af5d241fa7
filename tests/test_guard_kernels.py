"""Kernels that are called directly refuse sizes with which they would leave their memory."""

from ctypes import addressof, byref

import pytest
import torch

from snip.common.errors import InputError
from snip.engine import kernels
from snip.engine.kernels import structs
from snip.engine.kernels.constants import CONV, LINEAR, MAX_POOL, RECTIFIER
from snip.engine.kernels.library import kernel

pytestmark = pytest.mark.skipif(not kernels.available(), reason=str(kernels.reason()))

ROOM = torch.zeros(4096)
AT = ROOM.data_ptr()
POINTERS = torch.zeros(64, dtype=torch.int32)
IN = POINTERS.data_ptr()

CALLS = {
    "transpose": ((AT, 4, AT, 4), (4, 4)),
    "rows_to_blocks": ((AT, AT), (4, 4, 4)),
    "blocks_to_rows": ((AT, AT), (4, 4, 4)),
    "blocks_to_columns": ((AT, AT, 4), (4, 4, 4)),
    "columns_to_blocks": ((AT, 4, AT), (4, 4, 4)),
    "linear_forward": ((IN, IN, None, AT, AT, 4, None, AT, 4), (4, 4)),
    "plain_forward": ((IN, IN, None, AT, AT, 4, None, AT, 4), (4, 4, 4)),
    "plain_backward": ((IN, IN, IN, IN, None, AT, AT, 4, AT, 4, AT, 4, AT, AT), (4, 4, 4)),
    "unpack_weights": ((IN, IN, AT, AT), (4, 4)),
    "pack_weights": ((IN, IN, AT, AT), (4, 4)),
    "norm_apply": ((AT, AT, AT, AT), (4, 16, 4, 4)),
    "relu_backward": ((AT, None, AT, None), (4, 16, 4, 4)),
    "mean_pool": ((AT, AT, 4), (4, 4, 4, 4)),
    "winograd_weights": ((AT, AT), (1, 1)),
}
AFTER = {"linear_forward": (0, 1), "norm_apply": (0, 1), "winograd_weights": (0, 1)}
AFTER |= {"plain_backward": (0, 1), "unpack_weights": (), "pack_weights": ()}


@pytest.mark.parametrize("name", CALLS)
def test_negative_sizes_are_refused(name):
    addresses, sizes = CALLS[name]
    after = AFTER.get(name, (1,))
    kernel(name)(*addresses, *sizes, *after)
    for at in range(len(sizes)):
        changed = [*sizes[:at], -1, *sizes[at + 1 :]]
        with pytest.raises(InputError, match="-"):
            kernel(name)(*addresses, *changed, *after)


@pytest.mark.parametrize("name", ["rows_to_blocks", "blocks_to_rows"])
def test_no_lanes_are_refused(name):
    with pytest.raises(InputError, match="1 lane or more, not 0"):
        kernel(name)(AT, AT, 4, 0, 4, 1)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_recurrent_kernels_check_their_sizes(at):
    sizes = [1, 1, 1]
    sizes[at] = -1
    with pytest.raises(InputError, match="-1"):
        kernel("lstm_forward")(IN, IN, AT, AT, 8, AT, 8, AT, 8, *sizes, None, 1)
    with pytest.raises(InputError, match="-1"):
        kernel("lstm_backward")(
            *(IN, IN, IN, AT, AT, AT, 8, AT, 8, None, 0, AT, AT, 8), *sizes, None, 1
        )
    with pytest.raises(InputError, match="-1"):
        kernel("gru_forward")(IN, IN, AT, None, AT, AT, 8, AT, 8, *sizes, None, 1)
    with pytest.raises(InputError, match="-1"):
        kernel("gru_backward")(
            *(IN, IN, IN, AT, AT, AT, AT, AT, 8, AT, 8, None, 0, AT, 8), *sizes, None, 1
        )


def test_no_threads_are_one_thread():
    index = kernels.LinearIndex.from_mask(torch.zeros(3, 1) > 0)
    gates, from_h, states = torch.ones(3, 4096), torch.zeros(3, 4096), torch.zeros(1, 8192)
    kernel("gru_forward")(
        *(*index.pointers[:2], None, None, gates.data_ptr(), from_h.data_ptr(), 4096),
        *(states.data_ptr(), 8192, 1, 4096, 1, None, 0),
    )
    assert (gates != 1).all()


PLAN = {"lanes": 16, "tile_h": 1, "tile_w": 1, "out_channels": 1, "pack_phases": 1}
STEPS = {"in_step_h": 1, "in_step_w": 1, "out_step_h": 1, "out_step_w": 1}


@pytest.mark.parametrize("name", [*STEPS, "out_channels", "pack_phases"])
def test_plans_check_what_they_divide_by(name):
    plan = structs.ConvPlanStruct(**(PLAN | STEPS | {name: 0}))
    with pytest.raises(InputError, match="1 or more, not 0"):
        kernel("conv_forward")(byref(plan), *[None] * 5, 1, 0, 1)
    with pytest.raises(InputError, match="1 or more, not 0"):
        kernel("conv_weights")(byref(plan), *[None] * 3, 1, 1)


@pytest.mark.parametrize("name", ["entries", "segments", "grid_h", "in_channels", "pack_w"])
def test_plans_check_their_lengths(name):
    plan = structs.ConvPlanStruct(**(PLAN | STEPS | {name: -3}))
    with pytest.raises(InputError, match="-3"):
        kernel("conv_forward")(byref(plan), *[None] * 5, 1, 0, 1)


WINDOW = {f"{name}_{axis}": 1 for axis in "hw" for name in ("in", "out", "kernel", "stride")}
WINDOW |= {"dilation_h": 1, "dilation_w": 1}


@pytest.mark.parametrize("name", [name for name in WINDOW if "kernel" not in name])
def test_pooling_checks_its_window(name):
    window = structs.WindowStruct(**(WINDOW | {name: 0}))
    with pytest.raises(InputError, match="1 or more, not 0"):
        kernel("max_pool")(AT, AT, AT, byref(window), 1, 1, 1)
    with pytest.raises(InputError, match="1 or more, not 0"):
        kernel("max_pool_backward")(AT, AT, AT, byref(window), 1, 1, 1)


def test_a_network_checks_its_batch():
    layer = structs.LayerStruct(kind=3, inputs=4, outputs=4, values_at=-1, bias_at=-1)
    layers = (structs.LayerStruct * 1)(layer)
    network = structs.NetworkStruct(*(addressof(layers), 1, 16, 1, IN, 0))
    outcomes = (structs.OutcomeStruct * 1)()
    for batch in (0, -1):
        with pytest.raises(InputError, match="1 sample or more"):
            kernel("network_forward")(byref(network), AT, AT, batch, 1)
        with pytest.raises(InputError, match="1 sample or more"):
            kernel("network_gradients")(byref(network), AT, AT, AT, outcomes, batch, 1)
        for name in ("network_training_forward", "network_backward"):
            with pytest.raises(InputError, match="1 sample or more"):
                kernel(name)(byref(network), AT, AT, AT, batch, 1)


def one_layer(**fields):
    usual = {"kind": RECTIFIER, "inputs": 4, "outputs": 4, "values_at": -1, "bias_at": -1}
    return structs.LayerStruct(**(usual | fields))


def run_network(*layers, lanes=16, gradients=0, runs=()):
    """A forward and a training call of a network that is made of these layers."""
    made = (structs.LayerStruct * len(layers))(*layers)
    reads = torch.tensor([0, layers[0].inputs, *runs], dtype=torch.int32)
    network = structs.NetworkStruct(
        *(addressof(made), len(layers), lanes, gradients, reads.data_ptr(), len(reads) // 2)
    )
    outcomes, labels = (structs.OutcomeStruct * 1)(), torch.zeros(64, dtype=torch.int64)
    kernel("network_forward")(byref(network), AT, AT, 1, 1)
    kernel("network_gradients")(byref(network), AT, labels.data_ptr(), AT, outcomes, 1, 1)


SQUARE = {"in_channels": 1, "in_h": 2, "in_w": 2, "out_h": 2, "out_w": 2, "grid_h": 0}
POOL = {f"{name}_{axis}": 1 for axis in "hw" for name in ("kernel", "stride", "dilation")}
POOL |= {f"{name}_{axis}": 2 for axis in "hw" for name in ("in", "out")}


def conv_plan(**fields):
    return structs.ConvPlanStruct(**(PLAN | STEPS | SQUARE | fields))


def test_a_network_that_fits_is_run():
    run_network(one_layer())
    window = structs.WindowStruct(**POOL)
    run_network(one_layer(), one_layer(kind=MAX_POOL, window=addressof(window)))
    rows = torch.zeros(5, dtype=torch.int32)
    run_network(one_layer(kind=LINEAR, rowptr=rows.data_ptr(), t_rowptr=rows.data_ptr()))


@pytest.mark.parametrize("kind", [LINEAR, CONV, MAX_POOL])
def test_a_network_checks_that_nothing_is_missing(kind):
    with pytest.raises(InputError, match="the address 0"):
        run_network(one_layer(kind=kind))
    with pytest.raises(InputError, match="the address 0"):
        run_network(one_layer(bias_count=1))


def test_a_network_checks_that_its_layers_follow_one_another():
    with pytest.raises(InputError, match="one before it makes, not 4194304"):
        run_network(one_layer(), one_layer(inputs=1 << 22, outputs=1 << 22))
    with pytest.raises(InputError, match="as many outputs as inputs, not 3"):
        run_network(one_layer(outputs=3))
    with pytest.raises(InputError, match="1 input or more"):
        run_network(one_layer(), one_layer(inputs=1 << 40))
    for runs in ((0, 5), (-1, 2), (3, 2)):
        with pytest.raises(InputError, match="do not end at"):
            run_network(one_layer(), runs=runs)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"lanes": 8}, "other lanes than its network, namely 8"),
        ({"in_h": 3}, "does not read 4"),
        ({"out_channels": 2}, "does not make 4"),
    ],
)
@pytest.mark.parametrize("part", ["forward", "backward", "weights"])
def test_a_network_checks_its_convolutions(part, fields, match):
    plans = {name: conv_plan() for name in ("forward", "backward", "weights")}
    plans[part] = conv_plan(**fields)
    addresses = {name: addressof(plan) for name, plan in plans.items()}
    with pytest.raises(InputError, match=match):
        run_network(one_layer(kind=CONV, **addresses))


def test_a_network_checks_its_poolings():
    window = structs.WindowStruct(**(POOL | {"in_h": 3}))
    with pytest.raises(InputError, match="of another size than its input of 4"):
        run_network(one_layer(kind=MAX_POOL, window=addressof(window)))


@pytest.mark.parametrize("fields", [{"values_at": 1}, {"bias_at": 1}])
def test_a_network_checks_where_its_gradients_go(fields):
    rows = torch.tensor([0, 0, 0, 0, 4], dtype=torch.int32)
    layer = one_layer(kind=LINEAR, rowptr=rows.data_ptr(), cols=IN, values=AT, **fields)
    with pytest.raises(InputError, match="do not fit into 4"):
        run_network(layer, gradients=4)


def test_an_update_checks_its_lengths():
    parameters = (structs.ParameterStruct * 2)()
    values, gradients = torch.zeros(8), torch.ones(8)
    parameters[0].values, parameters[0].count, parameters[0].lr = values.data_ptr(), 8, 1.0
    parameters[1].count = -1
    with pytest.raises(InputError, match="-1"):
        kernel("sgd_update")(parameters, 2, gradients.data_ptr())
    assert not values.any()


def test_an_update_of_adam_checks_its_lengths():
    parameters = (structs.AdamParameterStruct * 2)()
    values, gradients = torch.zeros(8), torch.ones(8)
    for parameter in parameters:
        parameter.values, parameter.count = values.data_ptr(), 8
    with pytest.raises(InputError):  # no address of the step
        kernel("adam_update")(parameters, 2, gradients.data_ptr())
    parameters[1].count = -1
    with pytest.raises(InputError):
        kernel("adam_update")(parameters, 2, gradients.data_ptr())
    assert not values.any()
