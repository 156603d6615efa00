"""The adversarial training view: a sign step that raises SimCLR's loss and changes nothing else."""

from contextlib import nullcontext
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
from mistakes import must_refuse, refused

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


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("start", [False, True])
def test_the_view_takes_sign_steps_up_the_simclr_loss(embedder, images, steps, start):
    """From a random start, too, it moves away from the embedding of the original image."""
    other, begin = deepcopy(embedder), 2 * torch.rand_like(images) - 1 if start else None
    fixed = other(images).detach()
    x = images if begin is None else images + EPS * begin
    for _ in range(steps):
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(simclr(fixed, other(leaf)), leaf)
        step = EPS if steps == 1 else 2 * EPS / steps
        x = (x + step * gradient.sign()).clamp(images - EPS, images + EPS)
    functional = deepcopy(embedder)
    for encoder in (embedder, lambda x: functional(x)):
        assert torch.equal(adversarial_view(encoder, images, EPS, steps=steps, random_start=begin), x)
    assert all(parameter.grad is None and parameter.requires_grad for parameter in functional.parameters())


def simclr(a, b, temperature=0.5):
    """−log exp(s_pos) / Σ_others exp(s), averaged over the 2B rows, in loops."""
    z, n = torch.nn.functional.normalize(torch.cat([a, b]), dim=1), len(a)
    s, rows = z @ z.T / temperature, []
    for i in range(2 * n):
        others = torch.cat([s[i, :i], s[i, i + 1 :]])
        rows.append(torch.logsumexp(others, 0) - s[i, (i + n) % (2 * n)])
    return torch.stack(rows).mean()


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("start", [False, True])
def test_views_stay_in_the_ball(embedder, images, steps, start):
    options = {"steps": steps, "random_start": torch.rand_like(images) * 2 - 1 if start else None}
    moved, boxed = (adversarial_view(embedder, images, EPS, clamp=c, **options) for c in (False, True))
    assert (moved - images).abs().max() <= EPS + 1e-12
    assert moved.min() < 0  # black pixels leave the box, as in the reference, unless they are told not to
    assert 0 <= boxed.min() <= boxed.max() <= 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("eps", [0.015, 0.002])
def test_half_precision_views_are_the_float32_ones_rounded_once(embedder, images, eps, steps, dtype):
    """For any number of steps, since ball and sums of steps are computed in float32."""
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


def test_the_view_leaves_parameters_alone(embedder, images):
    wanted, fired = list(embedder.parameters()), []
    wanted[0].requires_grad_(False)
    for parameter in wanted:
        parameter.grad = torch.rand_like(parameter)
        if parameter.requires_grad:
            parameter.register_hook(lambda g: fired.append(g))
            parameter.register_post_accumulate_grad_hook(lambda p: fired.append(p))
    grads = [p.grad.clone() for p in wanted]
    view = adversarial_view(embedder, images.clone().requires_grad_(), EPS)
    assert not view.requires_grad  # cut off from the caller's graph, too
    assert fired == []
    assert all(torch.equal(p.grad, g) for p, g in zip(wanted, grads, strict=True))
    embedder.head.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        adversarial_view(embedder, images, EPS)
    assert [p.requires_grad for p in wanted] == [False] + [True] * (len(wanted) - 1), "even after an error"


def test_the_view_does_not_fire_ddps_hooks(images, embedder, tmp_path):
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
    views = []
    for manager in (nullcontext, mode):
        with manager():
            begin = None if start is None else torch.full_like(images, start)
            views.append(adversarial_view(embedder, images.clone(), EPS, steps=2, random_start=begin))
    assert torch.equal(*views)


def test_a_large_batch_does_not_round_gradients_to_zero_in_float16():
    made = build_model(EncoderConfig(name="small"), image_size=8, adversarial=True, seed=0).train()
    x = torch.rand(512, 3, 8, 8, generator=torch.Generator().manual_seed(0)).half()
    with stacked(made, [(1, True)]), torch.autocast("cpu", torch.float16):
        view = adversarial_view(made, x, EPS)
    assert (view == x).float().mean() < 3e-4  # ten times as many when the mean over rows is left as it is


IMAGES = torch.rand(4, 3, 8, 8)

test_bad_views_are_refused = refused(
    lambda encoder, x, options: adversarial_view(encoder, x, **{"eps": EPS} | options),
    (nn.Flatten(), IMAGES, {"eps": 1.5}, r"eps=1\.5 is out of range"),
    (nn.Flatten(), IMAGES, {"steps": 0}, "steps=0 must be a whole number from 1"),
    (nn.Flatten(), (255 * IMAGES).byte(), {}, "divide uint8 images by 255"),
    (lambda x: (x, x), IMAGES, {}, "model returns a tuple: wrap it"),
)
test_bad_adversaries_are_refused = refused(
    lambda settings: AdversaryConfig(**settings),
    *(({"eps": eps}, "adversary eps=") for eps in (0.0, 2.0, float("nan"))),
    ({"steps": 0}, "adversary steps="),
)


def test_pixels_and_gradients_that_are_not_numbers_are_an_error(embedder, images):
    def diverged(x: Tensor) -> Tensor:
        return embedder(x) * torch.nan

    x = images.clone()
    x[3, 0, 0, 0] = torch.nan
    with pytest.raises(InputError, match=r"x is NaN for 1 of 24 images: attacks need pixels in \[0, 1\]"):
        adversarial_view(embedder, x, EPS)
    must_refuse(adversarial_view, diverged, images, EPS, "loss is NaN for 24 of 24 images: the model has div")
    assert adversarial_view(diverged, x, EPS, check=False).isnan().any()
