"""Graphs of `torch.compile` and modules, tuned while they are used."""

import pytest

from tests.capabilities.first_use.conftest import the_order, tools
from tilesmith.capabilities.first_use.following import Follower
from tilesmith.capabilities.first_use.rounds import another
from tilesmith.tuner.tasks.cancel import CancelToken

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.extra


@pytest.fixture
def module() -> "torch.nn.Module":
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 40)
    return torch.nn.Sequential(*layers).eval()


def test_a_graph_is_exchanged_until_its_weights_change(
    module: "torch.nn.Module", follower: Follower
) -> None:
    from tilesmith.torch_backend import reports

    torch._dynamo.reset()
    compiled = torch.compile(module, backend="tilesmith", options={"tune": "background"})
    x = torch.randn(24, 64)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
        follower.look()
        another(the_order(), CancelToken(), tools(first=0.5, second=1.0))
        follower.look()
        assert the_order().state.version == 1
        torch.testing.assert_close(compiled(x), module(x))
        module[0].weight.mul_(2)  # what is compiled anew has an order of its own
        torch.testing.assert_close(compiled(x), module(x))
    assert [report.whole for report in reports()] == [True]


def test_a_module_is_exchanged(module: "torch.nn.Module", follower: Follower) -> None:
    import tilesmith as ts

    x = torch.randn(24, 64)
    compiled = ts.from_torch(module, (x,), tune="background")
    follower.look()
    another(the_order(), CancelToken(), tools(first=0.5, second=1.0))
    follower.look()
    assert the_order().state.version == 1
    torch.testing.assert_close(compiled(x), module(x))
