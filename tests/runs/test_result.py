"""result.json holds the measurements under the names that other programs read."""

import json
from dataclasses import replace

import pytest

from intnacl.models.encoders import build_model
from intnacl.models.weights import save_encoder
from intnacl.runs.attack import attacks_at, measure_attacks
from intnacl.runs.config import from_dict, to_dict
from intnacl.runs.measure import measure_knn, measure_probe
from intnacl.runs.opened import Run, open_run
from intnacl.runs.overview import SLOW, Overview, write_result
from intnacl.runs.page import render
from intnacl.runs.result import Result
from intnacl.training.journal import records
from tiny_run import CPU, measured, trained, write_images
from tiny_run import edit_measurements as edit


def result_of(run: Run) -> Result:
    return Overview(run).result()


def log(run: Run, **more: object) -> None:
    """Change the last record of the training's log; None removes a key."""
    row = {key: value for key, value in (records(run.folder.log)[-1] | more).items() if value is not None}
    run.folder.log.write_text(json.dumps(row) + "\n")


def test_the_keys_and_the_origin_of_the_numbers(tmp_path):
    run = measured(tmp_path)
    result = json.loads(run.folder.result.read_text())
    (probe,) = run.measurements.all("probe")
    attacks = {
        (one.settings["attacks"][0]["name"], one.settings["attacks"][0]["eps"]): one.figures["attacks"][0]
        for one in run.measurements.all("attack")
    }
    clean = probe.figures["accuracy"]
    fgsm, pgd = (attacks[name, 0.02]["accuracy"] for name in ("fgsm", "pgd"))
    assert result["accuracy"] == {"digits": {"clean": clean, "fgsm": fgsm, "pgd": pgd}}
    assert fgsm < clean
    row = next(row for row in result["attacks"] if row["name"] == "pgd" and row["eps"] == 0.1)
    assert row == {
        "dataset": "digits", "protocol": "slf", "split": "test", "name": "pgd", "eps": 0.1, "steps": 10,
        "step_size": 0.01, "restarts": 2, "images": 64, "accuracy": attacks["pgd", 0.1]["accuracy"],
        "clean": attacks["pgd", 0.1]["clean"],
    }  # fmt: skip
    names = [(row["name"], row["eps"]) for row in result["attacks"]]
    assert names == [(name, eps) for eps in (0.02, 0.1) for name in ("fgsm", "pgd", "worst_case")]
    assert from_dict(result["config"]) == run.config
    assert result["config"]["loss"]["negatives"] == "g0"


def test_moved_data_sets_keep_the_configuration_and_measurements_of_another_encoder_do_not_count(tmp_path):
    run = measured(tmp_path)
    curves = Overview(run).probe_curves()
    assert list(curves) == ["digits"]
    assert len(curves["digits"]) == 20
    assert curves["digits"][-1] == result_of(run)["accuracy"]["digits"]["clean"]
    moved = write_result(Overview(open_run(run.folder, device=CPU, root=tmp_path / "moved")))
    assert moved["config"] == to_dict(run.folder.read_config())
    other = build_model(run.config.encoder, image_size=8, adversarial=False, seed=9).encoder
    save_encoder(other, run.config.encoder, 8, run.folder.encoder)
    found = result_of(open_run(run.folder, device=CPU))
    assert (found["accuracy"], found["attacks"]) == ({}, [])


def test_the_protocol_is_complete(tmp_path):
    run = measured(tmp_path)
    protocol = result_of(run)["protocol"]
    train, test = run.images.labelled("digits")
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


def test_the_protocol_and_the_page_state_the_number_of_ranks(tmp_path):
    run = measured(tmp_path)
    for ranks, said in ((1, "trained on 1 rank."), (2, "trained on 2 ranks."), (None, "recipe digits.")):
        log(run, ranks=ranks)
        found = Overview(run)
        assert found.result()["protocol"]["ranks"] == ranks
        assert said in render(found, found.result())


def test_pgd_is_the_configured_one_and_the_papers_if_both_are(tmp_path):
    for name, attacks in (("pgd_tuned", ("fgsm", "pgd_tuned")), ("pgd", ("pgd", "pgd_tuned"))):
        changes = {"evaluation.attacks": attacks, "evaluation.eps": (0.1,), "evaluation.images": 20}
        run = trained(tmp_path / name, **changes)
        run.measure()
        rows = {row["name"]: row["accuracy"] for row in run.result["attacks"]}
        assert run.result["accuracy"]["digits"]["pgd"] == rows[name]
        assert run.result["protocol"]["accuracy"] == {"fgsm": "fgsm", "pgd": name}
        head = {"pgd": "<th>PGD</th>", "pgd_tuned": "<th>PGD tuned</th>"}[name]
        assert head in run.folder.page.read_text()


def test_times_are_by_stage_and_sum_up(tmp_path):
    run = measured(tmp_path)
    times = result_of(run)["time_s"]
    assert list(times) == ["pretrain", "pauses", "probe digits", "knn digits", "attack digits", "total"]
    assert all(seconds > 0 for seconds in times.values())
    attacks = sum(one.time_s for one in run.measurements.all("attack"))
    assert times["attack digits"] == pytest.approx(attacks)
    log(run, compiling=12.5)
    times = result_of(run)["time_s"]
    assert list(times)[:2] == ["compile", "pretrain"]
    assert times["compile"] == 12.5
    assert times["total"] == pytest.approx(sum(times.values()) - times["total"], abs=0.01)


@pytest.mark.parametrize(
    ("asked", "done", "warned"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_failed_compilation_is_warned_about(tmp_path, asked, done, warned):
    run = measured(tmp_path, **{"train.compile": asked})
    log(run, compiled=done)
    assert (SLOW in result_of(run)["warnings"]) == warned


def test_there_is_no_result_before_everything_is_measured(tmp_path):
    """The grouping of attacks into calls does not matter."""
    run = trained(tmp_path)
    assert write_result(Overview(run)) is None
    measure_probe(run, "digits")
    for names, eps in ((["fgsm", "pgd"], 0.02), (["fgsm"], 0.1), (["pgd"], 0.1)):
        assert write_result(Overview(run)) is None
        measure_attacks(run, "digits", attacks_at(names, eps, 64))
    assert result_of(run)["accuracy"]["digits"]["pgd"] is not None
    assert not run.folder.result.exists()
    assert write_result(Overview(run)) is not None


def test_more_images_than_there_are_mean_all_of_them(tmp_path):
    run = trained(tmp_path, **{"evaluation.images": 1000, "evaluation.eps": (0.02,)})
    found = measure_attacks(run, "digits", attacks_at(["fgsm", "pgd"], 0.02, 1000))
    rows, accuracy = [one.figures["attacks"][0] for one in found], result_of(run)["accuracy"]["digits"]
    assert [accuracy["fgsm"], accuracy["pgd"]] == [row["accuracy"] for row in rows]
    assert {row["images"] for row in rows} == {355}


def test_a_result_waits_for_all_data_sets_and_lists_the_own_one_first(tmp_path):
    name = write_images(tmp_path / "images")
    wanted = {"evaluation.transfer": (name,), "evaluation.eps": (0.02,), "evaluation.attacks": ("fgsm",)}
    run = trained(tmp_path, root=str(tmp_path), **wanted)
    for dataset in (name, "digits"):
        assert write_result(Overview(run)) is None
        measure_attacks(run, dataset, attacks_at(["fgsm"], 0.02, 64))
    result = write_result(Overview(run))
    assert list(result["accuracy"]) == ["digits", name]
    assert [row["dataset"] for row in result["attacks"]] == ["digits"] * 2 + [name] * 2


def test_measurements_without_checksums_count(tmp_path):
    """Measurements of early versions are such."""
    run = measured(tmp_path)
    before = result_of(run)["attacks"]
    edit(run, "attack-*", lambda content: content["figures"].pop("checksums"))
    assert result_of(run)["attacks"] == before
    alone = trained(tmp_path / "other")
    measure_knn(alone, "digits")
    assert len(result_of(alone)["knn"]) == 1  # without a probe, images cannot differ from those of the probe


@pytest.mark.parametrize(("kind", "key"), [("attack", "attacks"), ("knn", "knn"), ("probe", "probes")])
def test_measurements_on_other_images_than_those_of_the_probe_do_not_count(tmp_path, kind, key):
    run = measured(tmp_path)
    own = run.measurements.path("probe", run.measurements.probe_settings("digits"))
    measure_probe(run, "digits", replace(run.config.probe, solver="lbfgs"))
    before, kept = result_of(run), own.read_bytes()
    edit(run, f"{kind}-*", lambda content: content["figures"]["checksums"].update(test="other"))
    own.write_bytes(kept)
    after = result_of(run)
    assert len(before[key]) > len(after[key]) == (1 if kind == "probe" else 0)
    for other in {"attacks", "knn", "probes"} - {key}:
        assert after[other] == before[other]
    (warning,) = set(after["warnings"]) - set(before["warnings"])
    assert warning.startswith("digits: measurements on other images or labels")


def test_the_hardware_is_that_of_the_own_probe(tmp_path):
    run = measured(tmp_path)
    (probe,) = run.measurements.all("probe")
    edit(run, "[ak]*", lambda content: content["environment"].update(hardware={"cpu": "another"}))
    assert result_of(run)["protocol"]["hardware"] == probe.environment["hardware"]


def test_other_probes_and_attacks_are_listed_but_do_not_replace_the_configured_ones(tmp_path):
    run = measured(tmp_path)
    before = result_of(run)
    measure_probe(run, "digits", replace(run.config.probe, solver="lbfgs"))
    measure_attacks(run, "digits", attacks_at(["fgsm"], 0.02, 8))
    after = result_of(run)
    assert after["accuracy"] == before["accuracy"]
    assert len(after["probes"]) == len(before["probes"]) + 1
    added = [row for row in after["attacks"] if row not in before["attacks"]]
    assert {(row["name"], row["images"]) for row in added} == {("fgsm", 8), ("worst_case", 8)}
    few = trained(tmp_path / "few")
    measure_attacks(few, "digits", attacks_at(["fgsm"], 0.02, 8))  # not on 64 images
    assert result_of(few)["accuracy"]["digits"] | {"clean": 0} == {"clean": 0, "fgsm": None, "pgd": None}
