"""Robust accuracy: rows, worst case, selections of images, and warnings."""

import gc
import weakref
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from digits_model import held_out, trained_model
from intnacl.attacks.named import Attack, named_attack
from intnacl.evaluation import robustness
from intnacl.evaluation.robustness import evaluate, examples, verdicts, zero_gradients
from mistakes import refused

EPS = 0.05
FGSM = named_attack("fgsm", EPS)


@dataclass(frozen=True, kw_only=True)
class Shift(Attack):
    """Make every pixel brighter by `by`."""

    method = "shift"
    by: float

    def __call__(self, model, x, y, *, generator=None, batch_size=256):
        return x + self.by


@dataclass(frozen=True, kw_only=True)
class Recorded(Attack):
    """An attack that records the size of each call, its generator's state, and its result."""

    method = "recorded"
    of: Attack
    calls: list = field(default_factory=list, hash=False, compare=False)

    def __call__(self, model, x, y, *, generator=None, batch_size=256):
        state = tuple(generator.get_state().tolist())
        self.calls.append((len(x), state, self.of(model, x, y, generator=generator, batch_size=batch_size)))
        return self.calls[-1][-1]


def recorded(name: str, /, **settings) -> Recorded:
    attack = named_attack(name, EPS, **settings)
    return Recorded(name=attack.name, eps=attack.eps, images=attack.images, of=attack)


class Brightness(nn.Module):
    """Class 1 where `score` of the mean brightness is positive, else class 0."""

    def __init__(self, score) -> None:
        super().__init__()
        self.score = score

    def forward(self, x: Tensor) -> Tensor:
        score = self.score(x.mean(dim=(1, 2, 3)))
        return torch.stack([-score, score], dim=1)


class Around(nn.Module):
    """A model with functions before and after it."""

    def __init__(self, model: nn.Module, *, before=lambda x: x, after=lambda logits: logits) -> None:
        super().__init__()
        self.model, self.before, self.after = model, before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.model(self.before(x)))


def constant(value: int, labels: Tensor) -> tuple[Tensor, Tensor]:
    return torch.full((len(labels), 3, 2, 2), value, dtype=torch.uint8), labels


@pytest.fixture
def data():
    return held_out(200)


@pytest.fixture
def portions_of_50(data, monkeypatch):
    monkeypatch.setattr(robustness, "PORTION", 50 * data[0][0].numel())


@pytest.mark.parametrize("name", ["fgsm", "pgd", "pgd_tuned"])
def test_eps_zero_is_clean_accuracy(model, data, name):
    attacks = [named_attack(name, 0.0), named_attack(name, 0.0, images=7)]
    figures = evaluate(model, *data, attacks)
    all_images, seven = figures["attacks"]
    with torch.no_grad():
        right = (model(data[0] / 255).argmax(dim=1) == data[1]).float()
    assert all_images["accuracy"] == figures["clean"] == pytest.approx(100 * right.mean().item())
    assert (seven["images"], seven["clean"]) == (7, seven["accuracy"])
    assert figures["worst_case"] == [{**figures["worst_case"][0], "images": 7, "accuracy": seven["accuracy"]}]
    assert evaluate(model, *data, [])["clean"] == figures["clean"]


def test_rows_say_what_was_run_and_the_same_seed_gives_the_same_figures(model, data):
    attacks = [FGSM, named_attack("pgd", EPS)]
    figures = evaluate(model, *data, attacks, batch_size=64)
    fgsm_row, pgd_row = figures["attacks"]
    assert list(pgd_row) == ["name", "eps", "steps", "step_size", "restarts", "images", "accuracy", "clean"]
    assert list(pgd_row.values())[:-2] == ["pgd", EPS, 10, 0.01, 2, 200]
    assert pgd_row["clean"] == figures["clean"]
    assert 0 < pgd_row["accuracy"] <= fgsm_row["accuracy"] + 0.5 < figures["clean"]
    assert (figures["images"], figures["warnings"], figures["zero_gradients"]) == (200, [], 0)
    assert figures == evaluate(model, *data, attacks, batch_size=64)


def test_the_worst_case_is_taken_per_image_and_not_over_figures():
    """Brightening fools the dark half, darkening the bright half: 50 % and 50 % make 0 %."""
    images = torch.tensor([100, 150], dtype=torch.uint8).repeat(20).view(40, 1, 1, 1).expand(-1, 3, 2, 2)
    attacks = [Shift(name=name, eps=0.2, by=by) for name, by in (("brighten", 0.2), ("darken", -0.2))]
    classifier = Brightness(lambda brightness: brightness - 125 / 255).eval()
    figures = evaluate(classifier, images, torch.tensor([0, 1]).repeat(20), attacks)
    rows = (*figures["attacks"], *figures["worst_case"])
    assert (figures["clean"], *(row["accuracy"] for row in rows)) == (100, 50, 50, 0)
    # A search in TF32 may take an image for right that is not, and move it to where it is: wrong stays wrong.
    figures = evaluate(classifier, *constant(100, torch.ones(4).long()), attacks[:1])
    assert figures["clean"] == figures["attacks"][0]["accuracy"] == 0


@pytest.mark.parametrize(("label", "accuracies"), [(0, (100, 0, 0)), (1, (0, 100, 0))])
def test_an_image_that_fgsm_corrects_is_wrong_in_the_worst_case(label, accuracies):
    """A step over the edge and back into the own class: FGSM counts it as right, the worst case does not."""
    valley = Brightness(lambda brightness: (brightness - 127 / 255).abs() - 0.1).eval()
    figures = evaluate(valley, *constant(128, torch.full((4,), label)), [named_attack("fgsm", 0.2)])
    rows = (*figures["attacks"], *figures["worst_case"])
    assert (figures["clean"], *(row["accuracy"] for row in rows)) == accuracies


def test_fgsm_leaves_the_box_only_when_told():
    beyond_white, data = Brightness(lambda mean: mean - 1.01).eval(), constant(255, torch.zeros(4).long())
    figures = evaluate(beyond_white, *data, [named_attack("fgsm", EPS, clamp=on) for on in (True, False)])
    assert [row["accuracy"] for row in figures["attacks"]] == [100, 0]


def test_selections_are_nested_random_and_counted(model, data):
    attacks = [FGSM, named_attack("fgsm", EPS, images=50, name="few")]
    figures, shuffled = evaluate(model, *data, attacks), evaluate(model, *(x.flip(0) for x in data), attacks)
    assert [row["images"] for row in figures["attacks"]] == [200, 50]
    assert figures["worst_case"][0]["images"] == 50
    assert figures["worst_case"][0]["accuracy"] <= figures["attacks"][1]["accuracy"]
    assert shuffled["attacks"][0] == figures["attacks"][0]
    in_order, always_zero = torch.arange(100) // 50, Brightness(lambda brightness: brightness - 1)
    figures = evaluate(always_zero.eval(), *constant(0, in_order), attacks[1:])
    assert 30 < figures["attacks"][0]["clean"] < 70  # images of both classes


@pytest.mark.parametrize("name", ["fgsm", "pgd_tuned"])
def test_accuracy_falls_with_eps_and_worst_cases_are_sorted(model, data, name):
    figures = evaluate(model, *data, [named_attack(name, eps) for eps in (0.1, 0.01, 0.03)])
    large, small, middle = (row["accuracy"] for row in figures["attacks"])
    assert small > middle > large
    assert [row["eps"] for row in figures["worst_case"]] == [0.01, 0.03, 0.1]


def test_train_mode_is_warned_about_and_not_used(model, data):
    expected = evaluate(model, *data, [FGSM])
    model[0].body[4].train()
    figures = evaluate(model, *data, [FGSM])
    assert "train mode (0.body.4 first)" in figures["warnings"][0]
    assert figures["attacks"] == expected["attacks"]
    assert model[0].body[4].training
    assert not model.training


def test_vanishing_gradients_are_warned_about(model, data):
    pgd = named_attack("pgd", EPS)
    saturated = Around(model, after=lambda logits: 1e5 * logits).eval()
    share = zero_gradients(saturated, *data)
    assert share > 50
    figures, plain = evaluate(saturated, *data, [pgd]), evaluate(model, *data, [pgd])
    assert f"{share:.1f} % of samples have a zero input gradient" in figures["warnings"][0]
    assert figures["attacks"][0]["accuracy"] > plain["attacks"][0]["accuracy"]
    upper_half = Around(model, before=lambda x: torch.cat([x[:, :, :4], 0 * x[:, :, 4:]], dim=2))
    assert zero_gradients(upper_half, *data) == 0  # single pixels without one do not count


def test_more_than_one_percent_of_vanishing_gradients_are_warned_about():
    images, labels = constant(128, torch.ones(100).long())
    for dark, warned in ((1, False), (2, True)):
        images[:dark] = 0
        figures = evaluate(Brightness(lambda mean: (mean - 0.1).relu()).eval(), images, labels, [])
        assert (figures["zero_gradients"], bool(figures["warnings"])) == (dark, warned)


def test_examples_hold_images_labels_and_predictions(model, data):
    images, labels = data[0][:6], data[1][:6]
    found = examples(model, images, labels, FGSM)
    assert torch.equal(found["clean"], images / 255)
    assert (found["adversarial"] - found["clean"]).abs().max() <= EPS + 1e-6
    with torch.no_grad():
        assert torch.equal(found["predicted"], model(found["clean"]).argmax(dim=1))
        assert torch.equal(found["predicted_adversarial"], model(found["adversarial"]).argmax(dim=1))
    assert torch.equal(found["labels"], labels)


IMAGES, LABELS = held_out(200)


def around(**functions) -> nn.Module:
    return Around(deepcopy(trained_model()).requires_grad_(), **functions)


test_bad_data_are_refused = refused(
    lambda images, labels, attacks: evaluate(around(), images, labels, attacks),
    (IMAGES / 255, LABELS, [], "uint8"),
    (IMAGES, torch.full_like(LABELS, -1), [], "unlabelled"),
    *(
        (IMAGES, LABELS, attacks, r"give a list of attacks, such as \[named_attack")
        for attacks in (["fgsm"], "fgsm", FGSM, (attack for attack in [FGSM]), None)
    ),
)
test_a_model_that_cannot_be_attacked_is_told_why = refused(
    lambda functions: evaluate(around(**functions), IMAGES, LABELS, [FGSM]),
    ({"after": lambda z: z.argmax(1)}, r"returned \(2,\) for 2 .*; attacks need logits \(2, classes\)"),
    ({"after": lambda z: (z, None)}, "returned tuple for 2 images"),
    ({"after": lambda z: z[:1]}, r"returned \(1, 10\) for 2 images"),
    ({"after": lambda z: z[:, :4]}, r"label 9 is beyond the classifier's 4 classes"),
    ({"after": lambda z: z.detach()}, "logits have no gradient with respect to x: leave detach"),
    ({"before": lambda x: (255 * x).byte() / 255}, "no gradient with respect to x"),
)


@pytest.fixture
def hasty(model, monkeypatch):
    """The model, where rounding in TF32 reverses every decision, so that a search ends at once."""
    rough = []

    @contextmanager
    def _rough():
        rough.append(True)
        yield
        rough.pop()

    monkeypatch.setattr(robustness, "tf32_convolutions", _rough)
    return Around(model, after=lambda logits: -logits if rough else logits).eval()


def test_images_that_are_wrong_only_by_rounding_are_attacked_again(model, data, hasty):
    attacks = [named_attack("pgd", EPS)]
    exact, found = evaluate(model, *data, attacks), evaluate(hasty, *data, attacks)
    assert exact["attacks"][0]["accuracy"] < exact["clean"] - 10
    assert found["attacks"][0]["accuracy"] == pytest.approx(exact["attacks"][0]["accuracy"], abs=2)
    assert found["clean"] == exact["clean"]


def test_fgsm_takes_one_gradient_for_all_radii_with_the_same_figures(model, data, monkeypatch):
    gradients, real = [], robustness.gradient_sign
    monkeypatch.setattr(robustness, "gradient_sign", lambda *a: gradients.append(len(a[1])) or real(*a))
    attacks = [named_attack("fgsm", eps, images=images) for eps in (0.01, EPS) for images in (None, 70)]
    together = evaluate(model, *data, attacks)["attacks"]
    assert gradients == [200, 70]
    assert together == [evaluate(model, *data, [attack])["attacks"][0] for attack in attacks]


def in_autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("callers_mode", [nullcontext, torch.inference_mode, in_autocast])
def test_figures_are_float32_whatever_the_callers_modes_are(model, data, callers_mode):
    """torch uses TF32 for convolutions by default. Only searches should be in TF32."""
    attacks, seen, cudnn = [FGSM, named_attack("pgd", EPS, steps=1)], set(), torch.backends.cudnn

    def record(logits: Tensor) -> Tensor:
        conv = cudnn.conv.fp32_precision == "tf32" if hasattr(cudnn, "conv") else cudnn.allow_tf32
        seen.add((conv, torch.backends.cuda.matmul.allow_tf32, logits.dtype))
        return logits.float()

    expected, shown = evaluate(model, *data, attacks), examples(model, *data, FGSM)
    recorder = Around(model, after=record).eval()
    with callers_mode():
        found = examples(recorder, *data, FGSM)
        evaluate(recorder, *data, [FGSM])
        assert seen == {(False, False, torch.float32)}
        assert evaluate(recorder, *data, attacks) == expected
    assert seen == {(False, False, torch.float32), (True, False, torch.float32)}
    assert all(torch.equal(found[name], shown[name]) for name in shown)


def test_the_callers_modes_are_restored_between_verdicts(model, data):
    model.train()
    with in_autocast():
        for _ in verdicts(model, *data, [FGSM]):
            assert model.training
            assert torch.is_autocast_enabled("cpu")


@pytest.mark.usefixtures("portions_of_50")
def test_one_portion_is_in_memory_at_a_time(model, data):
    portions = []

    class Watched(Shift):
        def __call__(self, model, x, y, *, generator=None, batch_size=256):
            assert [portion() for portion in portions] == [None] * len(portions)
            portions.append(weakref.ref(x._base))
            return x

    gc.disable()
    try:
        evaluate(model, *data, [FGSM, Watched(name="still", eps=0, by=0)], batch_size=50)
    finally:
        gc.enable()
    assert len(portions) == 4


def test_portions_do_not_change_figures_or_starts(model, data, hasty, request):
    attacks = [FGSM, named_attack("fgsm", EPS, images=70, name="few")]
    attacks += [recorded("pgd", images=images, name=f"pgd {images}") for images in (30, 70, 500)]
    for size in (200, 48):
        whole = evaluate(model, *data, attacks, batch_size=size)
    torch.testing.assert_close(*[found for *_, found in attacks[4].calls])  # whatever the batch size
    request.getfixturevalue("portions_of_50")
    for attack in attacks[2:]:
        attack.calls.clear()
    portions = evaluate(model, *data, attacks, batch_size=50)
    assert portions["clean"] == whole["clean"]
    for row, other in zip(portions["attacks"], whole["attacks"], strict=True):
        assert row == other | {"accuracy": pytest.approx(other["accuracy"], abs=3)}  # other starts
    assert portions["attacks"][:2] == whole["attacks"][:2]
    assert [count for count, *_ in attacks[3].calls] == [50, 20]
    starts = [state for _, state, _ in attacks[4].calls]
    assert len(set(starts)) == 4

    # Every image is doubtful and attacked again: each portion's first attack starts as before nevertheless.
    attacks[4].calls.clear()
    evaluate(hasty, *data, attacks[-1:], batch_size=50)
    assert [(count, state) for count, state, _ in attacks[4].calls[::2]] == [(50, state) for state in starts]


@pytest.mark.usefixtures("portions_of_50")
def test_verdicts_resume_at_the_border_of_a_portion(model, data):
    few, pgd = named_attack("fgsm", EPS, images=70), named_attack("pgd", EPS)
    attacks, done = [FGSM, few, pgd], {FGSM: 200, few: 100, pgd: 50}
    whole = {(found.attack, found.start): found for found in verdicts(model, *data, attacks, batch_size=50)}
    assert list(whole) == [(attack, start) for start in (0, 50, 100, 150) for attack in attacks]
    assert [len(found.right) for found in whole.values() if found.attack is few] == [50, 20, 0, 0]
    assert {len(found.clean) for found in whole.values()} == {50}
    rest = list(verdicts(model, *data, attacks, done=done, batch_size=50))
    left = [(attack, start) for attack, start in whole if start >= done[attack]]
    assert [(found.attack, found.start) for found in rest] == left
    for found in rest:
        assert found.right.equal(whole[found.attack, found.start].right)
        assert found.clean.equal(whole[found.attack, found.start].clean)
