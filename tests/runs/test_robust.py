"""The recipe robust: a teacher, its student and the figures of both, in one resumable run."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pieces import StopAfter

from intnacl.errors import InputError, InputWarning
from intnacl.models.encoders import build_model
from intnacl.models.weights import load_projection, save_encoder
from intnacl.runs.compare import compare, with_teacher, write_comparison
from intnacl.runs.config import RunConfig, loss_name
from intnacl.runs.folder import RunFolder
from intnacl.runs.opened import from_pretrained, open_run
from intnacl.runs.page import write_result_and_page
from intnacl.runs.pretrain import pretrain
from intnacl.runs.resolve import resolve, teacher_of, warn_of_unused
from intnacl.runs.stages import run, train_and_measure
from intnacl.training.checkpoint import newest
from intnacl.training.stop import Stop
from tiny_run import CPU, HERE, forbid_evaluation

FAST = {
    "train.epochs": 1,
    "train.precision": "fp32",
    "train.ema": 0.5,
    "distill.steps": 2,
    "distill.perturbation": 0.005,
    "distill.teacher_settings": ("train.epochs=1", "loss.num_positives=1"),
    "evaluation.eps": (0.02,),
    "evaluation.attacks": ("fgsm", "pgd_tuned"),
    "evaluation.pgd_tuned_eps": (0.1,),
    "evaluation.images": 24,
}


def config(**changes: object) -> RunConfig:
    return resolve(FAST | changes, recipe="robust", device=CPU)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("robust") / "run"
    assert train_and_measure(config(), RunFolder(folder), HERE, Stop()) is None
    return folder


def test_one_command_trains_a_teacher_and_its_student_and_measures_both_alike(whole):
    student, teacher = open_run(whole, device="cpu"), open_run(whole / "teacher", device="cpu")
    assert (student.config.objective, teacher.config.objective) == ("distill", "contrastive")
    assert student.config.distill.teacher_sha256 == teacher.encoder_sha256 != student.encoder_sha256
    assert student.config.evaluation == teacher.config.evaluation
    asked = [
        [
            (row["name"], row["eps"], row["images"])
            for row in run.result["attacks"]
            if len(row.get("of", "12")) > 1
        ]
        for run in (student, teacher)
    ]
    assert asked[0] == asked[1]
    assert {("pgd_tuned", 0.02, 24), ("pgd_tuned", 0.1, 24), ("fgsm", 0.02, 24)} <= set(asked[0])
    assert ("fgsm", 0.1, 24) not in asked[0]


def test_a_run_stopped_at_every_stage_ends_in_the_same_bytes(tmp_path, whole):
    looks, reason = 0, "terminate"
    while reason is not None:
        looks += 2
        reason = train_and_measure(config(), RunFolder(tmp_path), HERE, StopAfter(looks))
    assert looks > 5
    for name in ("encoder.safetensors", "teacher/encoder.safetensors", "probe-digits.safetensors"):
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes(), name
    results = [json.loads((folder / "result.json").read_bytes()) for folder in (tmp_path, whole)]
    assert results[0]["attacks"] == results[1]["attacks"]


def test_the_page_shows_teacher_and_student_without_attacking_again(tmp_path, whole, monkeypatch):
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    forbid_evaluation(monkeypatch)
    monkeypatch.setattr("intnacl.evaluation.robustness.examples", None)
    write_result_and_page(open_run(tmp_path / "run", device="cpu"))
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    section = page.split("<h2>Teacher and student</h2>")[1].split("<h2>")[0]
    results = [json.loads((whole / place / "result.json").read_bytes()) for place in ("teacher", ".")]
    for row in (row for result in results for row in result["attacks"] if row["eps"] == 0.1):
        assert f"<td>{row['accuracy']:.2f}</td>" in section
    assert 'href="teacher/report.html"' in section
    assert section.count("<svg") == 3  # the curves, and two rows of the teacher's pictures
    teachers_own = (whole / "teacher" / "report.html").read_text(encoding="utf-8")
    assert "Teacher and student" not in teachers_own


def test_a_run_may_be_the_teacher_and_is_not_changed(tmp_path, whole):
    given = tmp_path / "given"
    shutil.copytree(whole / "teacher", given)
    before = {path: path.read_bytes() for path in given.rglob("*") if path.is_file()}
    found = run(
        FAST | {"distill.teacher": str(given)}, recipe="robust", out=tmp_path / "run", device="cpu",
        say=lambda text: None,
    )  # fmt: skip
    assert found.encoder_sha256 == open_run(whole, device="cpu").encoder_sha256
    assert (tmp_path / "run" / "teacher" / "result.json").exists()
    assert {path: path.read_bytes() for path in given.rglob("*") if path.is_file()} == before


def test_a_file_of_an_encoder_may_be_the_teacher_but_not_another_one_after_a_stop(tmp_path, whole):
    file = tmp_path / "teacher.safetensors"
    shutil.copyfile(whole / "teacher" / "encoder.safetensors", file)
    named, folder = config(**{"distill.teacher": str(file)}), RunFolder(tmp_path / "run")
    assert train_and_measure(named, folder, HERE, StopAfter(1)) == "terminate"
    changed = from_pretrained(file)
    save_encoder(changed, replace(named.encoder, norm="per_view"), 8, file)
    file.with_suffix(".sha256").unlink()
    with pytest.raises(InputError, match=r"started with another teacher than the present .*safetensors"):
        train_and_measure(named, folder, HERE, Stop())
    shutil.copyfile(whole / "teacher" / "encoder.safetensors", file)
    assert train_and_measure(named, folder, HERE, Stop()) is None
    assert not folder.teacher.exists()
    file.unlink()
    assert train_and_measure(named, folder, HERE, Stop()) is None, "it is finished"


def test_pretraining_without_a_teacher_names_the_remedy(tmp_path):
    with pytest.raises(
        InputError, match=r"distill\.teacher is not given.*--teacher RUN, or use `intnacl run`"
    ):
        pretrain(config(), RunFolder(tmp_path / "run"), HERE, Stop())
    assert not (tmp_path / "run").exists()


def test_a_student_may_compare_projections_by_the_head_of_its_teacher(tmp_path, whole):
    asked = {"distill.teacher": str(whole / "teacher"), "distill.projection_weight": 0.5}
    once, often = RunFolder(tmp_path / "once"), RunFolder(tmp_path / "often")
    assert pretrain(config(**asked), once, HERE, Stop()) is None
    while pretrain(config(**asked), often, HERE, StopAfter(2)) is not None:
        pass
    assert once.encoder.read_bytes() == often.encoder.read_bytes() != RunFolder(whole).encoder.read_bytes()
    teacher = RunFolder(whole / "teacher")
    model = build_model(teacher.read_config().encoder, image_size=8, adversarial=False, seed=0).eval()
    model.load_state_dict(newest(teacher.checkpoints).model)
    features = torch.rand(5, model.encoder.feature_dim)
    assert torch.equal(load_projection(teacher.encoder)(features), model.head(features))

    file = tmp_path / "alone.safetensors"
    shutil.copyfile(teacher.encoder, file)
    with pytest.raises(InputError, match=r"projection.safetensors does not exist: the teacher has no"):
        pretrain(config(**asked | {"distill.teacher": str(file)}), RunFolder(tmp_path / "no"), HERE, Stop())


@pytest.mark.slow
def test_seeds_are_compared_with_their_teachers(tmp_path, capsys):
    fast = config(**{"train.ema": 0.0, "distill.perturbation": 0.0, "evaluation.eps": (0.1,)})
    configs, said = with_teacher(fast), []
    assert compare(configs, [0, 1], tmp_path, HERE, Stop(), said.append) is None
    write_comparison(tmp_path, list(configs), [0, 1])
    found = json.loads((tmp_path / "comparison.json").read_bytes())
    assert list(found["losses"]) == ["teacher", "student"]
    key = "pgd_tuned 0.1"
    both = [found["losses"][who][key]["values"] for who in ("teacher", "student")]
    assert found["difference"][key]["values"] == [b - a for a, b in zip(*both, strict=True)]
    for seed in (0, 1):
        student, teacher = (RunFolder(tmp_path / f"{who}-seed{seed}") for who in ("student", "teacher"))
        assert student.read_config().distill.teacher == str(teacher.path)
        assert teacher.read_config().seed == student.read_config().seed == seed
    assert "difference" in capsys.readouterr().out


def test_the_recipe_overrides_that_of_the_data_set():
    cifar, digits = (resolve({"dataset": name}, recipe="robust") for name in ("cifar10", "digits"))
    assert (cifar.recipe, digits.recipe) == ("robust", "robust_digits")
    assert (cifar.train.optimizer, cifar.train.lr, cifar.train.weight_decay) == ("sgd", 0.5, 5e-4)
    assert cifar.train.decay_vectors
    assert (cifar.distill.eps, cifar.evaluation.eps) == (8 / 255, (8 / 255,))
    assert [round(255 * eps) for eps, _ in cifar.evaluation.rounds] == [8, 2, 4, 12, 16]
    assert digits.encoder.name == "small"
    assert resolve({"dataset": "tinyimagenet"}, recipe="robust").encoder.mean[0] == 0.485
    other = resolve({"dataset": "cifar10", "train.optimizer": "adamw"}, recipe="robust")
    assert other.train.lr == 3e-4  # the rate of the recipe is sgd's
    intcl = teacher_of(resolve({"distill.teacher_settings": "preset=intcl,train.epochs=3"}, recipe="robust"))
    assert (loss_name(intcl), intcl.train.epochs) == ("intcl", 3)
    strong = resolve({"dataset": "cifar10", "distill.teacher_settings": "recipe=strong"}, recipe="robust")
    assert (teacher_of(strong).recipe, teacher_of(strong).train.epochs) == ("strong", 100)
    teacher = teacher_of(resolve({"dataset": "cifar10", "encoder.width": 16, "seed": 3}, recipe="robust"))
    assert (teacher.recipe, teacher.loss.nacl, teacher.train.epochs) == ("custom", "mixnca", 200)
    assert (teacher.encoder.width, teacher.seed, teacher.train.optimizer) == (16, 3, "adam")
    assert teacher.evaluation == cifar.evaluation


def test_settings_of_the_teacher_and_unused_ones_are_checked():
    with pytest.raises(InputError, match="teacher_settings='epochs' must be KEY=VALUE"):
        teacher_of(config(**{"distill.teacher_settings": ("epochs",)}))
    with pytest.raises(
        InputError, match=r"preset='intcl' is a contrastive loss.*teacher_settings=preset=intcl"
    ):
        resolve(recipe="robust", preset="intcl")
    with pytest.raises(InputError, match=r"setting='train\.epoch' is unknown"):
        teacher_of(config(**{"distill.teacher_settings": ("train.epoch=1",)}))
    for given, objective in (({"distill.steps": 3}, "contrastive"), ({"loss.alpha": 1.0}, "distill")):
        with pytest.warns(InputWarning, match="has no effect here"):
            warn_of_unused(given, [resolve({"objective": objective} | given)])
