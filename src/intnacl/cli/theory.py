"""`intnacl nca` and `bounds`: the theory on small tables and mixtures."""

from dataclasses import asdict
from pathlib import Path
from typing import Any


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
