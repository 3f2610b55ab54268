from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def home(
    cached: NDArray[np.float64],
    slots: NDArray[np.intp],
    salts: NDArray[np.uint64],
    hashes: Sequence[int],
    ends: Sequence[float],
) -> int: ...
