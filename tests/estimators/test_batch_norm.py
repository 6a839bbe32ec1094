"""Batch norm with a residual and ReLU: the kernels against torch in float64.

Without a GPU the kernels run in Triton's interpreter: that runs this file as a script.
"""

import importlib.util

import pytest
import torch

from coresift.estimators.networks.batch_norm import BatchNorm, Fused
from coresift.estimators.networks.resnet import ResNet18

INSTALLED = importlib.util.find_spec("triton") is not None
# (n, channels, height, width): less and more than a block of channels and of pixels, and no multiple of them.
SHAPES = [(3, 5, 4, 3), (2, 64, 9, 8), (5, 130, 3, 5), (1, 8, 1, 7)]


def draw(shape: tuple[int, ...], device: str, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape).to(device, dtype).contiguous(memory_format=torch.channels_last)


def check_kernels(device: str) -> None:
    torch.manual_seed(0)
    for dtype, near in ((torch.float32, 5e-6), (torch.bfloat16, 1e-2)):
        for shape in SHAPES:
            for residual, relu in ((False, False), (False, True), (True, False), (True, True)):
                check_one(shape, residual, relu, device, dtype, near)


def check_one(
    shape: tuple[int, ...], residual: bool, relu: bool, device: str, dtype: torch.dtype, near: float
) -> None:
    channels = shape[1]
    # Some channels are far from zero, for their size.
    x = 2 * draw(shape, device, dtype) + 30 * (torch.arange(channels, device=device) % 3)[:, None, None]
    x = x.to(dtype).contiguous()  # with the channels first, as images may come
    weight, bias = torch.rand(channels, device=device) + 0.5, torch.randn(channels, device=device)
    given = [x, *([draw(shape, device, dtype)] if residual else []), weight, bias]
    upper = draw(shape, device, dtype)
    running = torch.randn(channels, device=device), torch.rand(channels, device=device)
    expected_running = [value.double() for value in running]

    given = [value.detach().requires_grad_() for value in given]
    second = given[1] if residual else None
    y = Fused.apply(given[0], second, *given[-2:], *running, 0.1, 1e-5, relu)[0]
    found = [y.detach(), *torch.autograd.grad(y, given, upper), *running]

    wide = [value.detach().double().requires_grad_() for value in given]
    normed = torch.nn.functional.batch_norm(wide[0], *expected_running, *wide[-2:], True, 0.1, 1e-5)
    normed = normed + wide[1] if residual else normed
    # In half precision a number near zero may be on its other side.
    normed = torch.where(y.detach() > 0, normed, 0.0) if relu else normed
    expected = [normed.detach(), *torch.autograd.grad(normed, wide, upper.double()), *expected_running]
    with torch.no_grad():
        found.append(Fused.apply(given[0], second, *given[-2:], *running, None, 1e-5, relu)[0])
        normed = torch.nn.functional.batch_norm(wide[0], *expected_running, *wide[-2:], False, 0.1, 1e-5)
        normed = normed + wide[1] if residual else normed
        expected.append(torch.relu(normed) if relu else normed)
    for one, other in zip(found, expected, strict=True):
        assert float((one.double() - other).abs().max()) <= near * float(other.abs().max())


def check_side_by_side(device: str) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 4, 6, 5, 5), torch.rand(3, 6), torch.randn(3, 6)
    x, weight, bias = (value.to(device) for value in (x, weight, bias))
    mean, variance = torch.zeros_like(bias), torch.ones_like(bias)
    weight.requires_grad_()

    def one(*given: torch.Tensor) -> torch.Tensor:
        return Fused.apply(given[0], None, *given[1:], 0.1, 1e-5, True)[0]

    before = mean.clone(), variance.clone()
    together = torch.vmap(one)(x, weight, bias, mean, variance)
    (gradient,) = torch.autograd.grad(together.square().sum(), weight)
    for position in range(3):
        statistics = [value[position].clone() for value in before]
        alone = one(*(value[position] for value in (x, weight, bias)), *statistics)
        torch.testing.assert_close(together[position], alone)
        torch.testing.assert_close([mean[position], variance[position]], statistics)
        (expected,) = torch.autograd.grad(alone.square().sum(), weight)
        torch.testing.assert_close(gradient[position], expected[position])


def check_no_numbers(device: str) -> None:
    """They are seen in what follows, as without kernels."""
    x = torch.ones(2, 3, 4, 4, device=device)
    x[1, 2, 0, 0] = torch.nan
    state = [torch.ones(3, device=device) for _ in range(4)]
    found = Fused.apply(x, None, *state, None, 1e-5, True)[0]
    assert found.isnan().sum() == 1 and bool(found[1, 2, 0, 0].isnan())
    found = Fused.apply(x, None, *state, 0.1, 1e-5, True)[0]
    assert found.isnan().sum() == 32 and bool(found[:, 2].isnan().all())


def test_plain_batch_norm_is_torchs():
    torch.manual_seed(0)
    x, residual, norm = torch.randn(4, 3, 5, 5), torch.randn(4, 3, 5, 5), BatchNorm(3)
    plain = torch.nn.functional.batch_norm(x, None, None, norm.weight, norm.bias, True)
    torch.testing.assert_close(norm(x, residual), torch.relu(plain + residual))
    torch.testing.assert_close(BatchNorm(3, relu=False)(x), plain)
    assert int(norm.num_batches_tracked) == 1


def test_interpreted_kernels_are_torchs_batch_norm(run_interpreted):
    run_interpreted()


@pytest.mark.skipif(
    not (INSTALLED and torch.cuda.is_available()),
    reason="needs a GPU and Triton, which comes with torch there",
)
def test_kernels_are_torchs_batch_norm_on_a_gpu():
    check_kernels("cuda")
    check_side_by_side("cuda")
    check_no_numbers("cuda")
    # What has no kernels goes torch's way.
    double = BatchNorm(3).cuda().double()
    assert double(torch.randn(2, 3, 4, 4, device="cuda").double()).dtype == torch.float64
    with torch.no_grad():
        assert BatchNorm(3).cuda().eval()(torch.zeros(0, 3, 4, 4, device="cuda")).shape == (0, 3, 4, 4)
    # A whole network, against the same on the CPU, where batch norm is plain.
    torch.manual_seed(0)
    network, x = ResNet18(width=8), torch.randn(6, 3, 16, 16)
    expected = torch.autograd.grad(network(x).square().sum(), list(network.parameters()))
    statistics = {name: value.clone() for name, value in network.named_buffers()}
    other = ResNet18(width=8)
    other.load_state_dict({**network.state_dict(), **dict(ResNet18(width=8).named_buffers())})
    other.cuda()
    with torch.backends.cudnn.flags(allow_tf32=False):
        found = torch.autograd.grad(other(x.cuda()).square().sum(), list(other.parameters()))
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), two, rtol=1e-3, atol=1e-3 * float(two.abs().max()))
    for name, value in other.named_buffers():
        if not name.endswith("num_batches_tracked"):  # which nothing depends on
            torch.testing.assert_close(value.cpu(), statistics[name], rtol=1e-3, atol=1e-4)
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):
        torch.testing.assert_close(other.eval()(x.cuda()).cpu(), network.eval()(x), rtol=1e-3, atol=1e-3)


if __name__ == "__main__":
    check_kernels("cpu")
    check_side_by_side("cpu")
    check_no_numbers("cpu")
