"""The command line answers at once, and fails in words."""

import logging
import os
import subprocess
import sys

import pytest

from tests.helpers.deadlines import DEADLINE_SECONDS
from tokenlight import cli
from tokenlight.errors import BadInput

COMMANDS = [[], ["explain"], ["methods"], ["metrics"], ["models"], ["doctor"], ["bench", "run"]]


def run(code, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "tokenlight")
def test_help_imports_little_and_nothing_heavy(command):
    # What a person waits for is imports: Python's and the parser's are 300, and numpy brings 150.
    code = (
        "import sys\n"
        "from tokenlight.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as end:\n    code = end.code\n"
        "heavy = {'torch', 'transformers', 'numpy', 'matplotlib', 'jinja2'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert len(sys.modules) < 400, len(sys.modules)\n"
        "sys.exit(code)\n"
    )
    process = run(code, *command, "--help")
    assert process.returncode == 0, process.stderr
    assert "Usage: tokenlight" in process.stdout


def test_version_names_the_libraries_without_importing_them():
    code = "import sys; from tokenlight.cli import main\ntry:\n    main(['--version'])\nfinally:\n"
    process = run(code + "    assert 'torch' not in sys.modules")
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("tokenlight ")
    assert "torch 2." in process.stdout
    assert "Python 3." in process.stdout


@pytest.mark.parametrize(("wait_policy", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_every_command_lets_waiting_threads_sleep_unless_the_user_decides(wait_policy, expected):
    code = (
        "import os, sys\n"
        "from tokenlight.cli import main\n"
        "assert 'torch' not in sys.modules\n"
        "try:\n    main(['metrics', 'aopc'])\n"
        "except SystemExit:\n    print(os.environ['OMP_WAIT_POLICY'])\n"
    )
    # An empty value would be a setting of its own, so the variable is removed before.
    remove = "import os; os.environ.pop('OMP_WAIT_POLICY', None)\n"
    environment = {} if wait_policy is None else {"OMP_WAIT_POLICY": wait_policy}
    process = run(code if wait_policy else remove + code, **environment)
    assert process.stdout.splitlines()[-1] == expected, process.stderr


@pytest.mark.parametrize("library", ["typer", "rich", "rich.console"])
def test_a_missing_library_names_the_extra_to_install(library):
    code = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from tokenlight.cli import main; main(['methods', 'attcat'])"
    )
    process = run(code)
    assert process.returncode == 2
    assert "pip install 'tokenlight[cli]'" in process.stderr
    assert "Traceback" not in process.stderr


def leave(arguments):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    return end.value.code


def make_failing_function(error):
    def fail(*_, **__):
        raise error

    return fail


def test_a_refusal_is_one_clean_message(monkeypatch, capsys):
    monkeypatch.setattr(
        "tokenlight.cli.explain.load_explainer", make_failing_function(BadInput("no \x1b[31mway."))
    )
    assert leave(["explain", "text"]) == 2
    output = capsys.readouterr()
    assert output.err == "error: no ␛[31mway.\n"
    assert output.out == ""


def test_verbose_adds_the_traceback(monkeypatch, capsys):
    monkeypatch.setattr(
        "tokenlight.cli.explain.load_explainer", make_failing_function(BadInput("no way."))
    )
    assert leave(["explain", "text", "--verbose"]) == 2
    errors = capsys.readouterr().err
    assert "Traceback" in errors
    assert errors.endswith("error: no way.\n")


UNKNOWN = "someone/no-such-model"


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "text", "-m", UNKNOWN],
        ["doctor", UNKNOWN],
        ["serve", "-m", UNKNOWN],
        ["heads", UNKNOWN, "--conllu", "PARSED"],
        ["idf", "TEXTS", "-o", "idf.json", "-m", UNKNOWN],
        ["diff", UNKNOWN, UNKNOWN, "TEXTS", "--dtype-a", "bfloat16"],
        ["evaluate", "TEXTS", "-o", "out", "-m", UNKNOWN],
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_unknown_model_prints_only_our_error(monkeypatch, capsys, tmp_path, arguments):
    import transformers

    hub = logging.getLogger("huggingface_hub")
    monkeypatch.setattr(hub, "level", logging.WARNING)  # as a new process has it
    hub.manager._clear_cache()
    files = {"TEXTS": tmp_path / "texts.txt", "PARSED": tmp_path / "parsed.conllu"}
    files["TEXTS"].write_text("good film\n")
    files["PARSED"].write_text("1\tfilm\t_\tNOUN\t_\t_\t0\troot\t_\t_\n\n")

    def fail_to_connect(*_, **__):
        assert not logging.getLogger("huggingface_hub.utils").isEnabledFor(logging.WARNING)
        raise OSError("We couldn't connect to the hub.")

    for loader in (transformers.AutoConfig, transformers.AutoTokenizer):
        monkeypatch.setattr(loader, "from_pretrained", fail_to_connect)
    assert leave([str(files.get(word, word)) for word in arguments]) == 2
    *before, line = capsys.readouterr().err.splitlines()
    assert before == ([f"loading {UNKNOWN} …"] if arguments[0] == "serve" else [])
    assert line.startswith("error: No ")
    assert f"found at '{UNKNOWN}': We couldn't connect to the hub. Give a folder" in line


def test_an_interrupt_ends_with_130(monkeypatch):
    monkeypatch.setattr(
        "tokenlight.cli.explain.load_explainer", make_failing_function(KeyboardInterrupt())
    )
    assert leave(["explain", "text"]) == 130


def test_an_unexpected_error_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(
        "tokenlight.cli.explain.load_explainer", make_failing_function(ZeroDivisionError())
    )
    with pytest.raises(ZeroDivisionError):
        cli.main(["explain", "text"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--file DATA for many texts, --question with --context, --image or --chat"),
        (["a", "--limit", "3"], "--limit 3 needs --file DATA. Give that too."),
        (["a", "--text", "review"], "--text review needs --file DATA"),
        (["a", "--file", "b.csv"], "--file cannot be combined with TEXT. Leave one of them out."),
        (["--file", "b.csv", "--chat", "c.json"], "--file cannot be combined with --chat"),
        (["--file", "b.csv", "--pair", "b"], "--file cannot be combined with --pair"),
        (["--file", "b.csv", "--png", "c.png"], "--file cannot be combined with --png"),
        (["--file", "b.csv"], "b.csv does not exist"),
        (["--question", "q"], "--question needs --context (or --document)"),
        (["a", "--question", "q", "--context", "c"], "--question cannot be combined with TEXT"),
        (["a", "--csv", "table.txt"], "The name of the file must end in .csv"),
        (["a", "--html", "-"], "must end in .html"),
        (
            ["a", "--rather-than", "negative", "--target", "all"],
            "--target all cannot be combined with --rather-than",
        ),
        (["a", "--method", "attcta"], "Unknown method 'attcta'. Did you mean 'attcat'"),
        (["a", "--reference", "rolout"], "Unknown method 'rolout'. Did you mean 'rollout'"),
        (["a", "--method", "attcat:hidden"], "Write it as name=value"),
        (["a", "--method", "best", "--method", "gae"], "--method best chooses one method"),
        (["a", "--fill", "blur"], "--fill blur needs --image FILE"),
        (["a", "--fill", "mean"], "--fill mean needs --image FILE"),
        (["a", "--no-answer"], "Give --question and --context too"),
        (["a", "--occurrence", "1"], "Give --token WORD, or the words of a"),
        (
            ["a", "-m", "m", "--token", "3", "--occurrence", "1"],
            "--occurrence counts the occurrences of",
        ),
        (["a", "--token", "a"], "--token a needs --model"),
        (["a", "--continue", "b"], "--continue b needs --model"),
        (["--chat", "c.json"], "--chat c.json needs --model"),
        (["--chat", "c.json", "--pair", "b"], "--chat cannot be combined with --pair"),
    ],
)
def test_wrong_arguments_are_refused_before_a_model_is_loaded(
    monkeypatch, capsys, arguments, message
):
    monkeypatch.setattr(
        "tokenlight.cli.explain.load_explainer", make_failing_function(AssertionError("loaded"))
    )
    assert leave(["explain", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_wrong_choice_is_refused(capsys):
    assert leave(["explain", "a", "--long", "cut"]) == 2
    assert "cut" in capsys.readouterr().err


def test_methods_lists_every_method_with_its_options(capsys):
    from tokenlight import registry

    assert leave(["methods"]) == 0
    output = capsys.readouterr().out
    for name in registry.list_names("methods"):
        assert f"\n{name} " in "\n" + output
    assert "attn_reduce='received'" in output
    assert "qiang2022attcat" in output


def test_one_method_is_described_in_full(capsys):
    assert leave(["methods", "attcat"]) == 0
    output = capsys.readouterr().out
    assert "Qiang et al., NeurIPS 2022" in " ".join(output.split())
    assert "attn_reduce='received'   'received' | 'cls' | 'given'" in output
    assert "preset=paper   hidden='output'" in output
    assert "``" not in output


def test_metrics_lists_every_metric_with_its_direction(capsys):
    from tokenlight import registry

    assert leave(["metrics"]) == 0
    output = capsys.readouterr().out
    for name in registry.list_names("metrics"):
        assert f"\n{name} " in "\n" + output
    assert "lower is better" in output
    assert "higher is better" in output


def test_one_metric_is_described_in_full(capsys):
    assert leave(["metrics", "aopc"]) == 0
    output = capsys.readouterr().out
    assert "higher is better" in output
    assert "grid='paper'   'paper' | 'linspace9'" in output
    assert "preset=attcat   grid='linspace9'" in output
    assert output.rstrip().endswith("tokenlight evaluate FILE --metric aopc:perturb=delete")


@pytest.mark.parametrize(
    ("kind", "typed", "meant"), [("methods", "rolout", "rollout"), ("metrics", "aopk", "aopc")]
)
def test_an_unknown_name_offers_near_ones(capsys, kind, typed, meant):
    assert leave([kind, typed]) == 2
    assert f"Did you mean '{meant}'" in capsys.readouterr().err


def test_models_lists_what_is_embedded(monkeypatch, capsys):
    from tokenlight import models

    entry = models.EmbeddedModel("tokenlight/x", "a task", 31_400_000, "accuracy 0.912", "test (9)")
    monkeypatch.setattr(models, "list_models", lambda: [entry])
    assert leave(["models"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split("  ")[:1] == ["tokenlight/x"]
    assert "31.4 MB" in line
    assert "accuracy 0.912 on test (9)" in line


def test_the_package_itself_can_be_run():
    process = subprocess.run(
        [sys.executable, "-m", "tokenlight", "explain", "--help"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert process.returncode == 0
    assert process.stdout.startswith("Usage: tokenlight explain")
