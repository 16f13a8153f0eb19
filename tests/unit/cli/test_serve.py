"""``tokenlight serve``: prints where it listens, ends on Ctrl-C, and says what is missing."""

import json
import re
import signal
import socket
import sys

import httpx
import pytest

from tests.helpers.api_server import HEADS, start_server_process
from tests.helpers.deadlines import DEADLINE_SECONDS
from tokenlight.cli import main


@pytest.fixture
def get_refusal(capsys):
    """Return a function that runs ``serve`` in this process and returns its error message."""

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_error:
            main(["serve", *map(str, arguments)])
        assert exit_error.value.code == 2
        return re.sub(r"\s+", " ", capsys.readouterr().err)

    return run


def test_serve_runs_until_ctrl_c(bert_folder, tmp_path):
    heads = tmp_path / "heads.json"
    heads.write_text(json.dumps(HEADS))
    server = start_server_process(
        "--port", 0, "--model", bert_folder, "--heads", f"tiny-bert={heads}"
    )
    try:
        line = server.stdout.readline()
        match = re.fullmatch(r"tokenlight serves (http://127\.0\.0\.1:\d+)\n", line)
        assert match, (line, server.stderr.read() if server.poll() is not None else "")
        address = match[1]
        assert httpx.get(f"{address}/healthz", timeout=DEADLINE_SECONDS).json()["models"] == 1
        assert (
            httpx.get(f"{address}/api/heads/tiny-bert", timeout=DEADLINE_SECONDS).json()["layers"]
            == 3
        )
        answer = httpx.post(
            f"{address}/api/explain", json={"text": "good film"}, timeout=DEADLINE_SECONDS
        )
        assert answer.json()["model"] == "tiny-bert"
        assert httpx.get(address, timeout=DEADLINE_SECONDS).status_code == 200
    finally:
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=DEADLINE_SECONDS)
    assert server.returncode == 0, err
    assert "Traceback" not in err
    assert err.endswith("stopped\n")


@pytest.mark.parametrize("library", ["fastapi", "uvicorn"])
def test_a_missing_library_names_the_line_to_install(library, get_refusal, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    assert "pip install 'tokenlight[web]'" in get_refusal("--port", 0)


def test_wrong_options_are_reported_before_listening(bert_folder, tmp_path, get_refusal):
    assert "MODEL=FILE" in get_refusal("--heads", "nothing")
    assert "No model found" in get_refusal("--model", tmp_path / "none")
    message = get_refusal("--model", bert_folder, "--heads", f"other={write_heads_file(tmp_path)}")
    assert "'other'" in message
    assert "none.json cannot be opened: No such file or directory." in get_refusal(
        "--open", tmp_path / "none.json"
    )
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        message = get_refusal("--model", bert_folder, "--port", occupied.getsockname()[1])
    assert "Address already in use" in message
    assert "--port 0 for a free port." in message
    assert "Errno" not in message
    assert "ERROR:" not in message


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("nowhere.invalid", r"Name or service not known|Temporary failure"),
        ("http://127.0.0.1", r"Name or service not known|Temporary failure"),
        ("203.0.113.7", "Cannot assign requested address"),
        ("", "Name or service not known"),
    ],
)
def test_a_host_that_is_not_this_machine_is_refused_before_a_model_is_loaded(
    host, why, get_refusal
):
    message = get_refusal("--host", host)
    pattern = rf"Cannot listen on --host '{re.escape(host)}' --port 8000: ({why}).*\. Give --host 127.0.0.1"
    assert re.search(pattern, message)
    assert "loading" not in message


def test_an_invalid_port_is_refused(get_refusal):
    assert "65535" in get_refusal("--port", 65536)


def write_heads_file(folder):
    path = folder / "heads.json"
    path.write_text(json.dumps(HEADS))
    return path


def test_help_imports_nothing_heavy():
    before = (
        "import atexit\natexit.register(lambda: print('heavy', {'torch', 'fastapi', 'numpy', "
        "'uvicorn', 'transformers'} & set(sys.modules)))"
    )
    running = start_server_process("--help", before=before)
    out, err = running.communicate(timeout=DEADLINE_SECONDS)
    assert running.returncode == 0, err
    assert "--host" in out
    assert "heavy set()" in out
