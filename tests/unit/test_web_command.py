"""``tokenlight serve``: prints where it listens, ends on Ctrl-C, and says what is missing."""

import json
import os
import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from tests.unit.served import HEADS
from tokenlight.cli import main


def command(*arguments, before=""):
    code = f"import sys\n{before}\nfrom tokenlight.cli import main\nmain(sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, "serve", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"},
    )


@pytest.fixture
def refused(capsys):
    """What the command says when it refuses; in this process, which has its libraries at hand."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["serve", *map(str, arguments)])
        assert ended.value.code == 2
        return re.sub(r"\s+", " ", capsys.readouterr().err)

    return run


def test_it_serves_a_folder_until_ctrl_c(bert_folder, tmp_path):
    heads = tmp_path / "heads.json"
    heads.write_text(json.dumps(HEADS))
    server = command("--port", 0, "--model", bert_folder, "--heads", f"tiny-bert={heads}")
    try:
        line = server.stdout.readline()
        found = re.fullmatch(r"tokenlight serves (http://127\.0\.0\.1:\d+)\n", line)
        assert found, (line, server.stderr.read() if server.poll() is not None else "")
        address = found[1]
        assert httpx.get(f"{address}/healthz", timeout=60).json()["models"] == 1
        assert httpx.get(f"{address}/api/heads/tiny-bert", timeout=60).json()["layers"] == 3
        answer = httpx.post(f"{address}/api/explain", json={"text": "good film"}, timeout=60)
        assert answer.json()["model"] == "tiny-bert"
        assert httpx.get(address, timeout=60).status_code == 200
    finally:
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=60)
    assert server.returncode == 0, err
    assert "Traceback" not in err
    assert err.endswith("stopped\n")


@pytest.mark.parametrize("library", ["fastapi", "uvicorn"])
def test_a_missing_library_names_the_line_to_install(library, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    assert "pip install 'tokenlight[web]'" in refused("--port", 0)


def test_what_cannot_be_served_is_said_before_it_listens(bert_folder, tmp_path, refused):
    assert "MODEL=FILE" in refused("--heads", "nothing")
    assert "no model found" in refused("--model", tmp_path / "none")
    said = refused("--model", bert_folder, "--heads", f"other={write_heads(tmp_path)}")
    assert "'other'" in said
    assert "none.json cannot be opened: No such file or directory." in refused(
        "--open", tmp_path / "none.json"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = refused("--model", bert_folder, "--port", taken.getsockname()[1])
    assert "Address already in use" in said
    assert "--port 0 for a free one." in said
    assert "Errno" not in said
    assert "ERROR:" not in said


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("nowhere.invalid", r"Name or service not known|Temporary failure"),
        ("http://127.0.0.1", r"Name or service not known|Temporary failure"),
        ("203.0.113.7", "Cannot assign requested address"),
        ("", "Name or service not known"),
    ],
)
def test_a_host_that_is_not_this_machine_is_refused_before_a_model_is_loaded(host, why, refused):
    said = refused("--host", host)
    told = rf"cannot listen on --host '{re.escape(host)}' --port 8000: ({why}).*\. Give 127.0.0.1"
    assert re.search(told, said)
    assert "loading" not in said


def test_a_port_that_is_none_is_refused(refused):
    assert "65535" in refused("--port", 65536)


def write_heads(folder):
    place = folder / "heads.json"
    place.write_text(json.dumps(HEADS))
    return place


def test_help_imports_nothing_heavy():
    before = (
        "import atexit\natexit.register(lambda: print('heavy', {'torch', 'fastapi', 'numpy', "
        "'uvicorn', 'transformers'} & set(sys.modules)))"
    )
    running = command("--help", before=before)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert "--host" in out
    assert "heavy set()" in out
