import json
import math
import time
from collections import Counter, OrderedDict, namedtuple
from functools import partial

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from samestep.errors import CheckpointError
from samestep.train.optimizer_state import load_optimizer_state, optimizer_state
from samestep.train.state import digest, pack, unpack
from samestep.train.tensorfile import DTYPES

# --- trees -------------------------------------------------------------------------------------------------

plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
    st.sampled_from([torch.float32, torch.bfloat16, torch.complex128]),
    st.sampled_from([torch.device("cuda", 1), torch.device("cpu")]),
    st.sampled_from([np.float32(0.1), np.float64(-0.0), np.int8(-3), np.bool_(True), np.complex64(1j)]),
)  # fmt: skip
keys = st.one_of(plain, st.tuples(plain, plain), st.frozensets(st.integers() | st.text(), max_size=3))
dtypes = st.sampled_from([*DTYPES, torch.complex64, torch.complex128, torch.complex32, torch.float8_e8m0fnu])
arrays = st.sampled_from(["<f4", ">f8", "<i2", "<u4", "|b1", "<c16", "<M8[ns]"])


@st.composite
def tensors(draw):
    shape, dtype = draw(st.lists(st.integers(0, 3), max_size=3)), draw(dtypes)
    size = math.prod(shape) * dtype.itemsize
    raw = torch.tensor(list(draw(st.binary(min_size=size, max_size=size))), dtype=torch.uint8)
    if dtype is torch.bool:
        raw = raw % 2
    tensor = raw.view(dtype).reshape(shape)
    return tensor.t() if tensor.dim() == 2 else tensor


@st.composite
def numpy_arrays(draw):
    shape, dtype = draw(st.lists(st.integers(0, 3), max_size=3)), np.dtype(draw(arrays))
    size = math.prod(shape) * dtype.itemsize
    return np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype=dtype).reshape(shape)


leaves = plain | tensors() | numpy_arrays()
awkward_texts = st.sampled_from(["$tensor", "a/b", "a", "__metadata__", "\ud800", "a~2"])
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=5) | awkward_texts, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.dictionaries(keys, st.integers(), max_size=3).map(Counter),
        st.sets(keys, max_size=3),
    ),
    max_leaves=12,
)  # fmt: skip


def alike(a, b) -> bool:
    """Equality that tells 1 from True from 1.0, -0.0 from 0.0, list from tuple, and finds nan equal nan."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return repr(a) == repr(b)
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            alike(k, q) and alike(a[k], b[q]) for k, q in zip(a, b, strict=True)
        )  # order is kept
    if isinstance(a, set | frozenset):
        return len(a) == len(b) and all(any(alike(x, y) for y in b) for x in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    return a == b


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


@settings(deadline=None, max_examples=300)
@given(trees)
def test_a_tree_survives_json_and_the_safetensors_library(tree):
    document, named = pack(tree)
    text = json.dumps(document, allow_nan=False)
    file = safetensors.torch.save({name: tensor.contiguous().clone() for name, tensor in named.items()})
    assert alike(unpack(json.loads(text), safetensors.torch.load(file)), tree)


def test_alike_notices_what_it_should():
    assert not alike([1], [True]) and not alike((1,), [1]) and not alike(0.0, -0.0)
    assert not alike({"a": 1, "b": 2}, {"b": 2, "a": 1})


def test_names_are_readable_paths():
    tree = {"state": {"fc.weight": {"exp_avg": torch.ones(2)}}, 0: [torch.zeros(1)], "0": [torch.ones(1)]}
    _, named = pack(tree)
    assert set(named) == {"state/fc.weight/exp_avg", "0/0", "0/0~2"}


def test_a_models_names_are_kept():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert set(pack(model.state_dict())[1]) == set(model.state_dict())


def test_tensors_are_not_copied():
    tensor = torch.ones(3)
    assert pack([tensor])[1]["0"].data_ptr() == tensor.data_ptr()


Point = namedtuple("Point", "x")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "object"), (Point(1), "Point"), (lambda: 0, "function"), (1j, "complex"),
        (np.array(["a"]), "ndarray"), (np.array([None]), "ndarray"), ({torch.ones(1): 1}, "tensor as a key"),
        (torch.eye(2).to_sparse(), "sparse"), (torch.empty(2, device="meta"), "meta"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_with_its_path_and_type(value, kind):
    with pytest.raises(CheckpointError, match=f"at hooks/0/counts is a .*{kind}"):
        pack({"hooks": [{"counts": value}]})


def test_a_tree_that_holds_itself_is_refused():
    tree: list = []
    tree.append(tree)
    with pytest.raises(CheckpointError, match="holds itself"):
        pack(tree)


@pytest.mark.parametrize(
    "document", [{"$nonsense": 1}, {"$tensor": "absent"}, {"$dtype": "nn"}, {"$tuple": 3}]
)
def test_a_document_that_was_not_packed_is_refused(document):
    with pytest.raises(CheckpointError, match="cannot be read"):
        unpack(document, {})


# --- digests -----------------------------------------------------------------------------------------------


def test_digest_does_not_depend_on_the_order_or_layout():
    a = {"x": torch.arange(6.0).reshape(2, 3), "y": [1, 2.5, {"p": 1, "q": (2,)}], 3: "z"}
    b = OrderedDict([(3, "z"), ("y", [1, 2.5, {"q": (2,), "p": 1}]), ("x", a["x"].t().contiguous().t())])
    assert digest({"model": a, "other": {}}) == digest({"other": {}, "model": b})


@settings(deadline=None)
@given(trees, st.randoms())
def test_digest_does_not_depend_on_the_order_of_dicts(tree, random):
    def shuffled(t):
        if type(t) is dict:
            items = list(t.items())
            random.shuffle(items)
            return {k: shuffled(v) for k, v in items}
        return type(t)(map(shuffled, t)) if type(t) in (list, tuple) else t

    assert digest({"a": tree}) == digest({"a": shuffled(tree)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool])
def test_digest_sees_every_bit_name_dtype_and_shape(dtype):
    base = torch.zeros(4, 2, dtype=dtype)
    flipped = base.clone()
    flipped.view(-1).view(torch.uint8)[-1] ^= 1
    other_name, other_shape = {"b": base}, {"a": base.reshape(2, 4)}
    other_dtype = {"a": torch.zeros(4, 2, dtype=torch.float16)}
    states = [{"a": base}, {"a": flipped}, other_name, other_shape, other_dtype, {"a": base, "b": base}]
    assert len({digest({"model": state}) for state in states}) == len(states)
    assert digest({"model": {"a": base}}) == digest({"model": {"a": base.clone()}})


def test_digest_makes_no_copies():
    # 80 MB at SHA-256's speed is 0.05 s with, and 0.4 s without, help from the processor; through Python
    # objects (tolist) it would take more than 2 s
    state = {"w": torch.zeros(20_000_000)}
    start = time.perf_counter()
    digest({"model": state})
    assert time.perf_counter() - start < 2


# --- optimizers --------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Layers of one shape, so that state in the wrong order fits and is not noticed by its shape."""

    def __init__(self, order=("first", "second", "third")):
        super().__init__()
        for name in order:
            self.add_module(name, nn.Linear(3, 3))
        self.conv = nn.Conv2d(3, 3, 1).to(memory_format=torch.channels_last)

    def forward(self, x):
        x = self.third(self.second(self.first(x)).tanh())
        return self.conv(x[:, :, None, None]).sum((2, 3))


OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "sgd without state": partial(torch.optim.SGD, lr=0.1),
    "adam": partial(torch.optim.Adam, lr=0.01, foreach=False),
    "adam foreach": partial(torch.optim.Adam, lr=0.01, foreach=True),
    "adam fused amsgrad": partial(torch.optim.Adam, lr=0.01, fused=True, amsgrad=True),
    "adamw": partial(torch.optim.AdamW, lr=0.01, amsgrad=True),
    "adamw lr tensor": lambda ps: torch.optim.AdamW(ps, lr=torch.tensor(0.01)),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "nadam": partial(torch.optim.NAdam, lr=0.01),
    "asgd": partial(torch.optim.ASGD, lr=0.01),
    "rprop": partial(torch.optim.Rprop, lr=0.01),
}


def steps(model, optimizer, first, last):
    for step in range(first, last):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))

        def closure(x=x):
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)


def through_a_document(tree):
    document, named = pack(tree)
    return unpack(document, {name: tensor.clone() for name, tensor in named.items()})


def pair(make, order):
    """A trained net with its optimizer, and a fresh pair that gets the same weights, in another order."""
    torch.manual_seed(0)
    model = Net()
    optimizer = make(list(model.parameters()))
    steps(model, optimizer, 0, 3)
    other = Net(order)
    other.load_state_dict(model.state_dict())
    return model, optimizer, other, make(list(other.parameters()))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_bit_by_bit_with_parameters_in_another_order(name):
    model, optimizer, other, fresh = pair(OPTIMIZERS[name], ("third", "first", "second"))
    tree = through_a_document(optimizer_state(optimizer, model))
    load_optimizer_state(fresh, other, tree)
    assert digest({"": optimizer_state(fresh, other)}) == digest({"": optimizer_state(optimizer, model)})
    steps(model, optimizer, 3, 6)
    steps(other, fresh, 3, 6)
    assert digest({"m": model.state_dict(), "o": optimizer_state(optimizer, model)}) == digest(
        {"m": other.state_dict(), "o": optimizer_state(fresh, other)}
    )


@pytest.mark.parametrize("name", ["sgd", "adam", "rmsprop"])
def test_control_state_by_position_goes_wrong_in_silence(name):
    model, optimizer, other, fresh = pair(OPTIMIZERS[name], ("third", "first", "second"))
    fresh.load_state_dict(optimizer.state_dict())
    steps(model, optimizer, 3, 6)
    steps(other, fresh, 3, 6)
    assert digest({"m": model.state_dict()}) != digest({"m": other.state_dict()})


def test_lbfgs_goes_on_in_its_order_and_refuses_another():
    make = partial(torch.optim.LBFGS, lr=0.1, max_iter=3)
    model, optimizer, other, fresh = pair(make, ("first", "second", "third"))
    tree = through_a_document(optimizer_state(optimizer, model))
    load_optimizer_state(fresh, other, tree)
    steps(model, optimizer, 3, 5)
    steps(other, fresh, 3, 5)
    assert digest({"m": model.state_dict()}) == digest({"m": other.state_dict()})

    moved = Net(("third", "first", "second"))
    with pytest.raises(CheckpointError, match="LBFGS needs the parameters in the order"):
        load_optimizer_state(make(moved.parameters()), moved, tree)


def test_kinds_dtypes_and_layouts_of_entries_are_kept():
    model, optimizer, other, fresh = pair(OPTIMIZERS["adam"], ("first", "second", "third"))
    load_optimizer_state(fresh, other, through_a_document(optimizer_state(optimizer, model)))
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        now, before = fresh.state[ours], optimizer.state[theirs]
        assert list(now) == list(before)
        assert (
            now["step"].dtype == torch.float32
            and now["step"].device.type == "cpu"
            and now["step"].shape == ()
        )
        assert now["exp_avg"].stride() == before["exp_avg"].stride()
    half = nn.Linear(2, 2, dtype=torch.bfloat16)
    kept = torch.optim.SGD(half.parameters(), lr=0.1, momentum=0.9)
    kept.state[half.weight] = {"momentum_buffer": torch.full((2, 2), 0.1), "seen": 3, "none": None}
    kept.state[half.bias] = {"history": OrderedDict(losses=[torch.ones(1), 2.0])}
    kept.state["of the whole"] = {"trust": 0.5}
    again = torch.optim.SGD(half.parameters(), lr=0.1, momentum=0.9)
    load_optimizer_state(again, half, through_a_document(optimizer_state(kept, half)))
    assert again.state[half.weight]["momentum_buffer"].dtype == torch.float32
    assert again.state[half.weight]["seen"] == 3 and again.state[half.weight]["none"] is None
    assert alike(again.state[half.bias], kept.state[half.bias])
    assert again.state["of the whole"] == {"trust": 0.5}


def grouped(model, order):
    weights = [p for n, p in model.named_parameters() if "weight" in n]
    biases = [p for n, p in model.named_parameters() if "bias" in n]
    groups = {
        "weights": {"params": weights, "lr": 0.1},
        "biases": {"params": biases, "lr": 0.2, "weight_decay": 0.0},
    }
    return torch.optim.AdamW([groups[name] for name in order], lr=0.5)


def test_groups_find_their_settings_in_any_order():
    torch.manual_seed(0)
    model = Net()
    optimizer = grouped(model, ("weights", "biases"))
    optimizer.param_groups[0]["lr"] = 0.001
    tree = through_a_document(optimizer_state(optimizer, model))
    fresh = grouped(model, ("biases", "weights"))
    load_optimizer_state(fresh, model, tree)
    assert [group["lr"] for group in fresh.param_groups] == [0.2, 0.001]
    assert digest({"": tree}) == digest({"": optimizer_state(fresh, model)})


def test_a_learning_rate_tensor_is_written_in_place():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.5))
    tree = through_a_document(optimizer_state(optimizer, model))
    fresh = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
    held = fresh.param_groups[0]["lr"]
    load_optimizer_state(fresh, model, tree)
    assert fresh.param_groups[0]["lr"] is held and float(held) == 0.5


def test_tied_and_foreign_parameters_have_names():
    model = Net()
    model.second.weight = model.first.weight
    scale = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.1)
    names = list(optimizer_state(optimizer, model)["groups"][0]["parameters"])
    assert "first.weight" in names and "second.weight" not in names
    assert "(group 0, parameter 7)" in names


def subset(model, *prefixes):
    return [p for n, p in model.named_parameters() if n.startswith(prefixes)]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda m: torch.optim.Adam(m.parameters()), "nothing for conv.bias, conv.weight, third.bias, third"),
        (lambda m: torch.optim.Adam(subset(m, "first")), "has second.bias, second.weight, which the opti"),
        (lambda m: torch.optim.SGD(subset(m, "first", "second"), lr=1.0), "saved by Adam .* into SGD"),
        (
            lambda m: torch.optim.Adam([{"params": subset(m, "first")}, {"params": subset(m, "second")}]),
            "1 parameter groups and the optimizer 2, with other members for first.bias, first.weight",
        ),
    ],
)  # fmt: skip
def test_another_set_of_parameters_is_refused_by_name_and_nothing_is_changed(other, message):
    model = Net()
    tree = optimizer_state(torch.optim.Adam(subset(model, "first", "second"), lr=0.5), model)
    optimizer = other(model)
    before = digest({"": optimizer_state(optimizer, model)})
    with pytest.raises(CheckpointError, match=message):
        load_optimizer_state(optimizer, model, tree)
    assert digest({"": optimizer_state(optimizer, model)}) == before


def test_another_shape_is_refused_by_name():
    small, large = nn.Linear(2, 3), nn.Linear(2, 4)
    tree = optimizer_state(torch.optim.SGD(small.parameters(), lr=0.1), small)
    with pytest.raises(CheckpointError, match=r"weight of shape \[3, 2\] \(here \[4, 2\]\)"):
        load_optimizer_state(torch.optim.SGD(large.parameters(), lr=0.1), large, tree)
