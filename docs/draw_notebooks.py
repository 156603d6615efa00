"""Execute docs/notebooks and store their printed lines and pictures: `python docs/draw_notebooks.py`."""

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent / "notebooks").glob("*.ipynb"))


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Execute the notebook's cells in order in a folder and return the notebook with their outputs."""
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
        cell.metadata.pop("execution", None)  # the times of execution
    return notebook


def main() -> None:
    """Execute each notebook in an empty folder of its own, where its runs are written."""
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(execute(path, Path(folder)), path)


if __name__ == "__main__":
    main()
