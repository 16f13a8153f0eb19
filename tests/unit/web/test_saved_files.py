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

from tests.helpers.api_server import TEXT, assert_error, connect_client
from tests.helpers.bench_runs import write_suite
from tests.helpers.commands import run_command
from tests.helpers.expect import expect_error
from tests.helpers.image_models import SIDE, Processor, build_model
from tokenlight import Explainer, errors
from tokenlight.data.tokens import Question
from tokenlight.files.saved import save
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import AllowList
from tokenlight.web.saved_files import load_attributions, open_paths, parse_json_bytes

KIND = {"content-type": "application/json"}
PER_TOKEN = ("ids", "attention", "pieces", "special", "spans", "segments", "words")


@pytest.fixture(scope="module")
def saved(models):
    explainer = models.get_model("tiny").explainer
    return json.loads(
        json.dumps(
            [attribution.to_dict() for attribution in explainer.explain(TEXT, ["attcat", "gae"])]
        )
    )


@pytest.fixture(scope="module")
def everything(models, saved):
    """A text, an answer and a picture."""
    question = Question(question="who?", context="the cat sat.")
    answer = models.get_model("answers").explainer.explain(question).to_dict()
    photo = np.random.default_rng(0).integers(0, 256, size=(SIDE, SIDE, 3), dtype=np.uint8)
    with_image = Explainer(build_model("vit"), Processor()).explain(photo).to_dict()
    return json.loads(json.dumps([saved[0], answer, with_image]))


def test_saved_attributions_open_unchanged(client, saved):
    answer = client.post("/api/open", json=saved).json()
    assert answer["served"] is True
    assert [entry["attribution"] for entry in answer["attributions"]] == saved
    assert answer["agreement"]["methods"] == ["attcat", "gae"]
    identity = answer["attributions"][0]["id"]
    played = client.post("/api/perturb", json={"ids": [identity], "random_orders": 0})
    assert played.status_code == 200
    assert client.get(f"/api/attribution/{identity}").json() == saved[0]


def test_an_answer_with_its_trust_opens(client, models):
    explainer = models.get_model("answers").explainer
    from tokenlight.evaluation.trust import assess_trust

    attribution = assess_trust(
        explainer, explainer.explain(Question(question="who?", context="the cat sat."))
    )
    entry = client.post("/api/open", json=attribution.to_dict()).json()["attributions"][0]
    assert (
        entry["attribution"]["extras"]["trust"]["verdict"] == attribution.extras["trust"]["verdict"]
    )


def test_an_explanation_of_another_model_is_shown_but_cannot_be_run(client, saved):
    stranger = {**saved[0], "model": "/home/ann/models/mine"}
    answer = client.post("/api/open", json=stranger).json()
    assert answer["served"] is False
    entry = answer["attributions"][0]
    assert entry["attribution"]["model"] == "mine"
    for address, payload in (
        ("/api/perturb", {"ids": [entry["id"]]}),
        ("/api/trust", {"id": entry["id"]}),
    ):
        assert_error(client.post(address, json=payload), 422, "unsupported")


def test_a_file_that_the_named_model_cannot_run_is_not_served(client, saved):
    """Ids, labels or places that the served model does not have are never put into it."""
    for path, value in (
        (("row", "ids", 1), 10**6),
        (("prediction", "labels", 0), "other"),
        (("target", "terms", 0), [[7], 1.0]),
        (("target", "kind"), "span"),
    ):
        assert (
            client.post("/api/open", json=change_entry(saved[0], path, value)).json()["served"]
            is False
        )


def change_entry(entry, path, value):
    changed_entry = copy.deepcopy(entry)
    inner = changed_entry
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return changed_entry


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
def test_a_damaged_file_is_refused(client, saved, path, value):
    answer = client.post("/api/open", json=change_entry(saved[0], path, value))
    assert_error(answer, 422, "damaged_file")


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{}", b"nope", b"[" * 5000, b'{"a": NaN}'])
def test_content_that_is_not_an_attribution_is_refused(client, body):
    answer = client.post("/api/open", content=body, headers={"content-type": "application/json"})
    assert_error(answer, 422, "damaged_file")


def iter_paths(value, path=()):
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from iter_paths(inner, (*path, key))
    elif isinstance(value, list):
        for key, inner in enumerate(value):
            yield from iter_paths(inner, (*path, key))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(data=st.data(), value=JSON)
def test_any_change_of_a_file_opens_or_is_refused(saved, data, value):
    from tokenlight.plots.html import render_page
    from tokenlight.web.attribution_store import StoredAttribution
    from tokenlight.web.responses import serialize_entry

    entry = saved[data.draw(st.integers(0, 1))]
    path = data.draw(st.sampled_from([keys for keys in iter_paths(entry) if keys]))
    try:
        (attribution,) = load_attributions(change_entry(entry, path, value), ServerLimits())
    except errors.DamagedFile:
        return
    text = json.dumps(serialize_entry(StoredAttribution("x", attribution, None)), allow_nan=False)
    assert json.loads(text)["attribution"]["format"] == 1
    render_page([attribution])


NUMBERS = st.sampled_from(
    [-1, 0, 1, 2, 7, 10**7, 2**31, 2**63, 2**64, -(2**63), 1e-300, 1e18, 1e300]
)


@given(data=st.data(), value=JSON | NUMBERS, which=st.integers(0, 2))
def test_fuzzed_files_get_valid_responses(client, everything, data, value, which):
    """Shown, downloaded, tested and played with: an answer or a refusal, whatever the file says."""
    entry = everything[which]
    path = data.draw(st.sampled_from([keys for keys in iter_paths(entry) if keys]))
    answer = client.post(
        "/api/open", content=json.dumps(change_entry(entry, path, value)), headers=KIND
    )
    assert answer.status_code in (200, 422), answer.text
    if answer.status_code == 422:
        return
    identity = answer.json()["attributions"][0]["id"]
    responses = [
        client.get(f"/api/attribution/{identity}", params={"format": form, "words": words})
        for form, words in (("json", True), ("html", False), ("html", True), ("svg", False))
    ]
    responses.append(client.get(f"/api/attribution/{identity}?format=svg&figure=layers"))
    responses.append(client.post("/api/trust", json={"id": identity}))
    responses.append(client.post("/api/perturb", json={"id": identity, "random_orders": 2}))
    for response in responses:
        assert response.status_code in (200, 422), (
            path,
            value,
            response.request.url,
            response.text,
        )


def test_a_target_position_outside_the_text_is_refused(client, saved):
    for position in (-1, len(saved[0]["scores"]), 10**7):
        error = assert_error(
            client.post("/api/open", json=change_entry(saved[0], ("row", "at"), position)),
            422,
            "damaged_file",
        )
        assert "row.at" in error["message"]


@pytest.mark.parametrize(
    ("path", "value"),
    [(("row", "at"), 2), (("row", "anchor"), [0.5]), (("row", "token_types", 1), 9)],
)
def test_rows_that_the_served_model_cannot_read_are_shown_but_not_run(client, saved, path, value):
    answer = client.post("/api/open", json=change_entry(saved[0], path, value)).json()
    assert answer["served"] is False


def test_the_pictures_of_an_opened_file_are_small_together(client, everything):
    picture = everything[2]
    limits = ServerLimits(open_pixels=3 * 16 * 16)
    assert len(load_attributions([picture] * 3, limits)) == 3
    with expect_error(errors.DamagedFile, "opened-pixels"):
        load_attributions([picture] * 4, limits)
    into = io.BytesIO()
    Image.new("1", (13_000, 13_000)).save(into, format="PNG")
    bomb = change_entry(
        picture, ("row", "image", "png"), base64.b64encode(into.getvalue()).decode()
    )
    assert_error(client.post("/api/open", json=bomb), 422, "damaged_file")


def grow_entry(entry, tokens, layers):
    """The same explanation of a text of so many tokens, all alike."""
    row = {name: [entry["row"][name][1]] * tokens for name in PER_TOKEN}
    changed_entry = {
        **entry,
        "row": {**entry["row"], **row, "token_types": None},
        "scores": [0.5] * tokens,
    }
    return {**changed_entry, "layers": [[0.5] * tokens] * layers}


def test_files_that_are_too_large_to_draw_are_refused(client, saved):
    for tokens, layers in ((20_001, 1), (2, 1_001)):
        answer = client.post("/api/open", json=grow_entry(saved[0], tokens, layers))
        error = assert_error(answer, 422, "damaged_file")
        assert "20,000 tokens or 1,000 layers" in error["message"]
    answer = client.post("/api/open", json=grow_entry(saved[0], 1_000, 1)).json()
    address = f"/api/attribution/{answer['attributions'][0]['id']}"
    assert client.get(f"{address}?format=svg").status_code == 200
    error = assert_error(client.get(f"{address}?format=svg&figure=layers"), 422, "bad_input")
    assert "1 × 1000 layers and tokens" in error["message"]


def test_two_runs_of_one_name_show_their_own_reports(tmp_path):
    for parent in ("a", "b"):
        run = tmp_path / parent / "run #1?"
        run.mkdir(parents=True)
        (run / "run.json").write_text("{}")
        (run / "report.html").write_text(f"report {parent}")
    opened_files = open_paths(
        [str(tmp_path / "a" / "run #1?"), str(tmp_path / "b")], ServerLimits()
    )
    with connect_client(AllowList([]), opened_files) as client:
        runs = client.get("/api/opened").json()["benchmarks"]
        assert [run["name"] for run in runs] == ["run #1?", "run #1? (2)"]
        assert [client.get(run["report"]).text for run in runs] == ["report a", "report b"]


@pytest.fixture(scope="module")
def start_folder(models, tmp_path_factory):
    """Return a folder with a saved file, a folder of such files and a benchmark run."""
    root = tmp_path_factory.mktemp("start")
    explainer = models.get_model("tiny").explainer
    attributions = explainer.explain(["good film", "bad plot"])
    save(attributions[:1], root / "one.json")
    folder = root / "several"
    folder.mkdir()
    save(attributions, folder / "both.json")
    (folder / "other.json").write_text('{"some": "thing"}')
    run = root / "first-run"
    run.mkdir()
    (run / "run.json").write_text('{"format": 1, "suite": "attcat_table1", "at": "/data/x/y"}')
    (run / "scores.csv").write_text(
        "model,method,metric,mean\ntiny,attcat,aopc,0.25\ntiny,gae,aopc,\n"
    )
    (run / "report.html").write_text("<!doctype html><title>report</title>")
    return root


@pytest.fixture(scope="module")
def files_client(start_folder):
    """Return a client of a server without models, started with all of ``start_folder``."""
    names = ("one.json", "several", "first-run")
    opened_files = open_paths([str(start_folder / name) for name in names], ServerLimits())
    with connect_client(AllowList([]), opened_files) as running_client:
        yield running_client


def test_saved_files_and_folders_are_opened_at_start(files_client, start_folder):
    answer = files_client.get("/api/opened")
    assert str(start_folder) not in answer.text
    files = answer.json()["attributions"]
    entries_by_file = {file["file"]: file["entries"] for file in files}
    assert {name: len(entries) for name, entries in entries_by_file.items()} == {
        "one.json": 1,
        "both.json": 2,
    }
    assert not any(file["served"] for file in files)
    identity = entries_by_file["one.json"][0]["id"]
    assert files_client.get(f"/api/attribution/{identity}?format=html").status_code == 200


def test_benchmark_runs_are_opened_at_start(files_client):
    (benchmark,) = files_client.get("/api/opened").json()["benchmarks"]
    assert benchmark["name"] == "first-run"
    assert benchmark["manifest"]["run"]["suite"] == "attcat_table1"
    assert benchmark["manifest"]["run"]["at"] == "y"
    assert [row["mean"] for row in benchmark["scores"]] == [0.25, None]
    report = files_client.get(benchmark["report"])
    assert "report" in report.text
    assert "sandbox" in report.headers["content-security-policy"]


def test_a_server_of_files_has_no_model_and_explains_no_text(files_client):
    assert files_client.get("/api/models").json()["models"] == []
    assert_error(files_client.post("/api/explain", json={"text": "a"}), 422, "bad_input")


def test_a_benchmark_run_opens_with_its_report(tmp_path, bert_folder):
    """A run as the benchmark leaves it, before anybody has made a report of it."""
    suite = write_suite(tmp_path / "suite", bert_folder, 4)
    run = tmp_path / "second-run"
    ended = run_command("bench", "run", suite, "-o", run, "--workers", 1)
    assert ended.status == 0, ended.errors
    opened_files = open_paths([str(run)], ServerLimits())
    with connect_client(AllowList([]), opened_files) as client:
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
    file = tmp_path / "broken.json"
    file.write_text(content)
    with expect_error(errors.DamagedFile, "open-failed", mentions="broken.json"):
        open_paths([str(file)], ServerLimits())
    with expect_error(errors.DamagedFile, "open-nothing"):
        open_paths([str(tmp_path)], ServerLimits())
    with expect_error(errors.DamagedFile, "open-failed", mentions="missing.json"):
        open_paths([str(tmp_path / "missing.json")], ServerLimits())


def test_json_with_lone_surrogates_is_refused(saved):
    damaged = json.dumps(saved[0]).replace("film", "\\ud800", 1).encode()
    with pytest.raises(errors.DamagedFile, match="surrogate"):
        load_attributions(parse_json_bytes(damaged), ServerLimits())
