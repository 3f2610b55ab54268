"""Huffman-coded strings of header blocks (RFC 7541, section 5.2 and appendix B).

The code is canonical: shorter codes first, equal lengths in the order of the symbols. The lengths alone give it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from poolpilot_picker.extproc.wire.errors import Code, ConnectionFault

LENGTHS: Final[tuple[int, ...]] = tuple(
    map(
        int,
        """
    13 23 28 28 28 28 28 28 28 24 30 28 28 30 28 28 28 28 28 28 28 28 30 28 28 28 28 28 28 28 28 28
    6 10 10 12 13 6 8 11 10 10 8 11 8 6 6 6 5 5 5 6 6 6 6 6 6 6 7 8 15 6 12 10
    13 6 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 8 7 8 13 19 13 14 6
    15 5 6 5 6 5 6 6 6 5 7 7 6 6 6 5 6 7 6 5 5 6 7 7 7 7 7 15 11 14 13 28
    20 22 20 20 22 22 22 23 22 23 23 23 23 23 24 23 24 24 22 23 24 23 23 23 23 21 22 23 22 23 23 24
    22 21 20 22 22 23 23 21 23 22 22 24 21 22 23 23 21 21 22 21 23 22 23 23 20 22 22 22 23 22 22 23
    26 26 20 19 22 23 22 25 26 26 26 27 27 26 24 25 19 21 26 27 27 26 27 24 21 21 26 26 28 27 27 27
    20 24 20 21 22 21 21 23 22 22 25 25 24 24 26 23 26 27 26 26 27 27 27 27 27 28 27 27 27 27 27 26
    30
    """.split(),  # noqa: SIM905 - a table is to be read as one
    )
)
"""Bits of the code of each byte value, and of the end-of-string symbol (256)."""

EOS: Final = 256


class _Step(NamedTuple):
    """What half a byte does in one state of the decoder."""

    state: int
    symbols: bytes
    final: bool
    """The string may end here: what is left are fewer than 8 bits of padding, all ones."""


def codes() -> list[int]:
    """The code of each symbol, right-aligned in `LENGTHS[symbol]` bits."""
    result = [0] * len(LENGTHS)
    code, before = 0, 0
    for symbol in sorted(range(len(LENGTHS)), key=lambda one: (LENGTHS[one], one)):
        code <<= LENGTHS[symbol] - before
        before = LENGTHS[symbol]
        result[symbol] = code
        code += 1
    return result


def _machine() -> list[list[_Step | None]]:
    """Decoder states (inner nodes of the code's tree) × half bytes; None where the end-of-string symbol is."""
    tree: list[list[int]] = [[0, 0]]
    symbol_of: dict[tuple[int, int], int] = {}
    for symbol, code in enumerate(codes()):
        node = 0
        for shift in range(LENGTHS[symbol] - 1, 0, -1):
            bit = code >> shift & 1
            if not tree[node][bit]:
                tree.append([0, 0])
                tree[node][bit] = len(tree) - 1
            node = tree[node][bit]
        symbol_of[node, code & 1] = symbol
    finals, node = {0}, 0
    for _ in range(7):
        node = tree[node][1]
        finals.add(node)

    def step(state: int, nibble: int) -> _Step | None:
        symbols = bytearray()
        for shift in (3, 2, 1, 0):
            bit = nibble >> shift & 1
            symbol = symbol_of.get((state, bit))
            if symbol == EOS:
                return None
            if symbol is None:
                state = tree[state][bit]
            else:
                symbols.append(symbol)
                state = 0
        return _Step(state, bytes(symbols), state in finals)

    return [[step(state, nibble) for nibble in range(16)] for state in range(len(tree))]


_MACHINE: Final = _machine()
_BROKEN: Final = "a Huffman-coded string is broken"


def decode(data: bytes) -> bytes:
    """The string. Raises ConnectionFault for the end-of-string symbol and for padding that is not fewer than 8 ones."""
    state, final = 0, True
    symbols: list[bytes] = []
    machine = _MACHINE
    for byte in data:
        step = machine[state][byte >> 4]
        if step is None:
            raise ConnectionFault(Code.COMPRESSION_ERROR, _BROKEN)
        symbols.append(step[1])
        step = machine[step[0]][byte & 15]
        if step is None:
            raise ConnectionFault(Code.COMPRESSION_ERROR, _BROKEN)
        symbols.append(step[1])
        state, _, final = step
    if not final:
        raise ConnectionFault(Code.COMPRESSION_ERROR, _BROKEN)
    return b"".join(symbols)
