"""Documents, a question and an answer on the page: the sources coloured and sorted."""

from __future__ import annotations

import re

import pytest
import torch

from tests.helpers.encoder_decoder_models import make_seq2seq_tokenizer, make_small_llama
from tests.helpers.page_server import run_server
from tokenlight import Context, Continuation, Explainer
from tokenlight.plots.prompt_parts import describe_deciding_part

DOCUMENTS = [
    "the cat sat on a mat and the dog ran",
    "a red dog sat and ran",
    "the mat and a red cat",
]
QUESTION = "the cat on a mat"
ANSWER = "the red dog"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "writer"
    model = make_small_llama(torch.float32)
    tokenizer = make_seq2seq_tokenizer(ends=False)
    model.config.max_position_embeddings = tokenizer.model_max_length = 256  # rotary: none ends
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def writer_server(chromium, folder):  # noqa: ARG001 - no browser, no server
    """The server of that model, for all tests of this module."""
    with run_server("--model", str(folder)) as server:
        yield server.wait()


def test_sources_are_sorted_by_score_and_restored_by_a_link(visitor, folder, writer_server):
    explainer = Explainer.from_pretrained(folder)
    (attribution,) = explainer.explain(
        Context(DOCUMENTS, QUESTION), "attnlrp", Continuation(f" {ANSWER}", joint=True)
    )
    parts = [part for part in attribution.group_by("document") if part.name != "written"]
    expected_parts = sorted(parts, key=lambda part: -abs(part.total))
    visit = visitor(writer_server)
    page = visit.open(method=None).page
    page.get_by_role("button", name="Documents and a question").click()
    page.fill("#field-question", QUESTION)
    page.click("#explain")
    page.get_by_text("“documents” is empty").wait_for()
    page.fill("#field-documents", "\n\n".join(DOCUMENTS))
    page.fill("#field-answer", ANSWER)
    page.click("#explain")
    names = page.locator("#why .sources .name")
    names.first.wait_for()
    assert names.all_text_contents() == [part.name for part in expected_parts]
    notes = page.locator("#why .sources .note").all_text_contents()
    totals = [float(re.search(r"sum (\S+)", note)[1].replace("−", "-")) for note in notes]
    assert totals == pytest.approx([part.total for part in expected_parts], abs=1e-3)
    question = page.locator("#why b").first.text_content()
    assert question == f"‘{ANSWER}’ rather than anything else"
    assert page.locator(".token-target").count() == 0  # an answer is one whole
    # What decided stands first, before the list of all sources.
    first_line = page.locator("#why .row-body > *").first
    assert first_line.text_content() == describe_deciding_part(attribution) != ""
    # Their columns are aligned.
    lefts = page.locator("#why .sources .note").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().left)"
    )
    assert len(set(lefts)) == 1
    second_page = visitor(writer_server).page
    second_page.goto(page.url)
    second_page.locator("#why .sources .name").first.wait_for()
    assert second_page.input_value("#field-documents") == "\n\n".join(DOCUMENTS)
    second_page.get_by_role("button", name="A prompt").click()
    second_page.locator("#field-prompt").wait_for()


def test_a_model_generates_the_answer_if_none_is_given(visitor, writer_server):
    visit = visitor(writer_server)
    link = {"question": QUESTION, "documents": "\n\n".join(DOCUMENTS), "method": None}
    page = visit.open(**link).page
    assert page.locator("#why .sources .name").count() == 4
    assert page.locator("#answer-title").text_content() == "The model answers"


def test_alternatives_are_chips_and_generated_words_show_their_sources(
    visitor, folder, writer_server
):
    explainer = Explainer.from_pretrained(folder)
    question_attribution = explainer.explain(QUESTION, "attnlrp")
    continuation_attributions = explainer.explain(QUESTION, ["attnlrp"], Continuation(None, 4))
    visit = visitor(writer_server)
    page = visit.open(prompt=QUESTION, method="attnlrp").page
    chips = page.locator(".alternatives button")
    names = list(question_attribution.target.alternatives[:6])
    assert [chip.strip() for chip in chips.all_text_contents()] == names
    chips.nth(1).click()
    page.locator(".alternatives [aria-pressed=true]").wait_for()
    contrast = f"{question_attribution.target.name} rather than ‘{names[1]}’"
    assert page.locator("#why h2 b").text_content() == contrast
    page.locator(".alternatives [aria-pressed=true]").click()  # all of them again
    page.locator(f"#why h2 b:text-is('{question_attribution.question}')").wait_for()
    page.locator("#target select").select_option("4")
    words = page.locator(".written-token")
    words.first.wait_for()
    assert words.all_text_contents() == [
        item.prediction.label.strip() for item in continuation_attributions
    ]
    words.nth(2).hover()
    assert page.locator("#why h2 b").text_content() == continuation_attributions[2].question
    page_scores = visit.scores("attnlrp")
    expected = [(word.strip(), score) for word, score in continuation_attributions[2].words()]
    assert [word for word, _ in page_scores] == [word for word, _ in expected]
    for (_, score), (_, expected_score) in zip(page_scores, expected, strict=True):
        assert score == pytest.approx(expected_score, rel=6e-3, abs=1e-6)  # three digits
    words.nth(1).click()
    page.locator("#field-prompt").hover()  # what was clicked stays
    assert page.locator("#why h2 b").text_content() == continuation_attributions[1].question
    assert "tokens=4" in page.url
