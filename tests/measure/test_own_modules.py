"""A module of one's own, measured from a notebook; steps that are not one loss are refused."""

from __future__ import annotations

import pytest

import simdev
from simdev.ground.errors import InputError

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from simdev.measure.capture import capture  # noqa: E402

F = nn.functional


def test_a_module_with_its_loss_is_a_scenario_and_stays_as_it_is(tmp_path):
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    batch = torch.randn(4, 6), torch.randint(3, (4,))

    def loss(module, x, y):
        return F.cross_entropy(module(x), y)

    scenario = simdev.profile(module, batch, loss, "adam", seconds=0.1, out_dir=tmp_path)
    kinds = [op.kind for op in scenario.graph.ops]
    assert (kinds.count("linear"), kinds.count("adam_update")) == (2, 4)
    report = simdev.run(scenario)
    assert report.costs["measured"] == 1
    assert report.step_ps > 0
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert not module.training
    assert (tmp_path / "model.scenario.json").exists()


def gan(module, noise, images):
    """The step of a GAN as people write it."""
    discriminator, generator = module["d"], module["g"]
    fake = generator(noise)
    real, made = discriminator(images), discriminator(fake.detach())
    loss = F.softplus(-real).mean() + F.softplus(made).mean()
    loss.backward()
    torch.optim.Adam(discriminator.parameters()).step()
    return F.softplus(-discriminator(fake)).mean()


def stepping(module, noise, images):
    loss = module["d"](images).mean()
    torch.optim.SGD(module["d"].parameters()).step()
    return loss


@pytest.mark.parametrize("loss", [gan, stepping])
def test_a_step_of_two_optimizers_is_refused_with_what_to_do(loss):
    module = nn.ModuleDict({"g": nn.Linear(2, 4), "d": nn.Linear(4, 1)})
    batch = torch.randn(3, 2), torch.randn(3, 4)
    with pytest.raises(InputError, match=r"\(a GAN\) is a step for each loss; or import the trace"):
        capture(module, batch, loss)
    # Each loss by itself is a step.
    alone = capture(module, batch, lambda m, z, x: F.softplus(-m["d"](m["g"](z))).mean())
    assert sum(op["phase"] == "update" for op in alone.graph["ops"]) == 4
