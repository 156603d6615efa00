"""The adversarial training view: one sign step up SimCLR's loss that leaves everything else untouched."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from digits_model import digits
from intnacl.attacks.training_view import AdversaryConfig, adversarial_view
from intnacl.errors import InputError
from intnacl.models.batchnorm import stacked
from intnacl.models.encoders import EncoderConfig, build_model
from intnacl.training.ranks import wrap_ddp

EPS = 0.05


@pytest.fixture
def embedder():
    """A model with adversarial batch norms, in train mode, whose batches are adversarial views."""
    made = build_model(EncoderConfig(name="small"), image_size=8, adversarial=True, seed=0).double().train()
    with stacked(made, [(1, True)]):
        yield made


@pytest.fixture
def images():
    return digits()[0][:24].double() / 255


def test_the_view_is_one_sign_step_up_the_simclr_loss(embedder, images):
    other, functional = deepcopy(embedder), deepcopy(embedder)
    x = images.clone().requires_grad_()
    z = other(x)
    (gradient,) = torch.autograd.grad(simclr(z.detach(), z), x)
    expected = images + EPS * gradient.sign()
    assert torch.equal(adversarial_view(embedder, images, EPS), expected)
    assert torch.equal(adversarial_view(lambda x: functional(x), images, EPS), expected)
    assert all(parameter.grad is None and parameter.requires_grad for parameter in functional.parameters())


def simclr(a, b, temperature=0.5):
    """−log exp(s_pos) / Σ_others exp(s), averaged over the 2B rows, in loops."""
    z = torch.nn.functional.normalize(torch.cat([a, b]), dim=1)
    s, n = z @ z.T / temperature, len(a)
    rows = []
    for i in range(2 * n):
        others = torch.cat([s[i, :i], s[i, i + 1 :]])
        rows.append(torch.logsumexp(others, 0) - s[i, (i + n) % (2 * n)])
    return torch.stack(rows).mean()


def test_the_view_raises_the_simclr_loss_and_more_steps_raise_it_more(embedder, images):
    embedder.eval()
    z, noise = embedder(images).detach(), images + EPS * torch.randn_like(images).sign()
    one, eight = (adversarial_view(embedder, images, EPS, steps=steps) for steps in (1, 8))
    losses = [simclr(z, embedder(x)).item() for x in (images, noise, one, eight)]
    assert losses[0] - 1e-3 < losses[1] < losses[2] < losses[3]


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("start", [False, True])
def test_views_stay_in_the_ball(embedder, images, steps, start):
    begin = torch.rand_like(images) * 2 - 1 if start else None
    moved = adversarial_view(embedder, images, 0.05, steps=steps, random_start=begin)
    assert (moved - images).abs().max() <= 0.05 + 1e-12
    assert moved.min() < 0  # black pixels leave the box, as in the reference …
    boxed = adversarial_view(embedder, images, 0.05, steps=steps, random_start=begin, clamp=True)
    assert boxed.min() >= 0  # … unless they are told not to
    assert boxed.max() <= 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("eps", [0.015, 0.002])
def test_half_precision_views_are_the_float32_ones_rounded_once(embedder, images, eps, steps, dtype):
    """However many steps they take: the ball is float32's, and so are the sums of the steps."""
    x = images.to(dtype)

    def embed(x):
        seen.append(x.dtype)
        return embedder(x.double())

    seen: list[torch.dtype] = []
    view = adversarial_view(embed, x, eps, steps=steps)
    assert (view.dtype, set(seen)) == (dtype, {dtype})
    pixels, moved = x.double(), view.double()
    rounding = torch.finfo(dtype).eps / torch.where(moved < 1, 4, 2)
    assert ((moved - pixels).abs() <= eps + rounding).all()
    dark = pixels == 0  # where numbers are dense
    assert (moved - pixels)[dark].abs().max() <= eps * (1 + torch.finfo(dtype).eps / 2)
    assert (moved != pixels)[pixels > 0].double().mean() > 0.8  # small steps add up
    if steps == 1:
        sign = (moved - pixels).sign()
        exact = (x.float() + eps * sign.float()).to(dtype)
        assert torch.equal(view[sign != 0], exact[sign != 0])


@pytest.mark.parametrize("start", [False, True])
def test_several_steps_by_hand(embedder, images, start):
    """From a random start, too, the view goes away from the embedding of the image itself."""
    other, begin, low, high = deepcopy(embedder), None, images - EPS, images + EPS
    x, fixed = images, None
    if start:
        begin = 2 * torch.rand_like(images) - 1
        x, fixed = images + EPS * begin, other(images).detach()
    for _ in range(3):
        leaf = x.clone().requires_grad_()
        z = other(leaf)
        fixed = z.detach() if fixed is None else fixed
        (gradient,) = torch.autograd.grad(simclr(fixed, z), leaf)
        x = torch.minimum(torch.maximum(x + 2 * EPS / 3 * gradient.sign(), low), high)
    assert torch.equal(adversarial_view(embedder, images, EPS, steps=3, random_start=begin), x)


def test_the_view_leaves_parameters_alone(embedder, images):
    wanted = list(embedder.parameters())
    wanted[0].requires_grad_(False)
    grads = [torch.rand_like(p) for p in wanted]
    fired = []
    for parameter, grad in zip(wanted, grads, strict=True):
        parameter.grad = grad.clone()
        if parameter.requires_grad:
            parameter.register_hook(lambda g: fired.append(g))
            parameter.register_post_accumulate_grad_hook(lambda p: fired.append(p))
    view = adversarial_view(embedder, images.clone().requires_grad_(), EPS)
    assert not view.requires_grad  # cut off from the caller's graph, too
    assert fired == []
    assert all(torch.equal(p.grad, g) for p, g in zip(wanted, grads, strict=True))
    assert [p.requires_grad for p in wanted] == [False] + [True] * (len(wanted) - 1)


def test_parameters_want_gradients_again_after_an_error(embedder, images):
    def fail(*_):
        raise KeyboardInterrupt

    embedder.head.register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        adversarial_view(embedder, images, EPS)
    assert all(p.requires_grad for p in embedder.parameters())


def test_the_view_does_not_wake_ddp(images, embedder, tmp_path):
    """DDP counts hooks of the backward pass: one that fired in the attack would be one too many."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        wrapped = wrap_ddp(embedder, torch.device("cpu"))
        reduced = []
        wrapped.register_comm_hook(None, lambda _, bucket: (reduced.append(1), _done(bucket))[1])
        for _ in range(3):
            reduced.clear()
            view = adversarial_view(embedder, images, EPS)
            assert reduced == []
            with stacked(embedder, [(1, False), (1, True)]):
                wrapped(torch.cat([images, view])).square().mean().backward()
            assert reduced
    finally:
        dist.destroy_process_group()


def _done(bucket) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


@pytest.mark.parametrize("start", [None, 0.5])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_view_can_be_made_in_a_validation_step(embedder, images, mode, start):
    begin = None if start is None else torch.full_like(images, start)
    expected = adversarial_view(embedder, images, EPS, steps=2, random_start=begin)
    with mode():
        begin = None if start is None else begin.clone()
        ours = adversarial_view(embedder, images.clone(), EPS, steps=2, random_start=begin)
    assert torch.equal(ours, expected)


def test_a_large_batch_does_not_round_gradients_to_zero_in_float16():
    made = build_model(EncoderConfig(name="small"), image_size=8, adversarial=True, seed=0).train()
    x = torch.rand(512, 3, 8, 8, generator=torch.Generator().manual_seed(0)).half()
    with stacked(made, [(1, True)]), torch.autocast("cpu", torch.float16):
        view = adversarial_view(made, x, EPS)
    assert (view == x).float().mean() < 3e-4  # ten times as many when the mean over rows is left as it is


def test_bad_views_are_an_error(embedder, images):
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return embedder(x), x

    for encoder, x, options, message in (
        (embedder, images, {"eps": 1.5}, r"eps=1\.5 is out of range"),
        (embedder, images, {"eps": EPS, "steps": 0}, "steps=0 must be a whole number from 1"),
        (embedder, (255 * images).byte(), {"eps": EPS}, "divide uint8 images by 255"),
        (Two(), images, {"eps": EPS}, "model returns a tuple: wrap it"),
    ):
        with pytest.raises(InputError, match=message):
            adversarial_view(encoder, x, **options)


def test_pixels_and_gradients_that_are_not_numbers_are_an_error(embedder, images):
    def diverged(x: Tensor) -> Tensor:
        return embedder(x) * torch.nan

    x = images.clone()
    x[3, 0, 0, 0] = torch.nan
    with pytest.raises(InputError, match=r"x is NaN for 1 of 24 images: attacks need pixels in \[0, 1\]"):
        adversarial_view(embedder, x, EPS)
    with pytest.raises(
        InputError, match="gradient of the loss is NaN for 24 of 24 images: the model has div"
    ):
        adversarial_view(diverged, images, EPS)
    assert adversarial_view(diverged, x, EPS, check=False).isnan().any()


@pytest.mark.parametrize("settings", [{"eps": 0.0}, {"eps": 2.0}, {"eps": float("nan")}, {"steps": 0}])
def test_bad_adversaries_are_named(settings: dict) -> None:
    with pytest.raises(InputError, match=rf"adversary {next(iter(settings))}="):
        AdversaryConfig(**settings)
