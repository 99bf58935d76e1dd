"""The models that are ready to be measured: their parameters, their captures."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from captures import graph_of, measured  # noqa: E402
from simdev.costs import op_key  # noqa: E402
from simdev.measure import model_names  # noqa: E402
from simdev.measure.capture import capture, row_key  # noqa: E402
from simdev.measure.torch_models import MODELS  # noqa: E402
from simdev.measure.torch_models.batches import image_step  # noqa: E402
from simdev.measure.torch_models.classifiers import NasNet  # noqa: E402

PARAMETERS = {
    "inception-v3": 23_834_568,  # 27.16 million with the auxiliary head
    "resnet-50": 25_557_032,
    "vgg-19": 143_667_240,
    "alexnet": 61_100_840,
    "nasnet-mobile": 5_289_978,
    "nasnet-large": 88_753_150,
    "bert-large": 336_226_108,
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
}
"""Published counts of trainable parameters, to the last one."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_models_have_the_parameters_of_their_papers(name: str) -> None:
    assert parameters_of(name) == PARAMETERS[name]


def test_models_whose_papers_round_have_about_their_parameters() -> None:
    # Zaremba's large model
    assert parameters_of("rnnlm", hidden=1500) == pytest.approx(66e6, rel=0.005)
    assert parameters_of("transformer-big") == pytest.approx(213e6, rel=0.01)
    assert parameters_of("transformer-big", width=512, inner=2048, heads=8) == pytest.approx(
        65e6, rel=0.04
    )


def parameters_of(name: str, **sizes: int) -> int:
    """Counted on the meta device: nothing is allocated."""
    with torch.device("meta"):
        module, _, _ = MODELS[name].build(batch=1, **sizes)
    return sum(parameter.numel() for parameter in module.parameters())


SMALL: dict[str, dict[str, int]] = {
    "transformer-big": {
        "layers": 1,
        "length": 4,
        "width": 16,
        "inner": 32,
        "heads": 2,
        "vocabulary": 20,
    },
    "bert-large": {"layers": 1, "length": 16, "width": 16, "heads": 2, "vocabulary": 20},
    "gpt2-small": {"layers": 1, "length": 8, "width": 16, "heads": 2, "vocabulary": 20},
    "rnnlm": {"layers": 2, "length": 3, "hidden": 8, "vocabulary": 20},
    "gnmt": {"length": 2, "hidden": 4, "layers": 4, "vocabulary": 8},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SMALL)
def test_language_models_are_captured_and_measured_whole(name: str) -> None:
    captured, result = measured(MODELS[name].build(batch=2, **SMALL[name]))
    graph = graph_of(captured)
    needed = {op_key(graph, i, "test-1core") for i, op in enumerate(graph.ops) if op.time is None}
    assert result.unmeasured == []
    assert {row_key(row, "test-1core") for row in result.rows} == needed


def test_every_convolution_of_a_cell_network_has_its_gradients() -> None:
    module = NasNet(stem=4, filters=8, repeats=1, skip=True, classes=5)
    graph = graph_of(capture(*image_step(module, batch=1, classes=5, size=64)))
    count = {
        kind: sum(op.kind == kind for op in graph.ops)
        for kind in ("conv2d", "conv2d_backward_weight")
    }
    assert count["conv2d"] == count["conv2d_backward_weight"] > 50


def test_the_models_that_are_ready_are_listed_with_their_sizes_on_a_cpu() -> None:
    assert [name for name, _, _ in model_names()] == list(MODELS)
    assert ("gpt2-medium", 1, "adam") in model_names()
    assert all(
        batch > 0 and optimizer in ("adam", "sgd-momentum") for _, batch, optimizer in model_names()
    )
