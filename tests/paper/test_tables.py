"""Tables refuse what cannot be drawn."""

import pytest

from intnacl.errors import InputError
from intnacl.paper.tables import Column, Row, Table


def test_later_settings_win() -> None:
    table = Table(
        name="t", title="t", settings={"a": 1, "b": 1, "c": 1},
        rows=(Row(label="r", settings={"b": 2, "c": 2}),), columns=(Column(label="c", settings={"c": 3}),),
    )  # fmt: skip
    assert list(table.cells()) == [(0, 0, {"a": 1, "b": 2, "c": 3})]


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(InputError, match="'t' needs at least one row"):
        Table(name="t", title="t", rows=(), columns=(Column(label="c"),))


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(InputError, match=r"metric of column 'c'='fgms' is unknown; did you mean 'fgsm'"):
        Column(label="c", metric="fgms")


def test_curves_need_places_on_the_x_axis() -> None:
    with pytest.raises(InputError, match="every column of a curves figure needs an x"):
        Table(name="t", title="t", rows=(Row(label="r"),), columns=(Column(label="c"),), figure="curves")


@pytest.mark.parametrize("x", [float("inf"), float("nan")])
def test_a_place_on_the_x_axis_is_finite(x: float) -> None:
    with pytest.raises(InputError, match=f"column 'c': x={x} is no place"):
        Column(label="c", x=x)


def test_a_scatter_figure_needs_pairs_of_columns() -> None:
    columns = (Column(label="a", panel="p"), Column(label="b", panel="p"), Column(label="c", panel="q"))
    with pytest.raises(InputError, match="panel 'q' has only one"):
        Table(name="t", title="t", rows=(Row(label="r"),), columns=columns, figure="scatter")


def test_a_table_needs_a_name() -> None:
    with pytest.raises(InputError, match="a name that is not empty"):
        Table(name=" ", title="t", rows=(Row(label="r"),), columns=(Column(label="c"),))
