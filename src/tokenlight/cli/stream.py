"""``tokenlight explain --generate N --stream``: each token with the words behind it, as it comes."""

import sys
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from tokenlight.cli.outputs import OutputWriter
from tokenlight.data.attribution import Attribution
from tokenlight.data.probabilities import softmax
from tokenlight.errors import BadInput
from tokenlight.explaining.generation import join_generated
from tokenlight.plots.characters import to_single_line
from tokenlight.plots.descriptions import describe_chips, format_percent, format_score
from tokenlight.plots.terminal import make_console
from tokenlight.plots.word_pieces import find_strongest_tokens

NUM_SOURCES = 3
NUM_ALTERNATIVES = 2
TOKEN_COLUMNS = 14


def stream_tokens(
    explainer: Any, prompt: Any, explain_options: Mapping[str, Any], output: OutputWriter
) -> None:
    """Generate, print one line per token, and write the files at the end.

    Args:
        explainer: The Explainer of a causal language model.
        prompt: The prompt.
        explain_options: The keywords of explain(); the target is a Continuation.
        output: Where the files go.

    Raises:
        BadInput: Several methods are given, or standard output is to be JSON.
    """
    methods = explain_options["method"]
    if isinstance(methods, str) or len(methods) > 1:
        raise BadInput(
            "--stream explains each token by one method. Give one --method, or leave --stream out.",
            code="stream-needs-one-method",
        )
    if output.prints_json:
        raise BadInput(
            "--stream prints one line per token, so it cannot be combined with --json -. Give --json FILE.",
            code="stream-with-json-output",
        )
    if explain_options["explain_mask"] != "none" or explain_options["token_types"] != "tokenizer":
        raise BadInput(
            "--stream reads the prompt as it is, without --explain-mask and --token-types. Leave these "
            "options or --stream out.",
            code="stream-with-masks",
        )
    target = explain_options["target"]
    # "auto" has no options, and is no name of the registry.
    name, method_options = methods[0]
    stream = explainer.generate(
        prompt,
        (name, method_options) if method_options else name,
        max_new_tokens=target.max_new_tokens,
        against=target.against,
        long=explain_options["long"],
        seed=explain_options["seed"],
    )
    console = make_console(sys.stdout)
    attributions: list[Attribution] = []
    for token, attribution in stream:
        console.print(_format_token(token, attribution))
        console.file.flush()
        attributions.append(attribution)
    for note in attributions[0].notes:
        console.print(Text(to_single_line(note), style="dim"))
    output.write_streamed(join_generated(attributions))


def _format_token(token: str, attribution: Attribution) -> Text:
    """Return a token, its probability, the words behind it, and its likeliest alternatives."""
    probability = softmax(attribution.logits)[attribution.target.index]
    line = Text(f"{to_single_line(token):{TOKEN_COLUMNS}}", style="bold")
    line.append(f" {format_percent(float(probability)):>8}  ", "not bold dim")
    sources = []
    for source, score in find_strongest_tokens(attribution, NUM_SOURCES):
        sources.append(f"{to_single_line(source.bracketed)} {format_score(score)}")
    line.append(f"← {', '.join(sources)}", "not bold")
    chips = describe_chips(attribution, NUM_ALTERNATIVES, with_percents=False)
    if chips:
        line.append(f"  {to_single_line(chips)}", "not bold dim")
    return line
