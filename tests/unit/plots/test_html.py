"""The page shows the text exactly, marks it rightly, and nothing in it can act."""

import base64
import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.expect import expect_error
from tests.helpers.handmade_attributions import (
    make_attribution,
    make_row,
    make_sample,
    split_words,
    with_method,
)
from tests.helpers.html_reader import PageReader
from tests.helpers.terminal import render_terminal
from tokenlight.data.prediction import Prediction
from tokenlight.data.target import ResolvedTarget
from tokenlight.errors import BadInput, UnknownName
from tokenlight.plots import descriptions
from tokenlight.plots.characters import make_visible, to_single_line
from tokenlight.plots.html import render_fragment, render_page

HOSTILE = [
    "<script>alert(1)</script>",
    "</title></style></textarea><script>alert(1)</script>",
    '" onmouseover="alert(1)" x=\'',
    "{{7*7}} {% raw %} ${7*7} &lt;b&gt; &amp;",
    "<!-- --> <![CDATA[ ]]> <img src=x onerror=alert(1)>",
]
LIVELY = [
    "a 😀 b 👩‍👩‍👧 c",
    "e\u0301 n\u0303 a\u030a",
    "שלום עולם, hello",
    "مرحبا بالعالم",
    "漢字とかな",
    "two  spaces\tand a tab\nand a line\n\n",
    "  leading and trailing  ",
]


def make_text_attribution(text, spans=None, **more):
    row = make_row([text], [split_words(text) if spans is None else spans])
    scores = np.linspace(-1, 1, len(row))
    return make_attribution(row, scores, **more)


@pytest.mark.parametrize("text", [*HOSTILE, *LIVELY])
def test_the_highlighted_text_is_the_original_text(text):
    for source in (
        render_page(make_text_attribution(text)),
        render_fragment(make_text_attribution(text)),
    ):
        assert [line.text for line in PageReader(source).lines] == [text]


@pytest.mark.parametrize("evil", HOSTILE)
def test_no_hostile_value_becomes_a_tag_or_an_attribute(evil):
    plain = render_page(make_text_attribution("plain words"))
    attribution = make_text_attribution(
        "plain words",
        target=evil,
        prediction=Prediction(evil, 1, ("other", evil), (0.1, 0.9)),
        model=evil,
        method=evil,
        notes=(evil,),
        steps=(evil,),
        options={evil: evil},
        versions={evil: evil},
        extras={"trust": {"verdict": evil}},
    )
    reader = PageReader(render_page(attribution, title=evil))
    plain_tags = {(tag, name) for tag, values in PageReader(plain).tags for name in [*values, ""]}
    hostile_tags = {(tag, name) for tag, values in reader.tags for name in [*values, ""]}
    allowed_more = {("small", "")}
    assert hostile_tags <= plain_tags | allowed_more
    assert "script" not in {tag for tag, _ in reader.tags}
    assert reader.texts["title"] == reader.texts["h1"] == evil
    assert evil in reader.texts["small"]
    assert reader.texts["td"].count(evil) >= 8
    assert evil in reader.texts["b"]


@pytest.mark.parametrize("evil", HOSTILE)
def test_a_hostile_piece_stays_inside_its_hover_text(evil):
    row = make_row(["word"], [[(0, 4)]], pieces=[evil])
    [line] = PageReader(render_page(make_attribution(row, [0, 1, 0]))).lines
    [mark] = [m for m in line.marks if "token" in m[0].split()]
    assert evil in mark[1]
    assert "+1" in mark[1]
    assert mark[2] == "word"


def test_control_characters_are_shown_as_symbols():
    text = "a\x1b[31mb\x00c\x07d\r\ne\x7ff\x9bg\u202eh\u2066i"
    [line] = PageReader(render_page(make_text_attribution(text))).lines
    assert line.text == "a␛[31mb␀c␇d␍\ne␡f⟨9B⟩g⟨RLO⟩h⟨LRI⟩i"
    assert not re.search(
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]",
        render_page(make_text_attribution(text)),
    )


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_any_text_with_any_spans_is_shown_once_and_whole(data):
    text = data.draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
    offset = st.integers(0, len(text))
    spans = data.draw(st.lists(st.tuples(offset, offset), min_size=1, max_size=12))
    ordered = [(min(span), max(span)) for span in spans]
    pieces = [f"piece {number};" for number in range(len(ordered))]
    row = make_row([text], [ordered], pieces=pieces)
    [line] = PageReader(render_page(make_attribution(row, np.linspace(-1, 1, len(row))))).lines
    assert line.text == make_visible(text)
    hovers = "".join(title.rpartition("· piece")[2] for _, title, _ in line.marks)
    hovered_pieces = re.findall(r"piece \d+;", hovers)
    assert sorted(hovered_pieces) == sorted(pieces)  # every token stands in exactly one mark


def test_make_visible_does_not_change_ordinary_text():
    for text in (*LIVELY, "marks ﷽"):
        assert make_visible(text) == text


def test_tokens_on_one_character_are_one_stretch_with_their_summed_score():
    text = "so 😀 it is"
    row = make_row([text], [[(0, 2), (3, 4), (3, 4), (3, 4), (5, 7), (8, 10)]])
    attribution = make_attribution(row, [0, 0.1, 0.2, 0.3, 0.4, 0, 0, 0])
    [line] = PageReader(render_page(attribution)).lines
    assert line.text == text
    [emoji] = [m for m in line.marks if m[2] == "😀"]
    assert "+0.9" in emoji[1]
    assert "f12" in emoji[0].split()


def test_sign_chooses_the_hue_and_strength_the_step():
    text = "a b c d"
    row = make_row([text], [[(0, 1), (2, 3), (4, 5), (6, 7)]])
    [line] = PageReader(render_page(make_attribution(row, [9, 1.0, 0.5, -0.5, 0, 9]))).lines
    looks = [m[0] for m in line.marks if "token" in m[0].split()]
    assert looks == ["token f12", "token f6", "token a6", "token"]
    chips = [m for m in line.marks if m[0] == "chip"]
    assert [m[2] for m in chips] == ["[CLS]", "[SEP]"]


def test_targets_of_one_method_share_their_scale():
    weak = make_sample(layers=1)
    row = weak.row
    strong = make_attribution(row, [0, *[4.0] * (len(row) - 2), 0], target="negative")
    faint = make_attribution(row, [0, *[1.0] * (len(row) - 2), 0], target="positive")
    first, second = PageReader(render_page([strong, faint])).lines
    assert {m[0] for m in first.marks if "token" in m[0]} == {"token f12"}
    assert {m[0] for m in second.marks if "token" in m[0]} == {"token f3"}


def test_leading_white_space_of_a_token_is_not_highlighted():
    text = "so good"
    row = make_row([text], [[(0, 2), (2, 7)]])
    [line] = PageReader(render_page(make_attribution(row, [0, 1, 1, 0]))).lines
    assert [m[2] for m in line.marks if "token" in m[0]] == ["so", "good"]
    assert line.text == text


def test_a_pair_is_on_two_lines_with_shares():
    texts = ["The cat sat.", "An animal rested."]
    row = make_row(texts, [split_words(t) for t in texts])
    scores = [0 if s is None else (3 if s == 0 else 1) for s in row.segments]
    source = render_page(make_attribution(row, scores))
    assert [line.text for line in PageReader(source).lines] == texts
    assert "first · 75 % of the total score, sum +12" in source
    assert "second · 25 % of the total score, sum +4" in source
    ends = [line.marks[-1][2] for line in PageReader(source).lines]
    assert ends == ["[SEP]", "[SEP]"]


def test_two_texts_read_apart_keep_their_special_tokens_on_their_lines():
    texts = ["A cat.", "The kitten."]
    first, second = (make_row([text], [split_words(text)]) for text in texts)
    row = replace(
        make_row(texts, [split_words(text) for text in texts]),
        **{
            name: getattr(first, name) + getattr(second, name)
            for name in (
                "ids",
                "attention_mask",
                "pieces",
                "special_tokens_mask",
                "spans",
                "word_ids",
            )
        },
        token_type_ids=(0,) * len(first) + (1,) * len(second),
        segments=first.segments + tuple(None if s is None else 1 for s in second.segments),
    )
    lines = PageReader(render_page(make_attribution(row, np.ones(len(row))))).lines
    assert [[m[2] for m in line.marks if "chip" in m[0]] for line in lines] == [
        ["[CLS]", "[SEP]"]
    ] * 2
    assert lines[1].marks[0][2] == "[CLS]"


def test_words_are_a_second_view_of_the_same_text():
    text = "truly affecting"
    row = make_row([text], [[(0, 5), (6, 12), (12, 15)]], words=[0, 1, 1])
    lines = PageReader(render_page(make_attribution(row, [0, 0.1, 0.2, 0.3, 0]))).lines
    assert [(line.kind, line.text) for line in lines] == [("tokens", text), ("words", text)]
    [word] = [m for m in lines[1].marks if m[2] == "affecting"]
    assert "+0.5" in word[1]
    assert "f12" in word[0].split()
    assert "see-words" in render_page(make_attribution(row, [0, 0.1, 0.2, 0.3, 0]))


def test_there_is_no_switch_if_every_word_is_one_token():
    assert 'see-words"' not in render_page(make_sample())


def test_an_answer_span_is_underlined():
    texts = ["Who?", "It was Bizet."]
    row = make_row(texts, [split_words(t) for t in texts])
    position = row.surface_forms.index("Bizet")
    target = ResolvedTarget("span", "start + end", (((position, 0), 1.0), ((position, 1), 1.0)))
    attribution = replace(make_attribution(row, np.ones(len(row))), target=target)
    marks = [m for line in PageReader(render_page(attribution)).lines for m in line.marks]
    assert [m[2] for m in marks if "answer" in m[0].split()] == ["Bizet"]


def test_the_heat_map_has_one_row_per_layer_and_their_sum():
    attribution = make_sample(layers=3)
    source = render_page(attribution)
    table = source[source.index('<table class="heat summed">') : source.index("</table>")]
    assert re.findall(r'<th scope="row" dir="auto">(\w+)</th>', table) == ["L0", "L1", "L2", "Sum"]
    last = table[table.index(">Sum</th>") :]
    sums = re.findall(r">([^<]*)</td>", last)
    assert sums == [descriptions.format_score(score) for score in attribution.scores], (
        "as in the list of the strongest"
    )
    assert "-0<" not in table
    assert "−0<" not in table


def test_the_choice_of_the_method_is_stated_once_and_other_notes_with_each_text():
    choice_note = "method='auto' took attcat, since attnlrp does not support this model"
    cut = "the text was cut"
    texts = [
        replace(make_sample(text), notes=(choice_note, cut)) for text in ("one film", "two films")
    ]
    source = render_page(texts)
    assert source.count(choice_note.replace("'", "&#39;")) == 1
    assert source.count(cut) == 2
    assert render_terminal(texts, width=200).count(choice_note) == 1
    assert render_terminal(texts, width=200).count(cut) == 2


def test_the_terminal_says_briefly_that_the_recommended_method_was_taken():
    note = "method='auto': attcat, the most faithful"
    texts = [replace(make_sample(text), notes=(note,)) for text in ("one film", "two films")]
    terminal = render_terminal(texts, width=200)
    assert terminal.count("attcat  default method") == 1
    assert "the most faithful" not in terminal


def read_layer_cells(source):
    """Looks and numbers of the layer table, row by row."""
    table = source[source.index('<table class="heat summed">') : source.index("</table>")]
    rows = re.findall(r"<tr><th scope=.*?</tr>", table)
    return [re.findall(r'<td class="(.*?)" title=".*?">(.*?)</td>', row) for row in rows]


def test_special_tokens_do_not_affect_the_colour_scale_of_words():
    row = make_row(["good film"], [split_words("good film")])
    layers = np.array([[900.0, 1.0, -0.5, -900.0], [900.0, 0.5, -0.5, -900.0]])
    attribution = make_attribution(row, layers.sum(axis=0), layers=layers)
    source = render_page(attribution)
    first, _, total = read_layer_cells(source)
    assert [look for look, _ in first] == ["f12 special", "f12", "a6", "a12 special"]
    assert [look for look, _ in total] == ["f12 special", "f12", "a8", "a12 special"]
    assert [number for _, number in total][1:3] == ["+1.5", "−1"]
    assert "Colours are scaled to the words; special tokens may exceed the scale." in source
    alone = make_attribution(make_row(["good film"], [split_words("good film")], special=False), [1, 2],
                           layers=np.array([[1.0, 2.0]]))  # fmt: skip
    assert "special tokens may exceed" not in render_page(alone)


@pytest.mark.parametrize(("words", "opened"), [(38, True), (39, False)])
def test_a_wide_layer_table_waits_until_it_is_opened(words, opened):
    source = render_page(make_sample("word " * words, layers=2))
    details = re.search(r"<details( open)?>\s*<summary><b>Layer by layer", source)
    assert bool(details[1]) is opened


def test_a_very_long_heat_map_leaves_out_its_weakest_columns_and_reports_it():
    text = "word " * 400
    attribution = make_sample(text, layers=2)
    source = render_page(attribution)
    table = source[source.index('<table class="heat summed">') : source.index("</table>")]
    assert table.count('scope="col"') == 300
    assert "102 weaker tokens are left out." in source


def test_the_difference_to_a_reference_is_shown():
    attribution = make_sample()
    other = with_method(attribution, "rollout", 1)
    source = render_page([attribution, other], reference="rollout")
    assert "Difference from the reference" in source
    assert "attcat − rollout" in source
    assert "rollout − rollout" not in source
    assert source.count("<small>each scaled to Σ|score| = 1 over all tokens</small>") == 1
    assert source.count("<small>no sign, same for every class</small>") == 1  # rollout's own row
    lines = PageReader(source).lines
    assert [line.text for line in lines] == [attribution.text] * 3


def test_a_reference_with_options_is_found_by_them():
    attribution = make_sample()
    with_option = with_method(attribution, "rollout", 1, options={"start_layer": 2})
    plain = with_method(attribution, "rollout", 2)
    assert "attcat − rollout" in render_page(
        [attribution, plain, with_option], reference="rollout:start_layer=2"
    )
    with expect_error(UnknownName, "unknown-name", mentions="Did you mean 'rollout'"):
        render_page([attribution, plain], reference="rolout")


def test_an_empty_list_is_refused():
    with expect_error(BadInput, "no-attributions"):
        render_page([])


def test_texts_are_grouped_whatever_the_order():
    first = make_sample("One text.")
    second = make_sample("Two texts.")
    mixed = [first, second, with_method(first, "rollout", 1), with_method(second, "rollout", 2)]
    source = render_page(mixed)
    assert source.count("<article>") == 2
    assert [line.text for line in PageReader(source).lines] == ["One text."] * 2 + [
        "Two texts."
    ] * 2


def test_truncated_text_is_grey_and_labeled():
    text = "kept words and lost words"
    row = make_row([text], [[(0, 4), (5, 10)]], cut=3)
    source = render_page(make_attribution(row, [0, 1, 1, 0]))
    [line] = PageReader(source).lines
    assert line.text == text
    assert [m[2] for m in line.marks if m[0] == "cut"] == [" and lost words"]
    assert "its last 3 tokens were not read" in source


def test_rows_from_ids_show_their_pieces():
    row = replace(make_row(["x"], [[(0, 1)]]), texts=(), spans=(None,) * 3, segments=(None,) * 3)
    [line] = PageReader(render_page(make_attribution(row, [0, 1, 0]))).lines
    assert line.text.strip() == "x"


def test_the_page_loads_nothing_and_runs_nothing():
    source = render_page(
        [make_sample(), with_method(make_sample(), "rollout", 1)], reference="rollout"
    )
    assert not re.search(
        r"https?:|//\w|url\(|@import|<script|javascript:|<link|<img|<iframe", source
    )
    reader = PageReader(source)
    assert not [v for _, v in reader.tags if {"style", "src", "href"} & v.keys()]
    assert not [n for _, v in reader.tags for n in v if n.startswith("on")]
    [policy] = [v["content"] for t, v in reader.tags if v.get("http-equiv")]
    digest = hashlib.sha256(reader.texts["style"].encode()).digest()
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert base64.b64encode(digest).decode() in policy


def test_the_fragment_keeps_its_style_to_itself():
    source = render_fragment(make_sample())
    assert source.strip().startswith('<div class="tokenlight">')
    style = PageReader(source).texts["style"]
    depth = 0
    selectors = []
    start = 0
    for index, character in enumerate(style):
        if character == "{":
            if depth == 0:
                selectors += style[start:index].split(",")
            depth += 1
        elif character == "}":
            depth -= 1
            start = index + 1
    assert depth == 0
    assert all(".tokenlight" in selector for selector in selectors)


def test_trust_and_conservation_are_shown_where_known():
    extras = {"trust": {"verdict": "holds up"}, "conservation": [1.0, 0.98]}
    source = render_page(make_sample(extras=extras))
    assert "<small>holds up</small>" in source
    assert "98.0 % to 100.0 % of the target&#39;s relevance is left, by layer" in source


def test_provenance_names_all_that_is_needed_to_repeat():
    attribution = make_sample(seed=3, options={"hidden": "output"})
    cells = PageReader(render_page(replace(attribution, seed=11))).texts["td"]
    for fact in (
        "attcat",
        "hidden=output",
        "positive",
        "tokenlight/sentiment",
        "11",
        "torch 2.13.0",
    ):
        assert fact in cells


def test_predictions_with_many_labels_or_no_probabilities_are_rendered():
    labels = tuple(f"label {i}" for i in range(40))
    chances = tuple([0.61] + [0.01] * 39)
    with_labels = make_sample(prediction=Prediction("label 0", 0, labels, chances))
    assert "and 32 less probable" in render_page(with_labels)
    tokens = replace(with_labels.prediction, ids=tuple(range(len(with_labels.prediction.labels))))
    assert "and other tokens" in render_page(replace(with_labels, prediction=tokens))
    regression = make_sample(prediction=Prediction("3.2", 0, ("score",), ()))
    assert "3.2" in PageReader(render_page(regression)).texts["span"]


def test_an_attribution_draws_itself(tmp_path, capsys):
    attribution = make_sample()
    assert attribution.to_html() == render_page([attribution])
    assert attribution._repr_html_() == render_fragment([attribution])
    assert attribution.save(tmp_path / "a.html").read_text(encoding="utf-8") == render_page(
        [attribution]
    )
    attribution.show()
    assert "charming" in capsys.readouterr().out


def test_a_long_verdict_is_below_the_text_and_a_short_one_below_the_name():
    verdict = "removing the 3 top words (never, but, dull) drops P(positive) from 0.92 to 0.00"
    attribution = make_sample()
    long = render_page([replace(attribution, extras={"trust": {"verdict": verdict}})])
    assert f'<p class="note">{verdict}</p>' in long
    grade = "no better than chance"
    graded = {"verdict": f"{verdict}: {grade}", "grade": grade}  # as older files have it
    assert f'<p class="note">{grade}: {verdict}</p>' in render_page(
        [replace(attribution, extras={"trust": graded})]
    )
    short = render_page([replace(attribution, extras={"trust": {"verdict": "not tested"}})])
    assert "<small>not tested</small>" in short


@pytest.mark.parametrize(
    ("mark", "brightness"),
    [
        ('[data-jp-theme-light="false"]', "dark"),
        ('[data-jp-theme-light="true"]', "light"),
        (".vscode-dark", "dark"),
        (".vscode-high-contrast-light", "light"),
        ('[theme="dark"]', "dark"),
    ],
)
def test_the_box_takes_the_brightness_of_the_notebook_around_it(mark, brightness):
    style = PageReader(render_fragment(make_sample())).texts["style"]
    rule = rf"{re.escape(mark)} \.tokenlight[^{{}}]*\{{ color-scheme: {brightness}; \}}"
    assert re.search(rule, style)


def test_cells_of_a_table_keep_their_colour_in_a_notebook():
    style = PageReader(render_fragment(make_sample())).texts["style"]
    [cells] = re.findall(r"^(.*)\{ color: var\(--ink\); \}$", style, flags=re.MULTILINE)
    selectors = {selector.strip() for selector in cells.split(",")}
    assert {".heat th", ".heat td.none", ".made td"} <= selectors
    looks = re.findall(r'<td class="([^"]*)"', render_fragment(make_sample()))
    assert all(re.match(r"none|later|[af]\d", look) for look in looks), "painted, or named above"


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("good\u200e film", "good⟨LRM⟩ film"),
        ("a\u200fb\u061cc", "a⟨RLM⟩b⟨ALM⟩c"),
        ("du\u200bll \ufeffplot\u2060", "du⟨ZWSP⟩ll ⟨BOM⟩plot⟨WJ⟩"),
        ("dull\u00ad", "dull⟨SHY⟩"),
        ("pay\u200dpal \u200c", "pay⟨ZWJ⟩pal ⟨ZWNJ⟩"),
        (
            "👨\u200d👩\u200d👧 می\u200cخواهم",
            "👨\u200d👩\u200d👧 می\u200cخواهم",
        ),  # joiners that join
    ],
)
def test_characters_without_width_and_marks_of_direction_are_seen(text, visible):
    assert make_visible(text) == visible
    assert to_single_line(text) == visible
    assert to_single_line("\u200d") == "⟨ZWJ⟩"  # a token of its own
    page = render_page(make_attribution(make_row([text], [[(0, len(text))]]), [0, 1, 0]))
    assert visible in page
    assert not re.search("[\u00ad\u061c\u200b\u200e\u200f\u2060\ufeff]", page)
