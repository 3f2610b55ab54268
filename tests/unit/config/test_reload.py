"""Hot reload: good texts come into force as a whole, bad ones change nothing and are said."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from poolpilot_picker.config.policies import policy_config
from poolpilot_picker.config.reload import ConfigKeeper, Offered
from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.routing.registry import default_registry

GOOD = [policy_config("random"), policy_config("round-robin"), policy_config("least-request")]
BAD = ["", "kind: x", policy_config("random").replace("type: random-picker", "type: randm-picker") + "plugin: 3"]


def test_a_good_text_replaces_the_old():
    applied = []
    keeper = ConfigKeeper(GOOD[0], default_registry(), "f", applied.append)
    assert keeper.offer(GOOD[1]) == Offered(accepted=True, changed=True)
    assert [config.profile.entries[0].plugin.name for config in applied] == ["random-picker", "round-robin-picker"]
    assert keeper.current is applied[1]
    assert (keeper.generation, keeper.refused, keeper.detail) == (2, 0, "")


def test_a_bad_text_keeps_the_old_and_says_so():
    applied = []
    keeper = ConfigKeeper(GOOD[0], default_registry(), "f", applied.append)
    offered = keeper.offer(BAD[2])
    assert not offered.accepted
    assert offered.problems[0].startswith('f:4:11: plugins[0].type: "randm-picker" is not a known plugin type')
    assert len(offered.problems) == 3
    assert keeper.current is applied[0]
    assert keeper.problems == offered.problems
    assert keeper.detail == (
        f"the newest configuration is refused, generation 1 stays in force: {offered.problems[0]} (and 2 more)"
    )
    assert keeper.offer(GOOD[0]).accepted
    assert keeper.detail == ""


def test_what_cannot_be_put_into_force_keeps_the_old():
    def apply(config):
        if config.profile.entries[0].plugin.name != "random-picker":
            raise ConfigurationError("plugin x cannot be built")

    keeper = ConfigKeeper(GOOD[0], default_registry(), "f", apply)
    first = keeper.current
    assert keeper.offer(GOOD[1]).problems == ("plugin x cannot be built",)
    assert keeper.current is first
    assert keeper.detail == "the newest configuration is refused, generation 1 stays in force: plugin x cannot be built"


def test_the_first_text_must_be_good():
    with pytest.raises(ConfigurationError):
        ConfigKeeper(BAD[1], default_registry())


class Reloads(RuleBasedStateMachine):
    """Offers texts in any order: what is in force is always the last good one."""

    def __init__(self):
        super().__init__()
        self.last_good = self.last = GOOD[0]
        self.accepted = 1
        self.applied = []
        self.keeper = ConfigKeeper(GOOD[0], default_registry(), "f", self.applied.append)

    @rule(text=st.sampled_from(GOOD + BAD))
    def offer(self, text):
        offered = self.keeper.offer(text)
        assert offered.changed is (text != self.last)
        assert offered.accepted is (text in GOOD)
        assert bool(offered.problems) is (text in BAD)
        if text in GOOD:
            self.accepted += text != self.last
            self.last_good = text
        self.last = text

    @invariant()
    def last_good_is_in_force(self):
        assert self.keeper.current is self.applied[-1]
        assert self.keeper.current.profile.entries[0].plugin.name in self.last_good
        assert self.keeper.generation == self.accepted
        assert bool(self.keeper.detail) is (self.last in BAD)


TestReloads = Reloads.TestCase
TestReloads.settings = settings(max_examples=30, stateful_step_count=12)
