"""A saved attribution opens without any model; a damaged one is refused in words, never a crash."""

import base64
import copy
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.unit.served import TEXT, allow_list, asking, refused
from tests.vision import SIDE, Processor, build
from tokenlight import Explainer, errors
from tokenlight.data.tokens import Question
from tokenlight.files.saved import save
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import AllowList
from tokenlight.web.opened import opened, parsed, shelf

KIND = {"content-type": "application/json"}
PER_TOKEN = ("ids", "attention", "pieces", "special", "spans", "segments", "words")


@pytest.fixture(scope="module")
def models():
    return allow_list()


@pytest.fixture(scope="module")
def saved(models):
    explainer = models.named("tiny").explainer
    return json.loads(json.dumps([a.to_dict() for a in explainer.explain(TEXT, ["attcat", "gae"])]))


@pytest.fixture(scope="module")
def everything(models, saved):
    """A text, an answer and a picture."""
    question = Question(question="who?", context="the cat sat.")
    answered = models.named("answers").explainer.explain(question).to_dict()
    photo = np.random.default_rng(0).integers(0, 256, size=(SIDE, SIDE, 3), dtype=np.uint8)
    seen = Explainer(build("vit"), Processor()).explain(photo).to_dict()
    return json.loads(json.dumps([saved[0], answered, seen]))


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
    from tokenlight.evaluation.trust import trusted

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
        pytest.param(("tokens", 0), 10**400, id="huge number"),
        (("logits", 0), None),
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
    from tokenlight.web.responses import shown
    from tokenlight.web.store import Entry

    entry = saved[data.draw(st.integers(0, 1))]
    path = data.draw(st.sampled_from([place for place in places(entry) if place]))
    try:
        (made,) = opened(changed(entry, path, value), ServerLimits())
    except errors.DamagedFile:
        return
    text = json.dumps(shown(Entry("x", made, None)), allow_nan=False)
    assert json.loads(text)["attribution"]["format"] == 1
    page([made])


NUMBERS = st.sampled_from(
    [-1, 0, 1, 2, 7, 10**7, 2**31, 2**63, 2**64, -(2**63), 1e-300, 1e18, 1e300]
)


@given(data=st.data(), value=JSON | NUMBERS, which=st.integers(0, 2))
def test_no_opened_file_brings_the_server_down(client, everything, data, value, which):
    """Shown, downloaded, tested and played with: an answer or a refusal, whatever the file says."""
    entry = everything[which]
    path = data.draw(st.sampled_from([place for place in places(entry) if place]))
    answer = client.post("/api/open", content=json.dumps(changed(entry, path, value)), headers=KIND)
    assert answer.status_code in (200, 422), answer.text
    if answer.status_code == 422:
        return
    identity = answer.json()["attributions"][0]["id"]
    asked = [
        client.get(f"/api/attribution/{identity}", params={"format": form, "words": words})
        for form, words in (("json", True), ("html", False), ("html", True), ("svg", False))
    ]
    asked.append(client.get(f"/api/attribution/{identity}?format=svg&figure=layers"))
    asked.append(client.post("/api/trust", json={"id": identity}))
    asked.append(client.post("/api/perturb", json={"id": identity, "random_orders": 2}))
    for one in asked:
        assert one.status_code in (200, 422), (path, value, one.request.url, one.text)


def test_a_place_outside_the_text_is_refused(client, saved):
    for place in (-1, len(saved[0]["scores"]), 10**7):
        error = refused(
            client.post("/api/open", json=changed(saved[0], ("row", "at"), place)),
            422,
            "damaged_file",
        )
        assert "row.at" in error["message"]


@pytest.mark.parametrize(
    ("path", "value"),
    [(("row", "at"), 2), (("row", "anchor"), [0.5]), (("row", "token_types", 1), 9)],
)
def test_what_the_served_model_cannot_read_is_shown_but_not_asked(client, saved, path, value):
    answer = client.post("/api/open", json=changed(saved[0], path, value)).json()
    assert answer["served"] is False


def test_the_pictures_of_an_opened_file_are_small_together(client, everything):
    picture = everything[2]
    many = ServerLimits(open_pixels=3 * 16 * 16)
    assert len(opened([picture] * 3, many)) == 3
    with pytest.raises(errors.DamagedFile, match="768 pixels together"):
        opened([picture] * 4, many)
    into = io.BytesIO()
    Image.new("1", (13_000, 13_000)).save(into, format="PNG")
    bomb = changed(picture, ("row", "image", "png"), base64.b64encode(into.getvalue()).decode())
    refused(client.post("/api/open", json=bomb), 422, "damaged_file")


def grown(entry, tokens, layers):
    """The same explanation of a text of so many tokens, all alike."""
    row = {name: [entry["row"][name][1]] * tokens for name in PER_TOKEN}
    made = {**entry, "row": {**entry["row"], **row, "token_types": None}, "scores": [0.5] * tokens}
    return {**made, "layers": [[0.5] * tokens] * layers}


def test_what_takes_minutes_to_draw_is_refused(client, saved):
    for tokens, layers in ((20_001, 1), (2, 1_001)):
        answer = client.post("/api/open", json=grown(saved[0], tokens, layers))
        error = refused(answer, 422, "damaged_file")
        assert "20,000 tokens or 1,000 layers" in error["message"]
    answer = client.post("/api/open", json=grown(saved[0], 1_000, 1)).json()
    address = f"/api/attribution/{answer['attributions'][0]['id']}"
    assert client.get(f"{address}?format=svg").status_code == 200
    error = refused(client.get(f"{address}?format=svg&figure=layers"), 422, "bad_input")
    assert "1 × 1000 layers and tokens" in error["message"]


def test_two_runs_of_one_name_show_their_own_reports(tmp_path):
    for parent in ("a", "b"):
        run = tmp_path / parent / "run #1?"
        run.mkdir(parents=True)
        (run / "run.json").write_text("{}")
        (run / "report.html").write_text(f"report {parent}")
    made = shelf([str(tmp_path / "a" / "run #1?"), str(tmp_path / "b")], ServerLimits())
    with asking(AllowList([]), made) as client:
        runs = client.get("/api/opened").json()["benchmarks"]
        assert [run["name"] for run in runs] == ["run #1?", "run #1? (2)"]
        assert [client.get(run["report"]).text for run in runs] == ["report a", "report b"]


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
    made = shelf([str(tmp_path / "one.json"), str(folder), str(run)], ServerLimits())
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
    made = shelf([str(tmp_path / "second-run")], ServerLimits())
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
        shelf([str(place)], ServerLimits())
    with pytest.raises(errors.DamagedFile, match="no saved attribution"):
        shelf([str(tmp_path)], ServerLimits())
    with pytest.raises(errors.DamagedFile, match="missing.json"):
        shelf([str(tmp_path / "missing.json")], ServerLimits())


def test_json_with_half_characters_is_no_attribution(saved):
    damaged = json.dumps(saved[0]).replace("film", "\\ud800", 1).encode()
    with pytest.raises(errors.DamagedFile, match="surrogate"):
        opened(parsed(damaged), ServerLimits())
