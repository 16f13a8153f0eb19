"""Pictures on the page: alone for an image classifier, with a prompt for a vision-language model."""

import base64
import zlib

import numpy as np
import pytest

from tests.helpers.api_server import assert_error, connect_client
from tests.helpers.image_models import PATCH, SIDE
from tests.helpers.served_pictures import encode_image, make_picture_models
from tokenlight import Continuation, Picture
from tokenlight.web.limits import ServerLimits


def to_base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


PNG = encode_image()
PICTURE = to_base64(PNG)
PROMPT = "what is the red cat"


@pytest.fixture(scope="module")
def models():
    return make_picture_models()


def test_both_models_say_what_they_read(client):
    classifier, captioner = client.get("/api/models").json()["models"]
    assert classifier["inputs"] == [["picture"]]
    assert captioner["inputs"] == [["picture", "prompt"]]
    for facts in (classifier, captioner):
        (example,) = facts["examples"]
        fields = {name: example[name] for name in facts["inputs"][0]}
        answer = client.post("/api/explain", json={"model": facts["name"], **fields})
        assert answer.status_code == 200, answer.text


def test_a_picture_is_explained_as_the_library_does(client, models):
    answer = client.post(
        "/api/explain",
        json={"model": "classifier", "picture": PICTURE, "method": ["attcat", "gae"]},
    )
    assert answer.status_code == 200, answer.text
    expected = models["classifier"].explainer.explain(Picture(PNG), ["attcat", "gae"])
    for entry, attribution in zip(answer.json()["attributions"], expected, strict=True):
        np.testing.assert_allclose(entry["attribution"]["scores"], attribution.scores, atol=1e-12)
        assert entry["attribution"]["row"]["image"]["png"]


@pytest.mark.parametrize("target", ["predicted", {"generate": 2}])
def test_a_picture_with_a_prompt_is_explained_as_the_library_does(client, models, target):
    payload = {"picture": PICTURE, "prompt": PROMPT, "method": ["attcat"]}
    answer = client.post("/api/explain", json={**payload, "target": target})
    assert answer.status_code == 200, answer.text
    library_target = target if isinstance(target, str) else Continuation(None, 2)
    expected = models["captioner"].explainer.explain(
        [Picture(PNG, text=PROMPT)], ["attcat"], library_target
    )
    assert len(answer.json()["attributions"]) == len(expected)
    for entry, attribution in zip(answer.json()["attributions"], expected, strict=True):
        np.testing.assert_allclose(entry["attribution"]["scores"], attribution.scores, atol=1e-9)
        places = entry["attribution"]["row"]["image"]["places"]
        assert len(places) == (SIDE // PATCH) ** 2


@pytest.mark.parametrize("fields", [{"model": "classifier"}, {"prompt": PROMPT}])
def test_trust_game_and_files_work_on_pictures(client, fields):
    payload = {"picture": PICTURE, "method": "attcat", **fields}
    entry = client.post("/api/explain", json=payload).json()["attributions"][0]
    trust = client.post("/api/trust", json={"id": entry["id"]})
    assert trust.json()["trust"]["verdict"], trust.text
    game = client.post("/api/perturb", json={"ids": [entry["id"]], "random_orders": 1})
    assert game.status_code == 200, game.text
    own_order = {**fields, "picture": PICTURE, "order": [game.json()["games"][0]["order"][0]]}
    assert client.post("/api/perturb", json=own_order).status_code == 200
    page = client.get(f"/api/attribution/{entry['id']}?format=html")
    assert "data:image/png;base64," in page.text
    opened = client.post("/api/open", json=entry["attribution"])
    assert opened.json()["served"] is False  # a picture of a file is shown, but not run again


@pytest.mark.parametrize("image_format", ["JPEG", "GIF", "BMP", "WEBP", "TIFF"])
def test_pictures_of_common_formats_and_data_addresses_are_read(client, image_format):
    encoded = to_base64(encode_image(image_format, (40, 24)))
    payload = {"model": "classifier", "picture": f"data:image/x;base64,{encoded}"}
    image = client.post("/api/explain", json=payload).json()["attributions"][0]["attribution"][
        "row"
    ]["image"]
    assert image["size"] == [40, 24]


def claim_size(width: int, height: int) -> bytes:
    """Return a small PNG file whose header claims another size."""
    header = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + PNG[24:29]
    return PNG[:12] + header + zlib.crc32(header).to_bytes(4, "big") + PNG[33:]


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        ("no base64!", "not base64"),
        (to_base64(b"%PDF-1.7 is no picture"), "not a picture that can be read"),
        (to_base64(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "PNG, JPEG"),
        (to_base64(claim_size(9000, 9000)), "9000 × 9000 pixels"),
        (to_base64(b"\0" * (ServerLimits().picture_bytes + 1)), "bytes"),
        ("", "picture"),
    ],
)
def test_bad_pictures_are_refused_with_the_reason(client, picture, words):
    answer = client.post("/api/explain", json={"model": "classifier", "picture": picture})
    assert words in assert_error(answer, 422, "invalid")["message"]


def test_a_damaged_picture_is_refused_when_it_is_decoded(client):
    answer = client.post(
        "/api/explain", json={"model": "classifier", "picture": to_base64(PNG[: len(PNG) // 2])}
    )
    assert "cannot be read as an image" in assert_error(answer, 422, "bad_input")["message"]


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"model": "classifier", "text": "a film"}, "Give picture."),
        ({"model": "classifier", "picture": PICTURE, "prompt": "what ?"}, "Give picture."),
        ({"model": "captioner", "picture": PICTURE}, "Give picture and prompt."),
        ({"model": "captioner", "prompt": "what ?"}, "Give picture and prompt."),
    ],
)
def test_fields_that_a_model_does_not_read_are_refused(client, payload, words):
    answer = client.post("/api/explain", json=payload)
    assert assert_error(answer, 422, "bad_input")["hint"] == words


def test_windows_of_a_picture_are_refused(client):
    payload = {"picture": PICTURE, "prompt": PROMPT, "long": "stride"}
    assert_error(client.post("/api/explain", json=payload), 422, "bad_input")


def test_only_a_server_that_reads_pictures_takes_large_bodies(client):
    body = b'{"text": "' + b"a" * (2 * ServerLimits().body_bytes) + b'"}'
    headers = {"content-type": "application/json"}
    assert_error(client.post("/api/explain", content=body, headers=headers), 422, "invalid")
    with connect_client() as text_client:
        answer = text_client.post("/api/explain", content=body, headers=headers)
        assert_error(answer, 413, "too_large")
