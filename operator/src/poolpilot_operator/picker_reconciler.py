"""One Picker: what its pods need is there, what it no longer needs is not, and its status says how it stands."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import yaml

from poolpilot_kube.errors import RefusedError
from poolpilot_kube.names import OPERATOR_LABEL, OUR_GROUP
from poolpilot_operator import certificates, disputes
from poolpilot_operator.definitions import AGAIN_S, CONDITION, unknown_field
from poolpilot_operator.models import PICKERS
from poolpilot_operator.optional_kinds import OptionalKinds
from poolpilot_operator.ownership import runs, served_namespaces, too_far
from poolpilot_operator.picker_removal import Removal
from poolpilot_operator.picker_status import Outcome, Problem, status
from poolpilot_operator.resources import picker as made
from poolpilot_operator.resources.deployment import REPLICAS, Installation, deployment
from poolpilot_operator.resources.naming import base_name, made_for, metadata
from poolpilot_operator.resources.pool import made_for_pool, owning_pool
from poolpilot_operator.world import PICKER, World, pool_of
from poolpilot_operator.writer import BusyError, DisputedError, ForeignError, Manifest, TerminatingError, key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_kube.objects import Key
    from poolpilot_operator.models import Owned, Picker

API_VERSION: Final = f"{OUR_GROUP}/v1alpha1"
MOST_NAME: Final = 63
_HAND_OVER: Final = "poolpilot-operator-autoscaling"
_STATUS_S: Final = 5.0
"""Shortest time between two writes of a status that differ in counts only."""
_SETTLE_S: Final = 0.3
_LOOK_AGAIN_S: Final = 30.0
_CERTIFICATE_S: Final = 300.0
_OTHERS_S: Final = 300.0
"""How often it is looked whether another operator is gone."""


class PickerReconciler:
    """For all Pickers."""

    def __init__(self, world: World, settled: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        """`settled`: whether what is known of pools can be counted."""
        self._world = world
        self._settled = settled
        self._clock = clock
        self._written: dict[Key, float] = {}
        self._kinds = OptionalKinds(world.api, clock)
        self._removal = Removal(world, self._kinds, clock)
        self._looked: dict[tuple[Key, str], float] = {}
        """When a Secret, by its key and spec.tls.mode, was last found good, and a Certificate that is not needed gone;
        not for longer than that counts."""

    async def reconcile(self, key: Key) -> float | None:
        """Returns after how many seconds to look again. Raises KubeError or BusyError."""
        await self._take_over(key)
        picker = self._world.pickers.get(key)
        if picker is None or picker.metadata.deletion_timestamp is not None:
            self._written.pop(key, None)
            return await self._removal.clear(key, set())
        if not runs(picker, self._world.home):
            return await self._removal.clear(key, set())
        if self._others(picker):
            return _OTHERS_S
        refused = await self._refused(picker)
        wanted: list[Manifest] = []
        problems: list[Problem] = []
        draining_s: float | None = None
        if refused is None or refused.reason == "NamespacesNotAllowed":
            wanted = await self._wanted(picker, problems)
            if not await self._make(picker, wanted, problems):
                return _OTHERS_S
            if not problems:
                draining_s = await self._removal.clear(key, {(one["kind"], key_of(one)) for one in wanted})
        places = {key_of(one) for one in wanted if one["kind"] == "Deployment"}
        deployments = [
            one for one in self._world.made["Deployment"].filed((PICKER, *key)) if not places or one.key in places
        ]
        refusals = self._refusals(key)
        outdated = self._world.writer.definitions.message("Picker")
        told = [Problem(CONDITION, outdated)] if outdated else []
        made_of = [(one["kind"], key_of(one)) for one in wanted]
        disputed = self._world.writer.disputes.told(made_of)
        told += [Problem(disputes.REASON, one) for one in disputed]
        await self._tell(picker, refused, problems + refusals + told)
        outcome = Outcome(
            refused,
            tuple(problems),
            tuple(deployments),
            self._world.counsel.get(key),
            refusals=tuple(refusals),
            disputes=tuple(disputed),
        )
        later = await self._report(picker, outcome)
        waits = [later, _LOOK_AGAIN_S if problems or picker.spec.config.config_map_ref is not None else None]
        waits += [AGAIN_S if outdated else None, draining_s, self._world.writer.disputes.again_s(made_of)]
        waits.append(_CERTIFICATE_S if picker.spec.tls.mode != "Disabled" else None)
        return min((one for one in waits if one is not None), default=None)

    # ---- whether it can be taken

    async def _refused(self, picker: Picker) -> Problem | None:
        world, spec = self._world, picker.spec
        name = picker.metadata.name
        if len(name) > MOST_NAME:
            return Problem(
                "NameTooLong",
                f"metadata.name has {len(name)} characters; allowed are {MOST_NAME}: it is a label's value",
            )
        if not (spec.image or world.image):
            return Problem("ImageMissing", "spec.image is not set, and the operator was started without --picker-image")
        if spec.workers > 1:
            text = f"spec.workers is {spec.workers}; allowed is 1: a picker of many pools is one process"
            return Problem("WorkersUnsupported", text)
        if spec.config.inline is not None:
            try:
                given = yaml.safe_load(spec.config.inline)
            except RecursionError:
                return Problem("ConfigInvalid", "spec.config.inline is not YAML: nested too deeply")
            except (yaml.YAMLError, ValueError, OverflowError) as error:
                # Not only what YAML says: also dates that are none.
                return Problem("ConfigInvalid", f"spec.config.inline is not YAML: {error}")
            if not isinstance(given, dict):
                return Problem("ConfigInvalid", "spec.config.inline is no EndpointPickerConfig: not a YAML mapping")
        if spec.tls.mode == "CertManager" and not await self._kinds.there("Certificate"):
            return Problem(
                "CertManagerMissing", "spec.tls.mode is CertManager, but the cluster has no cert-manager.io/v1"
            )
        far = too_far(picker, world.home)
        if far:
            what = (
                f"allowed are those that the operator watches: {', '.join(world.home.watched)}"
                if picker.metadata.namespace == world.home.namespace
                else f"outside the operator's namespace {world.home.namespace} a Picker serves its own namespace only"
            )
            return Problem("NamespacesNotAllowed", f"spec.pools.namespaces has {', '.join(far)}; {what}")
        return None

    # ---- what it needs

    def _homes(self, picker: Picker) -> list[str]:
        if picker.spec.placement != "PerNamespace":
            return [picker.metadata.namespace]
        return sorted({key[0] for key, state in self._world.states.items() if state.picker == picker.key})

    async def _wanted(self, picker: Picker, problems: list[Problem]) -> list[Manifest]:
        world, spec = self._world, picker.spec
        given: str | None = None
        if spec.config.config_map_ref is not None:
            given = await self._given(picker, problems)
            if given is None:
                return []
        per_namespace = spec.placement == "PerNamespace"
        wanted: list[Manifest] = []
        for home in self._homes(picker):
            served = (home,) if per_namespace else served_namespaces(picker, world.home)
            config = made.config_map(picker, home, given)
            secret = await self._certificate(picker, home, wanted, problems)
            installation = Installation(
                home,
                spec.image or world.image,
                served,
                world.listen_host,
                config["metadata"]["name"],
                secret,
                world.home.namespace,
                world.assigned_users,
            )
            wanted += [
                made.account(picker, home),
                *made.rights(picker, home, served),
                config,
                deployment(picker, installation),
                made.budget(picker, home),
                made.network_policy(picker, home),
                made.metrics_service(picker, home),
            ]
            scaler = made.autoscaler(picker, home)
            if scaler is not None:
                wanted.append(scaler)
            if await self._kinds.there("ServiceMonitor"):
                wanted.append(made.monitor(picker, home))
        return wanted

    async def _given(self, picker: Picker, problems: list[Problem]) -> str | None:
        ref = picker.spec.config.config_map_ref
        assert ref is not None
        key = ref.key or "config.yaml"
        found = await self._world.writer.read("ConfigMap", (picker.metadata.namespace, ref.name))
        text = (found.data or {}).get(key) if found is not None else None
        if text is None:
            what = f"has no key {key!r}" if found is not None else "does not exist"
            problems.append(Problem("ConfigMissing", f"spec.config.configMapRef: ConfigMap {ref.name} {what}"))
        return text

    async def _certificate(self, picker: Picker, home: str, wanted: list[Manifest], problems: list[Problem]) -> str:
        """Name of the Secret; empty without TLS. Pods that run go on with the certificate that they have."""
        tls, name, now = picker.spec.tls, base_name(picker.key, home), self._clock()
        self._looked = {one: at for one, at in self._looked.items() if now - at < _CERTIFICATE_S / 2}
        issued = ((home, name), "Certificate")
        if tls.mode == "CertManager":
            self._looked.pop(issued, None)
        elif issued not in self._looked:
            # One of before would go on writing into the Secret.
            await self._removal.delete_unlisted("Certificate", issued[0], picker.key)
            self._looked[issued] = now
        if tls.mode == "Disabled":
            return ""
        names = certificates.names(name, home)
        if tls.mode == "Secret":
            assert tls.secret_ref is not None
            secret = tls.secret_ref.name
        else:
            secret = f"{name}-tls"
        if tls.mode == "CertManager":
            wanted.append(made.certificate(picker, home, secret, names, self._world.home.namespace))
        place = ((home, secret), tls.mode)
        if place not in self._looked and await self._is_good(picker, home, secret, names, problems):
            self._looked[place] = now
        return secret

    async def _is_good(self, picker: Picker, home: str, secret: str, names: list[str], problems: list[Problem]) -> bool:
        """Whether pods can start with the certificate in a Secret; makes one where that is ours to do."""
        writer, now = self._world.writer, self._world.now()
        live = await writer.read("Secret", (home, secret))
        data = (live.data if live is not None else None) or {}
        if picker.spec.tls.mode != "SelfSigned":
            if not {"tls.crt", "tls.key"} <= data.keys():
                what = "has no tls.crt and tls.key" if live is not None else "does not exist"
                issued = " yet: cert-manager has not issued it" if picker.spec.tls.mode == "CertManager" else ""
                problems.append(Problem("SecretMissing", f"spec.tls: Secret {home}/{secret} {what}{issued}"))
                return False
            wrong = certificates.problem(data)
            if wrong:
                problems.append(Problem("SecretInvalid", f"spec.tls: Secret {home}/{secret}: {wrong}"))
            return not wrong
        if live is not None and not writer.ours(live):
            problems.append(Problem("SecretNotOurs", f"Secret {home}/{secret} exists and was not made by poolpilot"))
            return False
        if self._made_for_another(picker, live):
            # Told of its other objects, which have the same name.
            return False
        if not certificates.good(data, names, now):
            data = certificates.made(names, now)
            manifest = {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "kubernetes.io/tls",
                "metadata": metadata(picker, home, secret),
                "data": data,
            }
            await writer.ensure(manifest)
        return True

    async def _take_over(self, key: Key) -> None:
        """What operators made whose namespaces are gone, such as rights that are in no namespace."""
        made = (one for objects in self._world.made.values() for one in objects.filed((PICKER, *key)))
        foreign = {one.metadata.labels.get(OPERATOR_LABEL, "") for one in made if not self._world.writer.ours(one)}
        for operator in sorted(foreign):
            await self._world.writer.abandoned(operator)

    def _others(self, picker: Picker) -> bool:
        """Whether another operator runs it: two that write to one status would never end."""
        world = self._world
        made = (one for kind in world.made for one in world.made[kind].filed((PICKER, *picker.key)))
        return any(not made_for_pool(one) and not world.writer.ours(one) for one in made)

    async def _make(self, picker: Picker, wanted: list[Manifest], problems: list[Problem]) -> bool:
        """Whether the Picker is ours to run."""
        for one in wanted:
            other = self._made_for_another(picker, self._world.writer.known(one["kind"], key_of(one)))
            if other:
                text = f"{one['kind']} {'/'.join(key_of(one))} already is that of {other}: rename the Picker"
                problems.append(Problem("NotOurs", text))
                continue
            try:
                if one["kind"] == "Deployment":
                    await self._keep_replicas(one)
                await self._world.writer.ensure(one)
            except ForeignError as error:
                if await self._world.writer.abandoned(error.operator):
                    raise BusyError(f"{error}, which is gone: it is this operator's now") from None
                if error.operator:
                    return False
                problems.append(Problem("NotOurs", f"{error}: rename the Picker or that object"))
            except TerminatingError as error:
                problems.append(Problem("NamespaceTerminating", str(error)))
            except DisputedError as error:
                problems.append(Problem(disputes.REASON, str(error)))
            except BusyError as error:
                problems.append(Problem("Replacing", str(error)))
            except RefusedError as error:
                # 500 is what an older definition of others' kinds, ServiceMonitor for one, answers to a new field.
                if error.status not in {403, 404, 422} and not unknown_field(error):
                    raise
                problems.append(Problem("WriteRefused", str(error)))
        return True

    def _made_for_another(self, picker: Picker, live: Owned | None) -> str:
        """Who has an object of this name: one that both wrote would never rest. Empty where it is this Picker's."""
        world = self._world
        if live is None or not world.writer.ours(live):
            return ""
        if any(ref.get("uid") == picker.metadata.uid for ref in live.metadata.owner_references):
            return ""
        if made_for_pool(live):
            return f"InferencePool {live.metadata.namespace}/{owning_pool(live) or pool_of(live)}"
        other = made_for(live)
        if other is None or other == picker.key or world.pickers.get(other) is None:
            return ""
        return f"Picker {'/'.join(other)}"

    async def _keep_replicas(self, wanted: Manifest) -> None:
        """An autoscaler takes over the number there is: a field that nobody owns any more would fall back to 1."""
        live = self._world.writer.known("Deployment", key_of(wanted))
        if live is None or "replicas" in wanted["spec"]:
            return
        if live.metadata.annotations.get(REPLICAS) == "picker":
            replicas = (live.spec or {}).get("replicas", 1)
            await self._world.writer.hand_over(wanted, {"replicas": replicas}, _HAND_OVER)

    # ---- what is said of it

    def _refusals(self, key: Key) -> list[Problem]:
        """Pods that run on with an older configuration. One is named: they read the same."""
        for pod in self._world.pods.filed((PICKER, *key)):
            health = self._world.health.of(pod)
            if health is not None and health.refusal:
                return [Problem("ConfigRefused", f"picker pod {'/'.join(pod.key)}: {health.refusal}")]
        return []

    async def _tell(self, picker: Picker, refused: Problem | None, problems: list[Problem]) -> None:
        for one in ([refused] if refused is not None else []) + problems:
            await self._world.events.say(picker, API_VERSION, "Picker", one.reason, one.message, warning=True)
        if refused is None and not problems:
            self._world.events.forget(picker)

    async def _report(self, picker: Picker, outcome: Outcome) -> float | None:
        """Writes the status if it differs; returns how long to wait where that would be too often."""
        world, key = self._world, picker.key
        if not self._settled():
            return _SETTLE_S
        current = world.pickers.get(key)
        if current is None:
            return None
        before = current.status or {}
        said = status(picker, outcome, world.states, world.now())
        wanted = world.writer.definitions.fitted("Picker", said, before, picker.metadata.generation, world.now())
        if _same(before, wanted):
            return None
        elapsed = self._clock() - self._written.get(key, -_STATUS_S)
        if elapsed < _STATUS_S and _summary(before) == _summary(wanted):
            return _STATUS_S - elapsed
        world.pickers.wrote(key, await world.writer.status(PICKERS, key, "Picker", wanted))
        self._written[key] = self._clock()
        return None


def _same(before: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all((before.get(name) or None) == (value or None) for name, value in wanted.items())


def _summary(said: dict[str, Any]) -> Any:
    """What must be told at once."""
    return said.get("observedGeneration"), [
        (one.get("type"), one.get("status"), one.get("reason")) for one in said.get("conditions") or ()
    ]
