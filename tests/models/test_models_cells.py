"""Networks of cells that are written out, as ENAS samples them."""

from __future__ import annotations

import pytest

from simdev.ground.errors import InputError
from simdev.learn.families import FAMILIES, family
from simdev.nouns.models import build, enas_images, enas_words, parameter_count


def test_a_cell_of_images_has_the_parameters_of_its_operations():
    """Filters 4: a stem of 3 x 3, squeezes of both inputs, a separable 3 x 3 twice."""
    graph = enas_images(2, "separable_3 0 identity 1", cells=1, filters=4, classes=3, size=8)
    stem, squeeze, separable = 3 * 4 * 9 + 8, 4 * 4 + 8, 2 * (4 * 9 + 4 * 4 + 8)
    assert parameter_count(graph) == stem + squeeze + separable + 4 * 3 + 3


def test_a_cell_of_words_has_a_product_for_each_node():
    graph = enas_words(2, "tanh, 0 relu, 0 identity", length=2, hidden=4, vocabulary=11)
    nodes = 8 * 8 + 2 * (4 * 8)
    assert parameter_count(graph) == 11 * 4 + nodes + 11 * 4 + 11
    products = [op.name for op in graph.ops if op.kind == "matmul" and op.phase == "forward"]
    assert len(products) == 2 * 3


@pytest.mark.parametrize("cell", ["", "max_3 0 identity 2", "max_9 0 identity 1", "max_3 0"])
def test_a_wrong_cell_of_images_is_refused(cell: str):
    with pytest.raises(InputError, match=r'^cell: must be nodes like "max_3 0 identity 1"'):
        enas_images(cell=cell)


@pytest.mark.parametrize("cell", ["", "0 tanh", "tanh, 1 relu", "tanh, relu", "tanh, 0 gelu"])
def test_a_wrong_cell_of_words_is_refused(cell: str):
    with pytest.raises(InputError, match=r"^cell: must be an activation, then nodes like"):
        enas_words(cell=cell)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_no_graph_twice_and_is_always_the_same(name: str):
    drawn = family(name)
    sizes = [repr(sorted(graph.items())) for graph in drawn.seen + drawn.unseen]
    assert (len(drawn.seen), len(drawn.unseen)) == (24, 8)
    assert len(set(sizes)) == 32
    assert family(name) == drawn != family(name, seed=1)
    assert drawn.held_out[0].graph == build(FAMILIES[name].model, **drawn.unseen[0])
