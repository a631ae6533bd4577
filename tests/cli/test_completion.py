"""`rollmill completion`, in the shells that it is for."""

import shlex
import shutil

import pytest

from rollmill import plugins
from rollmill.cli import main
from rollmill.collection.options import CollectOptions

# How a test asks a shell what it offers for the last of some words.
ASK = {
    "bash": "source ./script; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
    '_rollmill "${{COMP_WORDS[0]}}"; printf "%s\\n" "${{COMPREPLY[@]}}"',
    "zsh": 'compdef() {{ }}; compadd() {{ print -l -- "${{(@P)@[-1]}}"; }}; _files() {{ }}; compset() {{ }}; '
    "source ./script; words=({words}); CURRENT=${{#words}}; _rollmill",
    "fish": "source ./script; complete -C (string join ' ' -- {words})",
}
START = {"bash": ("--norc", "-c"), "zsh": ("-f", "-c"), "fish": ("--no-config", "-c")}


@pytest.fixture(params=ASK)
def offered(request, shell):
    """What a shell offers: `offered("rollmill", "co")`."""
    kind = request.param
    if shutil.which(kind) is None:
        pytest.skip(f"there is no {kind} here")
    done = shell.run("rollmill", "completion", kind)
    assert done.returncode == 0, done.stderr
    shell.write("script", done.stdout)
    for name in ("resources_servers/door", "environments/window", "resources_servers/$(touch evil)"):
        (shell.folder / name).mkdir(parents=True)
        (shell.folder / name / "app.py").touch()

    def ask(*words: str) -> set[str]:
        said = shell.run(kind, *START[kind], ASK[kind].format(words=shlex.join(words)))
        assert said.stderr == ""
        found = {line.partition("\t")[0] for line in said.stdout.splitlines()} - {""}
        # Bash and fish choose what begins like the last word; zsh does that after it was asked.
        return {word for word in found if word.startswith(words[-1])}

    return ask


def test_commands_flags_and_environments(offered):
    assert set(main.COMMANDS) <= offered("rollmill", "")
    assert offered("rollmill", "co") == {"collect", "config", "completion"}
    assert offered("bin/rollmill", "collect", "--m") == {"--model", "--max-output-tokens"}
    assert {*plugins.environments(), "door", "window"} <= offered("rollmill", "collect", "")
    assert not any("evil" in word for word in offered("rollmill", "collect", ""))
    assert offered("rollmill", "models", "p") == {"pull"}
    assert offered("rollmill", "models", "pull", "--") == {"--help"}


def test_keys_of_both_spellings(offered):
    assert offered("rollmill", "collect", "shop", "+li") == {"+limit=", "+limits="}
    assert {f"+{name}=" for name in CollectOptions.__struct_fields__} < offered("ng_collect_rollouts", "+")
    assert offered("nemo_gym_version", "+") == {"+json=", "+config_paths=", "+help=true"}


def test_values_of_flags(offered):
    assert offered("rollmill", "list", "--for", "") == {"grpo", "ppo", "dpo", "sft"}
    assert "--json" in offered("rollmill", "list", "--for", "grpo", "--")
    assert offered("rollmill", "completion", "f") == {"fish"}


def test_a_value_of_which_nothing_is_known_is_left_to_the_shell(offered):
    assert "mcqa" not in offered("rollmill", "collect", "--input", "")


def test_bash_takes_words_apart_at_equals_signs(shell):
    shell.write("script", shell.run("rollmill", "completion", "bash").stdout)
    words = shlex.join(("ng_collect_rollouts", "+limit", "=", ""))
    assert shell.run("bash", *START["bash"], ASK["bash"].format(words=words)).stdout == "\n"


def test_an_unknown_shell_is_refused(shell):
    done = shell.run("rollmill", "completion", "tcsh")
    assert done.returncode == 2
    assert "invalid choice: 'tcsh'" in done.stderr
