"""Models that are served: by name, and without the path of their folder."""

from tests.helpers.api_server import TEXT, connect_client
from tokenlight.web.models import load_models


def test_a_folder_is_served_by_its_last_name_and_its_path_is_hidden(bert_folder):
    models = load_models([str(bert_folder)])
    with connect_client(models) as client:
        assert client.get("/api/models").json()["models"][0]["name"] == "tiny-bert"
        answers = [
            client.get("/api/models").text,
            client.post("/api/explain", json={"text": TEXT}).text,
            # It looks for a language model beside the classifier, in the folder.
            client.post("/api/explain", json={"text": TEXT, "method": "decoded_gradcam"}).text,
        ]
    assert "language model" in answers[-1]
    for answer in answers:
        assert str(bert_folder.parent) not in answer
        assert "/tmp" not in answer
