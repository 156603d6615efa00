"""From a batch to its loss: the same numbers as from the parts combined by hand."""

from typing import Any

import pytest
import torch
from pieces import contrastive, distill, labelled_images

from intnacl.attacks.training_view import AdversaryConfig, adversarial_view
from intnacl.data.augment import augment
from intnacl.data.augmentations import AugmentConfig
from intnacl.data.batches import STREAM
from intnacl.data.views import make_views
from intnacl.errors import InputError
from intnacl.losses.config import PRESETS
from intnacl.losses.integrated import IntNaClLoss
from intnacl.models.batchnorm import stacked
from intnacl.models.encoders import EncoderConfig
from intnacl.models.kernels.half_weights import HalfWeights
from intnacl.training import objectives
from intnacl.training.objectives import Supervised
from mistakes import must_refuse

ROWS, STEP = torch.arange(8), torch.tensor(5)


def images() -> torch.Tensor:
    return labelled_images(8)[0]


def supervised(seed: int = 0) -> Supervised:
    return Supervised(4, EncoderConfig(name="small"), AugmentConfig(), image_size=8, seed=seed)


@pytest.mark.parametrize("preset", [*PRESETS, "nca"])
def test_terms_are_the_loss_of_views_embedded_one_by_one(preset):
    preset, several = ("simclr", {"num_positives": 3}) if preset == "nca" else (preset, {})
    objective, by_hand = (contrastive(preset, loss={"lam": 0.7} | several) for _ in range(2))
    terms = objective.train()(images(), None, ROWS, STEP)
    model, need = by_hand.model.train(), by_hand.needed
    count, attacked = {"extra": need.extra, "mixed": need.mixed, "lam": 0.7}, None
    views = make_views(images(), by_hand.augment, seed=0, step=5, rows=ROWS, **count)
    if need.adversarial:
        with stacked(model, [(1, True)]):
            attacked = model(adversarial_view(model, views.plain[0], 0.015))
    z = [model(x) for x in (*views.plain, *views.extra, *views.mixed)]
    rest = {"extra": z[2 : 2 + need.extra], "mixed": z[2 + need.extra :]}
    expected = by_hand.loss.terms(z[0], z[1], **rest, adversarial=attacked)
    assert terms.keys() == {"nacl", "robust", "loss"}
    torch.testing.assert_close(terms, expected, rtol=1e-4, atol=1e-5)
    statistics = (dict(one.named_buffers()) for one in (objective.model, model))
    torch.testing.assert_close(*statistics, rtol=1e-4, atol=1e-5)


def test_the_loss_is_a_function_of_seed_step_and_rows():
    def loss(step: int = 5, seed: int = 0) -> float:
        objective = contrastive(norm="none")
        objective.seed.fill_(seed)
        return objective(images(), None, ROWS, torch.tensor(step))["loss"].item()

    first = loss()
    torch.manual_seed(2)
    assert loss() == first
    assert first not in (loss(step=6), loss(seed=1))


@pytest.mark.parametrize("make", [contrastive, supervised])
def test_runs_with_different_seeds_share_compiled_views(make):
    """Equal code is found in the compiler's cache, so a further seed needs no compilation of views."""
    codes = []
    for seed in (0, 1):
        torch.compiler.reset()
        objective = make(seed=seed)
        compiler = torch.compile(dynamic=False, backend=lambda graph, _: codes.append(graph.code) or graph)
        objective.compile_parts(compiler)
        objective.parts.views(images(), ROWS, STEP)
    assert codes[0] == codes[1]


def test_a_random_start_of_the_adversary_is_keyed_by_the_global_row():
    starts, adversary = [], AdversaryConfig(eps=0.1, steps=2, random_start=True)
    for rows in (ROWS, ROWS[4:]):
        seen: list[torch.Tensor] = []
        objective = contrastive("adv", norm="none", adversary=adversary, dtype=torch.float64).double()
        objective.model.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0].detach()))
        objective.attack(torch.zeros(len(rows), 3, 8, 8, dtype=torch.float64), rows, STEP)
        starts.append(seen[1])  # the first pass is over x itself
    assert starts[0].abs().max() <= 0.1
    assert starts[0].std() > 0.05
    assert torch.equal(starts[0][4:], starts[1])
    assert STREAM != objectives.START
    assert min(objectives.START, STREAM) > 1_000_000  # neither is a view's stream


def test_the_adversary_gets_its_settings():
    numbers = {"temperature": 0.2, "tau_plus": 0.1, "beta": 2.0}
    adversary = AdversaryConfig(eps=0.1, steps=3, clamp=True, negatives="g1")
    objective, twin = (contrastive("intcl", loss=numbers, adversary=adversary).train() for _ in range(2))
    x, criterion = images() / 255, IntNaClLoss(negatives="g1", **numbers)
    with stacked(twin.model, [(1, True)]):
        expected = adversarial_view(twin.model, x, 0.1, steps=3, clamp=True, criterion=criterion)
    assert torch.equal(objective.attack(x, ROWS, STEP), expected)
    objective.attack(x * torch.nan, ROWS, STEP)  # is not checked: a GPU would have to be waited for


def test_the_adversary_may_maximise_another_loss_of_the_family():
    moves = []
    for negatives in ("g0", "g2"):
        objective = contrastive("intcl", adversary=AdversaryConfig(eps=0.1, negatives=negatives)).train()
        twin, x = contrastive("intcl").train(), (images() / 255).requires_grad_()
        with stacked(twin.model, [(1, True)]):
            z = twin.model(x)
        (gradient,) = torch.autograd.grad(IntNaClLoss(negatives=negatives)(z.detach(), z), x)
        moves.append(objective.attack(x.detach(), ROWS, STEP) - x.detach())
        torch.testing.assert_close(moves[-1], 0.1 * gradient.sign())
    assert not torch.equal(*moves)
    must_refuse(AdversaryConfig, "adversary negatives", negatives="g3")


def test_only_models_with_an_adversary_have_adversarial_norms():
    for preset, norms in (("simclr", False), ("adv", True)):
        assert any("adversarial" in name for name, _ in contrastive(preset).model.named_parameters()) == norms


def test_supervised_is_cross_entropy_of_augmented_images():
    objective = supervised().train()
    x, y = labelled_images(8)
    terms = objective(x, y, ROWS, STEP)
    logits = objective.model(augment(x, objective.augment, seed=0, step=5, view=0, rows=ROWS))
    torch.testing.assert_close(terms["loss"], torch.nn.functional.cross_entropy(logits, y))
    assert terms["accuracy"] == 100 * (logits.argmax(1) == y).float().mean()
    assert torch.equal(supervised().model[1].weight, objective.model[1].weight)
    assert not torch.equal(supervised(seed=1).model[1].weight, objective.model[1].weight)


def compiled(part: Any) -> Any:
    """Replaces a compiler."""
    return ("compiled", part)


def test_every_part_except_a_failing_one_is_compiled_and_all_are_restored(monkeypatch):
    """All uses of the model are one part, which without the compiler does not use our kernels either."""
    kernels: list[bool] = []
    monkeypatch.setattr(objectives, "fuse", lambda model, on: kernels.append(on))
    for objective, own in ((contrastive(), ("criterion",)), (supervised(), ())):
        assert objective.compilable == (*own, "views", "model")
        eager = dict(vars(objective.parts))
        for left_out in (None, *objective.compilable):
            objective.compile_parts(compiled, left_out)
            uses = ("embed", "attack") if left_out == "model" else (left_out,)
            expected = {name: part if name in uses else ("compiled", part) for name, part in eager.items()}
            assert vars(objective.parts) == expected
            assert kernels.pop() == (left_out != "model")
        objective.compile_parts(None)
        assert vars(objective.parts) == eager
        assert not kernels.pop()


def test_a_model_with_our_kernels_is_not_compiled(monkeypatch):
    monkeypatch.setattr(objectives, "fuse", lambda model, on: on)
    alone, ranks, wrapped = contrastive(), contrastive(), torch.nn.Identity()
    ranks.distribute(lambda model: wrapped)
    for objective in (alone, ranks):
        expected = [("compiled", part) for part in (objective.parts.criterion, objective.parts.views)]
        objective.compile_parts(compiled)
        assert [objective.parts.criterion, objective.parts.views] == expected
        assert isinstance(objective.parts.attack, HalfWeights)
        assert objective.parts.attack.model is objective.model
    assert isinstance(alone.parts.embed, HalfWeights)
    assert ranks.parts.embed is wrapped


def test_passes_in_eval_mode_are_compiled_even_if_training_uses_kernels(monkeypatch):
    monkeypatch.setattr(objectives, "fuse", lambda model, on: on)
    objective = distill()
    objective.compile_parts(compiled)
    assert objective.parts.attack == ("compiled", objective.model)
    assert objective.parts.teach == ("compiled", objective.teacher)
    assert isinstance(objective.parts.embed, HalfWeights)
    assert isinstance(objective.parts.perturb, HalfWeights)


@pytest.mark.parametrize(("dtype", "eps"), [(torch.bfloat16, 0.0019), (torch.float16, 0.0002)])
def test_an_adversary_that_the_views_would_round_away_is_refused(dtype, eps):
    adversary = AdversaryConfig(eps=eps)
    with pytest.raises(InputError, match=rf"adversary.eps={eps} is lost in .* train.precision=fp32"):
        contrastive("adv", dtype=dtype, adversary=adversary)
    contrastive("adv", adversary=adversary)  # in float32
    contrastive("adv", dtype=dtype, adversary=AdversaryConfig(eps=1.4 * eps, steps=20))
    contrastive("simclr", dtype=dtype, adversary=adversary)  # attacks nothing


@pytest.mark.parametrize("eps", [0.015, 0.002])
def test_half_precision_does_not_change_the_size_of_the_adversarys_move_on_average(eps):
    """The model sees both views rounded: the move is off by two roundings at most, and by none on average."""
    objective = contrastive("adv", dtype=torch.bfloat16, adversary=AdversaryConfig(eps=eps), norm="none")
    seen: list[torch.Tensor] = []
    objective.model.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    with torch.autocast("cpu", torch.bfloat16):
        objective.train()(images(), None, ROWS, STEP)
    attacked, stacked_views = seen
    assert (attacked.dtype, stacked_views.dtype) == (torch.float32, torch.bfloat16)
    clean, _, adversarial = stacked_views.float().chunk(3)
    assert torch.equal(clean, attacked.bfloat16().float())
    move = (adversarial - clean).abs()
    assert move.max() <= eps + 2**-8
    assert move.mean().item() == pytest.approx(eps, rel=0.08)  # 1.5 times where x is rounded first
