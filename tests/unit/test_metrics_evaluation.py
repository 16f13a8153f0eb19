"""Evaluation: rows, summaries, tables, files, whole data files with resume, and other people's scores."""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.planted import oracle, planted, scored
from tests.tiny import tiny_bert, tiny_bert_qa, tiny_tokenizer
from tests.tolerance import PLAIN, allowed, close
from tokenlight import Explainer, Question
from tokenlight.errors import BadInput, DamagedFile, MissingExtra
from tokenlight.evaluation import choose as choosing
from tokenlight.evaluation import run as resuming
from tokenlight.evaluation.corpus import Frequencies
from tokenlight.evaluation.imported import adopted, from_arrays
from tokenlight.evaluation.results import Evaluation
from tokenlight.evaluation.run import Experiment, evaluate_file, finished
from tokenlight.evaluation.trust import trusted
from tokenlight.files.tables import Example, read

TEXTS = ["the film is not very good", "we love this movie", "a dull plot", "never ever hate it"]


@pytest.fixture
def explainer(tokenizer):
    return Explainer(tiny_bert(dtype=torch.float32), tokenizer, name="tiny")


# --- rows and summaries ----------------------------------------------------------------------------


def test_several_methods_are_summarised_each_by_itself(explainer):
    xs = explainer.explain(TEXTS, method=["attcat", "random", ("random", {"seed": 9})])
    found = explainer.evaluate(xs, ["aopc", "lodds"])
    names = list(found.by_method)
    assert names[0] == "attcat"
    assert len(names) == 3
    assert names[1].startswith("random")
    assert len(found.rows) == 12
    assert [row["text"] for row in found.rows] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    attcat = [row["aopc"] for row in found.rows if row["method"] == "attcat"]
    assert found.by_method["attcat"].summary["aopc"]["mean"] == pytest.approx(np.mean(attcat))
    table = found.table().splitlines()
    assert table[0].split() == ["method", "n", "aopc", "↑", "lodds", "↓"]
    assert len(table) == 4
    assert "<Evaluation of 12 explanations>" in repr(found)


def test_agreement_between_methods(explainer):
    xs = explainer.explain(TEXTS, method=["attcat", "cat", "random"])
    found = explainer.evaluate(xs, "aopc").agreement
    assert found.methods == ("attcat", "cat", "random")
    np.testing.assert_allclose(found.matrix, found.matrix.T)
    np.testing.assert_allclose(np.diag(found.matrix), 1)
    assert found.matrix[0, 1] > found.matrix[0, 2]
    with pytest.raises(BadInput, match="two or more"):
        _ = explainer.evaluate(xs[::3], "aopc").agreement


def test_one_metric_in_two_readings_keeps_both(explainer):
    a = explainer.explain(TEXTS[0], "attcat")
    found = explainer.evaluate(a, ["aopc", ("aopc", {"order": "bottom"})])
    assert list(found.summary) == ["aopc", "aopc(order=bottom)"]
    only = explainer.evaluate(a, [("aopc", {"order": "bottom"})])
    assert list(only.summary) == ["aopc"]


def test_labels_go_with_texts_not_with_explanations(explainer):
    xs = explainer.explain(TEXTS, method=["attcat", "random"])
    labels = ["negative", 1, "positive", "2"]
    found = explainer.evaluate(xs, "hiding_game", labels=labels)
    assert [row["label"] for row in found.rows[::2]] == [
        "negative",
        "neutral",
        "positive",
        "positive",
    ]
    with pytest.raises(BadInput, match="3 labels were given for 4 texts"):
        explainer.evaluate(xs, "hiding_game", labels=labels[:3])
    with pytest.raises(BadInput, match="2 spans were given for 4 texts"):
        explainer.evaluate(xs, "hiding_game", labels=labels, spans=[None, None])


def test_the_same_text_twice_stays_two_texts(explainer):
    xs = explainer.explain([TEXTS[0], TEXTS[0]], method=["attcat", "random"])
    assert [row["text"] for row in explainer.evaluate(xs, "aopc").rows] == [0, 0, 1, 1]


def test_spans_are_read_in_every_form(explainer):
    a = explainer.explain(TEXTS[0], "attcat")
    for spans in ([(4, 8)], [[(4, 8)]], [[(0, 4, 8)]]):
        row = explainer.evaluate(a, "rationale", spans=spans).rows[0]
        assert row["rationale"] is not None
        assert row["rationale.f1"] in (0.0, 1.0)
    for spans, message in (([[(8, 4)]], "is empty"), ([["ab"]], "is none: give")):
        with pytest.raises(BadInput, match=message):
            explainer.evaluate(a, "rationale", spans=spans)
    found = explainer.evaluate(a, "rationale", spans=[None])
    assert found.rows[0]["rationale.skipped"] == "no rationale is marked in this text."


def test_precision_at_k_of_a_question(tokenizer):
    explainer = Explainer(tiny_bert_qa(), tokenizer)
    a = explainer.explain(Question(question="who sat", context="the cat sat on the mat"), "attcat")
    found = explainer.evaluate(a, [("precision_at_k", {"k": 20}), "aopc"], spans=[(4, 7)])
    assert found.rows[0]["precision_at_k"] == 1
    assert found.rows[0]["aopc"] is not None


def test_nothing_to_evaluate_is_said(explainer):
    with pytest.raises(BadInput, match="cannot be evaluated; give what explain"):
        explainer.evaluate([], "aopc")


def test_an_evaluation_is_saved_whole(explainer, tmp_path):
    import pyarrow.parquet

    xs = explainer.explain(TEXTS, method=["attcat", "random"])
    found = explainer.evaluate(xs, ["aopc", "hiding_game", "token_overlap"], labels=[0, 1, 2, None])
    found.save(tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "curves.png",
        "report.html",
        "rows.parquet",
        "summary.json",
    ]
    rows = pyarrow.parquet.read_table(tmp_path / "out" / "rows.parquet").to_pylist()
    assert [row["aopc"] for row in rows] == [row["aopc"] for row in found.rows]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["methods"]["attcat"]["aopc"]["count"] == 4
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(found.to_pandas()) == 8


def test_the_report_escapes_what_it_shows(explainer):
    from tokenlight.evaluation.report import page

    a = replace(explainer.explain(TEXTS[0], "attcat"), method="<script>alert(1)</script>$x$")
    report = page(explainer.evaluate([a], "aopc"), title="<b>")
    assert "<script" not in report
    assert "&lt;script&gt;" in report
    assert "<b>" not in report


def test_a_missing_library_is_named(explainer, monkeypatch):
    xs = explainer.explain(TEXTS[:2], method=["attcat"])
    found = explainer.evaluate(xs, "aopc")
    for library in ("scipy", "pyarrow", "matplotlib"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match="scipy"):
        _ = found.summary
    from tokenlight.evaluation.report import figure
    from tokenlight.files.write import write_parquet

    with pytest.raises(MissingExtra, match="matplotlib"):
        figure(found)
    with pytest.raises(MissingExtra, match="pyarrow"):
        write_parquet(None, [])


# --- explanations made elsewhere -------------------------------------------------------------------


def test_plain_arrays_are_measured_like_our_own():
    explainer = planted()
    words = [10, 11, 12, 13]
    ours = scored(explainer, words, oracle(explainer, words, 1), target=1)
    theirs = from_arrays(
        ours.scores,
        ours.row.ids,
        ours.logits,
        target=1,
        labels=explainer.labels,
        special=ours.row.special,
        method="theirs",
    )
    rows = explainer.evaluate([ours, theirs], ["aopc", "lodds", "sufficiency"]).rows
    for name in ("aopc", "lodds", "sufficiency"):
        assert rows[0][name] == rows[1][name]
    assert theirs.prediction.index == ours.prediction.index
    assert theirs.method == "theirs"


def test_arrays_with_a_hidden_axis_are_summed():
    table = np.arange(12.0).reshape(1, 3, 4)
    a = from_arrays(torch.from_numpy(table), torch.tensor([2, 10, 3]), torch.tensor([0.5, 1.0]))
    assert a.scores.tolist() == [6, 22, 38]
    assert a.target.name == "LABEL_1"


@pytest.mark.parametrize(
    ("scores", "more", "message"),
    [
        ([1, 2], {}, "2 scores were given, but the text has 3 tokens"),
        ([1, 2, 3], {"labels": ["a"]}, "labels has 1 entries, and 2 are needed"),
        ([1, 2, 3], {"special": [True]}, "special has 1 entries, and 3 are needed"),
        ([1, np.nan, 3], {}, "scores hold NaN or infinity, the first at 1"),
        ([1, 2, 3], {"logits": [0.5, np.nan]}, "the logits hold NaN or infinity"),
        (
            [1, 2, 3],
            {"logits": [[0.5, 1], [1, 2]]},
            "logits have 2 rows, and an Attribution is of one",
        ),
        (
            [1, 2, 3],
            {"ids": [[2, 10, 3], [2, 11, 3]]},
            "ids have 2 rows, and an Attribution is of one",
        ),
        (
            [1, 2, 3],
            {"target": "all"},
            "target='all' is every class, and these scores speak for one",
        ),
        ([1, 2, 3], {"attention_mask": [1, 1, 0]}, "hides 1 of 3 tokens up to an end.*padding"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(scores, more, message):
    with pytest.raises(Exception, match=message):
        from_arrays(scores, **{"ids": [2, 10, 3], "logits": [0.5, 1.0], **more})


def test_special_tokens_masked_on_purpose_are_no_padding():
    made = from_arrays(
        [0, 1, 0], [2, 10, 3], [0.5, 1.0], attention_mask=[0, 1, 0], special=[True, False, True]
    )
    assert made.row.attention == (0, 1, 0)


def test_an_explanation_is_measured_by_the_model_that_made_it_or_refused(explainer):
    """The sentiment of a review is no topic: the numbers would be another model's."""
    theirs = explainer.explain("the film is good", "attcat")
    topics = {0: "world", 1: "sports", 2: "science"}
    other = Explainer(tiny_bert(id2label=topics), tiny_tokenizer(), name="topics")
    for ask in (lambda: other.evaluate(theirs, "aopc"), lambda: trusted(other, theirs)):
        with pytest.raises(BadInput, match="topics has other outputs.*world, sports, science"):
            ask()
    unnamed = from_arrays(theirs.scores, theirs.row.ids, theirs.logits, special=theirs.row.special)
    assert explainer.evaluate(unnamed, "aopc").rows[0]["aopc"] is not None


def test_scores_of_other_libraries_are_adopted(explainer):
    text = "the film is good"
    ours = explainer.explain(text, "attcat")
    shap = SimpleNamespace(
        values=np.stack([ours.scores, 2 * ours.scores, -ours.scores], 1), base_values=0
    )
    captum = torch.randn(1, len(ours), 8, generator=torch.Generator().manual_seed(3)).double()
    for given, expected in (
        (ours.scores, ours.scores),
        (ours.scores[1:-1], np.r_[0, ours.scores[1:-1], 0]),
        (shap, shap.values[:, ours.target.index]),
        (captum, captum[0].sum(1).numpy()),
        (SimpleNamespace(source_attributions=ours.scores[:, None]), ours.scores),
    ):
        a = adopted(explainer, text, given, method="other")
        close(a.scores, expected, allowed(torch.float64, PLAIN, terms=8))
        assert a.target == ours.target
    assert "other" in explainer.evaluate([ours, a], "aopc").by_method


# --- method="best" ---------------------------------------------------------------------------------


MANY = [*TEXTS, *(f"{text} film" for text in TEXTS)] * 2


def test_the_best_method_is_chosen_kept_and_read_again(explainer, monkeypatch, tmp_path):
    monkeypatch.setattr(choosing, "CANDIDATES", ("occlusion", "cat"))
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    choice = choosing.best(explainer, MANY)
    assert set(choice.measured) == {"random", "occlusion", "cat"}  # measured in full, by no clock
    assert choice.reason.startswith(f"{choice.method} has AOPC ")
    monkeypatch.setattr(choosing, "_measured", None)  # the second time nothing is measured
    again = choosing.best(explainer, TEXTS)
    assert again == replace(choice, reason=again.reason)
    assert again.reason == f"{choice.reason}; measured earlier, maybe on other texts"
    kept = json.loads((tmp_path / "choices.json").read_text())
    assert next(iter(kept)).startswith("tiny@")


def test_candidates_that_are_named_are_compared_and_not_kept(explainer, monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    choice = choosing.best(explainer, TEXTS, candidates=["cat", "raw_att"])
    assert set(choice.measured) == {"random", "cat", "raw_att"}
    assert not (tmp_path / "choices.json").exists()


def test_a_damaged_choice_file_is_as_good_as_none(explainer, monkeypatch, tmp_path):
    monkeypatch.setattr(choosing, "CANDIDATES", ("occlusion", "cat"))
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    (tmp_path / "choices.json").write_text("{half")
    assert choosing.best(explainer, MANY).method
    assert json.loads((tmp_path / "choices.json").read_text())


def test_a_choice_made_on_fewer_texts_is_made_anew(explainer, monkeypatch, tmp_path):
    monkeypatch.setattr(choosing, "CANDIDATES", ("occlusion", "cat"))
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    few = choosing.best(explainer, MANY[:8])
    more = choosing.best(explainer, MANY)
    assert (few.texts, more.texts) == (8, len(MANY))
    assert choosing.best(explainer, TEXTS[:1]).texts == more.texts


def test_a_choice_of_few_texts_or_one_that_random_reaches_is_not_kept(
    explainer, monkeypatch, tmp_path
):
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    choosing.best(explainer, MANY[:7])
    assert not (tmp_path / "choices.json").exists()

    def chance(*_):
        return choosing.BestMethod("cat", "by chance", {"cat": 0.1, "random": 0.1}, 24)

    monkeypatch.setattr(choosing, "_measured", chance)
    assert choosing.best(explainer, MANY).method == "cat"
    assert not (tmp_path / "choices.json").exists()


def test_ties_are_announced_and_the_cheapest_of_them_is_taken():
    draw = np.random.default_rng(0)
    first = 0.5 + draw.normal(size=24) / 10
    found = {
        "integrated_gradients": first,
        "attnlrp": first
        + draw.normal(size=24) / 100
        - 0.001,  # not told apart, at a 25th of the cost
        "cat": first - 0.1,
        "random": first - 0.3,
    }
    chosen = choosing._choice(["integrated_gradients", "attnlrp", "cat"], found, 0)
    assert chosen.method == "attnlrp"
    means = {name: f"{own.mean():.3f}" for name, own in found.items()}
    assert f", as good as integrated_gradients {means['integrated_gradients']}; of" in (
        chosen.reason
    )
    assert chosen.reason.endswith(f"(random {means['random']})")
    clear = choosing._choice(["integrated_gradients", "cat"], found, 0)
    assert clear.method == "integrated_gradients"
    assert ", the highest of 2 methods (random " in clear.reason
    one = choosing._choice(["cat"], {"cat": first[:1], "random": first[:1] + 1}, 0)
    assert one.reason == (
        f"cat has AOPC {first[0]:.3f} on this one text, the highest of 1 methods (random "
        f"{first[0] + 1:.3f}); no method beats random here, so trust none of them much"
    )


def test_a_missing_library_is_named_before_anything_is_measured(explainer, monkeypatch):
    monkeypatch.setattr("tokenlight.errors.find_spec", lambda _: None)
    explained = explainer.explain(TEXTS[:1], "rollout")
    monkeypatch.setattr(explainer, "explain", None)
    for measures in (
        lambda: choosing.best(explainer, TEXTS),
        lambda: explainer.evaluate(explained, "aopc"),
    ):
        with pytest.raises(MissingExtra, match="scipy.*tokenlight.bench"):
            measures()


def test_the_explanation_says_which_method_was_best_and_why(explainer, monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(choosing, "CANDIDATES", ("occlusion", "cat"))
    a = choosing.explain_best(explainer, TEXTS[0], "predicted")
    assert a.notes[-1].startswith(f"method='best': {a.method} has AOPC ")
    assert len(choosing.explain_best(explainer, TEXTS, "predicted")) == 4
    with pytest.raises(BadInput, match="give a list, no iterator"):
        choosing.explain_best(explainer, iter(TEXTS), "predicted")


def test_no_candidate_that_works_is_said(tokenizer):
    single = Explainer(tiny_bert(id2label={0: "x"}, label2id={"x": 0}), tokenizer)
    with pytest.raises(BadInput, match="no method could be measured"):
        choosing.best(single, TEXTS, candidates=["attcat"])


# --- data files ------------------------------------------------------------------------------------


def write(folder, name, text):
    place = folder / name
    place.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return place


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"text": "good", "label": 1}\n\n{"text": "bad", "label": 0}\n'),
        ("a.jsonl.gz", '{"text": "good", "label": 1}\n{"text": "bad", "label": 0}\n'),
        ("a.json", '[{"text": "good", "label": 1}, {"text": "bad", "label": 0}]'),
        ("a.csv", "text,label\ngood,1\nbad,0\n"),
        ("a.csv.gz", "sentence,label\ngood,1\nbad,0\n"),
        ("a.tsv", "text\tlabel\ngood\t1\nbad\t0\n"),
    ],
)
def test_texts_and_labels_are_read_from_every_format(tmp_path, name, text):
    assert read(write(tmp_path, name, text)) == [Example("good", 1), Example("bad", 0)]
    assert len(read(tmp_path / name, limit=1)) == 1


def test_parquet_and_plain_text_are_read(tmp_path):
    from tokenlight.files.write import write_parquet

    write_parquet(tmp_path / "a.parquet", [{"text": "good", "label": "yes"}])
    assert read(tmp_path / "a.parquet") == [Example("good", "yes")]
    assert read(write(tmp_path, "a.txt", "one\n\ntwo\n")) == [Example("one"), Example("two")]


def test_a_line_of_plain_text_ends_where_the_line_ends(tmp_path):
    place = write(tmp_path, "d.txt", "good\u2028film\u0085here\r\n\nbad\n")
    assert [example.text for example in read(str(place))] == ["good\u2028film\u0085here", "bad"]


def test_pairs_questions_and_marks_are_found_by_their_names(tmp_path):
    rows = [
        {"premise": "a", "hypothesis": "b", "label": "2"},
        {"question": "who", "context": "red cat", "answers": [{"text": "cat", "answer_start": 4}]},
        {"question": "who", "context": "red", "answers": {"text": [], "answer_start": []}},
        {"text": "one two  three", "rationales": [[1, 3]]},
        {"text": "one two", "spans": [[0, 3]]},
        {"text": "one", "label": -1},
    ]
    found = read(write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows))))
    assert found[0] == Example(("a", "b"), 2)
    assert found[1] == Example(Question("who", "red cat"), None, ((4, 7),))
    assert found[2].spans == ()
    assert found[3].spans == ((4, 14),)
    assert found[4].spans == ((0, 3),)
    assert found[5].label == -1  # among others it is a label
    columns = write(tmp_path, "b.csv", "x,y,z\ngood,bad,1\n")
    assert read(columns, text="x", label="z") == [Example("good", 1)]
    assert read(columns, text="x+y") == [Example(("good", "bad"))]


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("a.jsonl", "{half", DamagedFile, "line 1 of a.jsonl is not valid JSON"),
        ("a.jsonl", "[1]", BadInput, "line 1 of a.jsonl is not a JSON object"),
        ("a.json", "{}", BadInput, "not a list of JSON objects"),
        ("a.jsonl", '{"x": 1}', BadInput, "line 1 of a.jsonl has no column 'text', only x"),
        (
            "a.jsonl",
            '{"text": "b"}\n\n{"text": null}',
            BadInput,
            "line 3 of a.jsonl has no text",
        ),
        (
            "a.csv",
            "premise,hypothesis\na,b\nc\n",
            BadInput,
            "row 2 of a.csv has no text: its 'hypo",
        ),
        ("a.jsonl", "", BadInput, "holds no text"),
        ("a.parquet", "no", DamagedFile, "not a Parquet file"),
        ("a.xlsx", "no", BadInput, "the ending '.xlsx' is not one of"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_words(tmp_path, name, text, error, message):
    with pytest.raises(error, match=message):
        read(write(tmp_path, name, text))


def test_a_cut_gz_file_and_a_missing_file_are_refused(tmp_path):
    place = tmp_path / "a.jsonl.gz"
    place.write_bytes(gzip.compress(b'{"text": "good"}\n' * 50)[:30])
    with pytest.raises(DamagedFile, match="cannot be read"):
        read(place)
    with pytest.raises(DamagedFile, match="does not exist"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(BadInput, match="row 1 of b.csv has no column 'z'"):
        read(write(tmp_path, "b.csv", "text\ngood\n"), label="z")


# --- whole files, with resume ----------------------------------------------------------------------


def examples(count=10):
    return [Example(f"{TEXTS[i % 4]} {'fun ' * (i + 1)}", i % 3) for i in range(count)]


JOB = Experiment([("attcat", {}), ("random", {})], [("aopc", {}), ("hiding_game", {})])


def plain(evaluation: Evaluation):
    return [json.dumps(row) for row in evaluation.rows]


def test_an_interrupted_evaluation_goes_on_where_it_stopped(explainer, tmp_path, monkeypatch):
    monkeypatch.setattr(resuming, "SHARD", 3)
    whole, _ = evaluate_file(explainer, examples(), JOB, tmp_path / "whole")
    real, shards = resuming._shard, []

    def interrupted(*given):
        shards.append(given[-1])
        if len(shards) == 3:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(resuming, "_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate_file(explainer, examples(), JOB, tmp_path / "part")
    assert finished(tmp_path / "part") == 6
    found, refused = evaluate_file(explainer, examples(), JOB, tmp_path / "part")
    assert shards == [0, 3, 6, 6, 9]  # finished shards are not repeated
    assert plain(found) == plain(whole)
    assert refused == []
    assert [row["text"] for row in found.rows[::2]] == list(range(10))


def test_other_settings_in_the_same_folder_are_refused(explainer, tmp_path):
    evaluate_file(explainer, examples(2), JOB, tmp_path)
    with pytest.raises(BadInput, match=r"other settings: seed \(was 0, now 1\)"):
        evaluate_file(explainer, examples(2), replace(JOB, seed=1), tmp_path)
    with pytest.raises(BadInput, match=r"texts \(was 2, now 3\)"):
        evaluate_file(explainer, examples(3), JOB, tmp_path)


def test_every_character_of_an_answer_survives_its_file(tokenizer, tmp_path):
    """JSON leaves characters alone that str.splitlines() takes for the end of a line."""
    explainer = Explainer(tiny_bert_qa(), tokenizer)
    context = "the cat sat\u2028on\u2029the\u0085red mat"
    given = [Example(Question("who sat", context), None, ((context.index("sat"), len(context)),))]
    answer = {"target": "sat\u2028on\u2029the\u0085red"}
    job = Experiment([("attcat", {})], [("precision_at_k", {})], answer)
    for _ in range(2):
        found, refused = evaluate_file(explainer, given, job, tmp_path)
        assert refused == []
        assert found.summary["precision_at_k"]["count"] == 1
    (part,) = (tmp_path / "parts").iterdir()
    assert "\u2028" in part.read_text("utf-8")  # else this test tests nothing


def test_a_retrained_model_of_the_same_name_is_refused_by_the_folder(explainer, tmp_path):
    evaluate_file(explainer, examples(2), JOB, tmp_path)
    evaluate_file(explainer, examples(2), JOB, tmp_path)
    with torch.no_grad():
        explainer.model.classifier.weight.add_(0.1)
    with pytest.raises(BadInput, match=r"other settings: weights \(was"):
        evaluate_file(explainer, examples(2), JOB, tmp_path)


def test_a_bad_text_costs_itself_only(explainer, tmp_path):
    given = [Example("good film", 1), Example("   ", 0), Example("a dull plot", 0)]
    found, refused = evaluate_file(explainer, given, JOB, tmp_path)
    assert [(r.text, r.method) for r in refused] == [(1, "attcat"), (1, "random")]
    assert "is empty" in refused[0].reason
    assert [row["text"] for row in found.rows] == [0, 0, 2, 2]
    assert [row["label"] for row in found.rows] == ["neutral", "neutral", "negative", "negative"]


def test_a_method_that_does_not_fit_costs_itself_only(explainer, tmp_path):
    job = replace(JOB, methods=[("attcat", {}), ("gradcam", {"layer": 99})])
    found, refused = evaluate_file(explainer, examples(3), job, tmp_path)
    assert found.methods == ("attcat",)
    assert {r.method for r in refused} == {"gradcam"}
    assert len(refused) == 3


def test_an_unknown_label_is_found_before_any_work(explainer, tmp_path):
    with pytest.raises(Exception, match="unknown label 'wrong'"):
        evaluate_file(explainer, [Example("good", "wrong")], JOB, tmp_path)
    assert not (tmp_path / "parts").exists()


def test_document_frequencies_come_from_a_file(explainer, tmp_path):
    corpus = write(tmp_path, "wiki.txt", "the film\nthe cat\nthe dog\n")
    xs = explainer.explain(TEXTS, method=["attcat"])
    found = explainer.evaluate(xs, ("token_overlap", {"corpus": str(corpus)}))
    the = explainer.tokenizer.convert_tokens_to_ids("the")
    assert found.frequencies["token_overlap"].documents == 3
    assert found.frequencies["token_overlap"].counts[the] == 3


def test_document_frequencies_that_were_counted_before_are_the_same(explainer, tmp_path):
    corpus = write(tmp_path, "wiki.txt", "the film\nthe cat\nthe dog\n")
    kept = Frequencies.of(corpus.read_text().splitlines(), explainer.tokenizer)
    counted = kept.save(tmp_path / "idf.json")
    xs = explainer.explain(TEXTS, method=["attcat"])
    found = [
        explainer.evaluate(xs, ("token_overlap", {"corpus": str(file)}))
        for file in (corpus, counted)
    ]
    first, second = (one.frequencies["token_overlap"] for one in found)
    assert (first.documents, dict(first.counts)) == (second.documents, dict(second.counts))


def test_a_json_file_of_rows_is_a_corpus_of_texts(explainer, tmp_path):
    corpus = write(tmp_path, "rows.json", json.dumps([{"text": "the film"}, {"text": "the cat"}]))
    xs = explainer.explain(TEXTS, method=["attcat"])
    found = explainer.evaluate(xs, ("token_overlap", {"corpus": str(corpus)}))
    assert found.frequencies["token_overlap"].documents == 2
