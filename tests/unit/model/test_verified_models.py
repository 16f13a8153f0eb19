"""Models that passed their probes are known to later processes, and to no others."""

import json

import pytest
import torch

from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.model import probe
from tokenlight.model.verified_models import fingerprint_model, remember_results

TEXT = "the film is not very charming"


@pytest.fixture
def cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    return tmp_path / "verified"


@pytest.fixture
def probe_calls(monkeypatch):
    """The rows that were probed, in order."""
    rows = []
    verify_short_row = probe._verify_short_row

    def count(runner, row, **options):
        rows.append(row)
        verify_short_row(runner, row, **options)

    monkeypatch.setattr(probe, "_verify_short_row", count)
    return rows


def explain(model, method="attcat"):
    return Explainer(model, tiny_tokenizer()).explain(TEXT, method)


def test_a_model_that_passed_is_not_probed_by_a_later_process(cache_folder, probe_calls):
    first = explain(tiny_bert())
    assert len(probe_calls) == 1
    # The same weights in another object: what a later process would load.
    second = explain(tiny_bert())
    assert len(probe_calls) == 1
    assert second.scores.tolist() == first.scores.tolist()
    (record,) = cache_folder.iterdir()
    assert json.loads(record.read_text())["verified_route"] == "hook"


@pytest.mark.usefixtures("cache_folder")
def test_attention_is_verified_once_it_is_read(probe_calls):
    explain(tiny_bert(), "grad_x_input")
    explain(tiny_bert(), "attcat")
    assert len(probe_calls) == 2
    explain(tiny_bert(), "attcat")
    assert len(probe_calls) == 2


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"is_padding_invariant": 1}', '"\\ud800"']
)
def test_a_damaged_record_is_ignored_and_written_again(cache_folder, probe_calls, content):
    explain(tiny_bert())
    (record,) = cache_folder.iterdir()
    valid = record.read_text()
    record.write_text(content)
    explain(tiny_bert())
    assert len(probe_calls) == 2
    assert record.read_text() == valid


@pytest.mark.usefixtures("cache_folder")
def test_a_changed_weight_is_another_model(probe_calls):
    explain(tiny_bert())
    model = tiny_bert()
    with torch.no_grad():
        model.classifier.bias[0] += 1
    explain(model)
    assert len(probe_calls) == 2


def test_a_changed_config_is_another_model():
    model = tiny_bert()
    before = fingerprint_model(Explainer(model, tiny_tokenizer()).runner)
    model.config.layer_norm_eps = 1.0
    assert fingerprint_model(Explainer(model, tiny_tokenizer()).runner) != before


class OwnLinear(torch.nn.Linear):
    pass


def test_models_with_third_party_code_are_never_recorded_as_verified():
    hooked = tiny_bert()
    hooked.bert.register_forward_hook(lambda *_: None)
    patched = tiny_bert()
    patched.classifier.forward = patched.classifier.forward
    replaced = tiny_bert()
    replaced.classifier = OwnLinear(
        replaced.classifier.in_features, replaced.classifier.out_features
    ).to(replaced.dtype)
    for model in (hooked, patched, replaced):
        assert fingerprint_model(Explainer(model, tiny_tokenizer()).runner) is None


def test_a_model_that_was_refused_is_refused_again(cache_folder):
    for _ in range(2):
        model = tiny_bert()
        with torch.no_grad():
            model.classifier.weight[0, 0] = torch.nan
        with pytest.raises(Exception, match="NaN"):
            explain(model)
    assert not cache_folder.exists()


def test_without_a_writable_folder_every_process_probes(monkeypatch, tmp_path, probe_calls):
    occupied = tmp_path / "file"
    occupied.write_text("not a folder")
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(occupied))
    explain(tiny_bert())
    explain(tiny_bert())
    assert len(probe_calls) == 2


def test_a_cache_that_is_off_reads_and_writes_nothing(monkeypatch, tmp_path, probe_calls):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TOKENLIGHT_CACHE", "off")
    explain(tiny_bert())
    explain(tiny_bert())
    assert len(probe_calls) == 2
    remember_results("0" * 64, probe.get_probe_results(tiny_bert()))
    assert not any(tmp_path.iterdir())
