"""The command line answers at once, and fails in words."""

import logging
import os
import subprocess
import sys

import pytest

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
        timeout=120,
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
    done = run(code, *command, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage: tokenlight" in done.stdout


def test_version_names_the_libraries_without_importing_them():
    code = "import sys; from tokenlight.cli import main\ntry:\n    main(['--version'])\nfinally:\n"
    done = run(code + "    assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tokenlight ")
    assert "torch 2." in done.stdout
    assert "Python 3." in done.stdout


@pytest.mark.parametrize("library", ["typer", "rich", "rich.console"])
def test_a_missing_library_names_the_extra_to_install(library):
    code = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from tokenlight.cli import main; main(['methods', 'attcat'])"
    )
    done = run(code)
    assert done.returncode == 2
    assert "pip install 'tokenlight[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def leave(arguments):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    return end.value.code


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


def test_what_is_refused_is_one_clean_message(monkeypatch, capsys):
    monkeypatch.setattr("tokenlight.cli.explain.loaded", failing(BadInput("no \x1b[31mway.")))
    assert leave(["explain", "text"]) == 2
    output = capsys.readouterr()
    assert output.err == "error: no ␛[31mway.\n"
    assert output.out == ""


def test_verbose_adds_the_traceback(monkeypatch, capsys):
    monkeypatch.setattr("tokenlight.cli.explain.loaded", failing(BadInput("no way.")))
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
def test_of_an_unknown_model_only_our_error_is_heard(monkeypatch, capsys, tmp_path, arguments):
    import transformers

    hub = logging.getLogger("huggingface_hub")
    monkeypatch.setattr(hub, "level", logging.WARNING)  # as a new process has it
    hub.manager._clear_cache()
    files = {"TEXTS": tmp_path / "texts.txt", "PARSED": tmp_path / "parsed.conllu"}
    files["TEXTS"].write_text("good film\n")
    files["PARSED"].write_text("1\tfilm\t_\tNOUN\t_\t_\t0\troot\t_\t_\n\n")

    def unreachable(*_, **__):
        assert not logging.getLogger("huggingface_hub.utils").isEnabledFor(logging.WARNING)
        raise OSError("We couldn't connect to the hub.")

    for loader in (transformers.AutoConfig, transformers.AutoTokenizer):
        monkeypatch.setattr(loader, "from_pretrained", unreachable)
    assert leave([str(files.get(word, word)) for word in arguments]) == 2
    *before, line = capsys.readouterr().err.splitlines()
    assert before == ([f"loading {UNKNOWN} …"] if arguments[0] == "serve" else [])
    assert line.startswith("error: no ")
    assert f"found at '{UNKNOWN}': We couldn't connect to the hub. Give a folder" in line


def test_an_interrupt_ends_with_130(monkeypatch):
    monkeypatch.setattr("tokenlight.cli.explain.loaded", failing(KeyboardInterrupt()))
    assert leave(["explain", "text"]) == 130


def test_what_is_unexpected_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("tokenlight.cli.explain.loaded", failing(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["explain", "text"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--file DATA for many texts, --question with --context, --image or --chat"),
        (["a", "--limit", "3"], "--limit 3 needs --file DATA; give that too."),
        (["a", "--text", "review"], "--text review needs --file DATA"),
        (["a", "--file", "b.csv"], "--file does not go with TEXT; leave out one of the two."),
        (["--file", "b.csv", "--chat", "c.json"], "--file does not go with --chat"),
        (["--file", "b.csv", "--pair", "b"], "--file does not go with --pair"),
        (["--file", "b.csv", "--png", "c.png"], "--file does not go with --png"),
        (["--file", "b.csv"], "b.csv does not exist"),
        (["--question", "q"], "--question and --context (or --document) belong together"),
        (["a", "--question", "q", "--context", "c"], "--question does not go with TEXT"),
        (["a", "--csv", "table.txt"], "the name of a file must end in .csv"),
        (["a", "--html", "-"], "must end in .html"),
        (
            ["a", "--rather-than", "negative", "--target", "all"],
            "--target all does not go with --rather-than",
        ),
        (["a", "--method", "attcta"], "unknown method 'attcta'. Did you mean 'attcat'"),
        (["a", "--reference", "rolout"], "unknown method 'rolout'. Did you mean 'rollout'"),
        (["a", "--method", "attcat:hidden"], "an option is written name=value"),
        (["a", "--method", "best", "--method", "gae"], "--method best chooses one method"),
        (["a", "--fill", "blur"], "--fill blur needs --image FILE"),
        (["a", "--fill", "mean"], "--fill mean needs --image FILE"),
        (["a", "--no-answer"], "give --question and --context too"),
        (["a", "--occurrence", "1"], "give --token WORD, or the words of a"),
        (
            ["a", "-m", "m", "--token", "3", "--occurrence", "1"],
            "--occurrence counts places of words",
        ),
        (["a", "--token", "a"], "--token a needs --model"),
        (["a", "--continue", "b"], "--continue b needs --model"),
        (["--chat", "c.json"], "--chat c.json needs --model"),
        (["--chat", "c.json", "--pair", "b"], "--chat does not go with --pair"),
    ],
)
def test_wrong_arguments_are_refused_before_a_model_is_loaded(
    monkeypatch, capsys, arguments, message
):
    monkeypatch.setattr("tokenlight.cli.explain.loaded", failing(AssertionError("loaded")))
    assert leave(["explain", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_wrong_choice_is_refused(capsys):
    assert leave(["explain", "a", "--long", "cut"]) == 2
    assert "cut" in capsys.readouterr().err


def test_methods_lists_every_method_with_its_options(capsys):
    from tokenlight import registry

    assert leave(["methods"]) == 0
    output = capsys.readouterr().out
    for name in registry.names("methods"):
        assert f"\n{name} " in "\n" + output
    assert "attn_reduce='received'" in output
    assert "qiang2022attcat" in output


def test_one_method_is_told_whole(capsys):
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
    for name in registry.names("metrics"):
        assert f"\n{name} " in "\n" + output
    assert "lower is better" in output
    assert "higher is better" in output


def test_one_metric_is_told_whole(capsys):
    assert leave(["metrics", "aopc"]) == 0
    output = capsys.readouterr().out
    assert "higher is better" in output
    assert "grid='paper'   'paper' | 'linspace9'" in output
    assert "preset=attcat   grid='linspace9'" in output
    assert output.rstrip().endswith("tokenlight evaluate FILE --metric aopc:perturb=delete")


@pytest.mark.parametrize(
    ("kind", "given", "meant"), [("methods", "rolout", "rollout"), ("metrics", "aopk", "aopc")]
)
def test_an_unknown_name_offers_near_ones(capsys, kind, given, meant):
    assert leave([kind, given]) == 2
    assert f"Did you mean '{meant}'" in capsys.readouterr().err


def test_models_lists_what_is_embedded(monkeypatch, capsys):
    from tokenlight import models

    entry = models.EmbeddedModel("tokenlight/x", "a task", 31_400_000, "accuracy 0.912", "test (9)")
    monkeypatch.setattr(models, "catalogue", lambda: [entry])
    assert leave(["models"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split("  ")[:1] == ["tokenlight/x"]
    assert "31.4 MB" in line
    assert "accuracy 0.912 on test (9)" in line


def test_the_package_itself_can_be_run():
    done = subprocess.run(
        [sys.executable, "-m", "tokenlight", "explain", "--help"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: tokenlight explain")
