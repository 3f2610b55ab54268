"""The endpoints of one pool, made of the pods that it selects. Beside who watches pods: one pool's, or many pools'."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from poolpilot_picker.sources.pod_endpoints import endpoints_of, engine_label, engine_of, one_per_address
from poolpilot_picker.sources.rested import Rested

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from poolpilot_kube.objects import Key, Pod
    from poolpilot_picker.state.endpoints import EndpointSpec

log: Final = logging.getLogger(__name__)

MOST_PROBLEMS: Final = 20


class PodGroup:
    """Follows pods; hands all endpoints to `apply` when any of them changed, as seldom as their number needs."""

    def __init__(
        self,
        apply: Callable[[list[EndpointSpec]], None],
        *,
        engines: Collection[str],
        default_engine: str,
        now: Callable[[], float],
    ) -> None:
        self._apply = apply
        self._engines = engines
        self._default_engine = default_engine
        self._ports: tuple[int, ...] = ()
        self._made: dict[Key, tuple[Pod, list[EndpointSpec]]] = {}
        """Pods that have endpoints: one pod of thousands changes at a time."""
        self._at: Counter[str] = Counter()
        """How many endpoints there are at each address."""
        self._saying = Rested(self._say, now)
        self.problems: tuple[str, ...] = ()
        """Pods that cannot be told apart."""

    def begin(self, ports: tuple[int, ...]) -> None:
        """With other ports or other pods than before, everything is made again, from the pods that are told next."""
        self.still()
        self._ports, self._made, self._at = ports, {}, Counter()

    def tell(self, key: Key, pod: Pod | None) -> bool:
        """A pod as it is now, None where it is not of the group; whether its endpoints are others than before."""
        _, before = self._made.pop(key, (None, []))
        after = self._endpoints(pod) if pod is not None else []
        if after and pod is not None:
            self._made[key] = (pod, after)
        for spec in before:
            self._at[spec.address] -= 1
            if not self._at[spec.address]:
                del self._at[spec.address]
        self._at.update(spec.address for spec in after)
        return before != after

    def say(self) -> None:
        """Hands over all endpoints now."""
        self._saying.at_once()

    def say_soon(self) -> None:
        """Hands them over, the seldomer the more they are."""
        self._saying.soon()

    def still(self) -> None:
        """What was to be handed over later is not."""
        self._saying.still()

    def _say(self) -> None:
        specs = [spec for _, made in self._made.values() for spec in made]
        conflicts: list[str] = []
        if len(self._at) < len(specs):
            specs, conflicts = one_per_address(self._made.values())
        for conflict in conflicts[:MOST_PROBLEMS]:
            if conflict not in self.problems:
                log.warning("%s", conflict)
        self.problems = tuple(conflicts[:MOST_PROBLEMS])
        self._apply(specs)

    def _endpoints(self, pod: Pod) -> list[EndpointSpec]:
        named = engine_label(pod.metadata.labels)
        if named is not None and engine_of(pod.metadata.labels, self._engines) is None:
            log.warning(
                "pod %s names the engine %r; known are %s: read as %s",
                pod.metadata.name,
                named,
                ", ".join(sorted(self._engines)),
                self._default_engine,
            )
        return endpoints_of(pod, self._ports, self._engines, self._default_engine)
