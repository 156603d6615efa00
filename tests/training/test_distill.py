"""Distillation: each step against a plain loop, its attack against PGD, and what must not change."""

import copy
import itertools
import math

import pytest
import torch
from pieces import StopAfter, distill, labelled_images, run, state, teacher, train_step, trainer
from torch import Tensor, nn

from intnacl.attacks.gradient import pgd
from intnacl.attacks.training_view import feature_view
from intnacl.data import draws
from intnacl.data.augment import augment
from intnacl.data.augmentations import AugmentConfig
from intnacl.errors import InputError
from intnacl.evaluation.precision import exact_float32
from intnacl.models.batchnorm import ViewBatchNorm
from intnacl.models.encoders import EncoderConfig, build_head
from intnacl.training.distill import Distill, DistillConfig
from intnacl.training.objectives import START
from intnacl.training.ranks import Ranks
from intnacl.training.settings import TrainConfig
from intnacl.training.step import TrainStep

B, STEP = 8, 5  # a step of the second epoch of four batches
ROWS = torch.arange(B)
COLOURS = AugmentConfig(crop_scale=None, crop_padding=1)


def cosine(a: list[float], b: list[float]) -> float:
    dot, lengths = (sum(u * v for u, v in zip(a, b, strict=True)), (math.hypot(*a), math.hypot(*b)))
    return dot / (lengths[0] * lengths[1])


def minus_mean_cosine(one_BF: Tensor, other_BF: Tensor) -> float:
    return -sum(map(cosine, one_BF.tolist(), other_BF.tolist())) / len(one_BF)


def view(objective: Distill, config: AugmentConfig) -> Tensor:
    images = labelled_images()[0][:B]
    return augment(images, config, seed=0, step=STEP, view=0, rows=ROWS, dtype=torch.float64)


def attacked_by_loops(objective: Distill, x: Tensor, target: Tensor) -> Tensor:
    """Image by image and step by step; eval mode has no statistics that images share."""
    config, student = objective.config, copy.deepcopy(objective.encoder).eval()
    grown = min(1.0, (STEP + 1) / (config.ramp_epochs * objective.batches)) if config.ramp_epochs else 1.0
    eps, step_size = grown * config.eps, grown * config.step_size
    start = 2 * draws.uniform(0, STEP, START, ROWS, x[0].numel()).double().view_as(x) - 1
    views = []
    for image, own_start, own_target in zip(x, start, target, strict=True):
        low, high = (image - eps).clamp(min=0), (image + eps).clamp(max=1)
        moved = torch.min(torch.max(image + eps * own_start, low), high)
        for _ in range(config.steps):
            leaf = moved.clone().requires_grad_()
            feature = student(leaf[None])[0] - objective.model.centre
            away = -(feature @ own_target) / (feature.norm() * own_target.norm())
            (gradient,) = torch.autograd.grad(away, leaf)
            moved = torch.min(torch.max(moved + step_size * gradient.sign(), low), high)
        views.append(moved)
    return torch.stack(views)


def loss_by_hand(
    objective: Distill, student: nn.Module, x: Tensor, attacked: Tensor, target: Tensor
) -> Tensor:
    """With plain batch norm, which takes the whole batch together, or each half by itself."""
    config, centre = objective.config, objective.model.centre
    joint = objective.groups == [(2, False)]
    if joint:
        clean_BF, attacked_BF = (student(torch.cat([x, attacked])) - centre).chunk(2)
    else:
        clean_BF, attacked_BF = student(x) - centre, student(attacked) - centre
    second = clean_BF if config.robust_target == "student" else target
    terms = []
    for one, other in ((clean_BF, target), (attacked_BF, second)):
        terms.append(-((one * other).sum(1) / (one.norm(dim=1) * other.norm(dim=1))).mean())
    return config.clean_weight * terms[0] + config.robust_weight * terms[1]


SETTINGS = {
    "DeACL": {},
    "towards the teacher": {
        "robust_target": "teacher",
        "robust_weight": 4.0,
        "clean_weight": 0.5,
        "steps": 3,
    },
    "away from itself": {"attack_target": "student", "ramp_epochs": 3.0, "steps": 2},
    "perturbed": {"perturbation": 0.05, "perturbation_epoch": 1, "start": "random"},
    "not perturbed yet": {"perturbation": 0.05, "perturbation_epoch": 2},
    "views apart": {"norm": "per_view", "perturbation": 0.01},
    "weak teacher": {"views": COLOURS, "teacher_view": "weak"},
    "centred": {"centre": teacher().double()(labelled_images()[0].double() / 255).mean(0).detach()},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_an_update_equals_a_plain_loop(settings):
    """Terms, weights and statistics, in float64, for an update of plain gradient descent."""
    made = train_step(distill(dtype=torch.float64, **settings), precision="fp64")
    objective = made.objective
    config, centre = objective.config, objective.model.centre
    x = view(objective, objective.augment)
    weak = AugmentConfig(crop_scale=None, crop_padding=1, jitter_p=0.0, grayscale_p=0.0)
    seen = view(objective, weak) if config.teacher_view == "weak" else x
    target = copy.deepcopy(objective.teacher).eval()(seen) - centre
    own = copy.deepcopy(objective.encoder).eval()(x).detach() - centre
    attacked = attacked_by_loops(objective, x, own if config.attack_target == "student" else target)
    torch.testing.assert_close(objective.attack(x, target, ROWS, torch.tensor(STEP)), attacked)

    student = copy.deepcopy(objective.encoder).train()
    weights = dict(student.named_parameters())
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    if config.perturbation and config.perturbation_epoch * objective.batches <= STEP:
        proxy = copy.deepcopy(student)
        loss_by_hand(objective, proxy, x, attacked, target).backward()
        for name, weight in proxy.named_parameters():
            if weight.ndim > 1:
                length, of = (math.sqrt((t * t).sum().item()) for t in (weight.detach(), weight.grad))
                weights[name].data += config.perturbation * length / of * weight.grad
    loss = loss_by_hand(objective, student, x, attacked, target)
    gradients = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))

    terms = made.named(made(torch.arange(B)[None], STEP))
    assert terms["loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert terms["loss"] == pytest.approx(
        config.clean_weight * terms["clean"] + config.robust_weight * terms["robust"], rel=1e-6
    )
    if not config.perturbation and config.robust_target == "teacher":
        with torch.no_grad():
            both = copy.deepcopy(student)(torch.cat([x, attacked])) - centre
        by_loops = [minus_mean_cosine(half, target) for half in both.chunk(2)]
        assert [terms["clean"], terms["robust"]] == pytest.approx(by_loops, rel=1e-6)
    for name, weight in objective.encoder.named_parameters():
        torch.testing.assert_close(
            weight.detach(), before[name] - 0.1 * gradients[name], rtol=1e-6, atol=1e-9
        )
    # The statistics have moved once: neither the attack nor the search for the perturbation touched them.
    torch.testing.assert_close(dict(objective.encoder.named_buffers()), dict(student.named_buffers()))


def test_the_attack_is_pgd_on_the_cosine():
    encoder, x = teacher(1).double(), labelled_images()[0][:B].double() / 255
    target = teacher()(x.float()).double()
    schedule = {"eps": 0.1, "step_size": 0.03, "steps": 7}

    def away(features_BF: Tensor, target_BF: Tensor) -> Tensor:
        return -torch.nn.functional.cosine_similarity(features_BF, target_BF)

    expected = pgd(encoder, x, target, **schedule, restarts=1, loss=away, random_start=False)
    found = feature_view(encoder, x, target, **schedule)
    assert torch.equal(found, expected)
    assert (away(encoder(found), target) > away(encoder(x), target)).all()


def test_radius_and_step_size_grow_over_the_epochs_of_the_ramp():
    objective = distill(ramp_epochs=2.0).train()
    x = torch.full((B, 3, 8, 8), 0.5)
    target = objective.teacher(x)
    moves = [
        (objective.attack(x, target, ROWS, torch.tensor(step)) - x).abs().max().item() for step in range(10)
    ]
    expected = [min(1.0, (step + 1) / 8) * 8 / 255 for step in range(10)]
    assert moves == pytest.approx(expected, rel=1e-3)


def test_the_teacher_and_the_callers_gradients_stay_as_they_were():
    objective = distill(perturbation=0.01)
    before = copy.deepcopy(objective.teacher.state_dict())
    made = train_step(objective)
    for step in range(3):
        made(torch.arange(B)[None] + step, step)
    objective.eval(), objective.train()
    assert objective.model.training
    assert not any(module.training for module in objective.teacher.modules())
    torch.testing.assert_close(objective.teacher.state_dict(), before, rtol=0, atol=0)
    assert all(
        p.grad is None for p in itertools.chain(objective.teacher.parameters(), objective.model.parameters())
    )


def test_with_a_learning_rate_of_zero_perturbed_weights_are_restored_exactly():
    made = train_step(distill(perturbation=0.5), lr=0.0)
    before = [weight.detach().clone() for weight in made.objective.model.parameters()]
    made(torch.arange(B)[None], 0)
    for weight, value in zip(made.objective.model.parameters(), before, strict=True):
        assert torch.equal(weight, value)


def projection() -> nn.Module:
    """A head with batch norm whose statistics have moved, as a teacher's has."""
    torch.manual_seed(4)
    head = build_head(128, "bn-32-16")
    head(torch.randn(64, 128))
    return head.eval()


@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_with_a_projection_head_cosines_combine_features_and_projections(weight):
    """In loss and attack, for targets of teacher and student; the head itself never changes."""
    head, centre = projection().double(), torch.full((128,), 0.05, dtype=torch.float64)
    settings = {"projection": copy.deepcopy(head), "projection_weight": weight, "centre": centre}
    made = train_step(distill(dtype=torch.float64, **settings), precision="fp64")
    objective = made.objective
    x = view(objective, objective.augment)

    def likeness(one_BF: Tensor, other_BF: Tensor) -> float:
        of_features = minus_mean_cosine(one_BF - centre, other_BF - centre)
        return (1 - weight) * of_features + weight * minus_mean_cosine(head(one_BF), head(other_BF))

    taught = objective.teacher(x)
    attacked = objective.attack(x, objective.model.compared(taught), ROWS, torch.tensor(STEP))
    eval_student = copy.deepcopy(objective.encoder).eval()
    without = distill(dtype=torch.float64, centre=centre).double().train()
    by_features = without.attack(x, taught - centre, ROWS, torch.tensor(STEP))
    ours, theirs, unmoved = (likeness(eval_student(moved), taught) for moved in (attacked, by_features, x))
    assert ours > unmoved
    assert weight < 1 or ours > theirs  # which this head hardly sees
    with torch.no_grad():
        clean, robust = copy.deepcopy(objective.encoder).train()(torch.cat([x, attacked])).chunk(2)
    terms = made.named(made(torch.arange(B)[None], STEP))
    expected = [likeness(clean, taught), likeness(robust, clean)]
    assert [terms["clean"], terms["robust"]] == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(objective.model.projection.state_dict(), head.state_dict(), rtol=0, atol=0)


RUNS = {
    "perturbed and averaged": ({"perturbation": 0.01, "ramp_epochs": 1.5}, {"ema": 0.9}),
    "of projections too": ({"projection": projection(), "projection_weight": 0.5}, {"ema": 0.9}),
    "two batches an update, centred": ({"centre": torch.full((128,), 0.1)}, {"accumulate": 2, "epochs": 4}),
}


@pytest.mark.parametrize(("settings", "training"), RUNS.values(), ids=RUNS)
def test_an_interrupted_run_equals_an_uninterrupted_one(tmp_path, settings, training):
    sgd = {"optimizer": "sgd", "schedule": "cosine", "warmup_epochs": 0.5, "lr": 0.1, "weight_decay": 5e-4}
    whole = trainer(tmp_path / "whole", distill(**settings), **sgd, **training)
    assert run(whole) is None
    ended = "terminate"
    while ended:
        made = trainer(tmp_path / "pieces", distill(**settings), **sgd, **training)
        ended = run(made, StopAfter(3))
    torch.testing.assert_close(state(made), state(whole), rtol=0, atol=0)
    with made.train_step.averaged(), whole.train_step.averaged():
        torch.testing.assert_close(state(made), state(whole), rtol=0, atol=0)


@pytest.mark.filterwarnings("default")  # the compiler has its own
@pytest.mark.slow
def test_eager_and_compiled_updates_agree():
    eager, compiled = (
        train_step(distill(dtype=torch.float64, perturbation=0.01), precision="fp64", compile=on)
        for on in (False, True)
    )
    assert str(compiled.prepare(pytest.fail)) == "compiled"
    for step in range(3):
        terms = [made(torch.arange(B)[None], step).clone() for made in (eager, compiled)]
        torch.testing.assert_close(*terms, rtol=1e-5, atol=1e-6)
    for one, other in zip(*(made.objective.model.parameters() for made in (eager, compiled)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("default")  # the compiler has its own
@pytest.mark.parametrize("name", ["small", "resnet18"])  # the second has kernels of our own
def test_one_captured_graph_equals_eager_updates_with_ramp_and_perturbation(name):
    """In its first epoch of four batches weights are not perturbed; rounding may turn signs of the attack."""
    size, here, losses = 64, Ranks(0, 1, torch.device("cuda", 0)), []
    settings = {"perturbation": 0.1, "perturbation_epoch": 1, "ramp_epochs": 1.5, "start": "random"}
    for fast in (False, True):
        config = TrainConfig(
            optimizer="sgd",
            lr=1e-4,
            batch_size=size,
            precision="fp32",
            compile=fast,
            cuda_graph=fast,
            ema=0.9,
        )
        made = TrainStep(distill(name=name, **settings), labelled_images(4 * size)[0], None, config, here)
        with exact_float32():
            mode = made.prepare(pytest.fail)
            terms = [made(made.rows[None] + size * (step % 4), step).clone() for step in range(8)]
        assert str(mode) == ("compiled + CUDA graph" if fast else "eager")
        assert int(made.average.updates) == 8
        losses.append(torch.stack(terms))
    torch.testing.assert_close(*losses, rtol=5e-3, atol=5e-3)
    assert losses[1][4:, 2].mean() > losses[1][:4, 2].mean() + 0.01


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_close_and_uses_the_perturbed_weights(precision):
    index, losses = torch.arange(B)[None], []
    for perturbation in (0.0, 0.5):
        settings = {"perturbation": perturbation, "start": "random"}
        full, half = train_step(distill(**settings)), train_step(distill(**settings), precision=precision)
        losses.append(full.named(full(index, 0))["loss"])
        assert half.named(half(index, 0))["loss"] == pytest.approx(losses[-1], rel=0.02)
    assert losses[1] > losses[0] + 0.1


def test_the_student_starts_with_the_teachers_weights_or_random_ones():
    own, random = distill().encoder.state_dict(), distill(start="random").encoder.state_dict()
    torch.testing.assert_close(own, teacher().state_dict(), rtol=0, atol=0)
    assert not torch.equal(random["backbone.layers.0.weight"], own["backbone.layers.0.weight"])
    assert all(isinstance(m, ViewBatchNorm) for m in distill().modules() if isinstance(m, nn.BatchNorm2d))


def test_incompatible_settings_are_refused():
    with pytest.raises(InputError, match=r"random_start=False has no gradient with .*attack_target=student"):
        DistillConfig(attack_target="student", random_start=False)
    with pytest.raises(InputError, match=r"distill\.eps=0 must be above 0"):
        DistillConfig(eps=0)
    student = distill()
    with pytest.raises(InputError, match="the teacher has 128 features, the student 512: choose an encoder"):
        Distill(
            student.config, student.teacher, EncoderConfig(name="resnet18"),
            COLOURS, image_size=8, seed=0, batches=4,
        )  # fmt: skip
