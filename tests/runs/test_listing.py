"""Lists of runs: read from their folders, sorted, filtered, compared, and the best run by a fair split."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from intnacl.errors import InputError
from intnacl.runs.config import override, to_dict
from intnacl.runs.export import export_run
from intnacl.runs.listing import best_runs, compare_two, list_command, select, side_by_side, sort_runs
from intnacl.runs.measure import measure_own_knn, measure_probe
from intnacl.runs.summary import RunSummary, find_runs, read_runs, summarize_run
from tiny_run import measured, trained

ROOT = Path(__file__).parents[2]
OLD_RUNS = Path(__file__).parent / "old_runs"


def variant(
    run: RunSummary, name: str, settings: dict[str, object] | None = None, **figures: object
) -> RunSummary:
    config = override(run.config, settings or {})
    split = "holdout" if config.holdout else "test"
    return replace(run, **({"name": name, "config": config, "split": split} | figures))


@pytest.fixture
def run(tmp_path: Path) -> RunSummary:
    return summarize_run(measured(tmp_path).folder)


def test_every_run_in_results_is_listed_with_the_figures_of_its_result():
    told: list[str] = []
    runs = read_runs(ROOT / "results", told.append)
    assert told == []
    assert len(runs) == len(list((ROOT / "results").rglob("config.json"))) > 100
    finished = [run for run in runs if run.progress == "finished"]
    assert len(finished) == len(list((ROOT / "results").rglob("result.json")))
    for run in finished:
        result = json.loads(run.folder.result.read_text())
        row = result["accuracy"][result["config"]["dataset"]]
        assert (run.clean, run.fgsm, run.pgd) == (row["clean"], row["fgsm"], row["pgd"])
        split = "holdout" if result["config"].get("holdout") else "test"
        assert (run.split, run.epochs) == (split, str(result["protocol"]["epochs"]))
        assert run.minutes == pytest.approx(result["time_s"]["total"] / 60)
    losses = {run.loss for run in runs}
    assert {"simclr", "intnacl", "supervised", "mixnca-g2 M=2 λ=0.6"} <= losses


def test_a_run_shows_its_progress(tmp_path):
    opened = trained(tmp_path)
    begun = summarize_run(opened.folder)
    assert (begun.progress, begun.epochs, begun.split, begun.clean) == ("trained", "2", None, None)
    assert begun.minutes is not None
    with opened.folder.hold():
        assert summarize_run(opened.folder).progress == "measuring"
    probe, knn = measure_probe(opened, "digits"), measure_own_knn(opened, "digits")
    found = summarize_run(opened.folder)
    assert (found.progress, found.clean, found.knn) == (
        "trained",
        probe.figures["accuracy"],
        knn.figures["accuracy"],
    )
    assert (found.split, found.attacks, found.fgsm) == ("test", None, None)
    stopped = OLD_RUNS / "half_trained"
    half = summarize_run(find_runs(stopped)[0])
    assert half.progress == "stopped"
    assert half.epochs == f"{half.epochs_done}/{half.config.train.epochs}"
    for file in (opened.folder.encoder, opened.folder.log):
        file.unlink()
    assert summarize_run(opened.folder).progress == "new"
    with opened.folder.hold():
        assert summarize_run(opened.folder).progress == "training"


def test_runs_are_found_at_any_depth_without_exports_and_damaged_ones_are_reported(tmp_path):
    opened = measured(tmp_path)
    shutil.copytree(opened.folder, opened.folder.teacher)
    shutil.copytree(opened.folder, tmp_path / "deep" / "er" / "b")
    export_run(opened.folder, "safetensors", tmp_path / "exported")
    export_run(opened.folder, "safetensors", None)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    told: list[str] = []
    names = [run.name for run in read_runs(tmp_path, told.append)]
    assert names == ["deep/er/b", "deep/er/b/teacher", "run", "run/teacher"]
    assert len(told) == 1
    assert "damaged" in told[0]
    assert [run.name for run in read_runs(opened.folder.path)] == ["run", "teacher"]
    (tmp_path / "empty").mkdir()
    for place, message in (("empty", "there is no run in"), ("nowhere", "is not a folder")):
        with pytest.raises(InputError, match=message):
            read_runs(tmp_path / place)


def test_accuracies_are_sorted_downwards_names_upwards_and_runs_without_a_figure_last(run):
    runs = [variant(run, name, clean=clean) for name, clean in (("b", 1.0), ("a", None), ("c", 3.0))]
    assert [one.name for one in sort_runs(runs, "clean")] == ["c", "b", "a"]
    assert [one.name for one in sort_runs(runs, "clean", reverse=True)] == ["b", "c", "a"]
    assert [one.name for one in sort_runs(runs, "run")] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("clean>=60", "bc"), ("clean<60", "a"), ("clean=60", "b"), ("clean!=60", "ac"), ("seed=2", "c"),
        ("loss=int*", "c"), ("loss!=simclr", "c"), ("train.epochs>2", "b"), ("loss.alpha > 0", "c"),
        ("evaluation.attacks=fgsm,pgd", "abc"), ("train.compile=false", "abc"), ("fgsm>0", "a"),
        ("evaluation.images=none", "b"), ("c", "c"),
    ],
)  # fmt: skip
def test_a_filter_is_a_column_a_setting_or_a_part_of_the_name(run, text, kept):
    loss = {"loss.nacl": "mixnca", "loss.negatives": "g2", "loss.num_positives": 5, "loss.alpha": 1.0}
    more = {"train.epochs": 7, "evaluation.images": None}
    runs = [
        variant(run, "a", {"train.compile": False}, clean=50.0),
        variant(run, "b", more | {"train.compile": False}, clean=60.0, fgsm=None),
        variant(run, "c", loss | {"seed": 2, "train.compile": False}, clean=70.0, fgsm=None),
    ]
    assert "".join(one.name for one in select(runs, [text])) == kept


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clean>99.9", "leaves none of 1 runs"),
        ("claen>1", "did you mean 'clean'"),
        ("train.epoch=1", "did you mean 'train.epochs'"),
        ("loss>a", "loss is a text, so that only = and != apply"),
    ],
)
def test_a_wrong_filter_is_refused(run, text, message):
    with pytest.raises(InputError, match=message):
        select([run], [text])


def test_the_best_is_named_by_held_out_figures_and_never_silently_by_test_figures(run):
    tested = [variant(run, f"t{i}", clean=90.0 + i) for i in range(3)]
    held = [variant(run, f"h{i}", {"holdout": 200}, clean=50.0 + i) for i in range(2)]
    other = [variant(run, f"o{i}", {"holdout": 300}, clean=70.0 + i) for i in range(2)]
    (line,) = best_runs(tested, "clean")
    assert line.startswith("best of 3 on digits by clean on test images: t2, 92.00 %")
    assert "flatters it" in line
    lines = best_runs([*tested, *held, *other], "clean")
    assert [line.split(": ")[1] for line in lines] == ["h1, 51.00 %", "o1, 71.00 %"]
    assert all("held-out training images" in line and "flatters" not in line for line in lines)
    assert best_runs([run], "clean") == []


def test_attacks_of_other_radii_are_not_compared(run):
    result = json.loads(json.dumps(run.result))
    result["config"]["evaluation"]["eps"] = [0.5]
    far = replace(variant(run, "far", fgsm=99.0), result=result)
    near = variant(run, "near", fgsm=1.0)
    (line,) = best_runs([run, near, far], "fgsm")
    assert f"by FGSM at {run.attacks} on test images: {run.name}" in line
    assert run.attacks == "0.02 on 64 images"


def test_two_runs_are_compared_side_by_side(run, capsys):
    two = variant(run, "two", {"loss.temperature": 0.1, "holdout": 100}, clean=run.clean - 1.5)
    compare_two(run, two)
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert ["loss.temperature", "0.5", "0.1"] in lines
    assert not any("encoder" in line for line in text.splitlines())
    assert "do not compare them" in text
    figures = side_by_side(run, two)
    rows = {(row["name"], row["eps"]): row["accuracy"] for row in run.result["attacks"]}
    assert figures["digits, FGSM at 0.1, 64 images"] == (rows["fgsm", 0.1], rows["fgsm", 0.1])
    assert list(figures)[-2:] == ["epochs", "minutes"]
    compare_two(run, run)
    assert "have the same settings" in capsys.readouterr().out


def test_the_command_lists_compares_and_writes_a_page(tmp_path, capsys):
    opened = measured(tmp_path)
    shutil.copytree(opened.folder, tmp_path / "other")
    content = to_dict(override(opened.config, {"loss.temperature": 0.2}))
    (tmp_path / "other" / "config.json").write_text(json.dumps(content))
    list_command(tmp_path, (), "fgsm", False, (), False, None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(f"2 runs in {tmp_path}; loss: simclr, data: digits, progress: finished")
    assert lines[2].split()[:3] == ["run", "seed", "epochs"]
    assert {line.split()[0] for line in lines[3:5]} == {"run", "other"}
    assert "by FGSM at 0.02 on 64 images on test images" in lines[5]
    for place, one in ((tmp_path, "run"), (tmp_path / "nowhere", str(opened.folder))):
        list_command(place, (), "run", False, (one, str(tmp_path / "other")), False, None)
        assert "loss.temperature" in capsys.readouterr().out
    for pair, message in ((("run",), "give exactly two runs"), (("run", "nothing"), "no run 'nothing'")):
        with pytest.raises(InputError, match=message):
            list_command(tmp_path, (), "run", False, pair, False, None)
    with pytest.raises(InputError, match="sort='claen' is unknown; did you mean 'clean'"):
        list_command(tmp_path, (), "claen", False, (), False, None)
    list_command(tmp_path, ("other",), "run", False, (), True, None)
    assert "1 run in" in (tmp_path / "runs.html").read_text()
