"""The process that :mod:`tokenlight.inputs.limited` starts: a script that imports nothing of tokenlight.

It reads a request as one line of JSON and answers with one line. Before each request it lowers its own
limits of CPU time and memory; the system ends it if it exceeds them.
"""

import importlib.util
import json
import sys
import types
from typing import Any


def main() -> None:
    """Answer requests until there are no more."""
    requests = sys.stdin.buffer
    answers = sys.stdout.buffer
    start = json.loads(requests.readline())
    sys.path[:] = start["path"]
    tokenizer = None
    renderer = None
    for line in requests:
        request = json.loads(line)
        try:
            if "template" in request:
                # The import is not subject to the limits, which apply only to the template.
                renderer = renderer or _import_renderer()
                _limit(request["seconds"], request["bytes"])
                answer: dict[str, Any] = {"text": _render(renderer, request)}
            else:
                _limit(request["seconds"], request["bytes"])
                tokenizer = tokenizer or _build_tokenizer(start["rules"])
                _tokenize(tokenizer, request)
                answer = {"text": ""}
        except MemoryError:
            answer = {"memory": True}
        except BaseException as error:  # noqa: BLE001 - a panic of tokenizers is no Exception
            answer = {"error": f"{error}"[:2000] or type(error).__name__}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _limit(seconds: int, num_bytes: int) -> None:
    """Limit the CPU time and memory of this process."""
    try:
        import resource
    except ImportError:  # Windows, where the parent process watches the time
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime) + 1
    for kind, limit in ((resource.RLIMIT_CPU, used + seconds), (resource.RLIMIT_AS, num_bytes)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if hard < 0 else min(limit, hard), hard))


def _build_tokenizer(rules: dict[str, Any]) -> Any:
    """Return a tokenizer with the folder's rules and no vocabulary."""
    from tokenizers import Tokenizer

    model = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}
    parts = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    content = {
        "version": "1.0",
        **dict.fromkeys(parts),
        "added_tokens": [],
        **rules,
        "model": model,
    }
    return Tokenizer.from_str(json.dumps(content))


def _tokenize(tokenizer: Any, request: dict[str, Any]) -> None:
    """Tokenize each text; only whether it succeeds matters."""
    for text in request["texts"]:
        tokenizer.encode(text)


def _import_renderer() -> Any:
    """Import the function of transformers that renders a chat, without the rest: it takes half a second."""
    try:
        spec = importlib.util.find_spec("transformers")
        paths = list(spec.submodule_search_locations or ()) if spec else []
        # Empty packages in place of the real ones, so that their __init__ modules do not run.
        for name, folder in (("transformers", ""), ("transformers.utils", "/utils")):
            package = types.ModuleType(name)
            package.__path__ = [path + folder for path in paths]
            package.__spec__ = importlib.util.spec_from_loader(name, None, is_package=True)
            sys.modules[name] = package
        from transformers.utils.chat_template_utils import render_jinja_template
    except (ImportError, AttributeError):  # a release whose module needs more of the package
        for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
            del sys.modules[name]
        from transformers.utils.chat_template_utils import render_jinja_template
    return render_jinja_template


def _render(renderer: Any, request: dict[str, Any]) -> str:
    """Return the chat as text."""
    rendered, _ = renderer(
        conversations=[request["messages"]],
        chat_template=request["template"],
        **request["variables"],
    )
    text = str(rendered[0])
    if len(text) > request["characters"]:
        raise ValueError(f"its text has more than {request['characters']:,} characters")
    return text


if __name__ == "__main__":
    main()
