# cython: language_level=3, boundscheck=True, nonecheck=True, wraparound=False, cdivision=True, embedsignature=True
"""The endpoint where a prompt is at home. Asked before a decision, where other pickers place requests too.

Does what `reference_home` in `state/homes.py` does; there are the reasons.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc

from poolpilot_picker.compiled._columns cimport selected


def home(
    const double[::1] cached not None,
    const Py_ssize_t[::1] slots not None,
    const uint64_t[::1] salts not None,
    hashes not None,
    ends not None,
):
    """The slot among `slots` where a prompt of these blocks is at home; there is at least one of each."""
    cdef Py_ssize_t count = slots.shape[0], at, best = 0, low = 0, high = len(ends), middle
    cdef uint64_t key, mixed, highest = 0
    cdef double common
    cdef double* held
    if count < 1 or salts.shape[0] != count or not hashes:
        raise ValueError("a home needs endpoints, as many salts, and a block")
    held = <double*> malloc(count * sizeof(double))
    if held == NULL:
        raise MemoryError
    try:
        for at in range(count):
            held[at] = cached[slots[at]]
        common = selected(held, count, (count - 1) // 2)
    finally:
        free(held)
    while low < high:
        middle = (low + high) // 2
        if common < <double> ends[middle]:
            high = middle
        else:
            low = middle + 1
    if low > <Py_ssize_t> len(hashes) - 1:
        low = len(hashes) - 1
    key = hashes[low] & 0xFFFFFFFFFFFFFFFF
    for at in range(count):
        mixed = salts[at] ^ key
        mixed = (mixed ^ (mixed >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
        mixed = (mixed ^ (mixed >> 27)) * <uint64_t> 0x94D049BB133111EB
        mixed ^= mixed >> 31
        if at == 0 or mixed > highest:
            highest, best = mixed, at
    return slots[best]
