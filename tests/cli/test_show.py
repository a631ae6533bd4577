"""`rollmill show` as a process: a rollout as a conversation."""


def collected(shell, *words: str) -> None:
    done = shell.run("rollmill", "collect", "arithmetic", "--model", "scripted:It is 4.", "--out", "a.jsonl", *words)
    assert done.returncode == 0, done.stderr


def test_a_row_is_a_conversation(shell):
    collected(shell, "--limit", "2")
    said = shell.run("rollmill", "show", "a.jsonl", "--row", "2")
    first, *turns, reward, ended = said.stdout.splitlines()
    assert first == "task 1, rollout 0: arithmetic_simple_agent with scripted"
    assert turns[0].split(maxsplit=1)[0] == "user"
    assert turns[-1].split(maxsplit=1) == ["assistant", "It is 4."]
    assert reward.startswith("reward ")
    assert ended.startswith("ended: done; ")


def test_a_compressed_output_is_read_too(shell):
    flags = ("--model", "scripted:4", "--limit", "1", "--out", "a.jsonl.zst")
    assert shell.run("rollmill", "collect", "arithmetic", *flags).returncode == 0
    assert "assistant  4" in shell.run("rollmill", "show", "a.jsonl.zst").stdout


def test_what_cannot_be_shown_is_said(shell):
    collected(shell, "--limit", "1")
    shell.write("other.jsonl", {"no": "rollout"})
    for words, said in (
        (("a.jsonl", "--row", "2"), "a.jsonl has no row 2"),
        (("a.jsonl", "--row", "0"), "--row counts from 1"),
        (("other.jsonl",), "other.jsonl, line 1: not a rollout"),
        (("nothing.jsonl",), "nothing.jsonl"),
    ):
        shown = shell.run("rollmill", "show", *words)
        assert shown.returncode == 2
        assert said in shown.stderr
        assert "Traceback" not in shown.stderr
