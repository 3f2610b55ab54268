# cython: language_level=3, boundscheck=True, nonecheck=True, wraparound=False, cdivision=True, embedsignature=True
"""The endpoint where a prompt is at home. Asked before a decision, where other pickers place requests too.

Does what `reference_home` in `state/homes.py` does; there are the reasons.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc


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
        common = chosen(held, count, (count - 1) // 2)
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


cdef double chosen(double* numbers, Py_ssize_t count, Py_ssize_t wanted) noexcept nogil:
    """The one that would stand at `wanted` if they were sorted; changes their order. Hoare's selection."""
    cdef Py_ssize_t low = 0, high = count - 1, left, right
    cdef double pivot
    while low < high:
        pivot = numbers[low + (high - low) // 2]
        left, right = low, high
        while left <= right:
            while numbers[left] < pivot:
                left += 1
            while numbers[right] > pivot:
                right -= 1
            if left <= right:
                numbers[left], numbers[right] = numbers[right], numbers[left]
                left += 1
                right -= 1
        if wanted <= right:
            high = right
        elif wanted >= left:
            low = left
        else:
            break
    return numbers[wanted]
