"""The terminal shows colours where it can, numbers where it cannot, and obeys no token."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from markupsafe import escape
from rich.console import Console

from tests.helpers.colour_contrast import compute_contrast_ratio
from tests.helpers.expect import expect_error
from tests.helpers.handmade_attributions import (
    make_attribution,
    make_row,
    make_sample,
    split_words,
    with_method,
)
from tests.helpers.terminal import render_terminal
from tokenlight.data.prediction import Prediction
from tokenlight.errors import BadInput
from tokenlight.plots.colours import NUM_STEPS, step_colour
from tokenlight.plots.html import render_page
from tokenlight.plots.terminal import make_console, show

EVIL = "a [red]b[/red] \x1b[31mc\x1b]0;title\x07 d\x00 e\u202ef\rg :smile: [link=x]h"


def remove_codes(output):
    return re.sub(r"\x1b\[[0-9;]*m", "", output)


def find_background(output, word):
    """The background colour a word is printed on."""
    match = re.search(rf"48;2;(\d+);(\d+);(\d+)m{word}", output)
    return tuple(map(int, match.groups())) if match else None


def test_words_have_the_background_of_their_sign_and_strength():
    row = make_row(["strong weak bad none"], [split_words("strong weak bad none")])
    output = render_terminal(
        make_attribution(row, [5, 1.0, 0.5, -1.0, 0.0, 5]), colours="truecolor"
    )
    text = output.split("\n\n")[1]
    assert find_background(text, "strong") == step_colour(NUM_STEPS, dark=True)
    assert find_background(text, "weak") == step_colour(NUM_STEPS // 2, dark=True)
    assert find_background(text, "bad") == step_colour(-NUM_STEPS, dark=True)
    assert find_background(text, "none") is None


def test_a_light_background_is_respected_if_the_terminal_reports_it(monkeypatch):
    monkeypatch.setenv("COLORFGBG", "0;15")
    row = make_row(["good"], [[(0, 4)]])
    assert find_background(
        render_terminal(make_attribution(row, [0, 1, 0]), colours="truecolor"), "good"
    ) == step_colour(NUM_STEPS)


def test_without_colours_the_strongest_carry_their_number():
    row = make_row(["fine but dull"], [split_words("fine but dull")])
    output = render_terminal(make_attribution(row, [0, 0.42, 0.01, -0.3, 0]))
    assert "fine(+0.42) but dull(-0.3)" in output
    assert "\x1b" not in output
    assert re.search(r"fine\s+\+0.42\s+\+{12}", output)
    assert re.search(r"dull\s+-0.3\s+-{9}", output)


def test_tables_that_wrap_have_a_blank_line_between_them():
    row = make_row(["fine but dull"], [split_words("fine but dull")])
    names = ("first", "second", "third", "fourth")
    attributions = [make_attribution(row, [0, 0.42, 0.01, -0.3, 0], method=name) for name in names]
    lines = [line.strip() for line in render_terminal(attributions, width=50).splitlines()]
    heads = [i for i, line in enumerate(lines) if len({*names} & {*line.split()}) > 1]
    assert len(heads) == 2
    assert [lines[i - 1] for i in heads] == ["", ""]
    assert lines[heads[1] - 2].startswith("but")


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_color_disables_all_escape_codes(monkeypatch, variable, value):
    for name in ("FORCE_COLOR", "COLORTERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    stream = io.StringIO()
    stream.isatty = lambda: True
    show(make_sample(), layers=True, console=make_console(stream))
    assert "charming" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("colours", [None, "256", "truecolor"])
def test_no_token_label_or_name_emits_escape_codes(colours):
    row = make_row([EVIL], [split_words(EVIL)])
    attribution = make_attribution(
        row,
        np.linspace(-1, 1, len(row)),
        target=EVIL,
        model=EVIL,
        method=EVIL,
        notes=(EVIL,),
        prediction=Prediction(EVIL, 1, ("x", EVIL), (0.1, 0.9)),
        extras={"trust": {"verdict": EVIL}},
    )
    for options in ({}, {"words": True}):
        output = render_terminal(attribution, colours=colours, width=400, **options)
        codes = re.findall(r"\x1b[^m]*m", output)
        assert all(re.fullmatch(r"\x1b\[[0-9;]*m", code) for code in codes)
        plain = remove_codes(output)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", plain)
        line = "a [red]b[/red] ␛[31mc␛]0;title␇ d␀ e⟨RLO⟩f␍g :smile: [link=x]h"
        assert line in plain  # as target, note and label
        assert plain.count("[red]") >= 4


def test_the_whole_text_is_printed_once_in_its_own_order():
    text = "An emoji 😀, a mark e\u0301, שלום and 漢字."
    plain = remove_codes(render_terminal(make_sample(text), width=200, colours="truecolor"))
    assert plain.count(text) == 1


def test_prediction_target_and_model_are_named():
    first = render_terminal(make_sample()).splitlines()
    assert first[0] == "prediction  positive 98.2 %  negative 1.8 %   tokenlight/sentiment"
    assert "for positive" in first


def test_methods_are_side_by_side():
    attribution = make_sample()
    output = render_terminal(
        [attribution, with_method(attribution, "rollout", 1), with_method(attribution, "gae", 2)],
    )
    assert re.search(r"attcat\s+rollout\s+gae", output)


def test_a_difference_to_the_reference_is_printed():
    attribution = make_sample()
    output = render_terminal(
        [attribution, with_method(attribution, "rollout", 1)], reference="rollout"
    )
    assert "attcat − rollout (each scaled to Σ|score| = 1 over all tokens)\n" in output


@pytest.mark.parametrize(
    ("method", "heading"),
    [
        ("rollout", "rollout (no sign, same for every class)"),
        ("gae", "gae (no sign)"),
        ("attcat", "attcat"),
        ("theirs", "theirs"),
    ],
)
def test_unsigned_and_class_agnostic_scores_are_labeled(method, heading):
    attribution = with_method(make_sample(), method, 1)
    negative = replace(attribution, target=replace(attribution.target, name="negative"))
    output = render_terminal([attribution, negative]).splitlines()
    assert output.count(heading) == 2  # once a target
    assert f"class by class  {heading}" in output


def test_a_target_that_is_not_a_class_is_called_a_target():
    attribution = with_method(make_sample(), "rollout", 1)
    span = replace(attribution, target=replace(attribution.target, kind="span"))
    assert "rollout (no sign, same for every target)" in render_terminal(span)


def test_a_verdict_begins_with_its_grade():
    trust = {"verdict": "removing the top word (dull) drops P; all do less", "grade": "faithful"}
    attribution = replace(make_sample(), extras={"trust": trust})
    assert "attcat  faithful: removing the top word (dull)" in render_terminal(attribution)
    ordered = {**trust, "verdict": "its order beats 98 % of random orders; removing the top word"}
    attribution = replace(make_sample(), extras={"trust": ordered})
    assert "attcat  faithful: its order beats 98 %" in render_terminal(attribution)
    for verdict in ("not tested: no head", "all words have the same score"):
        attribution = replace(
            make_sample(), extras={"trust": {"verdict": verdict, "grade": "untested"}}
        )
        assert f"attcat  {verdict}" in render_terminal(attribution)


def test_a_note_is_on_a_separate_line_below_a_verdict():
    trust = {"verdict": "removing the top word (dull) drops P", "grade": "faithful"}
    long_note = " ".join(["remark"] * 40)
    attribution = replace(make_sample(), extras={"trust": trust}, notes=("a note", long_note))
    lines = render_terminal(attribution).splitlines()
    assert "  a note" in lines
    remarks = [line for line in lines if "remark" in line]
    assert len(remarks) > 1
    assert all(line.startswith("  remark") for line in remarks)
    assert any(line.endswith("drops P") for line in lines)


def test_words_are_shown_and_tokens_on_request():
    row = make_row(["affecting"], [[(0, 6), (6, 9)]], words=[0, 0])
    attribution = make_attribution(row, [0, 0.25, 0.5, 0])
    assert "affecting(+0.75)" in render_terminal(attribution)
    assert "affect(+0.25)ing(+0.5)" in render_terminal(attribution, words=False)
    assert repr(attribution).endswith(": affecting +0.75>")


def test_special_tokens_without_weight_are_not_mentioned():
    row = make_row(["good", "bad"], [[(0, 4)], [(0, 3)]])
    none, some = ([special, 2.0, special, 2.0, special] for special in (0.005, 0.01))
    line = "1 % of the total score falls on special tokens"
    assert line in render_terminal(make_attribution(row, some))
    assert line in render_page(make_attribution(row, some))
    assert "special tokens, which" not in render_terminal(make_attribution(row, none))
    assert "special tokens, which" not in render_page(make_attribution(row, none))


@pytest.mark.parametrize(("threshold", "is_shown"), [(0.9, False), (0.7, True)])
def test_page_and_terminal_mention_special_tokens_at_the_same_threshold(
    monkeypatch, threshold, is_shown
):
    monkeypatch.setattr("tokenlight.plots.descriptions.SPECIAL_SHARE_THRESHOLD", threshold)
    row = make_row(["good"], [[(0, 4)]])
    attribution = make_attribution(row, [4.0, 2.0, 4.0])
    line = "80 % of attcat's total score falls on [CLS] and [SEP]"
    assert (line in render_terminal(attribution)) is is_shown
    assert (escape(line) in render_page(attribution)) is is_shown


def test_layers_show_their_terms_and_the_sum_is_the_score_of_the_list():
    row = make_row(["up down"], [split_words("up down")])
    layers = np.array([[9, 1.0, -0.5, 9], [9, 2.0, 0.5, 9]])
    attribution = make_attribution(row, layers.sum(axis=0), layers=layers)
    output = render_terminal(attribution, layers=True)
    assert re.search(r"L0\s+L1\s+Sum", output)
    assert re.search(r"up\s+\+1\s+\+2\s+\+3\n", output)
    assert re.search(r"down\s+-0.5\s+\+0.5\s+0\n", output)
    assert output.count("+3") == 3, "at the word, in the list and in the table"


def test_requested_layers_of_a_method_without_them_are_reported_missing():
    row = make_row(["up down"], [split_words("up down")])
    attribution = make_attribution(row, [0, 1.0, 0.5, 0])
    with_layers, plain = (render_terminal(attribution, layers=layers) for layers in (True, False))
    assert "attcat has no terms layer by layer" in with_layers
    assert "layer by layer" not in plain


def test_a_short_text_leaves_no_empty_lines_after_it():
    row = make_row(["up down"], [split_words("up down")])
    short = make_attribution(row, [0, 1.0, 0.5, 0])
    assert render_terminal(short).splitlines()[-1].strip()
    side_by_side = render_terminal([short, with_method(short, "gae", 1)])
    assert side_by_side.splitlines()[-1].strip()


def test_many_layers_are_printed_in_blocks_that_fit():
    output = render_terminal(make_sample(layers=40), layers=True, width=80)
    assert max(map(len, output.splitlines())) <= 80
    for layer in range(40):
        assert re.search(rf"\bL{layer}\b", output)


def test_sixteen_colours_fall_back_to_numbers():
    from tokenlight.plots.colours import make_painter

    for system, expected in (
        ("standard", False),
        ("256", True),
        ("truecolor", True),
        (None, False),
    ):
        assert (make_painter(Console(color_system=system)) is not None) is expected


@pytest.mark.parametrize("paper", ["light", "dark"])
@pytest.mark.parametrize("sign", [1, -1])
def test_each_step_of_256_colours_is_further_from_the_background(monkeypatch, paper, sign):
    from tokenlight.plots.colours import make_painter

    monkeypatch.setenv("TOKENLIGHT_PAPER", paper)
    paint = make_painter(Console(color_system="256"))
    grounds = [tuple(paint(sign * n).bgcolor.get_truecolor()) for n in range(1, NUM_STEPS + 1)]
    blank = (255, 255, 255) if paper == "light" else (0, 0, 0)
    far = [compute_contrast_ratio(ground, blank) for ground in grounds]
    assert far == sorted(far)
    assert len(set(grounds)) >= 4
    strong, weak = (1, 0) if sign > 0 else (0, 1)  # green over red, or red over green
    assert all(ground[strong] > ground[weak] and ground[2] <= ground[strong] for ground in grounds)
    for n in range(1, NUM_STEPS + 1):
        style = paint(sign * n)
        text_colour = tuple(style.color.get_truecolor())
        assert compute_contrast_ratio(text_colour, tuple(style.bgcolor.get_truecolor())) >= 4.5
    assert paint(0).bgcolor is None


def test_coloured_output_has_a_legend(monkeypatch):
    assert "green: for, red: against; brighter is stronger" in render_terminal(
        make_sample(), colours="truecolor"
    )
    assert "is stronger" not in render_terminal(make_sample())
    monkeypatch.setenv("TOKENLIGHT_PAPER", "light")
    assert "darker is stronger" in render_terminal(make_sample(), colours="truecolor")
    monkeypatch.setenv("TOKENLIGHT_PAPER", "blue")
    with expect_error(BadInput, "bad-paper", mentions="TOKENLIGHT_PAPER=blue"):
        render_terminal(make_sample(), colours="truecolor")


def test_tokens_of_a_language_model_are_quoted_without_the_blank_that_begins_a_word():
    labels = (" L", "\nAmy", " a", "a", " ", " b", " c")
    ids = tuple(range(7))
    prediction = Prediction(" L", 0, labels, (0.4, 0.2, 0.1, 0.1, 0.1, 0.06, 0.04), ids)
    output = render_terminal(replace(make_sample(), prediction=prediction, model=""))
    first = output.splitlines()[0]
    assert first.startswith("prediction  ‘L’ 40.0 %  ‘↵Amy’ 20.0 %  ‘ a’ 10.0 %  ‘a’ 10.0 %")
    assert first.endswith("  and others")


def test_equal_texts_are_shown_separately():
    first = make_sample()
    second = with_method(make_sample(), "cat", 1)
    output = render_terminal([first, second, first, second])
    assert output.count("prediction ") == 2
    assert output.count("\nattcat\n") == 2


def test_a_blank_line_is_between_two_methods():
    attribution = make_sample()
    lines = render_terminal([attribution, with_method(attribution, "gae", 1)]).splitlines()
    assert lines[lines.index("gae (no sign)") - 1] == ""
