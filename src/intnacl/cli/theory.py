"""`intnacl nca` and `bounds`: the theory, measured on small tables and mixtures."""

from dataclasses import asdict
from pathlib import Path

# Columns that `bounds` prints, heading -> key.
DEVIATION = {
    "|L_Unbiased − L_Debiased|": "gap", "mean Δ": "spread", "proved bound": "proved", "Theorem B.1": "paper",
}  # fmt: skip
ORDER = {
    "negatives": "negatives", "debiasing": "positives", "complexity": "complexity",
    "confidence": "confidence", "B.4": "debiased", "3.1": "plain",
}  # fmt: skip


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
    """Learn an embedding by Neighbourhood Components Analysis; compare it with PCA and scikit-learn's NCA.

    Prints leave-one-out accuracy and seconds; writes OUT/nca.json and the plot OUT/nca.png.

    **Examples**

    ```
    intnacl nca
    intnacl nca --dataset wine --n-components 3
    intnacl nca --batch-size 256 --max-iter 20 --device cpu --out runs/batches
    ```

    Parameters
    ----------
    dataset
        iris, wine, breast_cancer or digits.
    n_components
        Dimensions of the learned space.
    max_iter
        Iterations of L-BFGS, or epochs if --batch-size is given.
    batch_size
        Points per minibatch; by default the whole set.
    device
        auto, cpu or cuda.
    seed
        Random seed for initial values and batches.
    out
        Folder for the results.
    """
    from intnacl.console import show
    from intnacl.files import make_folder, write_json
    from intnacl.plots.theory import draw_spaces, save_theory
    from intnacl.theory.comparison import ComparisonConfig, learn_spaces, load_table, measure

    config = ComparisonConfig(
        dataset=dataset,
        n_components=n_components,
        max_iter=max_iter,
        batch_size=batch_size,
        device=device,
        seed=seed,
    )
    X, y = load_table(dataset)
    make_folder(out)  # before what takes time, not after it
    spaces = learn_spaces(X, y, config)
    figures = measure(spaces, y)
    _print_rows(f"{dataset}: {len(X)} points, leave-one-out", figures)
    save_theory(draw_spaces(spaces, figures, y), out / "nca.png")
    write_json(out / "nca.json", {"config": asdict(config), "spaces": figures})
    show(f"written: {out / 'nca.json'}, {out / 'nca.png'}")


def bounds(
    *,
    classes: int = 4,
    points: int = 16,
    dimensions: int = 8,
    spread: float = 0.8,
    delta: float = 0.05,
    draws: int = 4000,
    seed: int = 0,
    out: Path = Path("runs/bounds"),
) -> None:
    """Measure the theory's inequalities on a synthetic mixture with known classes, over n, m, M and ε.

    Prints the measured deviation next to the bounds, and the O(·) terms of Theorems 3.1 and B.4;
    writes OUT/bounds.json and the plot OUT/bounds.png.

    **Examples**

    ```
    intnacl bounds
    intnacl bounds --classes 10 --spread 1.5 --draws 20000
    intnacl bounds --delta 0.01 --out runs/bounds-99
    ```

    Parameters
    ----------
    classes
        Number of classes K, all equally likely.
    points
        Points per class.
    dimensions
        Dimensions of the features.
    spread
        Noise around the class centres; larger values mix the classes.
    delta
        Probability with which Theorems 3.1 and B.4 may fail.
    draws
        Random draws per setting.
    seed
        Random seed for the mixture and the draws.
    out
        Folder for the results.
    """
    from intnacl.console import show
    from intnacl.files import make_folder, write_json
    from intnacl.plots.theory import draw_bounds, save_theory
    from intnacl.theory.sweep import VARIED, SweepConfig, sweep

    config = SweepConfig(
        classes=classes,
        points=points,
        dimensions=dimensions,
        spread=spread,
        delta=delta,
        draws=draws,
        seed=seed,
    )
    make_folder(out)  # before what takes time, not after it
    measured = sweep(config)
    for name in VARIED:
        title = f"deviation from the unbiased loss over {name}, measured and bounded"
        _print_rows(title, _chosen(measured[name], name, DEVIATION), digits=4)
    title = "terms inside the O(·) of Theorems B.4 and 3.1: constants are unknown, only ratios are meaningful"
    _print_rows(title, _chosen(measured["order"], "M", ORDER), digits=4)
    save_theory(draw_bounds(measured), out / "bounds.png")
    write_json(out / "bounds.json", {"config": asdict(config), **measured})
    show(f"written: {out / 'bounds.json'}, {out / 'bounds.png'}")


def _chosen(rows: list[dict[str, float]], name: str, columns: dict[str, str]) -> dict[str, dict[str, float]]:
    """Select columns (heading -> key) of rows that differ in `name`."""
    return {f"{name} = {row['value']}": {head: row[key] for head, key in columns.items()} for row in rows}


def _print_rows(title: str, rows: dict[str, dict[str, float]], digits: int = 2) -> None:
    """Print a line for each row and a column for each figure."""
    from intnacl.console import print_table

    columns = list(next(iter(rows.values())))
    lines = [[name, *(f"{row[column]:.{digits}f}" for column in columns)] for name, row in rows.items()]
    print_table(title, ["", *columns], lines)
