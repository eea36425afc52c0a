"""Widths, shapes and owners follow from a Case."""

import cases
import pytest
from cases import call, graph

from fuzzshard.analysis.groups import calls_of
from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import Inputs, TensorSpec, Tie, WrapGroup
from fuzzshard.case.graph import Alias, Block, Child
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.leaf import Value
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.attention import Attention
from fuzzshard.parts.leaves.convolutions import Conv1d, Conv2d
from fuzzshard.parts.leaves.embedding import Embedding
from fuzzshard.parts.leaves.experts import Experts
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.mlp import MLP
from fuzzshard.parts.leaves.norms import BatchNorm, LayerNorm, RMSNorm
from fuzzshard.parts.leaves.raw_parameter import RawParameter
from fuzzshard.parts.ops import Forward


def chain(*leaves, tensor=None, seq=0, **fields):
    """A case whose root calls the leaves ``m0``, ``m1``, ... one after another."""
    model = cases.chain(**{f"m{i}": leaf for i, leaf in enumerate(leaves)})
    return case(model, tensor, seq, **fields)


def case(root, tensor=None, seq=0, **fields):
    inputs = Inputs(batch=2, seq=seq, tensors=(tensor or TensorSpec(size=4),) * len(root.inputs))
    return cases.make_case(root, (Forward(),), inputs=inputs, **{"wrap": (), **fields})


def empty(*modules, **fields):
    """A block that calls nothing."""
    children = tuple(Child(name=n, module=m) for n, m in modules)
    return Block(children=children, nodes=(), **{"outputs": ("x",), **fields})


def refusal(broken):
    with pytest.raises(InvalidCase) as error:
        inferred(broken)
    return str(error.value)


@pytest.mark.parametrize(
    ("leaf", "seq", "message"),
    [
        (Conv2d(channels=-1, kernel=2, out=1), 0, "'m0' has -1 channels and a kernel of 2"),
        (Conv2d(channels=0, kernel=2, out=1), 0, "'m0' has 0 channels and a kernel of 2"),
        (Conv2d(channels=1, kernel=0, out=1), 0, "'m0' has 1 channels and a kernel of 0"),
        (Attention(heads=0), 2, "'m0': 0 heads do not divide width 4"),
        (Attention(heads=-1), 2, "'m0': -1 heads do not divide width 4"),
        (Experts(out=3, experts=1, idle=True), 0, "'m0' has no expert that gets rows"),
    ],
)
def test_what_divides_a_width_is_positive(leaf, seq, message):
    assert message in refusal(chain(leaf, seq=seq))


@pytest.mark.parametrize(
    ("leaf", "shapes"),
    [
        (Linear(out=3), {"weight": (3, 4), "bias": (3,)}),
        (Linear(out=3, bias=False), {"weight": (3, 4)}),
        (Conv1d(out=3), {"weight": (3, 4, 3), "bias": (3,)}),
        (LayerNorm(), {"weight": (4,), "bias": (4,)}),
        (LayerNorm(bias=False), {"weight": (4,)}),
        (RMSNorm(), {"weight": (4,)}),
        (BatchNorm(), {"weight": (4,), "bias": (4,)}),
        (RawParameter(), {"weight": (4,)}),
        (RawParameter(matrix=True), {"weight": (4, 4)}),
        (MLP(hidden=3, bias=False), {"up.weight": (3, 4), "down.weight": (4, 3)}),
        (Attention(), {"qkv.weight": (12, 4), "proj.weight": (4, 4)}),
        (Experts(out=3, experts=2), {"grouped.weight": (2, 4, 3)}),
        (Activation(), {}),
    ],
)
def test_a_leaf_is_sized_by_what_it_is_called_with(leaf, shapes):
    found = inferred(chain(leaf, seq=2))
    assert found.parameters == {f"m0.{name}": shape for name, shape in shapes.items()}


def test_the_width_of_a_value_reaches_the_next_module():
    found = inferred(chain(Linear(out=3), Linear(out=5)))
    assert found.parameters["m1.weight"] == (5, 3)
    assert found.output_values[""] == (Value(5),)


def test_an_embedding_turns_ids_into_floats():
    found = inferred(chain(Embedding(vocab=7, dim=3), tensor=TensorSpec(kind="ids", size=7)))
    assert found.parameters == {"m0.weight": (7, 3)}
    assert found.output_values[""] == (Value(3),)


def test_concat_adds_widths():
    root = graph("h0 = concat(x, x)", "h1 = a(h0)", a=Linear(out=2))
    assert inferred(case(root)).parameters["a.weight"] == (2, 8)


def test_a_module_that_is_never_called_is_sized_by_the_first_float_input():
    found = inferred(case(graph("h0 = relu(x)", a=Linear(out=2))))
    assert found.parameters["a.weight"] == (2, 4)
    assert "a" not in found.called


def test_each_result_of_a_nested_block_is_a_value():
    inner = graph("h0 = a(x)", outputs="h0 x", returns="tuple", a=Linear(out=3))
    root = graph("h0 = inner(x)", outputs="h0.1 h0.0", returns="dict", inner=inner)
    assert inferred(case(root)).output_values[""] == (Value(4), Value(3))
    assert calls_of(case(root), "inner") == {"inner", "inner.a"}


def test_an_alias_adds_no_parameter():
    root = graph("h0 = a(x)", "h1 = b(h0)", a=Linear(out=4), b=Alias(target="a"))
    assert list(inferred(case(root)).parameters) == ["a.weight", "a.bias"]


def test_a_tied_parameter_goes_by_the_name_of_its_source():
    tied = chain(
        Linear(out=4), Linear(out=4), ties=(Tie(parameter="m1.weight", source="m0.weight"),)
    )
    assert list(inferred(tied).parameters) == ["m0.weight", "m0.bias", "m1.bias"]


def test_a_parameter_belongs_to_the_group_that_is_applied_first():
    wrap = (WrapGroup(modules=("m1",)), WrapGroup(modules=("",)))
    tie = Tie(parameter="m1.weight", source="m0.weight")
    found = inferred(chain(Linear(out=4), Linear(out=4), wrap=wrap, ties=(tie,)))
    assert found.owners == {"m0.weight": 0, "m0.bias": 1, "m1.bias": 0}


def test_a_parameter_outside_every_wrapped_module_has_no_owner():
    found = inferred(chain(Linear(out=4), RMSNorm(), wrap=(WrapGroup(modules=("m0",)),)))
    assert found.owners == {"m0.weight": 0, "m0.bias": 0, "m1.weight": None}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (chain(Embedding(vocab=4, dim=2)), "embedding 'm0' of 4 rows is called with width 4"),
        (
            chain(Linear(out=2), tensor=TensorSpec(kind="ids", size=4)),
            "'m0' is called with ids below 4",
        ),
        (chain(Conv1d(out=2)), "'m0' needs a sequence axis"),
        (chain(Attention(heads=3), seq=2), "3 heads do not divide width 4"),
        (
            chain(Linear(out=2), ties=(Tie(parameter="m0.weight", source="m0.none"),)),
            "'m0.none' does not exist",
        ),
        (
            chain(Linear(out=2), ties=(Tie(parameter="m0.bias", source="m0.weight"),)),
            "cannot tie 'm0.bias' (2,) to 'm0.weight' (2, 4)",
        ),
        (
            chain(RMSNorm(), RMSNorm(), ties=(Tie(parameter="m0.weight", source="m1.weight"),)),
            "tie source 'm1.weight' comes after 'm0.weight'",
        ),
        (
            chain(
                *[RMSNorm()] * 3,
                ties=(
                    Tie(parameter="m2.weight", source="m1.weight"),
                    Tie(parameter="m1.weight", source="m0.weight"),
                ),
            ),
            "'m1.weight' is the source of another tie",
        ),
        (case(graph("h0 = relu(y)")), "reads 'y' before it exists"),
        (case(graph("h0 = relu(x, x)")), "'relu' in block '' has 2 arguments"),
        (case(graph(call("h0", "a", "x"))), "calls 'a', which it does not have"),
        (case(graph("x = relu(x)")), "defines 'x' twice"),
        (case(empty(outputs=("x", "x"))), "returns 2 values"),
        (case(empty(), TensorSpec(kind="ids", size=3)), "returns ids"),
        (case(empty(("a", Alias(target="b")))), "alias 'a' names 'b'"),
        (case(empty(("a b", RMSNorm()))), "'a b' in block '' is not a usable name"),
        (case(empty(*[("a", RMSNorm())] * 2)), "registers a name twice"),
        (
            case(graph("h0 = a(x)", "h1 = add(x, h0)", a=Linear(out=3))),
            "'add' in block '' joins widths 4 and 3; make them equal",
        ),
        (
            case(graph("h0 = a(x)", "h1 = a(h0)", a=Linear(out=3))),
            "'a' is called with width 4 and with width 3",
        ),
    ],
)
def test_a_graph_that_does_not_fit_together_is_refused(broken, message):
    assert message in refusal(broken)
