"""The command line: `intnacl COMMAND --help` explains each command with examples.

Commands import what they need when they run, so that `--help` answers at once.
"""

import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from intnacl.flags import Flags

app = App(name="intnacl", help="Contrastive representation learning that is accurate and robust.")
DEFAULTS = Flags()
MANY = Parameter(consume_multiple=True, negative=(), show_default=False)

datasets = app.command(App(name="datasets"))


@datasets.default
def list_datasets(*, root: Path | None = None) -> None:
    """List the data sets with their sizes, and where their files are looked for.

    **Examples**

    ```
    intnacl datasets
    intnacl datasets show cifar100 --out grid.png
    ```

    Parameters
    ----------
    root
        Folder of the data sets; by default $INTNACL_DATA, else ~/.cache/intnacl.
    """
    from rich.console import Console
    from rich.table import Table

    from intnacl.data.cache import default_root
    from intnacl.data.datasets import DATASETS

    table = Table("name", "train + test", "size", "classes", "files", box=None)
    for name, entry in DATASETS.items():
        shown = f"{name}:PATH" if entry.takes_path else name
        table.add_row(shown, entry.pictures, entry.size, entry.classes, entry.files)
    Console().print(table)
    print(f"\nNamed sets are looked for in {root or default_root()} (--root, or the variable INTNACL_DATA).")


@datasets.command(name="show")
def show_dataset(
    name: str = "digits",
    *,
    out: Path = Path("grid.png"),
    split: str = "train",
    root: Path | None = None,
    size: int | None = None,
    strict: bool = False,
    rows: int = 8,
    augment: str = "paper",
    extra: int = 1,
    mixed: int = 2,
    lam: float = 0.5,
    seed: int = 0,
) -> None:
    """Draw pictures of a data set beside their views and mixed views, and tell its size and checksum.

    **Examples**

    ```
    intnacl datasets show digits
    intnacl datasets show cifar100 --root ~/data --augment simclr --out grid.png
    intnacl datasets show folder:~/pictures --size 64 --strict
    ```

    Parameters
    ----------
    name
        A name of `intnacl datasets`, such as cifar100 or folder:PATH.
    out
        The picture to write: .png, .jpg, .pdf or .svg.
    split
        train or test.
    root
        Folder of the data sets; by default $INTNACL_DATA, else ~/.cache/intnacl.
    size
        Side to which folder: and parquet: resize (32).
    strict
        Refuse broken pictures instead of skipping them.
    rows
        How many pictures to draw, spread over the data set.
    augment
        Recipe of the views: paper, simclr, crop_flip or none.
    extra
        How many further views.
    mixed
        How many mixed views.
    lam
        The picture's own share in a mixed view.
    seed
        Seed of the views.
    """
    from intnacl.data import load
    from intnacl.data.gallery import draw_gallery, view_columns
    from intnacl.data.recipes import RECIPES
    from intnacl.errors import check_choice

    check_choice("augment", augment, RECIPES)
    dataset = load(name, split, root, size=size, strict=strict)
    chosen = dataset.spread(rows)
    columns = view_columns(
        dataset.images[chosen], RECIPES[augment], seed=seed, extra=extra, mixed=mixed, lam=lam
    )
    draw_gallery(columns, dataset.captions(chosen), out)
    print(dataset.summary())
    print(f"wrote {out}")


@app.command
def nca(
    *,
    dataset: str = "digits",
    n_components: int = 2,
    max_iter: int = 50,
    batch_size: int | None = None,
    device: str = "auto",
    seed: int = 0,
    out: Path = Path("runs/nca"),
) -> None:
    """Learn a space by Neighbourhood Components Analysis and compare it with PCA and scikit-learn's NCA.

    Prints leave-one-out accuracy and seconds; writes OUT/nca.json and the picture OUT/nca.png.

    **Examples**

    ```
    intnacl nca
    intnacl nca --dataset wine --n-components 3
    intnacl nca --batch-size 256 --max-iter 20 --device cuda --out runs/nca-batches
    ```

    Parameters
    ----------
    dataset
        iris, wine, breast_cancer or digits.
    n_components
        Dimensions of the learned space.
    max_iter
        Iterations of L-BFGS, or epochs with a batch size.
    batch_size
        Points a minibatch; the whole set when left out.
    device
        auto, cpu or cuda.
    seed
        Of starts and batches.
    out
        Folder for the results.
    """
    from intnacl.theory.comparison import ComparisonConfig, learn_spaces, load_table, measure
    from intnacl.theory.figures import draw_spaces

    config = ComparisonConfig(
        dataset=dataset,
        n_components=n_components,
        max_iter=max_iter,
        batch_size=batch_size,
        device=device,
        seed=seed,
    )
    X, y = load_table(dataset)
    spaces = learn_spaces(X, y, config)
    figures = measure(spaces, y)
    draw_spaces(spaces, figures, y, out / "nca.png")
    _write_json({"config": asdict(config), "spaces": figures}, out / "nca.json")
    _print_table(f"{dataset}: {len(X)} points, leave-one-out", figures)
    print(f"Written: {out / 'nca.json'}, {out / 'nca.png'}")


@app.command
def bounds(
    *,
    classes: int = 4,
    points: int = 16,
    dimensions: int = 8,
    spread: float = 0.8,
    draws: int = 4000,
    seed: int = 0,
    out: Path = Path("runs/bounds"),
) -> None:
    """Measure the theory's inequalities on a synthetic mixture with known classes, over n, m, M and ε.

    Prints the measured deviation beside the bounds; writes OUT/bounds.json and the picture OUT/bounds.png.

    **Examples**

    ```
    intnacl bounds
    intnacl bounds --classes 10 --spread 1.5 --draws 20000
    ```

    Parameters
    ----------
    classes
        K, equally likely; the share of a class is 1/K.
    points
        Points of a class.
    dimensions
        Of the features.
    spread
        Noise around the class centres; larger mixes the classes.
    draws
        Draws a setting.
    seed
        Of the mixture and the draws.
    out
        Folder for the results.
    """
    from intnacl.theory.figures import draw_bounds
    from intnacl.theory.sweep import SweepConfig, sweep

    config = SweepConfig(
        classes=classes, points=points, dimensions=dimensions, spread=spread, draws=draws, seed=seed
    )
    measured = sweep(config)
    draw_bounds(measured, out / "bounds.png")
    _write_json({"config": asdict(config), **measured}, out / "bounds.json")
    columns = ("gap", "spread", "proved", "paper")
    for name in ("n", "m", "M"):
        rows = {f"{name} = {row['value']}": {key: row[key] for key in columns} for row in measured[name]}
        _print_table(f"deviation from the unbiased loss over {name}", rows, digits=4)
    print(f"Written: {out / 'bounds.json'}, {out / 'bounds.png'}")


def _write_json(content: dict[str, Any], path: Path) -> None:
    import json

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def _print_table(title: str, rows: dict[str, dict[str, float]], digits: int = 2) -> None:
    """One line a row, one column a figure."""
    from rich.console import Console
    from rich.table import Table

    columns = list(next(iter(rows.values())))
    table = Table("", *columns, title=title)
    for name, figures in rows.items():
        table.add_row(name, *(f"{figures[column]:.{digits}f}" for column in columns))
    Console().print(table)


@app.command
def pretrain(flags: Flags = DEFAULTS) -> None:
    """Train an encoder with any loss of the family; the same command on the same --out goes on.

    **Examples**

    ```
    intnacl pretrain                                             # SimCLR on the embedded digits
    intnacl pretrain --dataset cifar100 --preset intnacl --out runs/c100
    intnacl pretrain --dataset folder:~/pictures --epochs 200 --set encoder.name=resnet34
    intnacl pretrain --preset debiased_hardneg --set loss.temperature=0.2 train.optimizer=lars
    torchrun --nproc-per-node 8 -m intnacl pretrain --dataset cifar100 --batch-size 1024
    ```
    """
    from intnacl.commands import pretrain_command

    sys.exit(pretrain_command(flags))


@app.command
def run(
    flags: Flags = DEFAULTS,
    *,
    compare: Annotated[tuple[str, ...], MANY] = (),
    seeds: Annotated[tuple[int, ...], MANY] = (),
    transfer: Annotated[tuple[str, ...], MANY] = (),
) -> None:
    """Pretrain, probe and attack in one go: result.json and report.html; the same command goes on.

    With no argument it compares SimCLR with IntNaCl on the embedded digits: about two minutes on two cores.

    **Examples**

    ```
    intnacl run                            # SimCLR and IntNaCl on digits
    intnacl run --seeds 0 1 2 3 4          # mean ± sd of five seeds
    intnacl run --preset intcl             # one loss
    intnacl run --dataset cifar100 --preset intnacl --transfer cifar10
    intnacl run --dataset cifar100 --compare simclr adv intnacl --seeds 0 1 2
    ```

    Parameters
    ----------
    compare
        Presets to run side by side; simclr and intnacl where no loss or data set is named.
    seeds
        Seeds of a comparison; --seed, or 0, by default.
    transfer
        Further data sets to probe and attack.
    """
    from intnacl.commands import compare_command, is_comparison, run_command

    more = {"evaluation.transfer": transfer} if transfer else {}
    if is_comparison(flags, compare, seeds):
        sys.exit(compare_command(flags, compare, seeds, more))
    sys.exit(run_command(flags, more))


@app.command
def supervised(flags: Flags = DEFAULTS) -> None:
    """Train the same encoder end to end with labels, then probe and attack it as a contrastive one.

    **Examples**

    ```
    intnacl supervised
    intnacl supervised --dataset cifar100 --out runs/supervised
    intnacl supervised --dataset cifar100 --set augment=crop_flip --out runs/supervised-crop-flip
    ```
    """
    from intnacl.commands import run_command

    sys.exit(run_command(flags, {"objective": "supervised"}))


@app.command
def probe(
    run: Path,
    *,
    dataset: Annotated[tuple[str, ...], MANY] = (),
    protocol: str = "run",
    epochs: int | None = None,
    device: str = "auto",
) -> None:
    """Train a linear layer on a run's frozen features: its own data set, or others (transfer).

    The last epoch counts, on all test pictures. A change of the encoder's weights or batch norm statistics is
    an error. What is measured is kept below RUN/parts, and not measured twice.

    **Examples**

    ```
    intnacl probe runs/c100
    intnacl probe runs/c100 --dataset cifar100 cifar10
    intnacl probe runs/c100 --protocol quick             # L-BFGS instead of epochs of Adam
    intnacl probe runs/c100 --protocol hcl               # augmented pictures, batch norm in train mode
    ```

    Parameters
    ----------
    run
        A run folder with a trained encoder.
    dataset
        Data sets with pictures of the run's size; the run's own by default.
    protocol
        run (the settings of the run's configuration), quick or hcl.
    epochs
        Passes over the features, instead of the protocol's.
    device
        auto, cpu, cuda, cuda:1 …
    """
    from intnacl.measure.commands import probe_command

    probe_command(run, dataset, protocol, epochs, device)


@app.command
def knn(
    run: Path,
    *,
    dataset: Annotated[tuple[str, ...], MANY] = (),
    k: int | None = None,
    device: str = "auto",
) -> None:
    """Classify a run's frozen features by their weighted nearest neighbours: nothing is trained.

    **Examples**

    ```
    intnacl knn runs/c100
    intnacl knn runs/c100 --dataset cifar10 --k 20
    ```

    Parameters
    ----------
    run
        A run folder with a trained encoder.
    dataset
        Data sets with pictures of the run's size; the run's own by default.
    k
        Neighbours; by default 200, or the pictures of a class where they are fewer.
    device
        auto, cpu, cuda, cuda:1 …
    """
    from intnacl.measure.commands import knn_command

    knn_command(run, dataset, k, device)


@app.command
def attack(
    run: Path,
    *,
    dataset: Annotated[tuple[str, ...], MANY] = (),
    eps: Annotated[tuple[float, ...], MANY] = (),
    attacks: Annotated[tuple[str, ...], MANY] = ("fgsm", "pgd", "pgd_tuned"),
    images: int | None = None,
    device: str = "auto",
) -> None:
    """Attack a run's classifier in [0, 1] pixel space and float32: accuracy over eps, worst case, pictures.

    **Examples**

    ```
    intnacl attack runs/c100               # eps 0.002 … 0.032 and 8/255
    intnacl attack runs/c100 --eps 0.002 0.004 --attacks fgsm pgd
    intnacl attack runs/c100 --eps 0.0314 --attacks autoattack --images 1000
    intnacl attack runs/c100 --dataset cifar10
    ```

    Parameters
    ----------
    run
        A run folder with a trained encoder; it is probed first where it has not been.
    dataset
        Data sets with pictures of the run's size; the run's own by default.
    eps
        Radii of the ball, in pixels of [0, 1].
    attacks
        fgsm, pgd (the paper's), pgd_tuned (step eps/4, 40 steps) and autoattack.
    images
        Attack a fixed random selection of so many test pictures; all by default.
    device
        auto, cpu, cuda, cuda:1 …
    """
    from intnacl.measure.commands import attack_command

    attack_command(run, dataset, eps, attacks, images, device)


@app.command
def export(run: Path, *, format: str = "safetensors", out: Path | None = None) -> None:
    """Write a run's encoder for other programs, with a model card that tells protocol and figures.

    **Examples**

    ```
    intnacl export runs/c100 --out c100-encoder          # for intnacl.from_pretrained
    intnacl export runs/c100 --format torchvision        # a state dict under torchvision's names
    intnacl export runs/c100 --format onnx               # checked against torch
    ```

    Parameters
    ----------
    run
        A run folder with a trained encoder.
    format
        safetensors, torchvision, timm or onnx.
    out
        Folder to write to; by default RUN/export-FORMAT.
    """
    from intnacl.export import export_run

    print(f"written: {export_run(run, format, out)}")


@app.command
def bench(*, device: str = "auto", steps: int = 50, out: Path | None = None) -> None:
    """Time a training step for losses of the family, with memory, hardware and versions.

    **Examples**

    ```
    intnacl bench
    intnacl bench --device cuda --out bench.json
    ```

    Parameters
    ----------
    device
        auto, cpu, cuda, cuda:1 …
    steps
        Steps that are timed.
    out
        A JSON file for the figures.
    """
    from intnacl.commands import bench_command

    bench_command(device, steps, out)


@app.command
def reproduce(
    *,
    table: Annotated[tuple[str, ...], MANY] = (),
    all_: Annotated[bool, Parameter(name="--all", negative=())] = False,
    list_: Annotated[bool, Parameter(name="--list", negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    trials: int = 5,
    seeds: Annotated[tuple[int, ...], MANY] = (),
    scale: str = "paper",
    config: Path | None = None,
    root: Path | None = None,
    out: Path = Path("results"),
    device: str = "auto",
    workers: int | None = None,
    ray: str | None = None,
    max_minutes: float | None = None,
    set_: Annotated[
        tuple[str, ...], Parameter(name="--set", consume_multiple=True, negative=(), show_default=False)
    ] = (),
) -> None:
    """Do the runs behind the paper's tables and figures, or behind those of a grid of your own.

    Runs that several tables share are done once. Finished ones are skipped, half-done ones go on, failed ones
    are tried again and then listed. Several processes on the same --out share the work.

    **Examples**

    ```
    intnacl reproduce --list
    intnacl reproduce --table 2 figure1 --trials 5 --root ~/data --out results
    intnacl reproduce --all --scale tiny --trials 1 --out tiny    # the machinery, on the embedded digits
    intnacl reproduce --table 3 --seeds 0 1 --max-minutes 120
    intnacl reproduce --config my_grid.toml --workers 2
    intnacl reproduce --all --ray auto                            # on a cluster that `ray start` made
    ```

    Parameters
    ----------
    table
        Names of `--list`; 2, 3 and 4 are the main tables.
    all_
        Every table and figure.
    list_
        Show the tables with their runs and estimated GPU time.
    dry_run
        Print the configurations of the runs, one JSON object a line.
    trials
        How many seeds: 0, 1, …
    seeds
        These seeds instead.
    scale
        paper, or tiny: the same tables on the digits, which checks the machinery and nothing else.
    config
        A TOML file with tables of your own.
    root
        Folder of the data sets; by default $INTNACL_DATA, else ~/.cache/intnacl.
    out
        Results folder, shared by all machines.
    device
        auto, cpu, cuda, cuda:1 …
    workers
        Runs at a time: by default one a GPU, or one on the CPU; 0 runs them in this process.
    ray
        Address of a Ray cluster: auto, or HOST:PORT.
    max_minutes
        Stop cleanly after so many minutes; the same command goes on later.
    set_
        Settings of every run by their dotted names, such as augment.strength=0.5.
    """
    from intnacl.commands import exit_code
    from intnacl.experiments import reproduce as experiments
    from intnacl.flags import pairs

    request = experiments.Request(
        tables=table, everything=all_, scale=scale, seeds=experiments.seeds_of(trials, seeds), grid=config,
        out=out, device=device, workers=workers, ray=ray, max_minutes=max_minutes,
        overrides=({"root": str(root.absolute())} if root else {}) | pairs(set_),
    )  # fmt: skip
    if list_:
        experiments.list_tables(request)
    elif dry_run:
        experiments.print_plan(request)
    else:
        reason, failed = experiments.reproduce(request)
        sys.exit(exit_code(reason) or int(failed > 0))


@app.command
def report(results: Path = Path("results"), *, out: Path | None = None) -> None:
    """Write the report of a results folder: measured values beside the published ones.

    Writes report.html (one page that needs no other file), report.md, report.tex, results.csv, and figures as
    SVG and PNG.

    **Examples**

    ```
    intnacl report results
    intnacl report results --out report
    ```

    Parameters
    ----------
    results
        The --out of `intnacl reproduce`.
    out
        Folder of the report; by default RESULTS/report.
    """
    from intnacl.experiments.report import write_report

    for path in write_report(results, out or results / "report"):
        print(path)


def main() -> None:
    """Run the command line; a user's mistake ends in one clear line and exit code 2, a lost rank in 1."""
    from intnacl.errors import InputError, LostRankError

    warnings.formatwarning = _format_warning
    try:
        app()
    except InputError as error:
        print(f"intnacl: {error}", file=sys.stderr)
        sys.exit(2)
    except LostRankError as error:
        print(f"intnacl: {error}", file=sys.stderr)
        sys.exit(1)


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning about the user's input without its place in our code; any other as Python shows it."""
    from intnacl.errors import InputWarning

    if issubclass(category, InputWarning):
        return f"intnacl: warning: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"
