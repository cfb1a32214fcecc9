from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from minitrain.apps.merge import write_merged
from minitrain.errors import InputError
from minitrain.finetuning.model import adapt
from minitrain.finetuning.peft_files import CONFIG, WEIGHTS, save_adapter
from minitrain.model.hub.load import save_pretrained
from minitrain.model.transformer import build

from ..model.peers import SMALL


@pytest.fixture
def saved(tmp_path):
    save_pretrained(build(SMALL), tmp_path / "base")
    save_adapter(adapt(build(SMALL), "lora"), tmp_path / "adapter", base=str(tmp_path / "base"))
    return tmp_path / "adapter"


def test_a_trained_head_is_refused_as_it_is_called_in_the_file(saved, tmp_path):
    name = "base_model.model.lm_head.weight"
    tensors = load_file(saved / WEIGHTS)
    save_file(tensors | {name: torch.ones(61, 32)}, saved / WEIGHTS)
    with pytest.raises(InputError, match=f"holds {name}, which is another than the model's own"):
        write_merged(saved, tmp_path / "out", None)
    assert not (tmp_path / "out").exists()


def test_a_revision_of_the_base_on_the_hub_is_not_passed_over(saved, tmp_path):
    raw = json.loads((saved / CONFIG).read_text())
    changed = raw | {"base_model_name_or_path": "some/model", "revision": "step-1000"}
    (saved / CONFIG).write_text(json.dumps(changed))
    with pytest.raises(InputError, match="on revision 'step-1000' of some/model: download that"):
        write_merged(saved, tmp_path / "out", None)
    assert "parameters" in write_merged(saved, tmp_path / "out", str(tmp_path / "base"))
    (saved / CONFIG).write_text(json.dumps(raw | {"revision": "step-1000"}))
    write_merged(saved, tmp_path / "again", None)  # a folder is what it is
