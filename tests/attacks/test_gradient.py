"""FGSM and PGD: against two independent libraries, at their limits, and leaving everything else untouched."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from digits_model import held_out, trained_model
from intnacl.attacks import cross_entropy, fgsm, input_gradient, pgd
from intnacl.errors import InputWarning
from mistakes import refused

EPS = 0.05
ATTACKS = (fgsm, partial(pgd, step_size=0.01, steps=2, restarts=1))
# foolbox still imports from a scipy namespace that scipy wants to drop.
foolbox_imports = pytest.mark.filterwarnings("ignore:Please .* `gaussian_filter`:DeprecationWarning")


@pytest.fixture
def model():
    return deepcopy(trained_model())  # the other libraries leave gradients behind


@pytest.fixture
def batch():
    images, labels = held_out(400)
    return images / 255, labels


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fooled(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).argmax(dim=1) != y


def torchattacks_images(name: str, model: nn.Module, x: Tensor, y: Tensor, **settings: float) -> Tensor:
    torchattacks = pytest.importorskip("torchattacks", reason="no torchattacks, which `make test` installs")
    attack = getattr(torchattacks, name)(model, **settings)
    attack.set_device(x.device)
    return attack(x, y)


def foolbox_images(name: str, model: nn.Module, x: Tensor, y: Tensor, eps: float, **settings) -> Tensor:
    import foolbox

    attack = getattr(foolbox.attacks, name)(**settings)
    return attack(foolbox.PyTorchModel(model, bounds=(0, 1), device=x.device), x, y, epsilons=eps)[1]


@foolbox_imports
@pytest.mark.parametrize("eps", [0.002, 0.05, 0.3])
def test_fgsm_equals_that_of_torchattacks_and_foolbox(model, batch, eps):
    ours = fgsm(model, *batch, eps)
    assert torch.equal(ours, torchattacks_images("FGSM", model, *batch, eps=eps))
    theirs = foolbox_images("LinfFastGradientAttack", model, *batch, eps)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)  # theirs rounds x + (x' - x) once more
    assert torch.equal(fooled(model, ours, batch[1]), fooled(model, theirs, batch[1]))


# A tuned attack, and the paper's step and number of iterations at two radii.
@foolbox_imports
@pytest.mark.parametrize(
    ("eps", "step_size", "steps"), [(0.03, 0.0075, 40), (0.02, 0.01, 10), (8 / 255, 0.01, 10)]
)
def test_pgd_agrees_with_torchattacks_and_foolbox(model, batch, eps, step_size, steps):
    verdicts = fooled(model, pgd(model, *batch, eps, step_size, steps, 1), batch[1])
    assert 20 < verdicts.sum() < 380  # neither harmless nor hopeless, or agreement would mean nothing
    for theirs in (
        torchattacks_images("PGD", model, *batch, eps=eps, alpha=step_size, steps=steps),
        foolbox_images("LinfPGD", model, *batch, eps, abs_stepsize=step_size, steps=steps),
    ):
        assert (verdicts != fooled(model, theirs, batch[1])).sum() <= 3


def test_pgd_without_random_start_equals_torchattacks_even_across_corners(model, batch):
    """Without random start and early stop the iterations are the same, so the images agree too."""
    theirs = torchattacks_images("PGD", model, *batch, eps=0.1, alpha=0.3, steps=9, random_start=False)
    ours = pgd(model, *batch, 0.1, 0.3, 9, 1, random_start=False, stop_when_fooled=False)
    taken = (ours != batch[0]).flatten(1).any(dim=1)
    assert taken.float().mean() > 0.9
    torch.testing.assert_close(ours[taken], theirs[taken], rtol=0, atol=1e-6)


def test_stopping_when_fooled_keeps_successes(model, batch):
    """Steps above 2·eps jump between corners: stopping at the first success fools more."""
    options = ({"stop_when_fooled": stop, "generator": seeded()} for stop in (True, False))
    attacked = (pgd(model, *batch, 0.1, 0.3, 9, 1, **each) for each in options)
    stopped, jumping = (fooled(model, x, batch[1]) for x in attacked)
    assert (stopped | ~jumping).all()
    assert stopped.sum() > jumping.sum()


class Counting(list):
    """Records the number of rows in each pass of a model."""

    def __init__(self, model) -> None:
        self.model = model

    def __call__(self, x: Tensor) -> Tensor:
        self.append(len(x))
        return self.model(x)


def test_fooled_samples_take_no_more_passes(model, batch):
    (x, y), rows = batch, Counting(model)
    attacked = pgd(rows, x, y, EPS, 0.01, 10, 2, generator=seeded())
    before, after = (int((~fooled(model, images, y)).sum()) for images in (x, attacked))
    first, second = rows[1:11], rows[12:22]  # after a look at all, two restarts of ten steps and a look
    assert rows[0] == len(x)
    assert first[0] == rows[11] == before
    assert first == sorted(first, reverse=True)
    assert after <= min(second) <= max(second) < first[0]
    wrong = Counting(model)
    pgd(wrong, x, (model(x).argmax(dim=1) + 1) % 10, EPS, 0.01, 10, 2)
    assert wrong == [len(x)]


@pytest.mark.parametrize("loss", [cross_entropy, torch.nn.functional.cross_entropy], ids=["each", "mean"])
def test_batches_are_filled_with_samples_that_are_not_fooled(model, batch, loss):
    """The images do not depend on the batch size, and no more passes are made than these samples need."""
    size, whole, parts = len(batch[0]) // 3, Counting(model), Counting(model)
    expected = pgd(whole, *batch, EPS, 0.01, 10, 2, generator=seeded(), loss=loss)
    found = pgd(parts, *batch, EPS, 0.01, 10, 2, generator=seeded(), loss=loss, batch_size=size)
    torch.testing.assert_close(found, expected)
    assert (max(parts), sum(parts)) == (size, sum(whole))
    assert len(parts) == sum(-(-n // size) for n in whole)


def test_attacks_stay_in_ball_and_box_unless_told_and_eps_zero_changes_nothing(model, batch):
    x, y = batch
    outside, seen = fgsm(model, x, y, EPS, clamp=False), []
    assert outside.min() < 0
    assert torch.equal(fgsm(model, x, y, EPS), outside.clamp(0, 1))
    fgsm(model, x * 2 - 1, y, EPS, clamp=False)  # without a box, there is no outside
    adversarial = pgd(lambda x: model(seen.append(x) or x), x, y, EPS, 0.2, 3, 2)
    assert 0 <= min(x.min() for x in seen) <= max(x.max() for x in seen) <= 1
    assert 0 <= adversarial.min() <= adversarial.max() <= 1
    assert 0.9 * EPS < (adversarial - x).abs().max() <= EPS + 1e-6
    assert torch.equal(fgsm(model, x, y, 0.0), x)
    assert torch.equal(pgd(model, x, y, 0.0, 0.01, 10, 2), x)


def test_fgsm_on_a_linear_model_is_the_closed_form():
    """For logits W x the worst corner is x + eps·sign(w_other − w_true), with two classes whatever x is."""
    weights = torch.randn(2, 12, dtype=torch.float64)
    x = torch.full((5, 3, 2, 2), 0.5, dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 1, 1])
    step = (weights[1 - y] - weights[y]).sign().view_as(x)
    ours = fgsm(lambda x: x.flatten(1) @ weights.T, x, y, 0.1)
    torch.testing.assert_close(ours, x + 0.1 * step, rtol=0, atol=0)


def test_more_restarts_are_never_weaker_and_no_attack_ends_above_clean_accuracy(model, batch):
    attacked = [pgd(model, *batch, EPS, EPS / 4, 5, count, generator=seeded(1)) for count in (1, 4)]
    one, four = (fooled(model, x, batch[1]) for x in attacked)
    assert (four | ~one).all()
    with torch.no_grad():
        losses = [cross_entropy(model(x), batch[1])[~four] for x in attacked]
    assert (losses[1] >= losses[0]).all()
    assert (losses[1] > losses[0]).any()
    x, y = batch
    wrong = torch.where(torch.arange(len(y)) % 4 == 0, (y + 1) % 10, y)  # every fourth is wrong already
    assert (fooled(model, pgd(model, x, wrong, EPS, EPS, 3, 1), wrong) | ~fooled(model, x, wrong)).all()


def test_reduction_of_the_loss_does_not_matter(model, batch):
    expected = pgd(model, *batch, EPS, EPS / 4, 4, 2, generator=seeded())
    for loss in (nn.functional.cross_entropy, nn.CrossEntropyLoss(reduction="sum")):
        other = pgd(model, *batch, EPS, EPS / 4, 4, 2, loss=loss, generator=seeded())
        assert (other != expected).float().mean() < 1e-3  # ties at rounding level
        assert torch.equal(fgsm(model, *batch, EPS, loss=loss), fgsm(model, *batch, EPS))


def test_float_targets_are_attacked_by_loss_alone(batch):
    encoder = trained_model()[0]
    target = encoder(batch[0]).detach()

    def log_distance(z, target):  # −∞ at the image itself, which is no success
        return (z - target).square().sum(dim=1).log()

    for loss in (lambda *pair: log_distance(*pair).exp(), log_distance):
        near, far = (pgd(encoder, batch[0], target, eps, eps / 4, 5, 2, loss=loss) for eps in (0.01, 0.05))
        with torch.no_grad():
            distances = [log_distance(encoder(x), target) for x in (near, far)]
        assert (distances[1] > distances[0]).float().mean() > 0.99
        assert torch.cat(distances).isfinite().all()


def test_a_sample_is_unchanged_if_no_restart_raises_the_loss():
    """The loss is largest at x itself, and steps of the ball's size jump over it."""
    x = torch.full((4, 3, 2, 2), 0.5)
    ours = pgd(lambda x: x, x, x, EPS, EPS, 3, 2, loss=lambda z, x: -(z - x).abs().sum(dim=(1, 2, 3)))
    assert torch.equal(ours, x)


def test_restarts_begin_at_the_generators_draws_from_the_ball_or_at_the_image(model, batch):
    one, same, other = (pgd(model, *batch, EPS, EPS / 4, 2, 1, generator=seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    x, seen = torch.full((8, 3, 8, 8), 0.5), []
    pgd(lambda x: model(seen.append(x.detach()) or x), x, model(x).argmax(dim=1), EPS, EPS, 1, 1)
    start = (seen[1] - x) / EPS
    assert start.min() < -0.9
    assert start.max() > 0.9
    assert start.mean().abs() < 0.1
    right, big_step = ~fooled(model, *batch), pgd(model, *batch, EPS, EPS, 1, 1, random_start=False)
    torch.testing.assert_close(big_step[right], fgsm(model, *batch, EPS)[right], rtol=0, atol=1e-7)


@pytest.mark.filterwarnings("ignore:the attacked model is in train mode")
def test_model_and_gradients_are_untouched(model, batch):
    model.train()
    frozen = model[0].body[1].eval()
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    fgsm(model, *batch, EPS)
    pgd(model, *batch, EPS, EPS, 2, 1)
    assert model.training
    assert not frozen.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.named_parameters())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, partial(torch.autocast, "cpu")])
def test_the_callers_grad_and_autocast_modes_do_not_matter(model, batch, mode):
    x, y = batch
    expected = fgsm(model, x, y, EPS)
    with mode():
        ours = fgsm(model, x.clone(), y.clone(), EPS)
        pgd(model, x.clone(), y.clone(), EPS, EPS, 1, 1)
    assert torch.equal(ours, expected)
    assert not ours.requires_grad


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(192), nn.Dropout()])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_model_in_train_mode_is_warned_about(attack, layer):
    x, y = torch.rand(16, 3, 8, 8), torch.arange(16) % 4
    model = nn.Sequential(nn.Flatten(), layer, nn.Linear(192, 4)).train()
    with pytest.warns(InputWarning, match=r"train mode \(layer '1' first\).*model.eval\(\)"):
        attack(model, x, y, eps=0.01)
    attack(model.eval(), x, y, eps=0.01)  # warnings are errors here
    idle = nn.Sequential(nn.Flatten(), nn.Dropout(0.0), nn.Linear(192, 4))
    attack(idle, x, y, eps=0.01)


def test_input_gradient_is_the_derivative():
    x, y = torch.rand(4, 3, 2, 2, dtype=torch.float64), torch.zeros(4)
    for reduce in (lambda z, y: z.sum(dim=(1, 2, 3)), lambda z, y: z.sum()):
        gradient, cubes = input_gradient(lambda x: x**3, x, y, loss=reduce)
        torch.testing.assert_close(gradient, 3 * x**2)
        assert torch.equal(cubes, x**3)


X = torch.rand(4, 3, 2, 2, generator=seeded())
Y = X.flatten(1)[:, :3].argmax(1)


def three_pixels(x: Tensor) -> Tensor:
    return x.flatten(1)[:, :3]


ONE_IS_RIGHT = torch.tensor([[1.0], [torch.nan], [torch.nan], [torch.nan]])
MISTAKES = [
    # with a derivative of 0·∞
    (lambda x: three_pixels(x + (0 * x).sqrt()), X, Y, 0.1, r"loss is NaN for 4 of 4 images.*sqrt"),
    (lambda x: three_pixels(x) * ONE_IS_RIGHT, X, Y, 0.1, r"NaN for 3 of 4 images.*diverged"),
    (three_pixels, X.half(), Y, 0.002, "float16.*float32 pixels"),
    (three_pixels, X.bfloat16(), Y, 0.002, "bfloat16.*float32 pixels"),
    *((three_pixels, X, Y, eps, r"eps=.*8 / 255") for eps in (-0.1, 1.5, float("nan"))),
    (three_pixels, (X * 255).byte(), Y, EPS, "divide uint8 images by 255"),
    (three_pixels, X, Y[1:], EPS, "3 labels"),
    *((three_pixels, x, Y, EPS, r"x has values .* normalise") for x in (X * 2 - 1, X * 255, X / 0)),
]
test_what_cannot_be_attacked_is_refused = refused(
    lambda attack, model, x, y, eps: attack(model, x, y, eps),
    *((attack, *mistake) for attack in ATTACKS for mistake in MISTAKES),
)
test_bad_schedules_are_refused = refused(
    lambda bad: pgd(three_pixels, X, Y, **{"eps": EPS, "step_size": 0.01, "steps": 1, "restarts": 1} | bad),
    ({"step_size": -1.0}, "step_size"),
    ({"steps": 0}, "steps"),
    ({"restarts": 0}, "restarts"),
    *(({"batch_size": size}, "batch_size") for size in (0, -1)),
)
