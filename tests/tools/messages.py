"""Collect every sentence that users may read into one file, so that an editor can read them all.

The snapshot ``tests/snapshots/messages.txt`` lists, module by module and in the order of the source, the
errors (class, code, text) and all other texts of three words or more: notes, verdicts, help, the page.
Expressions stand in braces, and a text that a module repeats is listed once. After changing a text, run
``python -m tests.tools.messages`` and read the difference.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tokenlight"
SNAPSHOT = ROOT / "tests" / "snapshots" / "messages.txt"
MIN_WORDS = 3
MARKUP = (".html", ".j2", ".js")
# Strings with several words that nobody reads: regular expressions, selectors, paths of drawings, security
# policies and styles of the terminal.
NOT_PROSE = re.compile(
    r"\(\?[:<=!Pi]|\\[()?.]|\|\[\^|^[\w-]+-src '|\[(?:type|role)=|[MLQ]\$\{|^not bold|^HTTP/"
)


def collect_messages() -> str:
    """Return the text of the snapshot for the sources as they are."""
    sections = []
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix == ".py":
            lines = list(dict.fromkeys(iter_python_texts(path)))
        elif path.suffix in MARKUP and not path.name.endswith(".css.j2"):
            lines = list(dict.fromkeys(iter_markup_texts(path)))
        else:
            continue
        if lines:
            title = path.relative_to(PACKAGE).as_posix()
            sections.append("\n".join([f"## {title}", *lines]))
    return "\n\n".join(sections) + "\n"


def iter_python_texts(path: Path) -> Iterator[str]:
    """Yield errors with class and code, then other texts, in the order of the source."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list_nodes_in_order(tree)
    skipped = find_docstrings(tree)
    for node in nodes:
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            text = read_error(node.exc)
            if text is not None:
                yield text
                skipped |= {id(child) for child in ast.walk(node.exc)}
    for node in nodes:
        if id(node) in skipped or not isinstance(node, ast.Constant | ast.JoinedStr):
            continue
        text = read_text(node)
        skipped |= {id(child) for child in ast.walk(node)}
        if text is not None and is_sentence(text):
            yield f"text: {text}"


def list_nodes_in_order(tree: ast.AST) -> list[ast.AST]:
    """Return all nodes as the source lists them, a parent before its children."""
    nodes = [tree]
    for child in ast.iter_child_nodes(tree):
        nodes.extend(list_nodes_in_order(child))
    return nodes


def find_docstrings(tree: ast.AST) -> set[int]:
    """Return the ids of all string nodes that are statements of their own."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def read_error(call: ast.Call) -> str | None:
    """Return ``Class [code]: text`` of an error that is raised with a literal message."""
    text = read_text(call.args[0]) if call.args else None
    if text is None:
        return None
    codes = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    code = codes[0].value if codes and isinstance(codes[0], ast.Constant) else "-"
    return f"{ast.unparse(call.func)} [{code}]: {text}"


def read_text(node: ast.expr) -> str | None:
    """Return a literal string, its expressions in braces; None for anything else."""
    if isinstance(node, ast.Constant):
        return normalize(node.value) if isinstance(node.value, str) else None
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = []
    for value in node.values:
        if isinstance(value, ast.Constant):
            parts.append(str(value.value))
        elif isinstance(value, ast.FormattedValue):
            parts.append("{" + ast.unparse(value.value) + "}")
    return normalize("".join(parts))


def iter_markup_texts(path: Path) -> Iterator[str]:
    """Yield string literals of scripts and text nodes of templates."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".js":
        source = re.sub(r"/\*.*?\*/|(?<![:\"'`])//[^\n]*", "", source, flags=re.DOTALL)
        literal = r"\"(?:[^\"\\\n]|\\.)*\"|`(?:[^`\\]|\\.)*`"
        # A sentence may be several literals, one per line, joined by plus signs.
        texts = []
        for sentence in re.finditer(rf"(?:{literal})(?:\s*\+\s*(?:{literal}))*", source):
            parts = re.findall(literal, sentence[0])
            texts.append("".join(part[1:-1] for part in parts))
    else:
        source = re.sub(
            r"<(script|style)\b.*?</\1>|<!--.*?-->|\{#.*?#\}", "", source, flags=re.DOTALL
        )
        texts = re.split(r"<[^>]*>|\{%.*?%\}", source)
    for text in texts:
        if is_sentence(normalize(text)):
            yield f"text: {normalize(text)}"


def normalize(text: str) -> str:
    """Fold white space, so that wrapping in the source does not matter."""
    return " ".join(text.split())


def is_sentence(text: str) -> bool:
    """Tell prose from keys, paths and markup."""
    if NOT_PROSE.search(text):
        return False
    text = re.sub(r"\{\{.*?\}\}", "", text)
    words = re.findall(r"(?<![\w{./-])[A-Za-z][a-z']+(?![\w}/=(-])", text)
    return len(words) >= MIN_WORDS


if __name__ == "__main__":
    SNAPSHOT.parent.mkdir(exist_ok=True)
    SNAPSHOT.write_text(collect_messages(), encoding="utf-8")
