"""The game shows what the model really says when tokens vanish."""

import numpy as np
import pytest
import torch

from tests.helpers.api_server import TEXT, assert_error

LONG = " ".join(["the film is not bad , but"] * 6)


def request_explanation(client, **payload):
    answer = client.post("/api/explain", json=payload)
    assert answer.status_code == 200, answer.text
    return answer.json()["attributions"]


def play_game(client, **payload):
    answer = client.post("/api/perturb", json=payload)
    assert answer.status_code == 200, answer.text
    return answer.json()


def compute_bare_output(served, row, hidden):
    """One forward of the bare model with these tokens masked and unattended: the slow twin."""
    ids = list(row["ids"])
    attention = list(row["attention"])
    for index in hidden:
        ids[index] = served.explainer.tokenizer.mask_token_id
        attention[index] = 0
    with torch.no_grad():
        return served.explainer.model(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.tensor([attention]),
            token_type_ids=torch.tensor([row["token_types"]]),
        )


@pytest.mark.parametrize("target", ["predicted", "negative"])
def test_every_point_of_a_game_equals_the_unmodified_models_output(client, models, target):
    entries = request_explanation(client, text=TEXT, method=["attcat", "gae"], target=target)
    answer = play_game(client, ids=[entry["id"] for entry in entries], random_orders=0)
    assert answer["labels"] == ["negative", "neutral", "positive"]
    for entry, game in zip(entries, answer["games"], strict=True):
        attribution = entry["attribution"]
        positions = [i for i, special in enumerate(attribution["row"]["special"]) if not special]
        scores = np.array(attribution["scores"])
        assert game["order"] == sorted(positions, key=lambda i: -scores[i])
        assert game["counts"] == list(range(len(positions) + 1))
        index = attribution["target"]["terms"][0][0][0]
        for point, count in enumerate(game["counts"]):
            for side, hidden in (
                ("hide", game["order"][:count]),
                ("reveal", game["order"][count:]),
            ):
                out = compute_bare_output(models.get_model("tiny"), attribution["row"], hidden)
                chances = out.logits[0].softmax(-1).numpy()
                np.testing.assert_allclose(game[side]["probabilities"][point], chances, atol=1e-9)
                assert game[side]["target_probability"][point] == pytest.approx(
                    chances[index], abs=1e-9
                )


def test_the_game_of_an_answer_watches_the_answer(client, models):
    (entry,) = request_explanation(client, question="who sat?", context="the cat sat on the mat.")
    game = play_game(client, ids=[entry["id"]], random_orders=2)["games"][0]
    row = entry["attribution"]["row"]
    target = entry["attribution"]["target"]
    (start, _), (end, _) = (index for index, _ in target["terms"])
    out = compute_bare_output(models.get_model("answers"), row, game["order"][:2])
    expected = out.start_logits[0].softmax(-1)[start] * out.end_logits[0].softmax(-1)[end]
    assert game["hide"]["target_probability"][2] == pytest.approx(float(expected), abs=1e-9)
    assert game["hide"]["probabilities"][2] == [game["hide"]["target_probability"][2]]


def test_the_random_band_is_the_same_for_every_method_and_begins_where_the_game_does(client):
    entries = request_explanation(client, text=TEXT, method=["attcat", "gae"], target="positive")
    games = play_game(client, ids=[e["id"] for e in entries], random_orders=6, seed=3)["games"]
    assert games[0]["random"] == games[1]["random"]
    band = games[0]["random"]
    assert band["orders"] == 6
    for side in ("hide", "reveal"):
        low, high = (np.array(band[side][part]) for part in ("low", "high"))
        assert (low <= high + 1e-12).all()
        assert (low[1:-1] < high[1:-1]).any()
        # Nothing hidden, or everything: there is no order any more.
        for end in (0, -1):
            assert low[end] == pytest.approx(high[end], abs=1e-9)
            assert low[end] == pytest.approx(games[0][side]["target_probability"][end], abs=1e-9)
    other = play_game(client, ids=[entries[0]["id"]], random_orders=6, seed=4)["games"][0]["random"]
    assert other["hide"]["mean"] != band["hide"]["mean"]


def test_a_played_game_is_not_recomputed(client, monkeypatch):
    from tokenlight.web import games

    (entry,) = request_explanation(client, text="good film, bad plot")
    first = play_game(client, ids=[entry["id"]], random_orders=4)

    def raise_if_called(*_, **__):
        raise AssertionError("the model was asked again")

    monkeypatch.setattr(games, "stream_logits", raise_if_called)
    assert play_game(client, ids=[entry["id"]], random_orders=4) == first


def test_a_game_follows_the_users_order(client, models):
    payload = {"text": TEXT, "order": [4, 1], "random_orders": 0, "target": "neutral"}
    game = play_game(client, **payload)["games"][0]
    assert (game["id"], game["counts"], game["target"]) == (None, [0, 1, 2], "neutral")
    (entry,) = request_explanation(client, text=TEXT, target="neutral")
    row = entry["attribution"]["row"]
    hidden = compute_bare_output(models.get_model("tiny"), row, [4, 1]).logits[0].softmax(-1)[1]
    assert game["hide"]["target_probability"][2] == pytest.approx(float(hidden), abs=1e-9)
    others = [i for i, special in enumerate(row["special"]) if not special and i != 4]
    revealed = compute_bare_output(models.get_model("tiny"), row, others).logits[0].softmax(-1)[1]
    assert game["reveal"]["target_probability"][1] == pytest.approx(float(revealed), abs=1e-9)
    for order in ([0], [1, 1], [99]):
        answer = client.post("/api/perturb", json={"text": TEXT, "order": order})
        assert "each once" in assert_error(answer, 422, "bad_input")["message"]


def test_a_long_text_has_fewer_points_and_both_ends(client, monkeypatch):
    from tokenlight.web import games

    monkeypatch.setattr(games, "MAX_CURVE_TOKENS", 600)
    (entry,) = request_explanation(client, text=LONG)
    game = play_game(client, ids=[entry["id"]], random_orders=0)["games"][0]
    assert 11 <= len(game["counts"]) <= 15
    assert (game["counts"][0], game["counts"][-1]) == (0, len(game["order"]))
    assert len(game["hide"]["target_probability"]) == len(game["counts"])


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"ids": []},
        {"ids": ["aaaaaaaa"], "order": [1], "text": "a"},
        {"ids": ["aaaaaaaa"], "text": "a"},
        {"text": "a"},
        {"order": [1]},
    ],
)
def test_a_game_needs_ids_or_a_text_with_an_order(client, payload):
    assert_error(client.post("/api/perturb", json=payload), 422, "invalid")
