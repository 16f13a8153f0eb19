"""Model folders from anywhere: damaged, contradictory, endless."""

from __future__ import annotations

import shutil

from tests.fuzz.bad_folders import make_bad_folders
from tests.fuzz.outcomes import count_outcomes
from tokenlight import Explainer


def test_a_bad_model_folder_is_explained_or_refused(bert_folder, tmp_path):
    folder = tmp_path / "model"

    def load(files):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(bert_folder, folder)
        for name, content in files.items():
            file = folder / name
            file.write_bytes(content) if isinstance(content, bytes) else file.write_text(content)
        Explainer.from_pretrained(folder).explain("good film , slow plot")

    inputs = make_bad_folders(bert_folder)
    assert len(inputs) >= 300
    outcomes = count_outcomes(
        {name: lambda files=files: load(files) for name, files in inputs.items()}
    )
    assert outcomes["right"] > 10
    assert outcomes["refused"] > 200
