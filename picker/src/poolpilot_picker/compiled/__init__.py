"""The compiled core: decisions, prefixes, what messages, pages and prompts cost, in C. Each has a reference in Python.

`in_force` is None where the reference is: where no compiler was at hand when the package was installed, or where
`POOLPILOT_CORE=reference` asks for it. `describe` tells which, and why.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.compiled._columns import Clock, Columns
    from poolpilot_picker.compiled._cost import Cost
    from poolpilot_picker.compiled._packed import Packed
    from poolpilot_picker.compiled._pages import Layout
    from poolpilot_picker.compiled._prefix import PrefixIndex
    from poolpilot_picker.compiled._prompts import Blocks, Weigher
    from poolpilot_picker.compiled._shares import Shares
    from poolpilot_picker.compiled._wire import Frames, Messages, Stream

VARIABLE: Final = "POOLPILOT_CORE"
"""Environment variable: `compiled` (the default, where it was built) or `reference`."""


class Core(NamedTuple):
    """What is compiled, and what it calls the rows of a block."""

    columns: type[Columns]
    clock: type[Clock]
    cost: type[Cost]
    prefix_index: type[PrefixIndex]
    rows: tuple[str, ...]
    layout: type[Layout]
    same_head: Callable[[bytes | bytearray, int, bytes, bytes], tuple[int, int] | None]
    any_named: Callable[[bytes | bytearray, int, int, list[bytes]], bool]
    update: Callable[..., list[str]]
    usable: Callable[[float], float | None]
    usable_share: Callable[[float], float | None]
    stream: type[Stream]
    messages: type[Messages]
    frames: type[Frames]
    blocks: type[Blocks]
    weigher: type[Weigher]
    packed: type[Packed]
    shares: type[Shares]
    home: Callable[..., int]
    take_in: Callable[..., tuple[list[tuple[int, float, float, int, float]], list[tuple[int, str, float, str]]]]


def load() -> Core:
    """The compiled core. Raises ImportError where it was not built for this interpreter."""
    import poolpilot_picker.compiled._columns as _columns
    import poolpilot_picker.compiled._cost as _cost
    import poolpilot_picker.compiled._homes as _homes
    import poolpilot_picker.compiled._packed as _packed
    import poolpilot_picker.compiled._pages as _pages
    import poolpilot_picker.compiled._prefix as _prefix
    import poolpilot_picker.compiled._prompts as _prompts
    import poolpilot_picker.compiled._shares as _shares
    import poolpilot_picker.compiled._wire as _wire

    return Core(
        columns=_columns.Columns,
        clock=_columns.Clock,
        cost=_cost.Cost,
        prefix_index=_prefix.PrefixIndex,
        rows=_columns.ROWS,
        layout=_pages.Layout,
        same_head=_pages.same_head,
        any_named=_pages.any_named,
        update=_pages.update,
        usable=_pages.usable,
        usable_share=_pages.usable_share,
        stream=_wire.Stream,
        messages=_wire.Messages,
        frames=_wire.Frames,
        blocks=_prompts.Blocks,
        weigher=_prompts.Weigher,
        packed=_packed.Packed,
        shares=_shares.Shares,
        home=_homes.home,
        take_in=_packed.take_in,
    )


def _wanted() -> tuple[Core | None, str]:
    """What is in force and, for the reference, why."""
    asked = os.environ.get(VARIABLE, "")
    if asked == "reference":
        return None, f"{VARIABLE}=reference"
    if asked not in ("", "compiled"):
        raise ValueError(f"{VARIABLE} must be compiled or reference, not {asked!r}")
    try:
        return load(), ""
    except ModuleNotFoundError:
        return None, "the compiled core was not built for this Python"
    except ImportError as error:
        return None, f"the compiled core cannot be loaded: {error}"


in_force: Core | None
in_force, _because = _wanted()


def describe() -> str:
    """Which core decides: `compiled`, or `reference (why)`."""
    return "compiled" if in_force is not None else f"reference ({_because})"
