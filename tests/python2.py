"""Write pickles as Python 2 and its numpy did; CIFAR's files are such pickles."""

import io
import pickle
import struct
from typing import Any, ClassVar

import numpy as np

RECONSTRUCT = np.empty(0).__reduce__()[0]


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined]
    """Writes byte strings and numpy arrays in the form that Python 2 used."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_bytes(self, data: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)

    dispatch[bytes] = save_bytes

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.dtype):
            return np.dtype, (value.str[1:].encode(), 0, 1), (3, b"|", None, None, None, -1, -1, 0)
        if isinstance(value, np.ndarray):
            state = (1, value.shape, value.dtype, False, value.tobytes())
            return RECONSTRUCT, (np.ndarray, (0,), b"b"), state
        return NotImplemented


def python2_pickle(value: object) -> bytes:
    out = io.BytesIO()
    Python2Pickler(out, protocol=2).dump(value)
    return out.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
