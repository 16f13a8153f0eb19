"""A picture of a prompt says which document or turn decided, by the sums of its scores."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from tests.helpers.handmade_attributions import make_attribution, make_row
from tokenlight.data.attribution import Attribution
from tokenlight.data.prediction import Prediction
from tokenlight.data.target import ResolvedTarget
from tokenlight.plots.html import render_page
from tokenlight.plots.prompt_parts import describe_deciding_part
from tokenlight.plots.terminal import show

NEXT_TOKEN = Prediction(" Rome", 7, (" Rome", " Oslo"), (0.9, 0.05), ids=(7, 8))
ANSWER = ResolvedTarget("continuation", "‘Rome’", (((0, 0), 1.0), ((0, 1), -1.0)))


def explain_prompt(scores, names, **fields) -> Attribution:
    """Return an explanation of a prompt with one word per part."""
    texts = [f"word{i}" for i in range(len(names))]
    row = make_row(texts, [[(0, len(text))] for text in texts], special=False)
    row = replace(row, segment_names=tuple(names))
    fields = {"method": "attnlrp", "prediction": NEXT_TOKEN, **fields}
    return make_attribution(row, scores, **fields)


def test_the_document_with_the_largest_sum_decided():
    names = ("document 1", "document 2", "document 3", "question", "written")
    attribution = explain_prompt([0.5, 4.0, -1.0, 9.0, 9.0], names)
    attribution = replace(attribution, target=ANSWER)
    line = "decided by document 2 (+4), then document 1 (+0.5)"
    assert describe_deciding_part(attribution) == line
    stream = io.StringIO()
    show(attribution, console=Console(file=stream, width=120, color_system=None))
    # A line of its own, above the text.
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("answer  ")
    assert lines.index(f"  {line}") < next(i for i, shown in enumerate(lines) if "word0" in shown)
    page = render_page(attribution)
    assert page.count(line) == page.count(f'<p class="deciding">{line}</p>') == 1


def test_turns_of_a_chat_have_numbers_and_roles_have_shares():
    names = ("system", "user", "assistant", "user", "thinking")
    line = describe_deciding_part(explain_prompt([1.0, -2.0, 0.5, 4.0, 0.5], names))
    assert line == (
        "decided by turn 4, user (+4), then turn 1, system (+1); share of the total score: "
        "user 75 %, system 13 %, assistant 6 %, thinking 6 %"
    )


def test_nothing_decided_where_no_sum_is_above_zero():
    assert describe_deciding_part(explain_prompt([-1.0, 0.0], ("a", "b"))) == (
        "no document has a sum above 0"
    )
    assert describe_deciding_part(explain_prompt([0.0, 0.0], ("user", "user"))) == (
        "no turn has a sum above 0"
    )


def test_a_document_that_leads_by_little_did_not_decide():
    line = describe_deciding_part(explain_prompt([0.67, 0.59, 0.54], ("a", "b", "c")))
    assert line == "no document stands out: a (+0.67), b (+0.59)"


def test_scores_without_a_sign_have_none_here():
    line = describe_deciding_part(explain_prompt([1.0, 2.0], ("a", "b"), method="saliency"))
    assert line == "decided by b (2), then a (1)"


def test_other_texts_have_no_such_line():
    assert not describe_deciding_part(explain_prompt([1.0], ("user",)))
    assert not describe_deciding_part(explain_prompt([1.0, 2.0], ("document 1", "question")))
    classified = Prediction("positive", 1, ("negative", "positive"), (0.018, 0.982))
    pair = explain_prompt([1.0, 2.0], ("premise", "hypothesis"), prediction=classified)
    assert not describe_deciding_part(pair)
    # Of a continuation that is explained token by token, pictures show one line per token.
    token = explain_prompt([1.0, 2.0, 1.0], ("document 1", "document 2", "written"))
    assert token.target.index is not None
    assert not describe_deciding_part(token)
