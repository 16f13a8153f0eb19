"""A saved attribution opens without any model; a damaged one is refused in words, never a crash."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.served import TEXT, allow_list, asking, refused
from tokenlight import errors
from tokenlight.attribution import save
from tokenlight.tokens import Question
from tokenlight.web.limits import Limits
from tokenlight.web.opened import opened, parsed
from tokenlight.web.refusals import Refusal
from tokenlight.web.serving import AllowList
from tokenlight.web.shelf import shelf


@pytest.fixture(scope="module")
def models():
    return allow_list()


@pytest.fixture(scope="module")
def saved(models):
    explainer = models.named("tiny").explainer
    return json.loads(json.dumps([a.to_dict() for a in explainer.explain(TEXT, ["attcat", "gae"])]))


@pytest.fixture(scope="module")
def client(models):
    with asking(models) as made:
        yield made


def test_what_was_saved_opens_as_it_was(client, saved):
    answer = client.post("/api/open", json=saved).json()
    assert answer["served"] is True
    assert [one["attribution"] for one in answer["attributions"]] == saved
    assert answer["agreement"]["methods"] == ["attcat", "gae"]
    identity = answer["attributions"][0]["id"]
    played = client.post("/api/perturb", json={"ids": [identity], "random_orders": 0})
    assert played.status_code == 200
    assert client.get(f"/api/attribution/{identity}").json() == saved[0]


def test_an_answer_and_its_trust_open_too(client, models):
    explainer = models.named("answers").explainer
    from tokenlight.trust import trusted

    a = trusted(explainer, explainer.explain(Question(question="who?", context="the cat sat.")))
    entry = client.post("/api/open", json=a.to_dict()).json()["attributions"][0]
    assert entry["attribution"]["extras"]["trust"]["verdict"] == a.extras["trust"]["verdict"]


def test_a_stranger_is_shown_but_its_model_cannot_be_asked(client, saved):
    stranger = {**saved[0], "model": "/home/ann/models/mine"}
    answer = client.post("/api/open", json=stranger).json()
    assert answer["served"] is False
    entry = answer["attributions"][0]
    assert entry["attribution"]["model"] == "mine"
    for address, asked in (
        ("/api/perturb", {"ids": [entry["id"]]}),
        ("/api/trust", {"id": entry["id"]}),
    ):
        refused(client.post(address, json=asked), 422, "unsupported")


def test_a_name_alone_does_not_make_it_this_models(client, saved):
    """Ids, labels or places that the served model does not have are never put into it."""
    for path, value in (
        (("row", "ids", 1), 10**6),
        (("prediction", "labels", 0), "other"),
        (("target", "terms", 0), [[7], 1.0]),
        (("target", "kind"), "span"),
    ):
        assert (
            client.post("/api/open", json=changed(saved[0], path, value)).json()["served"] is False
        )


def changed(entry, path, value):
    made = copy.deepcopy(entry)
    inner = made
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return made


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), 2),
        (("scores", 0), "a"),
        (("scores",), [1.0]),
        (("scores", 0), 1e301),
        (("layers", 0), [1.0]),
        (("layers",), []),
        (("row", "pieces", 0), 7),
        (("row", "pieces"), []),
        (("row", "special", 0), "yes"),
        (("row", "spans", 1), [0, 10**6]),
        (("row", "spans", 1), [3, 1]),
        (("row", "segments", 1), 5),
        (("row", "texts"), []),
        (("row", "texts", 0), 5),
        (("row", "ids", 0), -1),
        (("row", "attention", 0), 2),
        (("row", "more"), 1),
        (("prediction", "probabilities", 0), 2.0),
        (("prediction", "index"), 9),
        (("prediction", "labels"), "abc"),
        (("target", "kind"), "magic"),
        (("target", "terms"), []),
        (("target", "terms", 0, 0), []),
        (("method",), {"a": 1}),
        (("notes",), [1]),
        (("versions",), {"torch": 1}),
        (("seed",), "zero"),
        (("extras",), {"trust": "fine"}),
        (("model",), None),
        (("options",), [1]),
    ],
)
def test_a_damaged_file_is_refused_in_words(client, saved, path, value):
    answer = client.post("/api/open", json=changed(saved[0], path, value))
    refused(answer, 422, "damaged_file")


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{}", b"nope", b"[" * 5000, b'{"a": NaN}'])
def test_what_is_no_attribution_is_refused(client, body):
    answer = client.post("/api/open", content=body, headers={"content-type": "application/json"})
    refused(answer, 422, "damaged_file")


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for key, inner in enumerate(value):
            yield from places(inner, (*path, key))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(data=st.data(), value=JSON)
def test_whatever_is_put_anywhere_it_opens_or_is_refused_and_can_be_shown(saved, data, value):
    from tokenlight.plots.html import page
    from tokenlight.web.answering import shown
    from tokenlight.web.kept import Entry

    entry = saved[data.draw(st.integers(0, 1))]
    path = data.draw(st.sampled_from([place for place in places(entry) if place]))
    try:
        (made,) = opened(changed(entry, path, value), Limits())
    except Refusal as why:
        assert why.code == "damaged_file"
        return
    text = json.dumps(shown(Entry("x", made, None)), allow_nan=False)
    assert json.loads(text)["attribution"]["format"] == 1
    page([made])


def test_files_folders_and_runs_are_opened_at_start(tmp_path, models):
    explainer = models.named("tiny").explainer
    found = explainer.explain(["good film", "bad plot"])
    save(found[:1], tmp_path / "one.json")
    folder = tmp_path / "several"
    folder.mkdir()
    save(found, folder / "both.json")
    (folder / "other.json").write_text('{"some": "thing"}')
    run = tmp_path / "first-run"
    run.mkdir()
    (run / "run.json").write_text('{"format": 1, "suite": "attcat_table1", "at": "/data/x/y"}')
    (run / "scores.csv").write_text(
        "model,method,metric,mean\ntiny,attcat,aopc,0.25\ntiny,gae,aopc,\n"
    )
    (run / "report.html").write_text("<!doctype html><title>report</title>")
    made = shelf([str(tmp_path / "one.json"), str(folder), str(run)], Limits())
    with asking(AllowList([]), made) as client:
        assert client.get("/api/models").json()["models"] == []
        answer = client.get("/api/opened")
        assert str(tmp_path) not in answer.text
        opened_files = {one["file"]: one["entries"] for one in answer.json()["attributions"]}
        assert {name: len(entries) for name, entries in opened_files.items()} == {
            "one.json": 1,
            "both.json": 2,
        }
        assert not any(one["served"] for one in answer.json()["attributions"])
        identity = opened_files["one.json"][0]["id"]
        assert client.get(f"/api/attribution/{identity}?format=html").status_code == 200
        (benchmark,) = answer.json()["benchmarks"]
        assert benchmark["name"] == "first-run"
        assert benchmark["manifest"]["run"]["suite"] == "attcat_table1"
        assert benchmark["manifest"]["run"]["at"] == "y"
        assert [row["mean"] for row in benchmark["scores"]] == [0.25, None]
        report = client.get(benchmark["report"])
        assert "report" in report.text
        assert "sandbox" in report.headers["content-security-policy"]
        refused(client.post("/api/explain", json={"text": "a"}), 422, "bad_input")


def test_a_benchmark_run_opens_with_its_report(tmp_path, bert_folder):
    """A run as the benchmark leaves it, which nobody has asked for a report of yet."""
    from tests.bench_runs import make
    from tokenlight.cli import main

    suite = make(tmp_path / "suite", bert_folder, 4)
    with pytest.raises(SystemExit) as ended:
        main(["bench", "run", str(suite), "-o", str(tmp_path / "second-run"), "--workers", "1"])
    assert not ended.value.code
    made = shelf([str(tmp_path / "second-run")], Limits())
    with asking(AllowList([]), made) as client:
        answer = client.get("/api/opened")
        assert str(tmp_path) not in answer.text
        (benchmark,) = answer.json()["benchmarks"]
        methods = {row["method"] for row in benchmark["scores"]}
        assert methods == {"attcat", "rollout", "random"}
        assert all(isinstance(row["mean"], float) for row in benchmark["scores"])
        report = client.get(benchmark["report"])
        assert report.status_code == 200
        assert "attcat" in report.text
        assert str(tmp_path) not in report.text


@pytest.mark.parametrize("content", ["nope", '{"format": 9}'])
def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path, content):
    place = tmp_path / "broken.json"
    place.write_text(content)
    with pytest.raises(errors.DamagedFile, match="broken.json"):
        shelf([str(place)], Limits())
    with pytest.raises(errors.DamagedFile, match="no saved attribution"):
        shelf([str(tmp_path)], Limits())
    with pytest.raises(errors.DamagedFile, match="missing.json"):
        shelf([str(tmp_path / "missing.json")], Limits())


def test_json_with_half_characters_is_no_attribution(saved):
    damaged = json.dumps(saved[0]).replace("film", "\\ud800", 1).encode()
    with pytest.raises(Refusal, match="surrogate"):
        opened(parsed(damaged), Limits())
