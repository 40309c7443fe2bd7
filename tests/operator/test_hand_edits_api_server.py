"""Hand edits of a group's children on a real API server: each is undone, and told."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.operator.live import Story
from tests.waiting import eventually_async

_ADDED: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    ("service", "{}", {"selector": {"oops": "typo"}}),
    ("service", "{}-leader", {"externalIPs": ["192.0.2.7"]}),
    ("networkpolicy", "{}", {"podSelector": {"matchLabels": {"oops": "typo"}}}),
    ("poddisruptionbudget", "{}", {"selector": {"matchLabels": {"oops": "typo"}}}),
    (
        "statefulset",
        "{}",
        {"template": {"spec": {"nodeSelector": {"oops": "typo"}, "hostNetwork": True}}},
    ),
)
"""What no apply takes away again, with merge patches of specs."""
_KINDS: Final = ("service", "networkpolicy", "poddisruptionbudget", "statefulset", "configmap")
_ROOTS: Final = ("spec", "data")


async def _forms(story: Story) -> dict[str, Any]:
    """Return what each child is to be: its spec or data."""
    found = {}
    for kind in _KINDS:
        for each in await story.list(kind, "-l", f"dledger.io/group={story.name}"):
            found[f"{kind}/{each['metadata']['name']}"] = _form(each)
    return found


def _form(manifest: dict[str, Any]) -> dict[str, Any]:
    return {root: manifest[root] for root in _ROOTS if root in manifest}


async def _until_undone(story: Story, what: str, name: str, form: dict[str, Any]) -> None:
    async def same() -> bool:
        return _form(await story.get(name)) == form

    await eventually_async(same, f"{what} {name} is undone")


async def _told(story: Story) -> list[str]:
    events = await story.list("events")
    return [each["message"] for each in events if each["reason"] == "ChildRepaired"]


async def test_what_is_added_to_a_child_is_taken_away_and_told_with_its_writer(
    story: Story,
) -> None:
    """A typo in the selector of the clients' Service leaves them without a server."""
    await story.up()
    forms = await _forms(story)

    for kind, name, spec in _ADDED:
        child = f"{kind}/{name.format(story.name)}"
        patch = json.dumps({"spec": spec})
        await story.kubectl("patch", child, "--type=merge", "-p", patch)
        await _until_undone(story, "what was added to", child, forms[child])
    port = json.dumps([{"op": "replace", "path": "/spec/ports/0/port", "value": 9999}])
    child = f"service/{story.name}-0-client"
    await story.kubectl("patch", child, "--type=json", "-p", port)
    await _until_undone(story, "the port of", child, forms[child])
    await story.kubectl("delete", "networkpolicy", story.name)
    await eventually_async(lambda: story.get("networkpolicy", story.name), "it is back")

    told = await _told(story)
    service = f"Service {story.name} was changed; set back: spec.selector (by kubectl-patch)"
    assert service in told
    assert any("hostNetwork (by kubectl-patch)" in each for each in told)
    assert any(f"Service {story.name}-0-client " in each and "ports" in each for each in told)


async def test_a_wish_to_restart_and_others_labels_are_left_alone(story: Story) -> None:
    """`kubectl rollout restart` asks for something; what is metadata of others harms nobody."""
    await story.up()
    await story.kubectl("rollout", "restart", f"statefulset/{story.name}")
    await story.kubectl("label", "service", story.name, "team=shop")
    await story.kubectl("scale", f"statefulset/{story.name}", "--replicas=5")

    async def scaled_back() -> bool:
        return bool((await story.get("statefulset", story.name))["spec"]["replicas"] == 3)

    await eventually_async(scaled_back, "the size is undone")
    template = (await story.get("statefulset", story.name))["spec"]["template"]
    assert "kubectl.kubernetes.io/restartedAt" in template["metadata"]["annotations"]
    assert (await story.get("service", story.name))["metadata"]["labels"]["team"] == "shop"
    assert any("spec.replicas" in each for each in await _told(story))


async def test_a_refused_spec_does_not_stop_the_care_of_a_group(story: Story) -> None:
    """Its last accepted spec goes on being kept, and setting the spec back is enough."""
    await story.up()
    forms = await _forms(story)

    refused = json.dumps({"spec": {"tls": {"enabled": True}}})
    await story.kubectl("patch", "bg", story.name, "--type=merge", "-p", refused)
    await story.until_condition("SpecValid", "False/NotImplementedYet")
    for child in (f"service/{story.name}", f"configmap/{story.name}-config"):
        await story.kubectl("delete", child)
        await eventually_async(functools.partial(story.get, child), f"{child} is back")
    await story.kubectl("scale", f"statefulset/{story.name}", "--replicas=1")
    name = f"statefulset/{story.name}"
    await _until_undone(story, "the size of", name, forms[name])

    set_back = json.dumps({"spec": {"tls": {"enabled": False}}})
    await story.kubectl("patch", "bg", story.name, "--type=merge", "-p", set_back)
    await story.until_condition("SpecValid", "True/Accepted")
    kept = await story.list("controllerrevision", "-l", f"dledger.io/group={story.name}")
    assert len([one for one in kept if "accepted" in one["metadata"]["name"]]) == 1


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the JSON pointer and the value of every leaf."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, each in items:
        yield from _leaves(each, f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}")
    if not isinstance(value, dict | list):
        yield path, value


def _other(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else f"{value}x"


@pytest.mark.long
async def test_every_field_that_can_be_changed_is_set_back(story: Story) -> None:
    """Each leaf of each child, changed and removed, as far as the API server lets one."""
    await story.up()
    forms, edited = await _forms(story), 0
    for name, form in forms.items():
        for pointer, value in _leaves(form):
            for op in ({"op": "replace", "value": _other(value)}, {"op": "remove"}):
                patch = json.dumps([{**op, "path": pointer}])
                if not await story.tried("patch", name, "--type=json", "-p", patch):
                    continue  # it is immutable, or needed
                edited += 1
                await _until_undone(story, f"{op['op']} {pointer} of", name, form)
    assert edited > 150
