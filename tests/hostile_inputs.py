"""Generators of malformed input for the program, its files and its functions; `test_hostile` runs them."""

import json
import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import intnacl
import tiny_run
from hostile import VALUES, Campaign, altered, damaged, damaged_json, misplace, program
from intnacl.data import load
from intnacl.paper import record
from intnacl.paper.plan import make_plan
from intnacl.paper.tables import read_grid
from intnacl.runs.config import SETTINGS, to_dict
from intnacl.runs.folder import RunFolder
from intnacl.runs.opened import open_run
from intnacl.runs.resolve import resolve
from intnacl.runs.stages import check, run, train_and_measure
from intnacl.training.stop import Stop
from tiny_run import CPU, HERE, config, measured_original, trained_original

ODD = ("", " ", "\x1b[31m", "a\nb", "\udcff", "a" * 300, "a" * 5000, "9" * 5000, "folder:\x1b[31m", "'")
PLAIN = """
    nan inf -inf -1 0 -0 1 2 0.5 1e38 1e400 1e-320 1/0 8/255 0x10 99999999999999999999 ٣ none true
    [] {} - -- = , : .. / ~ ~nobody/x folder: npz:x npz:/dev/zero parquet:/dev/null /dev/zero x
    digits timm: timm:x small simclr g2 cpu cpu:7 cuda meta mps fgsm autoattack lars paper hcl train
"""
WORDS = (*ODD, *PLAIN.split())
FLAGS = {
    "pretrain": "dataset root preset epochs batch-size lr num-positives lam alpha seed set",
    "run": "compare seeds transfer recipe device out config set preset seed dataset trackers",
    "supervised": "epochs batch-size lr preset seed config set recipe root device",
    "bench": "device steps out",
    "probe": "dataset protocol root device",
    "knn": "dataset k weights root device",
    "attack": "dataset eps attacks root device",
    "embed": "dataset split out root device",
    "export": "format out",
    "datasets show": "split root size rows augment extra mixed lam eps run seed",
    "nca": "dataset n-components device seed out",
    "bounds": "classes points dimensions spread delta seed out",
    "reproduce": "table row column trials seeds scale config root out set",
    "report": "out",
}
MEASURES = ("probe", "knn", "attack", "embed", "export")
# Always given, so that accepted commands take no time.
SHORT = {
    **dict.fromkeys(("pretrain", "run", "supervised"), ("--max-minutes", "0", "--device", "cpu")),
    "bench": ("--only", "nothing of this name"),
    "attack": ("--images", "8"),
    "reproduce": ("--dry-run",),
    "bounds": ("--draws", "10"),
    "nca": ("--max-iter", "2"),
}


def words_of(draw: random.Random, command: str, folder: Path) -> list[str]:
    """Return a command line of valid and invalid words."""
    given = [*command.split(), *([str(folder)] if command in MEASURES else [])]
    flags = FLAGS[command].split()
    for flag in draw.sample(flags, min(draw.choice((0, 1, 1, 2, 3)), len(flags))):
        given += [f"--{flag}"]
        if flag == "set":
            given += [f"{draw.choice([*SETTINGS, 'lr', 'x', ''])}={draw.choice(WORDS)}" for _ in range(2)]
        else:
            given += [draw.choice(WORDS) for _ in range(draw.choice((0, 1, 1, 1, 1, 2)))]
    given += [word for word in SHORT.get(command, ()) if command != "run" or word not in given]
    if draw.random() < 0.2:
        given.insert(draw.randrange(len(given) + 1), draw.choice(WORDS))
    return given


def command_line(campaign: Campaign, count: int) -> None:
    draw, folder = campaign.draw, campaign.folder
    shutil.copytree(measured_original(), folder / "run")
    for number in range(count):
        words = words_of(draw, draw.choice(list(FLAGS)), folder / "run")
        campaign.attempt(f"{number}: {words!r}"[:1000], lambda words=words: program(*words))


SETTINGS_OF_GRID: dict[str, Any] = {
    "name": "t", "title": "T", "figure": "curves", "settings": {"dataset": "digits", "train.epochs": 1},
    "rows": [{"label": "a", "preset": "simclr"}, {"label": "b", "group": "g", "preset": "hardneg"}],
    "columns": [{"label": "c", "x": 1}, {"label": "d", "metric": "fgsm", "eps": 0.1, "x": 2}],
}  # fmt: skip


def settings_files(campaign: Campaign, count: int) -> None:
    """TOML files of settings and of grids."""
    draw = campaign.draw
    plain = {"preset": "intnacl", "recipe": "digits", **to_dict(resolve())}
    grid = {"tables": [SETTINGS_OF_GRID]}
    for number in range(count):
        value = altered(draw, draw.choice((plain, grid)))
        text = toml(value if isinstance(value, dict) else {"x": value}).encode("utf-8", "surrogatepass")
        if draw.random() < 0.2:
            text = damaged(draw, text)
        if draw.random() < 0.05:
            text = draw.choice((b"x=" + b"[" * 100_000, b"x=" + b"{a=" * 900, b"\xff\xfe", b"", b"\0"))
        file = campaign.folder / f"settings{number}.toml"
        file.write_bytes(text)
        if draw.random() < 0.03:
            misplace(draw, file)
        if draw.random() < 0.5 or "tables" in str(value):
            words = ["reproduce", "--config", file, "--dry-run", "--seeds", 0, "--device", "cpu"]
        else:
            words = ["pretrain", "--max-minutes", 0, "--device", "cpu", "--config", file]
            words += ["--out", campaign.folder / "out"]
        campaign.attempt(f"{number}: {words} {text[:3000]!r}", partial(program, *words))
        shutil.rmtree(campaign.folder / "out", ignore_errors=True)


def toml(value: Any) -> str:
    """Return a value as TOML, which has no null; all tables but the outermost are inline."""
    if isinstance(value, dict):
        return "\n".join(_pairs(value))
    return _inline(value)


def _pairs(value: dict[str, Any]) -> list[str]:
    return [f"{json.dumps(key)} = {_inline(one)}" for key, one in value.items() if one is not None]


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(_pairs(value)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(one) for one in value if one is not None) + "]"
    return str(value) if isinstance(value, float) else json.dumps(value)


def run_folders(campaign: Campaign, count: int) -> None:
    """Damage files of a finished run, then open, measure, export or resume it."""
    draw, original = campaign.draw, measured_original()
    names = [str(path.relative_to(original)) for path in sorted(original.rglob("*")) if path.is_file()]
    weights = [1 if name.endswith((".png", ".html")) else 4 for name in names]
    for number in range(count):
        folder = campaign.folder / f"run{number}"
        shutil.copytree(original, folder)
        chosen = draw.choices(names, weights, k=draw.choice((1, 1, 1, 2)))
        for path in {folder / name for name in chosen}:
            data = path.read_bytes()
            if draw.random() < 0.1:
                misplace(draw, path)
            elif path.suffix == ".safetensors" and draw.random() < 0.6:
                path.write_bytes(_header_altered(draw, data))
            else:
                change = damaged_json if path.suffix in (".json", ".jsonl") else damaged
                path.write_bytes(change(draw, data))
        if draw.random() < 0.3:  # its training must be resumed
            for name in ("encoder.safetensors", "result.json"):
                (folder / name).unlink(missing_ok=True)
        before = {path for path in folder.rglob("*") if "checkpoints" not in path.parts}
        what = draw.choice((*MEASURES, "resume", "resume", "open"))
        actions: dict[str, Callable[[], object]] = {
            "resume": lambda folder=folder: train_and_measure(config(), RunFolder(folder), HERE, Stop()),  # type: ignore[misc]
            "open": lambda folder=folder: open_run(folder, device="cpu").measure(),  # type: ignore[misc]
            "attack": partial(program, "attack", folder, "--images", 16, "--eps", 0.1, "--attacks", "fgsm"),
        }
        action = actions.get(what, partial(program, what, folder))
        campaign.attempt(f"{number}: {what} after damage of {chosen}", action)
        lost = {path for path in before if not os.path.lexists(path)} - {folder / "lock"}
        if lost:
            campaign.failures.setdefault("files were lost", []).append(f"{number}: {what}: {lost}")
        shutil.rmtree(folder)


def _header_altered(draw: random.Random, data: bytes) -> bytes:
    """Return a safetensors file with an altered JSON header, either its standard entries or ours."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    own = header.get("__metadata__", {})
    if "intnacl" in own and draw.random() < 0.7:
        own["intnacl"] = json.dumps(altered(draw, json.loads(own["intnacl"])))
    else:
        header = altered(draw, header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def results_folders(campaign: Campaign, count: int) -> None:
    """Damage the record of a results folder and the files of a run in it, then report on it."""
    draw, original, grid = campaign.draw, campaign.folder / "results", campaign.folder / "grid.toml"
    settings = {**SETTINGS_OF_GRID, "settings": {"dataset": "digits", **tiny_run.SETTINGS}}
    grid.write_text(toml({"tables": [settings]}))
    (table,) = read_grid(grid)
    plan = make_plan([table], [0], device=CPU)
    record.write(original, plan, scale="grid", overrides={})
    for job in plan.jobs:
        shutil.copytree(measured_original(), original / "runs" / job.name)
    files = ("result.json", "config.json")
    names = ["plan.json", *(f"runs/{job.name}/{name}" for job in plan.jobs for name in files)]
    for number in range(count):
        folder = campaign.folder / f"results{number}"
        shutil.copytree(original, folder)
        for name in draw.choices(names, [6, 1, 1, 1, 1][: len(names)], k=draw.choice((1, 1, 2))):
            path = folder / name
            if path.is_file() and draw.random() < 0.1:
                misplace(draw, path)
            elif path.is_file():
                path.write_bytes(damaged_json(draw, path.read_bytes()))
        words: list[object] = ["report", folder]
        if draw.random() < 0.3:
            words = ["reproduce", "--config", grid, "--out", folder, "--device", "cpu", "--seeds", 0]
            words += ["--list"] if draw.random() < 0.5 else ["--max-minutes", 0, "--workers", 0]
        campaign.attempt(f"{number}: {words}", partial(program, *words))
        shutil.rmtree(folder)


ODD_NUMBERS = ("1e38", "1e-45", "-1", "nan", "inf", "0", "0.02,0.02", "", "true", "x", "none", "1e10")
EDGES = {
    "probe.solver": ("adam", "lbfgs"),
    "probe.epochs": ("1", "3"),
    "probe.batch_size": ("1", "7", "2147483647"),
    "probe.lr": ("1e-45", "0.01", "1e20"),
    "probe.l2": ("1e-45", "0", "1e20"),
    "probe.normalize": ("true", "false"),
    "probe.standardize": ("true", "false"),
    "probe.max_iter": ("1", "5"),
    "probe.seed": ("-1", "9223372036854775807"),
    "evaluation.eps": ("0", "1", "0.1,0.1", "8/255", "1e-45"),
    "evaluation.attacks": ("fgsm", "pgd_tuned", "fgsm,fgsm", "pgd,fgsm", ""),
    "evaluation.fgsm_eps": ("0.3,0.3", "0", "1", "1e-45"),
    "evaluation.images": ("1", "8", "2147483647"),
    "evaluation.transfer": ("digits", "digits,digits", ""),
}
"""Values at the limits of what is allowed, and beyond."""


def late_settings(campaign: Campaign, count: int) -> None:
    """Settings that are accepted before training must be measurable after it."""
    draw, folder = campaign.draw, campaign.folder
    names = [name for name in SETTINGS if name.startswith(("probe.", "evaluation."))]
    for number in range(count):
        given = {
            name: draw.choice(EDGES.get(name, ODD_NUMBERS) if draw.random() < 0.8 else ODD_NUMBERS)
            for name in draw.sample(names, draw.choice((1, 2, 3)))
        }

        def measure(given: dict[str, str] = given, out: Path = folder / f"run{number}") -> None:
            usual = {"probe.epochs": 3, "evaluation.images": 8, "evaluation.attacks": "fgsm"}
            settings = config(**{**usual, **given})
            check(settings, (opened := open_run(trained_original(), device=CPU)).images)
            shutil.copytree(trained_original(), out)
            RunFolder(out).config.write_text(json.dumps(to_dict(settings)))
            try:
                reason = train_and_measure(settings, RunFolder(out), HERE, Stop(), images=opened.images)
            except Exception as error:
                raise AssertionError(f"refused too late: {error}") from error
            assert reason is None

        campaign.attempt(f"{number}: {given}", measure)
        shutil.rmtree(folder / f"run{number}", ignore_errors=True)


def python_arguments(campaign: Campaign, count: int) -> None:
    """Values of wrong types and kinds for the functions of the package."""
    draw, folder = campaign.draw, campaign.folder
    good = dict(name="digits", split="train", root=str(folder), size=8, strict=False, download=False)
    numbers, paths = (1j, np.float32(8), np.int64(8)), (Path("x"), Path("\0"))
    odd = (*VALUES, *numbers, *paths, b"x", object(), (), {1}, range(3), print, "cpu:7")
    functions = (load, intnacl.open_run, intnacl.from_pretrained, run)
    for number in range(count):
        function = draw.choice(functions)
        given: dict[str, Any] = {"path": measured_original()}
        optional: tuple[str, ...] = ()
        if function is load:
            given, optional = dict(good), tuple(good)
        elif function is intnacl.open_run:
            optional = ("path", "device", "root")
        elif function is intnacl.from_pretrained:
            optional = ("path",)
        else:
            given = {"out": folder / f"run{number}", "max_minutes": 0, "device": "cpu", "say": str}
            optional = ("settings", "preset", "recipe", "file", "out", "device", "max_minutes")
        for name in draw.sample(optional, draw.choice((1, 1, min(2, len(optional))))):
            given[name] = draw.choice(odd)
        if type(given.get("max_minutes")) in (int, float) and given["max_minutes"] > 0:
            given["max_minutes"] = 0  # accepted calls must take no time
        if function is run and draw.random() < 0.7:
            given["settings"] = {draw.choice(list(SETTINGS)): draw.choice(odd)}
        campaign.attempt(f"{number}: {function.__name__}({given!r})", partial(function, **given))
        shutil.rmtree(folder / f"run{number}", ignore_errors=True)
