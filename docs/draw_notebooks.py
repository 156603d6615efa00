"""Execute docs/notebooks and store what they print and draw in them: `python docs/draw_notebooks.py`."""

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent / "notebooks").glob("*.ipynb"))


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of its cells, executed from the first to the last in a folder."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=280, resources={"metadata": {"path": folder}})
    client.execute()
    for cell in notebook.cells:
        if (
            cell.cell_type == "code"
            and len(cell.outputs) > 1
            and all("text" in each for each in cell.outputs)
        ):
            cell.outputs[1:], cell.outputs[0].text = [], "".join(each.text for each in cell.outputs)
        cell.metadata.pop("execution", None)  # when it was executed
    return notebook


def main() -> None:
    """Each in an empty folder, which its runs are written to."""
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(execute(path, Path(folder)), path)


if __name__ == "__main__":
    main()
