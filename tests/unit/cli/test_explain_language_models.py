"""``tokenlight explain`` on language models, token labels and sentence vectors."""

from __future__ import annotations

import json
import re

import pytest
import torch
from transformers import BertForTokenClassification, BertModel

from tests.helpers.causal_models import CHAT_TEMPLATE, build_causal_model
from tests.helpers.html_reader import PageReader
from tests.helpers.tiny import (
    randomize_weights,
    save_model,
    tiny_bert_lm,
    tiny_config,
    tiny_tokenizer,
)

PROMPT = "the film was very"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    config = tiny_config()
    single = torch.float32
    models_by_name = {
        "writer": build_causal_model("gpt2", single),
        "filler": tiny_bert_lm(single),
        "tagger": randomize_weights(BertForTokenClassification(config), single),
        "vectors": randomize_weights(BertModel(config, add_pooling_layer=False), single),
    }
    folders = {
        name: str(save_model(folder / name, model)) for name, model in models_by_name.items()
    }
    talker = folder / "talker"
    build_causal_model("llama", single).save_pretrained(talker)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(talker)
    return folders | {"talker": str(talker)}


def test_a_continuation_is_one_picture_with_a_row_for_each_token(tokenlight, models, tmp_path):
    page = tmp_path / "page.html"
    code, output, errors = tokenlight(
        "explain", PROMPT, "--model", models["writer"], "--continue", " good and fun", "--html", str(page)
    )  # fmt: skip
    assert code == 0, errors
    for name in ("1. ‘good’", "2. ‘and’", "3. ‘fun’"):
        assert name in output
        assert name in page.read_text(encoding="utf-8")
    PageReader(page.read_text(encoding="utf-8"))  # well formed


def test_the_model_generates_on_request(tokenlight, models):
    code, output, _ = tokenlight(
        "explain", PROMPT, "--model", models["writer"], "--generate", "3", "--json", "-"
    )
    assert code == 0
    entries = json.loads(output)
    assert 1 <= len(entries) <= 3
    assert all(entry["row"]["names"][0] == "prompt" for entry in entries)


def test_masked_tokens_words_and_pairs_are_explained(tokenlight, models):
    code, output, _ = tokenlight(
        "explain", "a [MASK] film", "--model", models["filler"], "--target", "good"
    )
    assert code == 0
    assert "‘good’" in output
    code, output, _ = tokenlight("explain", PROMPT, "--model", models["tagger"], "--token", "film")
    assert code == 0
    assert re.search(r"^for ‘film’ as \w+$", output, re.MULTILINE)
    code, output, _ = tokenlight("explain", PROMPT, "--model", models["tagger"], "--target", "all")
    assert code == 0
    words = re.findall(r"^for ‘(.*)’ as \w+$", output, re.MULTILINE)
    assert words == PROMPT.split()
    code, output, _ = tokenlight(
        "explain", PROMPT, "--pair", "a good movie", "--model", models["vectors"]
    )
    assert code == 0
    assert "cosine similarity" in output


def test_a_chat_comes_from_a_file(tokenlight, models, tmp_path):
    file = tmp_path / "chat.json"
    file.write_text(json.dumps([{"role": "we", "content": "the film"}]))
    code, output, errors = tokenlight(
        "explain", "--chat", str(file), "--model", models["talker"], "--continue", " good"
    )
    assert code == 0, errors
    assert "‘good’" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--continue", " good", "--generate", "3"],
            "--generate cannot be combined with --continue",
        ),
        (["--continue", " good", "--target", "bad"], "--continue cannot be combined with --target"),
        (["--token", "film", "--target", "all"], "--target all cannot be combined with --token"),
        (["--generate", "0"], "generates nothing"),
    ],
)
def test_options_that_exclude_each_other_are_refused(tokenlight, models, arguments, message):
    code, _, errors = tokenlight("explain", PROMPT, "--model", models["writer"], *arguments)
    assert code != 0
    assert message in " ".join(errors.split())


PYTHON = r"NextToken|TokenTarget|Contrast|SpanTarget|Continuation|Question\(|Picture|Chat\(|\w='"


def test_entities_rankings_and_continuation_contrasts_are_explained(tokenlight, models, tmp_path):
    numbers = dict(enumerate(("B-LOC", "I-LOC")))  # no label is outside: every word is in a name
    config = tiny_config(id2label=numbers, label2id={name: i for i, name in numbers.items()})
    tagger = save_model(
        tmp_path / "namer", randomize_weights(BertForTokenClassification(config), torch.float32)
    )
    command = ("explain", PROMPT, "--model", str(tagger))
    _, output, _ = tokenlight(*command, "--token", "film was")
    assert "for ‘film was’ as LOC" in output
    code, output, _ = tokenlight(*command, "--target", "entities", "--json", "-")
    assert code == 0
    document = json.loads(output)
    rows = [entry["row"] for entry in (document if isinstance(document, list) else [document])]
    names = [row["asked"] or [row["at"]] for row in rows]
    assert [position for positions in names for position in positions] == [1, 2, 3, 4]
    ranking = ("explain", "red cat", "--pair", "a cat", "--above", "a dog", "--json", "-")
    code, output, _ = tokenlight(*ranking, "--model", models["vectors"])
    assert code == 0
    assert [entry["name"] for entry in json.loads(output)["segments"]][:3] == [
        "query",
        "above",
        "below",
    ]
    rival = ("--continue", " good and", "--rather-than", " very slow", "--json", "-")
    code, output, _ = tokenlight("explain", PROMPT, "--model", models["writer"], *rival)
    assert code == 0
    assert json.loads(output)["target"]["name"] == "‘good and’ rather than ‘very slow’"


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("writer", [PROMPT, "--pair", "x"], "--continue WORDS or --generate N"),
        ("writer", [PROMPT, "--token", "film"], "--token film asks for a token's label"),
        ("writer", [PROMPT, "--target", "all"], "--target all would be 150 explanations"),
        ("writer", [PROMPT, "--target", "charming"], "--continue WORDS for each of them"),
        ("writer", [PROMPT, "--generate", "0"], "--generate 0 generates nothing"),
        ("writer", ["--question", "who", "--context", "we"], "give TEXT or --chat"),
        ("filler", [PROMPT, "--pair", "x"], "--target WORD, --rather-than WORD and --against N"),
        ("filler", ["[MASK] film [MASK]"], "name one by its number: --token NUMBER."),
        ("filler", ["a [MASK] film", "--continue", "x"], "does not continue texts"),
        ("tagger", [PROMPT], "give TEXT and --token WORDS, --target all"),
        ("tagger", ["the film the", "--token", "the"], "Say which with --occurrence 0 to 1"),
        ("tagger", ["the film the", "--token", "the", "--occurrence", "2"], "--occurrence 2 does"),
        ("tagger", ["--question", "who", "--context", "we"], "give TEXT and --token WORD"),
        ("vectors", [PROMPT], "give TEXT and --pair TEXT"),
    ],
)
def test_a_refusal_names_options_and_no_python(tokenlight, models, name, arguments, expected):
    code, output, errors = tokenlight("explain", *arguments, "--model", models[name])
    message = " ".join(errors.split())
    assert code == 2
    assert output == ""
    assert expected in message
    assert not re.search(PYTHON, message), message


def test_errors_raised_in_python_name_python_arguments(models):
    from tokenlight import Explainer
    from tokenlight.errors import BadTarget

    explainer = Explainer.from_pretrained(models["tagger"])
    with pytest.raises(BadTarget, match=r"as target TokenTarget\(words\), 'all' or"):
        explainer.explain(PROMPT)


def test_one_of_several_equal_words_is_counted(tokenlight, models):
    common = ("explain", "the film the", "-m", models["tagger"], "--json", "-", "--token")
    positions = []
    for word_options in (("the", "--occurrence", "1"), ("3",)):
        code, output, errors = tokenlight(*common, *word_options)
        assert code == 0, errors
        positions.append(json.loads(output)["scores"])
    assert positions[0] == positions[1]


@pytest.mark.parametrize("content", ["{", "[]", '[{"role": "user"}]'])
def test_a_file_that_is_no_chat_is_refused(tokenlight, models, tmp_path, content):
    file = tmp_path / "chat.json"
    file.write_text(content)
    code, _, errors = tokenlight("explain", "--chat", str(file), "--model", models["talker"])
    assert code != 0
    assert "chat" in errors.lower()


@pytest.mark.parametrize("name", ["writer", "filler", "tagger", "vectors"])
def test_doctor_describes_every_head(tokenlight, models, name):
    code, output, _ = tokenlight("doctor", models[name])
    assert code == 0
    lines = [line for line in output.splitlines() if line.startswith(("ok", "no"))]
    works = {line.split()[1] for line in lines if line.startswith("ok")}
    assert {"attcat", "gae", "transatt", "grad_x_input", "occlusion"} <= works


def test_the_second_text_comes_from_standard_input(tokenlight, models, monkeypatch):
    import io

    class Piped:
        buffer = io.BytesIO(b"a good movie\n")

    monkeypatch.setattr("sys.stdin", Piped)
    code, output, _ = tokenlight(
        "explain", PROMPT, "--pair", "-", "--model", models["vectors"], "--json", "-"
    )
    assert code == 0
    assert json.loads(output)["row"]["texts"] == [PROMPT, "a good movie"]
    code, _, errors = tokenlight("explain", "-", "--pair", "-", "--model", models["vectors"])
    assert code != 0
    assert "cannot both be -" in " ".join(errors.split())


class TestDocuments:
    def test_sums_by_document_are_shown_in_the_terminal_and_on_the_page(
        self,
        tokenlight,
        models,
        tmp_path,
    ):
        texts = {"a.txt": "the film was good", "b.md": "a dull plot ."}
        for name, text in texts.items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        files = [part for name in texts for part in ("--document", str(tmp_path / name))]
        page = tmp_path / "page.html"
        code, output, errors = tokenlight(
            "explain", "--question", "what was good", *files, "--model", models["writer"],
            "--generate", "3", "--method", "context_cite:units=document", "--html", str(page),
        )  # fmt: skip
        assert code == 0, errors
        lines = output.splitlines()
        begin = next(i for i, line in enumerate(lines) if line.endswith(", by document"))
        sums = [float(line.split()[0]) for line in lines[begin + 1 : begin + 5]]
        assert sums == sorted(sums, reverse=True)
        assert sorted(line.split()[-1] for line in lines[begin + 1 : begin + 5]) == [
            "a.txt", "b.md", "question", "written",
        ]  # fmt: skip
        PageReader(page.read_text(encoding="utf-8"))
        assert "a.txt" in page.read_text(encoding="utf-8")

    def test_documents_are_asked_about_in_the_chat_template_on_request(
        self, tokenlight, models, tmp_path
    ):
        file = tmp_path / "a.txt"
        file.write_text("the film was good", encoding="utf-8")
        command = ("explain", "--question", "what was good", "--document", str(file))
        options = ("--model", models["talker"], "--generate", "2", "--json", "-")
        prompts = []
        for flags in ((), ("--chat-prompt",)):
            code, output, errors = tokenlight(*command, *flags, *options)
            assert code == 0, errors
            pieces = json.loads(output)["row"]["pieces"]
            prompts.append("".join(piece.removeprefix("##") for piece in pieces))
        plain_prompt, chat_prompt = prompts
        assert "question:whatwasgoodanswer:" in plain_prompt
        assert "user:context:thefilmwasgoodquestion:whatwasgood[SEP]" in chat_prompt

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("FILE", "--chat-prompt", "--model", "M"), "needs --document"),
            (("--document", "FILE"), "needs --model with a language model"),
            (
                ("TEXT", "--document", "FILE", "--model", "M"),
                "--document cannot be combined with TEXT",
            ),
            (("--document", "none.txt", "--model", "M"), "cannot be read as a UTF-8 file"),
            (("--document", "FILE", "--document", "FILE", "--model", "M"), "Leave one out"),
        ],
    )
    def test_an_invalid_input_is_refused_with_what_to_give(
        self, tokenlight, tmp_path, arguments, message
    ):
        file = tmp_path / "a.txt"
        file.write_text("the film", encoding="utf-8")
        filled_arguments = [str(file) if argument == "FILE" else argument for argument in arguments]
        code, _, errors = tokenlight("explain", *filled_arguments)
        assert code == 2
        assert message in " ".join(errors.split())


def test_a_streamed_page_equals_the_page_of_the_finished_text(tokenlight, models, tmp_path):
    pages = []
    for name, extra in (("streamed", ["--stream"]), ("whole", [])):
        page = tmp_path / f"{name}.html"
        code, output, errors = tokenlight(
            "explain", PROMPT, "--model", models["writer"], "--generate", "3", "--html", str(page), *extra
        )  # fmt: skip
        assert code == 0, errors
        pages.append(page.read_text(encoding="utf-8"))
        if extra:
            lines = [line for line in output.splitlines() if "←" in line]
            assert len(lines) == 3
            assert all("% " in line and "rather than: " in line for line in lines)
    streamed, whole = (PageReader(page) for page in pages)
    assert [line.text for line in streamed.lines] == [line.text for line in whole.lines]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--stream"], "needs --generate N"),
        (["--generate", "2", "--stream", "--trust"], "--stream cannot be combined with --trust"),
        (["--generate", "2", "--stream", "--method", "attnlrp", "--method", "cp_lrp"], "by one method"),
        (["--generate", "2", "--stream", "--json", "-"], "Give --json FILE"),
        (["--generate", "2", "--stream", "--explain-mask", "sep"], "without --explain-mask"),
    ],
)  # fmt: skip
def test_what_a_stream_cannot_do_is_refused(tokenlight, models, extra, message):
    code, _, errors = tokenlight("explain", PROMPT, "--model", models["writer"], *extra)
    assert code == 2
    assert message in errors
