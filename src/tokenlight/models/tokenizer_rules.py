"""Tell harmless rules of a tokenizer.json from others, which are tried out under limits before they run.

The rules come before the vocabulary: a normalizer rewrites the text, a pre-tokenizer splits it. Most are
fixed code of the tokenizers library. Regular expressions, replacements by something longer and tables of
characters come from the file, and can take years or any amount of memory for a few characters.
"""

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any

from tokenlight.data.tokenizer import RUNNER
from tokenlight.errors import DamagedFile
from tokenlight.inputs.limited import LimitedRunner
from tokenlight.models.embedded import NAME_PREFIX
from tokenlight.models.safety import fetch_file, read_model_json

# A text with letters of several scripts, numbers, white space, and a long run of one letter, for which
# a bad regular expression takes longest.
PROBE = (
    "A first text, with 3 numbers: 1,234.5, naïve Σ 漢字 🙂 and   some  blanks.\n" + "a" * 40 + "!"
)

MAX_RULES = 16
# That a table of characters writes for one; the usual tables write 33 at most.
MAX_BYTES_PER_CHARACTER = 64
# Rules that are fixed code.
BUILT_IN_RULES = {
    "BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "Strip", "Prepend",
    "BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "FixedLength", "Metaspace",
    "Punctuation", "UnicodeScripts", "Whitespace", "WhitespaceSplit",
}  # fmt: skip
# Rules that make a text longer, and so may occur only once.
SINGLE_USE_RULES = ("ByteLevel", "Precompiled", "Prepend")
KNOWN_DECODERS = {
    "BPEDecoder", "ByteFallback", "ByteLevel", "CTC", "Fuse", "Metaspace", "Strip", "WordPiece",
}  # fmt: skip
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Regular expressions of common tokenizers, which are known to take linear time.
LINEAR_TIME_PATTERNS = {
    " {2,}", r"\s+", r" +▁", r"^▁+$", r"[\n\r\t]", r"\d", r"\p{N}{1,3}", r"[0-9][0-9][0-9]",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    rf"{_WORDS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",
    rf"{_WORDS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
}  # fmt: skip


def find_untrusted_rules(content: dict[str, Any]) -> dict[str, Any] | None:
    """Return the normalizer and pre-tokenizer of a tokenizer.json if they must be tried out, else None."""
    rules = {part: content.get(part) for part in ("normalizer", "pre_tokenizer")}
    parts = list(_iter_rules(rules["normalizer"])) + list(_iter_rules(rules["pre_tokenizer"]))
    names = [str(part.get("type")) for part in parts]
    is_repeated = any(names.count(name) > 1 for name in SINGLE_USE_RULES)
    is_harmless = all(map(_is_harmless, parts)) and len(parts) <= MAX_RULES
    return rules if is_repeated or not is_harmless else None


def try_rules_under_limits(name: str, folder_or_id: str, hub_options: dict[str, Any]) -> None:
    """Run the rules of a model's tokenizer.json under limits before transformers does so while loading.

    Args:
        name: The model, as the user named it.
        folder_or_id: Where its files are.
        hub_options: Options of ``from_pretrained`` that say where the files of a hub id are.
    """
    for file_name in _list_tokenizer_files(folder_or_id, hub_options):
        path = fetch_file(folder_or_id, file_name, hub_options)
        if path is None:
            continue
        content = read_model_json(path)
        check_decoder(name, content)
        rules = find_untrusted_rules(content)
        texts = [PROBE]
        if rules:
            texts += _list_normalized_tokens(content)
        LimitedRunner(name, rules).try_under_limits(texts)


def _list_tokenizer_files(folder_or_id: str, hub_options: dict[str, Any]) -> list[str]:
    """Return the names of all files that transformers may choose the tokenizer from."""
    file_names = ["tokenizer.json"]
    config = fetch_file(folder_or_id, "tokenizer_config.json", hub_options)
    if config is not None:
        versions = read_model_json(config).get("fast_tokenizer_files")
        if isinstance(versions, list):
            file_names.extend(map(str, versions))
    return list(dict.fromkeys(file_names))


def _list_normalized_tokens(content: dict[str, Any]) -> list[str]:
    """Return the added tokens that the normalizer rewrites when they are added."""
    texts = []
    for token in content.get("added_tokens") or ():
        if isinstance(token, dict) and token.get("normalized"):
            texts.append(str(token.get("content")))
    return texts


def limit_rules(name: str, tokenizer: Any) -> Any:
    """Make a tokenizer run its rules and templates under limits from now on; not an embedded one."""
    if not name.startswith(NAME_PREFIX):
        inner = getattr(tokenizer, "_tokenizer", None)
        loaded = {}
        for part in ("normalizer", "pre_tokenizer"):
            rule = getattr(inner, part, None)
            loaded[part] = None if rule is None else json.loads(rule.__getstate__())
        setattr(tokenizer, RUNNER, LimitedRunner(name, find_untrusted_rules(loaded)))
    return tokenizer


def check_decoder(name: str, content: dict[str, Any]) -> None:
    """Refuse a decoder that could write more than the tokens hold; no usual tokenizer has one."""
    for part in _iter_rules(content.get("decoder")):
        is_known = part.get("type") in KNOWN_DECODERS
        if not is_known and not (part.get("type") == "Replace" and _is_harmless(part)):
            raise DamagedFile(
                f"tokenizer.json of {name} decodes tokens by {str(part)[:80]}, which could write any "
                "amount of text. Remove that decoder.",
                code="tokenizer-decoder",
            )


def _iter_rules(rule: Any) -> Iterator[dict[str, Any]]:
    """Yield the rules inside nested sequences."""
    if isinstance(rule, list):
        for inner in rule:
            yield from _iter_rules(inner)
    elif isinstance(rule, dict) and rule.get("type") == "Sequence":
        for part in ("normalizers", "pretokenizers", "decoders"):
            yield from _iter_rules(rule.get(part))
    elif rule is not None:
        yield rule if isinstance(rule, dict) else {"type": rule}


def _is_harmless(rule: dict[str, Any]) -> bool:
    """Return whether a rule is fixed code, or takes little time and writes little text."""
    kind = rule.get("type")
    pattern = rule.get("pattern")
    pattern = pattern if isinstance(pattern, dict) else {}
    literal = pattern.get("String")
    regex = pattern.get("Regex")
    if kind == "Replace":
        content = str(rule.get("content"))
        if isinstance(literal, str):
            return len(content) <= len(literal)
        return isinstance(regex, str) and regex in LINEAR_TIME_PATTERNS and len(content) <= 1
    if kind == "Split":
        return isinstance(literal, str) or regex in LINEAR_TIME_PATTERNS
    if kind == "Prepend":
        return len(str(rule.get("prepend"))) <= 8
    if kind == "Precompiled":
        return (
            _measure_longest_replacement(rule.get("precompiled_charsmap"))
            <= MAX_BYTES_PER_CHARACTER
        )
    return kind in BUILT_IN_RULES


def _measure_longest_replacement(table: Any) -> float:
    """Return the most bytes that a character table of SentencePiece writes for a character."""
    try:
        content = base64.b64decode(table or "", validate=True)
    except (TypeError, ValueError, binascii.Error):
        return float("inf")
    # The size of an index, the index, and then the replacements, separated by zero bytes.
    index_size = int.from_bytes(content[:4], "little")
    replacements = content[4 + index_size :]
    return max(map(len, replacements.split(b"\x00")))
