import pytest

from rollmill.collection.options import Limits, ModelLimits
from rollmill.config import Instance
from rollmill.engines.parts import bounds_of, parts_of
from rollmill.launch import Setup


def setup(places: int | None = None, *, environments: dict | None = None, **limits: float) -> Setup:
    """Two agents in two environments, and a model with these limits."""
    instances = [Instance(name="policy", kind="responses_api_models", implementation="openai_model")]
    for name in ("shop", "street"):
        instances.append(Instance(name=name, kind="resources_servers", implementation=name))
        place = {"resources_server": {"type": "resources_servers", "name": name}}
        agent = Instance(name=f"{name}_agent", kind="responses_api_agents", implementation="simple_agent", fields=place)
        instances.append(agent)
    models = {"policy": ModelLimits(**limits)} if limits else {}
    return Setup({one.name: one for one in instances}, (), places=places, limits=Limits(models, environments or {}))


@pytest.mark.parametrize(("places", "workers"), [(8, 2), (7, 2), (5, 3), (64, 7), (3, 3)])
def test_places_are_divided_and_add_up(places, workers):
    parts = [part.places for part in parts_of(setup(places), workers)]
    assert len(parts) == workers
    assert sum(parts) == places
    assert max(parts) - min(parts) <= 1


def test_so_many_calls_of_a_model_are_divided_and_add_up():
    parts = parts_of(setup(concurrency=5), 2)
    assert [part.limits.models["policy"].concurrency for part in parts] == [3, 2]


def test_rates_are_divided():
    for part in parts_of(setup(requests_per_minute=60, tokens_per_minute=1000), 4):
        assert part.limits.models["policy"] == ModelLimits(requests_per_minute=15, tokens_per_minute=250)


@pytest.mark.parametrize(("limit", "workers"), [({"places": 2}, 2), ({"concurrency": 1}, 1), ({"places": 9}, 4)])
def test_a_limit_that_leaves_nothing_for_more_of_them_makes_fewer(limit, workers):
    assert len(parts_of(setup(**limit), 4)) == workers


def test_a_limit_of_a_model_that_is_not_there_makes_no_difference():
    one = setup(8)
    limits = Limits({"another": ModelLimits(concurrency=1)}, {})
    assert len(parts_of(Setup(one.instances, (), places=8, limits=limits), 4)) == 4


def test_without_limits_nothing_is_divided():
    one = setup()
    assert parts_of(one, 3) == [one] * 3


def test_bounds_of_environments_are_those_of_their_agents_and_no_worker_keeps_them():
    one = setup(8, environments={"shop": 1, "elsewhere": 5})
    assert bounds_of(one) == {"shop_agent": 1}
    assert all(part.limits.environments == {} for part in parts_of(one, 2))
