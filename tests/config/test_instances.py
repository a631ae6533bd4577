"""Server instances, their datasets and what they refer to."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Struct

from rollmill.config import Config, Dataset, load
from rollmill.errors import ConfigError

Write = Callable[[str, str], Path]


class Options(Struct):
    agent_name: str | None = None


SHOP = """
    shop:
      resources_servers:
        shop:
          entrypoint: app.py
          domain: agent
          description: a small shop
    shop_agent:
      responses_api_agents:
        simple_agent:
          entrypoint: app.py
          resources_server: {type: resources_servers, name: shop}
          model_server: {type: responses_api_models, name: policy_model}
          max_steps: 5
          port: "8080"
          datasets:
          - name: train
            type: train
            jsonl_fpath: data/train.jsonl
            license: Apache 2.0
            num_repeats: 4
            source: {type: hub}
          - {name: example, type: example, jsonl_fpath: data/example.jsonl}
"""
MODEL = """
    policy_model:
      responses_api_models:
        openai_model: {entrypoint: app.py}
"""


def read(write: Write, text: str, *words: str, models_given: bool = True) -> Config[Options]:
    write("a.yaml", text)
    return load(["+config_paths=[a.yaml]", *words], options=Options, models_given=models_given)


def test_an_instance(write: Write) -> None:
    agent = read(write, SHOP).instances["shop_agent"]
    assert (agent.name, agent.kind, agent.implementation) == ("shop_agent", "responses_api_agents", "simple_agent")
    assert agent.fields["max_steps"] == 5
    assert (agent.entrypoint, agent.port, agent.host) == ("app.py", 8080, None)
    assert agent.datasets == (
        Dataset(
            name="train",
            type="train",
            jsonl_fpath="data/train.jsonl",
            num_repeats=4,
            license="Apache 2.0",
            extra={"source": {"type": "hub"}},
        ),
        Dataset(name="example", type="example", jsonl_fpath="data/example.jsonl"),
    )


def test_what_is_no_instance_is_a_variable(write: Write) -> None:
    config = read(write, SHOP + "    prices: {bread: 2}\n", "+agent_name=shop_agent")
    assert list(config.instances) == ["shop", "shop_agent"]
    assert config.variables == {"prices": {"bread": 2}}
    assert config.instances["shop"].domain == "agent"


def test_an_instance_prints_no_field(write: Write) -> None:
    config = read(write, "m: {responses_api_models: {openai_model: {api_key: sk-123456}}}")
    assert "sk-123456" not in f"{config} {config!r} {config.instances}"
    assert repr(config.instances["m"]) == "<Instance m.responses_api_models.openai_model>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x: {resources_servers: {a: {}}, responses_api_agents: {b: {}}}", "x: expected one server type, got"),
        ("x: {resources_servers: {a: {}}, port: 1}", "x: expected nothing beside resources_servers, got port"),
        ("x: {resources_servers: {a: {}, b: {}}}", "x.resources_servers: expected one implementation, got a and b"),
        ("x: {resources_servers: {}}", "x.resources_servers: expected one implementation, got none"),
        ("x: {resources_servers: a}", "x.resources_servers: expected one implementation, got none"),
        ("x: {resources_servers: {a: 3}}", "x.resources_servers.a: expected a mapping of fields, got int"),
        ("x: {resources_servers: {a: {port: abc}}}", 'x.resources_servers.a.port: expected int or null, got "abc"'),
        ("x: {resources_servers: {a: {port: 70000}}}", "x.resources_servers.a.port: expected int <= 65535, got 70000"),
        (
            "x: {resources_servers: {a: {domain: maths}}}",
            'x.resources_servers.a.domain: "maths" is not one of agent, ',
        ),
        ("x: {resources_servers: {a: {domain: maths}}}", 'did you mean "math"?'),
        (
            "x: {resources_servers: {a: {datasets: {b: 1}}}}",
            "x.resources_servers.a.datasets: expected a list, got dict",
        ),
        ("x: {resources_servers: {a: {datasets: [b]}}}", "x.resources_servers.a.datasets[0]: expected a mapping"),
        (
            "x: {resources_servers: {a: {datasets: [{name: b, type: train}]}}}",
            "missing: x.resources_servers.a.datasets[0].jsonl_fpath",
        ),
        (
            "x: {resources_servers: {a: {datasets: [{name: b, type: trian, jsonl_fpath: c}]}}}",
            'x.resources_servers.a.datasets[0].type: "trian" is not one of benchmark, ',
        ),
        (
            "x: {resources_servers: {a: {datasets: [{name: b, type: train, jsonl_fpath: c, num_repeats: 0}]}}}",
            "x.resources_servers.a.datasets[0].num_repeats: expected int >= 1, got 0",
        ),
    ],
)
def test_a_malformed_instance(write: Write, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        read(write, text)
    assert "\n" not in str(caught.value)
    config = read(write, text, "+error_on_almost_servers=false")
    assert "x" in config.variables
    assert message in config.warnings[0]


def test_a_domain_of_another_kind_is_not_looked_at(write: Write) -> None:
    config = read(write, "x: {responses_api_agents: {a: {domain: whatever}}}")
    assert config.instances["x"].domain is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("resources_server.name=shopp", 'resources_servers has no instance "shopp"; did you mean "shop"?'),
        ("resources_server.name=bakery", 'resources_servers has no instance "bakery"; it has shop'),
        ("resources_server.name=shop_agent", '"shop_agent" is one of responses_api_agents, not of resources_servers'),
        ("resources_server.type=resource_servers", '"resource_servers" is not a server type'),
        ("tools=[{deep: {type: responses_api_agents, name: nobody}}]", "simple_agent.tools[0].deep: "),
    ],
)
def test_a_reference_must_name_an_instance(write: Write, change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        read(write, SHOP + MODEL, f"+shop_agent.responses_api_agents.simple_agent.{change}")


def test_a_model_may_come_from_the_command(write: Write) -> None:
    read(write, SHOP + MODEL, models_given=False)
    read(write, SHOP, models_given=True)
    with pytest.raises(ConfigError, match='model_server: responses_api_models has no instance "policy_model"; a file'):
        read(write, SHOP, models_given=False)


def test_a_mapping_with_other_keys_is_no_reference(write: Write) -> None:
    read(
        write,
        "x: {resources_servers: {a: {judge: {type: resources_servers, name: no, more: 1}, f: {type: t, name: n}}}}",
    )


def test_a_misspelt_server_type_is_doubted(write: Write) -> None:
    config = read(write, "x: {resource_servers: {a: {}}}")
    assert config.variables["x"] == {"resource_servers": {"a": {}}}
    assert config.warnings == (
        '"x" is a variable: "resource_servers" is not a server type; did you mean "resources_servers"?',
    )


def test_templates_that_are_inherited_from_are_gone(write: Write, tmp_path: Path) -> None:
    text = """
    template: {resources_servers: {a: {entrypoint: app.py, domain: '???'}}}
    x: {_inherit_from: template, resources_servers: {a: {domain: math}}}
    """
    config = read(write, text)
    assert list(config.instances) == ["x"]
    assert config.instances["x"].domain == "math"
    assert config.sources == (tmp_path / "a.yaml",)
