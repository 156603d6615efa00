"""result.json holds what the parts hold, under the names that other programs read."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from intnacl.runs.attack import plan, run_attacks
from intnacl.runs.config import from_dict
from intnacl.runs.measurements import all_parts, part_path
from intnacl.runs.opened import open_subject
from intnacl.runs.probes import probe_settings, run_knn, run_probe
from intnacl.runs.result import SLOW, Measured, collect, write_result
from intnacl.training.journal import records
from tiny_run import CPU, measured, trained, write_images


def test_the_keys_and_where_the_numbers_come_from(tmp_path: Path) -> None:
    subject = measured(tmp_path)
    result = json.loads((subject.folder / "result.json").read_text())
    (probe,) = all_parts(subject.folder, "probe")
    attacks = {
        part.settings["attacks"][0]["eps"]: part.figures for part in all_parts(subject.folder, "attack")
    }
    fgsm, pgd = (row["accuracy"] for row in attacks[0.02]["attacks"])
    assert result["accuracy"] == {"digits": {"clean": probe.figures["accuracy"], "fgsm": fgsm, "pgd": pgd}}
    assert fgsm < probe.figures["accuracy"]
    row = next(row for row in result["attacks"] if row["name"] == "pgd" and row["eps"] == 0.1)
    assert row == {
        "dataset": "digits", "name": "pgd", "eps": 0.1, "steps": 10, "step_size": 0.01, "restarts": 2,
        "images": 64, "accuracy": attacks[0.1]["attacks"][1]["accuracy"],
        "clean": attacks[0.1]["attacks"][1]["clean"],
    }  # fmt: skip
    assert {row["name"] for row in result["attacks"]} == {"fgsm", "pgd", "worst_case"}
    assert from_dict(result["config"]) == subject.config
    assert result["config"]["loss"]["negatives"] == "g0"


def test_data_sets_that_have_moved_since_leave_the_configuration_as_it_was(tmp_path: Path) -> None:
    folder = measured(tmp_path).folder
    moved = write_result(Measured(open_subject(folder, CPU, tmp_path / "moved")))
    assert moved is not None
    assert moved["config"] == json.loads((folder / "config.json").read_text())


def test_the_protocol_is_whole(tmp_path: Path) -> None:
    subject = measured(tmp_path)
    protocol = collect(subject)["protocol"]
    train, test = subject.load("digits")
    assert protocol["checksums"] == {"digits": {"train": train.checksum, "test": test.checksum}}
    assert protocol["trained_on"] == train.checksum
    assert protocol["images"] == {"digits": {"train": 1442, "test": 355}}
    assert protocol["probe"]["epochs"] == 20
    assert [attack["eps"] for attack in protocol["attacks"]] == [0.02, 0.02, 0.1, 0.1]
    assert protocol["attacks"][0]["images"] == 64
    assert protocol["batch_sizes"] == {"train": 256, "probe": 256, "features": 512, "attack": 512}
    assert protocol["precision"] == {
        "train": "fp32", "measurement": "float32", "search of iterated attacks": "TF32 on GPUs",
    }  # fmt: skip
    assert (protocol["seed"], protocol["epochs"], protocol["dataset"]) == (0, 2, "digits")
    assert {"versions", "hardware", "encoder_sha256"} <= protocol.keys()


def test_times_are_by_stage_and_sum_up(tmp_path: Path) -> None:
    subject = measured(tmp_path)
    times = collect(subject)["time_s"]
    assert list(times) == ["pretrain", "pauses", "probe digits", "knn digits", "attack digits", "total"]
    assert all(seconds > 0 for seconds in times.values())
    assert times["total"] == pytest.approx(sum(times.values()) - times["total"], abs=0.01)
    attacks = all_parts(subject.folder, "attack")
    assert times["attack digits"] == pytest.approx(sum(part.time_s for part in attacks))


def test_seconds_of_compilation_stand_apart_where_there_are_any(tmp_path: Path) -> None:
    subject = measured(tmp_path)
    log = subject.folder / "log.jsonl"
    log.write_text(json.dumps(records(log)[-1] | {"compiling": 12.5}) + "\n")
    times = collect(subject)["time_s"]
    assert list(times)[:2] == ["compile", "pretrain"]
    assert times["compile"] == 12.5
    assert times["total"] == pytest.approx(sum(times.values()) - times["total"], abs=0.01)


@pytest.mark.parametrize(
    ("asked", "done", "warned"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_compiler_that_failed_is_warned_of(tmp_path: Path, asked: bool, done: bool, warned: bool) -> None:
    subject = measured(tmp_path)
    train = replace(subject.config.train, compile=asked)
    subject = replace(subject, config=replace(subject.config, train=train))
    log = subject.folder / "log.jsonl"
    log.write_text(json.dumps(records(log)[-1] | {"compiled": done}) + "\n")
    assert (SLOW in collect(subject)["warnings"]) == warned


def test_there_is_no_result_before_everything_is_measured(tmp_path: Path) -> None:
    subject = trained(tmp_path)
    assert write_result(Measured(subject)) is None
    run_probe(subject, "digits")
    run_attacks(subject, "digits", plan(["fgsm", "pgd"], 0.02, 64))
    assert write_result(Measured(subject)) is None
    assert collect(subject)["accuracy"]["digits"]["pgd"] is not None
    assert not (subject.folder / "result.json").exists()
    run_attacks(subject, "digits", plan(["fgsm", "pgd"], 0.1, 64))
    assert write_result(Measured(subject)) is not None


def test_it_does_not_matter_which_attacks_were_measured_together(tmp_path: Path) -> None:
    """As in a run whose parts were cut otherwise: what is added to it must reach its result."""
    subject = trained(tmp_path)
    for eps in (0.02, 0.1):
        for name in ("fgsm", "pgd"):
            assert write_result(Measured(subject)) is None
            run_attacks(subject, "digits", plan([name], eps, 64))
    assert write_result(Measured(subject)) is not None


def test_more_images_to_attack_than_there_are_mean_all_of_them(tmp_path: Path) -> None:
    subject = trained(tmp_path)
    evaluation = replace(subject.config.evaluation, images=1000, eps=(0.02,))
    subject = replace(subject, config=replace(subject.config, evaluation=evaluation))
    part = run_attacks(subject, "digits", plan(["fgsm", "pgd"], 0.02, 1000))
    found = collect(subject)["accuracy"]["digits"]
    assert [found[row["name"]] for row in part.figures["attacks"]] == [
        row["accuracy"] for row in part.figures["attacks"]
    ]
    assert {row["images"] for row in part.figures["attacks"]} == {355}


def test_a_result_waits_for_all_data_sets_and_names_the_runs_own_first(tmp_path: Path) -> None:
    subject, name = trained(tmp_path), write_images(tmp_path / "images")
    evaluation = replace(subject.config.evaluation, transfer=(name,), eps=(0.02,), attacks=("fgsm",))
    subject = replace(subject, config=replace(subject.config, evaluation=evaluation, root=str(tmp_path)))
    for dataset in (name, "digits"):
        assert write_result(Measured(subject)) is None
        run_attacks(subject, dataset, plan(["fgsm"], 0.02, 64))
    result = write_result(Measured(subject))
    assert result is not None
    assert list(result["accuracy"]) == ["digits", name]


def test_attacks_that_do_not_tell_their_images_count(tmp_path: Path) -> None:
    """As those of former versions."""
    subject = measured(tmp_path)
    before = collect(subject)["attacks"]
    for path in (subject.folder / "parts").glob("attack-*.json"):
        part = json.loads(path.read_text())
        del part["figures"]["checksums"]
        path.write_text(json.dumps(part))
    assert sorted(collect(subject)["attacks"], key=str) == sorted(before, key=str)


@pytest.mark.parametrize(("kind", "key"), [("attack", "attacks"), ("knn", "knn"), ("probe", "probes")])
def test_measurements_on_other_images_than_the_probes_do_not_count(
    tmp_path: Path, kind: str, key: str
) -> None:
    subject = measured(tmp_path)
    run_probe(subject, "digits", replace(subject.config.probe, solver="lbfgs"))
    settings = probe_settings(subject, "digits", subject.config.probe)
    before, own = collect(subject), part_path(subject.folder, "probe", settings)
    for path in (subject.folder / "parts").glob(f"{kind}-*.json"):
        if path != own:
            path.write_text(path.read_text().replace('"test": "', '"test": "other'))
    after = collect(subject)
    assert len(before[key]) > len(after[key]) == (1 if kind == "probe" else 0)
    assert {name: after[name] for name in ("attacks", "knn", "probes") if name != key} == {
        name: before[name] for name in ("attacks", "knn", "probes") if name != key
    }
    (warning,) = set(after["warnings"]) - set(before["warnings"])
    assert warning.startswith("digits: what was measured on other images or labels")


def test_what_was_measured_before_any_probe_counts(tmp_path: Path) -> None:
    subject = trained(tmp_path)
    run_knn(subject, "digits")
    assert len(collect(subject)["knn"]) == 1


def test_the_machine_is_that_of_the_runs_own_probe(tmp_path: Path) -> None:
    subject = measured(tmp_path)
    (probe,) = all_parts(subject.folder, "probe")
    for path in (subject.folder / "parts").glob("[ak]*.json"):  # attacks and kNN, as if made elsewhere
        path.write_text(
            json.dumps(json.loads(path.read_text()) | {"surroundings": {"hardware": {"cpu": "other"}}})
        )
    assert collect(subject)["protocol"]["hardware"] == probe.surroundings["hardware"]


def test_what_was_not_measured_is_none(tmp_path: Path) -> None:
    subject = trained(tmp_path)
    run_attacks(subject, "digits", plan(["fgsm"], 0.02, 8))  # not on 64 images
    found = collect(subject)["accuracy"]["digits"]
    assert (found["fgsm"], found["pgd"]) == (None, None)


def test_other_probes_and_attacks_are_listed_but_do_not_replace_the_runs_own(tmp_path: Path) -> None:
    subject = measured(tmp_path)
    before = collect(subject)
    run_probe(subject, "digits", replace(subject.config.probe, solver="lbfgs"))
    run_attacks(subject, "digits", plan(["fgsm"], 0.02, 8))
    after = collect(subject)
    assert after["accuracy"] == before["accuracy"]
    assert len(after["probes"]) == len(before["probes"]) + 1
    added = [row for row in after["attacks"] if row not in before["attacks"]]
    assert {(row["name"], row["images"]) for row in added} == {("fgsm", 8), ("worst_case", 8)}


def test_parts_of_another_encoder_do_not_count(tmp_path: Path) -> None:
    folder = measured(tmp_path).folder
    from intnacl.models.encoders import build_model
    from intnacl.models.weights import save_encoder

    options = open_subject(folder, CPU).config.encoder
    other = build_model(options, image_size=8, adversarial=False, seed=9).encoder
    save_encoder(other, options, 8, folder / "encoder.safetensors")
    found = collect(open_subject(folder, CPU))
    assert found["accuracy"] == {}
    assert found["attacks"] == []


def test_probe_curves_are_those_of_the_runs_probe(tmp_path: Path) -> None:
    subject = measured(tmp_path)
    curves = Measured(subject).probe_curves()
    assert list(curves) == ["digits"]
    assert len(curves["digits"]) == 20
    assert curves["digits"][-1] == collect(subject)["accuracy"]["digits"]["clean"]
