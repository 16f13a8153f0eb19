"""The page's modules against the library: the same text cut, merged, ranked and made visible."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tokenlight import Explainer, Question
from tokenlight.data.postprocess import difference, merge_words
from tokenlight.data.prediction import Prediction
from tokenlight.data.ranks import compute_normalized_ranks
from tokenlight.data.tokens import Tokens
from tokenlight.inputs.combining_marks import is_mark_at
from tokenlight.plots.characters import make_visible, to_single_line
from tokenlight.plots.colours import score_to_step, step_class
from tokenlight.plots.descriptions import describe_share, round_segment_shares
from tokenlight.plots.text_segments import split_segments

TEXTS = [
    "The plot is thin, but never dull.",
    "  spaces  around\tand\nbreaks ",
    "👩‍👩‍👧‍👦 loved it 🎬🎬, naïve café 東京 הסרט",
    "unremarkably photographed melodramatic nonsense",
    "a",
    "cafe\u0301 noe\u0308l \u2764\ufe0f 👍🏽 \u0301 alone",
    "",
]


@pytest.fixture(scope="module")
def modules(chromium, server):
    """Calls of a function of a module in the browser."""
    page = chromium.new_page()
    page.goto(server.address)

    def call(module: str, function: str, *arguments):
        code = "async ([m, f, a]) => (await import(`/page/js/${m}.js`))[f](...a)"
        return page.evaluate(code, [module, function, list(arguments)])

    yield call
    page.close()


@pytest.fixture(scope="module")
def explained(explainer):
    texts = [text for text in TEXTS if text.strip()]
    pairs = [("A fine 🎬 film.", "The sequel is dreadful."), ("one", "two")]
    return explainer.explain([*texts, *pairs], ["attcat", "rollout"])


def read_apart(explainer):
    """Two texts with a [CLS] each, as sentence vectors show them."""
    halves = explainer.explain(["A cat sits.", "The kitten sits on it."], "rollout")
    rows = [half.row for half in halves]
    types = tuple(number for number, row in enumerate(rows) for _ in row.ids)
    joined = rows[0].concatenate(
        rows[1], token_type_ids=types, segment_names=("first text", "second text")
    )
    return replace(halves[0], row=joined, scores=np.ones(len(joined)))


def test_page_and_library_split_texts_alike(modules, explained, explainer):
    for attribution in [*explained, read_apart(explainer)]:
        for merged_or_not in (attribution, merge_words(attribution)):
            page = [
                {
                    "segment": p.segment,
                    "stretches": [[s.text, list(s.positions), s.is_special] for s in p.runs],
                }
                for p in split_segments(merged_or_not.row)
            ]
            library = modules("passages", "passages", merged_or_not.to_dict()["row"])
            for passage in library:
                passage["stretches"] = [
                    [s["text"], s["positions"], s.get("special", False)]
                    for s in passage["stretches"]
                ]
            assert library == page


def test_page_and_library_merge_words_alike(modules, explained):
    for attribution in explained:
        page = merge_words(attribution)
        library = modules("scores", "mergedWords", attribution.to_dict())
        assert library["scores"] == pytest.approx(page.scores.tolist(), rel=1e-12)
        assert library["row"]["pieces"] == list(page.row.pieces)
        assert library["row"]["special"] == list(page.row.special_tokens_mask)
        if page.layers is not None:
            assert np.array(library["layers"]) == pytest.approx(page.layers, rel=1e-9, abs=1e-12)


def test_page_and_library_compare_methods_alike(modules, explained):
    for first, second in zip(explained[::2], explained[1::2], strict=True):
        page = difference(first, second).scores
        library = modules("scores", "difference", first.to_dict(), second.to_dict())["scores"]
        assert library == pytest.approx(page.tolist(), rel=1e-9, abs=1e-12)
        ranks = compute_normalized_ranks(first), compute_normalized_ranks(second)
        correlation = modules("scores", "agreement", first.to_dict(), second.to_dict())
        if ranks[0] is None or ranks[1] is None:
            assert correlation is None
        else:
            assert correlation == pytest.approx(float(np.dot(*ranks)), abs=1e-12)


def test_ties_share_their_rank(modules, explained):
    first = explained[0].to_dict()
    tied = {**first, "scores": [round(score, 1) for score in first["scores"]]}
    page = replace(explained[0], scores=np.array(tied["scores"]))
    expected = float(np.dot(compute_normalized_ranks(page), compute_normalized_ranks(explained[1])))
    assert modules("scores", "agreement", tied, explained[1].to_dict()) == pytest.approx(expected)


def test_page_and_library_colour_strength_alike(modules):
    values = [*np.linspace(-1.3, 1.3, 53), 0.5 / 12, 1.5 / 12, -2.5 / 12, 0.0]
    for value in values:
        assert modules("colours", "look", float(value), 1.0) == step_class(
            score_to_step(float(value), 1.0)
        )
    assert modules("colours", "look", 0.3, 0) == ""


def test_page_and_library_make_control_characters_visible_alike(modules):
    # Halves of surrogate pairs cannot travel as JSON between the two; the rest must be alike.
    codes = [*range(0x300), *range(0x2000, 0x2070), 0xFEFF, 0x1F3AC]
    text = "".join(map(chr, codes))
    assert modules("characters", "visible", text) == make_visible(text)
    assert modules("characters", "inLine", text) == to_single_line(text)
    for alone in (
        "",
        " ",
        " \t\n ",
        "\u00a0",
        "\u2028",
        "\x1c\x85",
        "\u0301",
        "\u0301a",
        "a\u0301",
        "a\u200db \u200c",
        "👩\u200d👧 می\u200cخ \u061c\u180e",
    ):
        assert modules("characters", "inLine", alone) == to_single_line(alone)


def test_page_and_library_join_marks_to_their_letters_alike(modules):
    text = "e\u0301 \u0301\u2764\ufe0f👍🏽\u200d\uff9eab"
    for position in range(-1, len(text) + 1):
        assert modules("characters", "continuesCharacter", list(text), position) == is_mark_at(
            text, position
        )


def test_page_and_library_weigh_parts_of_the_input_alike(modules, explained, explainer):
    qa = Explainer.from_pretrained("tokenlight/qa")
    answer = qa.explain(Question(question="Who wrote?", context="Ada wrote it."), "attcat")
    labels = ("entailment", "neutral", "contradiction")
    entailed = replace(explained[-1], prediction=Prediction("neutral", 1, labels, (0.1, 0.8, 0.1)))
    ids = explainer.explain(Tokens.from_ids([[101, 2307, 102]], [[1, 1, 1]]), "attcat")
    for attribution in (*explained, answer, entailed, *np.atleast_1d(ids), read_apart(explainer)):
        for view in (attribution, merge_words(attribution)):
            library = modules("weights", "segmentShares", view.to_dict())
            page = round_segment_shares(view)
            assert [part["name"] for part in library] == [part.name for part in page]
            assert [part["segment"] for part in library] == [part.segment for part in page]
            assert [part["share"] for part in library] == pytest.approx([p.share for p in page])
            assert [part["percent"] for part in library] == [part.percent for part in page]
            assert [modules("weights", "formatShare", part) for part in library] == [
                describe_share(part).replace("sum +0", "sum 0")
                if not part.total
                else describe_share(part)
                for part in page
            ]


def test_merged_words_keep_the_token_types_of_both_texts(modules, explainer):
    attribution = read_apart(explainer)
    library = modules("scores", "mergedWords", attribution.to_dict())
    assert library["row"]["token_types"] == list(merge_words(attribution).row.token_type_ids)
