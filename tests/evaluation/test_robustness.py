"""Robust accuracy: rows, worst case, selections of images, and warnings that come when they should."""

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
from intnacl.errors import InputError
from intnacl.evaluation import robustness
from intnacl.evaluation.robustness import evaluate, examples, verdicts, zero_gradients

EPS = 0.05


@dataclass(frozen=True, kw_only=True)
class Shift(Attack):
    """Make every pixel brighter by `by`."""

    method = "shift"
    by: float

    def __call__(self, model, x, y, *, generator=None, batch_size=256):
        return x + self.by


@dataclass(frozen=True, kw_only=True)
class Recorded(Attack):
    """An attack that notes the size of each call, its generator's state, and what it returned."""

    method = "recorded"
    of: Attack
    calls: list = field(default_factory=list, hash=False, compare=False)

    def __call__(self, model, x, y, *, generator=None, batch_size=256):
        state = tuple(generator.get_state().tolist())
        found = self.of(model, x, y, generator=generator, batch_size=batch_size)
        self.calls.append((len(x), state, found))
        return found


def recorded(name: str, /, **settings) -> Recorded:
    attack = named_attack(name, EPS, **settings)
    return Recorded(name=attack.name, eps=attack.eps, images=attack.images, of=attack)


class Threshold(nn.Module):
    """Class 1 above a brightness of 125, class 0 below."""

    def forward(self, x: Tensor) -> Tensor:
        brightness = x.mean(dim=(1, 2, 3)) - 125 / 255
        return torch.stack([-brightness, brightness], dim=1)


@pytest.fixture
def model() -> nn.Sequential:
    return deepcopy(trained_model())


@pytest.fixture
def data():
    return held_out(200)


def count_right(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return 100 * (model(images / 255).argmax(dim=1) == labels).float().mean().item()


class Scaled(nn.Module):
    """The same decisions from logits so large that softmax saturates and gradients vanish."""

    def __init__(self, model: nn.Module, factor: float) -> None:
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) * self.factor


@pytest.mark.parametrize("name", ["fgsm", "pgd", "pgd_tuned"])
def test_eps_zero_is_clean_accuracy(model, data, name):
    figures = evaluate(model, *data, [named_attack(name, 0.0)])
    assert figures["attacks"][0]["accuracy"] == figures["clean"] == pytest.approx(count_right(model, *data))
    assert figures["worst_case"][0]["accuracy"] == figures["clean"]


def test_starts_do_not_depend_on_the_batch_size(model, data):
    attack = recorded("pgd")
    for size in (200, 48):
        evaluate(model, *data, [attack], batch_size=size)
    (_, _, first), (_, _, second) = attack.calls
    torch.testing.assert_close(first, second)


def test_rows_say_what_was_run(model, data):
    figures = evaluate(model, *data, [named_attack("fgsm", EPS), named_attack("pgd", EPS)], batch_size=64)
    fgsm_row, pgd_row = figures["attacks"]
    assert list(pgd_row) == ["name", "eps", "steps", "step_size", "restarts", "images", "accuracy", "clean"]
    assert list(pgd_row.values())[:-2] == ["pgd", EPS, 10, 0.01, 2, 200]
    assert pgd_row["clean"] == figures["clean"]
    assert 0 < pgd_row["accuracy"] <= fgsm_row["accuracy"] + 0.5 < figures["clean"]
    assert figures["images"] == 200
    assert figures["warnings"] == []
    assert figures["zero_gradients"] == 0


def test_worst_case_is_over_samples_not_over_figures():
    """Brightening fools the dark half, darkening the bright half: 50 % and 50 % make 0 %."""
    images = torch.tensor([100, 150], dtype=torch.uint8).repeat(20).view(40, 1, 1, 1).expand(-1, 3, 2, 2)
    labels = torch.tensor([0, 1]).repeat(20)
    attacks = [Shift(name=name, eps=0.2, by=by) for name, by in (("brighten", 0.2), ("darken", -0.2))]
    figures = evaluate(Threshold().eval(), images, labels, attacks)
    assert figures["clean"] == 100
    assert [row["accuracy"] for row in figures["attacks"]] == [50, 50]
    assert [row["accuracy"] for row in figures["worst_case"]] == [0]


def test_whoever_fgsm_puts_right_is_wrong_in_the_worst_case() -> None:
    """A step over the edge and back into the own class: FGSM counts it as right, the worst case does not."""
    images = torch.full((4, 3, 2, 2), 128, dtype=torch.uint8)

    class Valley(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            depth = (x.mean(dim=(1, 2, 3)) - 127 / 255).abs() - 0.1  # away from 127 it is class 1, near it 0
            return torch.stack([-depth, depth], dim=1)

    figures = evaluate(Valley().eval(), images, torch.zeros(4).long(), [named_attack("fgsm", 0.2)])
    assert (figures["clean"], figures["worst_case"][0]["accuracy"]) == (100, 0)
    figures = evaluate(Valley().eval(), images, torch.ones(4).long(), [named_attack("fgsm", 0.2)])
    assert (figures["clean"], figures["attacks"][0]["accuracy"]) == (0, 100)
    assert figures["worst_case"][0]["accuracy"] == 0


def test_selections_are_nested_and_counted(model, data):
    attacks = [named_attack("fgsm", EPS), named_attack("fgsm", EPS, images=50, name="few")]
    figures = evaluate(model, *data, attacks)
    assert [row["images"] for row in figures["attacks"]] == [200, 50]
    assert figures["worst_case"][0]["images"] == 50
    few = figures["attacks"][1]["accuracy"]
    assert figures["worst_case"][0]["accuracy"] <= few
    shuffled = torch.arange(200).flip(0)
    sorted_figures = evaluate(model, data[0][shuffled], data[1][shuffled], attacks)
    assert sorted_figures["attacks"][0] == figures["attacks"][0]


def test_a_selection_of_images_in_the_order_of_classes_is_of_all_classes():
    class AlwaysZero(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.pad(x.mean(dim=(1, 2, 3))[:, None], (0, 1), value=-1)

    images, labels = torch.zeros(100, 3, 2, 2, dtype=torch.uint8), torch.arange(100) // 50
    figures = evaluate(AlwaysZero().eval(), images, labels, [named_attack("fgsm", EPS, images=50)])
    assert 30 < figures["attacks"][0]["clean"] < 70


def test_fgsm_leaves_the_box_only_when_told():
    class BeyondWhite(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            excess = x.mean(dim=(1, 2, 3)) - 1.01
            return torch.stack([-excess, excess], dim=1)

    white, zeros = torch.full((4, 3, 2, 2), 255, dtype=torch.uint8), torch.zeros(4).long()
    attacks = [named_attack("fgsm", EPS, clamp=clamp) for clamp in (True, False)]
    figures = evaluate(BeyondWhite().eval(), white, zeros, attacks)
    assert [row["accuracy"] for row in figures["attacks"]] == [100, 0]


def test_same_seed_same_figures(model, data):
    attacks = [named_attack("pgd", EPS, steps=1)]
    assert evaluate(model, *data, attacks) == evaluate(model, *data, attacks)


@pytest.mark.parametrize("name", ["fgsm", "pgd_tuned"])
def test_accuracy_falls_with_eps_and_worst_cases_are_sorted(model, data, name):
    figures = evaluate(model, *data, [named_attack(name, eps) for eps in (0.1, 0.01, 0.03)])
    large, small, middle = (row["accuracy"] for row in figures["attacks"])
    assert small > middle > large
    assert [row["eps"] for row in figures["worst_case"]] == [0.01, 0.03, 0.1]


def test_train_mode_is_warned_about_and_not_used(model, data):
    expected = evaluate(model, *data, [named_attack("fgsm", EPS)])
    model[0].body[4].train()
    figures = evaluate(model, *data, [named_attack("fgsm", EPS)])
    assert "train mode (0.body.4 first)" in figures["warnings"][0]
    assert figures["attacks"] == expected["attacks"]
    assert model[0].body[4].training
    assert not model.training


def test_vanishing_gradients_are_warned_about(model, data):
    masked = Scaled(model, 1e5).eval()
    share = zero_gradients(masked, *data)
    assert share > 50
    figures = evaluate(masked, *data, [named_attack("pgd", EPS)])
    assert f"{share:.1f} % of samples have a zero input gradient" in figures["warnings"][0]
    assert (
        figures["attacks"][0]["accuracy"]
        > evaluate(model, *data, [named_attack("pgd", EPS)])["attacks"][0]["accuracy"]
    )


def test_pixels_without_a_gradient_are_no_zero_gradient(model, data):
    class UpperHalf(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return model(torch.cat([x[:, :, :4], torch.zeros_like(x[:, :, 4:])], dim=2))

    assert zero_gradients(UpperHalf(), *data) == 0


@pytest.mark.parametrize(("dark", "warned"), [(1, False), (2, True)])
def test_more_than_one_percent_of_vanishing_gradients_are_warned_about(dark, warned):
    class Relu(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            light = (x.mean(dim=(1, 2, 3)) - 0.1).relu()
            return torch.stack([light, -light], dim=1)

    images = torch.full((100, 3, 2, 2), 128, dtype=torch.uint8)
    images[:dark] = 0
    figures = evaluate(Relu().eval(), images, torch.zeros(100).long(), [])
    assert figures["zero_gradients"] == dark
    assert bool(figures["warnings"]) == warned


def test_examples_hold_what_a_drawing_needs(model, data):
    images, labels = data[0][:6], data[1][:6]
    found = examples(model, images, labels, named_attack("fgsm", EPS))
    assert torch.equal(found["clean"], images / 255)
    assert (found["adversarial"] - found["clean"]).abs().max() <= EPS + 1e-6
    with torch.no_grad():
        assert torch.equal(found["predicted"], model(found["clean"]).argmax(dim=1))
        assert torch.equal(found["predicted_adversarial"], model(found["adversarial"]).argmax(dim=1))
    assert torch.equal(found["labels"], labels)


def test_bad_data_are_errors(model, data):
    with pytest.raises(InputError, match="uint8"):
        evaluate(model, data[0] / 255, data[1], [])
    with pytest.raises(InputError, match="unlabelled"):
        evaluate(model, data[0], torch.full_like(data[1], -1), [])
    fgsm = named_attack("fgsm", 0.1)
    for attacks in (["fgsm"], "fgsm", fgsm, (attack for attack in [fgsm]), None):
        with pytest.raises(InputError, match=r"give a list of attacks, such as \[named_attack"):
            evaluate(model, *data, attacks)


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (
            lambda logits: logits.argmax(1),
            r"returned \(2,\) for 2 images; attacks need logits \(2, classes\)",
        ),
        (lambda logits: (logits, None), "returned tuple for 2 images"),
        (lambda logits: logits[:1], r"returned \(1, 10\) for 2 images"),
        (lambda logits: logits[:, :4], r"label 9 is beyond the classifier's 4 classes"),
        (lambda logits: logits.detach(), "logits have no gradient by its pixels: leave detach"),
    ],
)
def test_a_model_that_gives_no_logits_is_told_what_is_missing(model, data, last, message):
    class Wrong(nn.Module):
        def forward(self, x):
            return last(model(x))

    with pytest.raises(InputError, match=message):
        evaluate(Wrong(), *data, [named_attack("fgsm", 0.1)])


def test_a_model_that_rounds_its_pixels_has_no_gradient_to_attack(model, data):
    class Rounded(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = deepcopy(model).requires_grad_()

        def forward(self, x):
            return self.model((255 * x).byte().float() / 255)

    with pytest.raises(InputError, match="no gradient by its pixels"):
        evaluate(Rounded(), *data, [named_attack("fgsm", 0.1)])


def test_clean_accuracy_is_told_for_the_attacked_images_too(model, data):
    (row,) = evaluate(model, *data, [named_attack("fgsm", 0.0, images=7)])["attacks"]
    assert row["images"] == 7
    assert row["clean"] == row["accuracy"]  # eps 0 changes nothing


def with_a_search_that_takes_all_for_fooled(model, monkeypatch) -> nn.Module:
    """The model, whose rounding at low precision turns every decision around."""
    rough = []

    @contextmanager
    def _rough():
        rough.append(True)
        yield
        rough.pop()

    class Rounded(nn.Module):
        def forward(self, x):
            return -model(x) if rough else model(x)

    monkeypatch.setattr(robustness, "tf32_convolutions", _rough)
    return Rounded().eval()


def test_who_falls_by_rounding_alone_is_attacked_again(model, data, monkeypatch):
    """A search at low precision that believes everyone fooled at once must not make anyone look robust."""
    attacks = [named_attack("pgd", EPS)]
    exact = evaluate(model, *data, attacks)
    found = evaluate(with_a_search_that_takes_all_for_fooled(model, monkeypatch), *data, attacks)
    assert exact["attacks"][0]["accuracy"] < exact["clean"] - 10
    assert found["attacks"][0]["accuracy"] == pytest.approx(exact["attacks"][0]["accuracy"], abs=2)
    assert found["clean"] == exact["clean"]


def test_fgsm_takes_one_gradient_for_all_radii_and_gives_what_each_alone_gives(model, data, monkeypatch):
    gradients = []
    real = robustness.gradient_sign
    monkeypatch.setattr(robustness, "gradient_sign", lambda *a: gradients.append(len(a[1])) or real(*a))
    attacks = [named_attack("fgsm", eps, images=images) for eps in (0.01, EPS) for images in (None, 70)]
    together = evaluate(model, *data, attacks)["attacks"]
    assert gradients == [200, 70]
    assert together == [evaluate(model, *data, [attack])["attacks"][0] for attack in attacks]


class Recorder(nn.Module):
    """The model, and at every pass: TF32 for convolutions and products, and the dtype of features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.seen = model, set()

    def forward(self, x: Tensor) -> Tensor:
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        conv = cudnn.conv.fp32_precision == "tf32" if hasattr(cudnn, "conv") else cudnn.allow_tf32
        logits = self.model(x)
        self.seen.add((conv, matmul.allow_tf32, logits.dtype))
        return logits.float()


def in_autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("callers_mode", [nullcontext, torch.inference_mode, in_autocast])
def test_figures_are_float32_whatever_the_callers_modes_are(model, data, callers_mode):
    """torch takes TF32 for convolutions unless told otherwise."""
    attack = named_attack("fgsm", EPS)
    expected, shown = evaluate(model, *data, [attack]), examples(model, *data, attack)
    recorder = Recorder(model).eval()
    with callers_mode():
        assert evaluate(recorder, *data, [attack]) == expected
        found = examples(recorder, *data, attack)
    assert recorder.seen == {(False, False, torch.float32)}
    assert all(torch.equal(found[name], shown[name]) for name in shown)


def test_only_searches_are_in_tf32(model, data):
    recorder = Recorder(model).eval()
    evaluate(recorder, *data, [named_attack("pgd", EPS, steps=1)])
    assert {conv for conv, *_ in recorder.seen} == {False, True}


def test_no_image_that_is_wrong_without_an_attack_is_right_under_it():
    """A search in TF32 may take an image for right that is not, and move it to where it is."""
    images = torch.full((4, 3, 2, 2), 100, dtype=torch.uint8)
    attack = Shift(name="brighten", eps=0.2, by=0.2)
    figures = evaluate(Threshold().eval(), images, torch.ones(4).long(), [attack])
    assert figures["clean"] == figures["attacks"][0]["accuracy"] == 0


def test_one_portion_is_in_memory_at_a_time(model, data, monkeypatch):
    monkeypatch.setattr(robustness, "PORTION", 50 * data[0][0].numel())
    pixels = []

    class Watched(Shift):
        def __call__(self, model, x, y, *, generator=None, batch_size=256):
            assert [portion() for portion in pixels] == [None] * len(pixels)
            pixels.append(weakref.ref(x._base))
            return x

    gc.disable()
    try:
        evaluate(model, *data, [named_attack("fgsm", EPS), Watched(name="still", eps=0, by=0)], batch_size=50)
    finally:
        gc.enable()
    assert len(pixels) == 4


def test_portions_do_not_change_figures_or_starts(model, data, monkeypatch):
    attacks = [named_attack("fgsm", EPS), named_attack("fgsm", EPS, images=70, name="few")]
    attacks += [recorded("pgd", images=images, name=f"pgd {images}") for images in (30, 70, 500)]
    whole = evaluate(model, *data, attacks, batch_size=50)
    monkeypatch.setattr(robustness, "PORTION", 50 * data[0][0].numel())
    for attack in attacks[2:]:
        attack.calls.clear()
    portions = evaluate(model, *data, attacks, batch_size=50)
    assert portions["clean"] == whole["clean"]
    for row, other in zip(portions["attacks"], whole["attacks"], strict=True):
        assert {**row, "accuracy": 0} == {**other, "accuracy": 0}
        assert row["accuracy"] == pytest.approx(other["accuracy"], abs=3)  # other starts
    assert portions["attacks"][:2] == whole["attacks"][:2]
    assert [count for count, *_ in attacks[3].calls] == [50, 20]
    starts = [state for _, state, _ in attacks[4].calls]
    assert len(set(starts)) == 4

    # Every image is doubtful and attacked again: each portion's first attack starts as before nevertheless.
    attacks[4].calls.clear()
    rounded = with_a_search_that_takes_all_for_fooled(model, monkeypatch)
    evaluate(rounded, *data, attacks[-1:], batch_size=50)
    first = attacks[4].calls[::2]
    assert [state for _, state, _ in first] == starts
    assert [count for count, *_ in first] == [50] * 4


def test_verdicts_resume_at_the_border_of_a_portion(model, data, monkeypatch):
    monkeypatch.setattr(robustness, "PORTION", 50 * data[0][0].numel())
    fgsm, few, pgd = named_attack("fgsm", EPS), named_attack("fgsm", EPS, images=70), named_attack("pgd", EPS)
    attacks = [fgsm, few, pgd]
    whole = list(verdicts(model, *data, attacks, batch_size=50))
    assert [(found.attack, found.start) for found in whole] == [
        (attack, start) for start in (0, 50, 100, 150) for attack in attacks
    ]
    assert [len(found.right) for found in whole if found.attack is few] == [50, 20, 0, 0]
    assert [len(found.clean) for found in whole] == [50] * 12
    rest = list(verdicts(model, *data, attacks, done={fgsm: 200, few: 100, pgd: 50}, batch_size=50))
    assert [(found.attack, found.start) for found in rest] == [
        (pgd, 50), (few, 100), (pgd, 100), (few, 150), (pgd, 150)
    ]  # fmt: skip
    expected = {(found.attack, found.start): found for found in whole}
    for found in rest:
        assert found.right.equal(expected[found.attack, found.start].right)
        assert found.clean.equal(expected[found.attack, found.start].clean)


def test_the_callers_modes_are_its_own_between_verdicts(model, data):
    model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in verdicts(model, *data, [named_attack("fgsm", EPS)]):
            assert model.training
            assert torch.is_autocast_enabled("cpu")
