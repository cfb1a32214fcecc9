"""What `train` saves opens in `transformers` and in `load_pretrained`, and computes the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from minitrain.apps.export import write_merged
from minitrain.data.tokenizer import Tokenizer
from minitrain.errors import InputError
from minitrain.finetuning.model import adapt
from minitrain.finetuning.peft_files import CONFIG, WEIGHTS, save_adapter
from minitrain.model.hub.load import load_pretrained, save_pretrained
from minitrain.model.transformer import build
from minitrain.reliability.checkpoint.folder import checkpoints, newest_checkpoint

from ..model.peers import SMALL as TINY
from ..model.peers import exact, random_tokens
from .command_line import minitrain
from .train.test_command import SMALL, train
from .train.test_command import folder as folder
from .train.test_command import text as text


@pytest.fixture
def common(text) -> list[str]:
    return [*SMALL, "--data", str(text), "--steps", "2", "--out", "run"]


def export(*words: str) -> str:
    result = minitrain("export", *map(str, words))
    if result.returncode:
        raise InputError(result.stderr.removeprefix("error: "))
    return result.stdout


def check_same_logits(folder: Path) -> None:
    """To 1e-10 in float64, where the peer's own roundings to float32 are taken out, and to 1e-5."""
    for dtype, error in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model, _ = load_pretrained(folder, dtype=dtype)
        peer = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        tokens = random_tokens(model.config, 2, 40)
        theirs = (exact(peer) if dtype == torch.float64 else peer)(tokens).logits
        torch.testing.assert_close(model(tokens), theirs, rtol=0, atol=error)


def check_same_text(folder: Path) -> None:
    ours = Tokenizer.load(folder / "tokenizer.json")
    theirs = AutoTokenizer.from_pretrained(folder)
    for line in ("17 quick foxes", "  jump,\n over Größe 🦊", ""):
        assert theirs(line)["input_ids"] == ours.encode(line)
        assert theirs.decode(ours.encode(line)) == line
    assert theirs.eos_token_id == theirs.bos_token_id == ours.end_token


def test_a_checkpoint_and_what_export_writes_are_folders_that_transformers_opens(common):
    train(*common)
    train("--out", "run", "--resume", "--steps", "3")
    said = export("run", "--out", "whole")
    assert "whole" in said and "step 3" in said and "AutoModelForCausalLM" in said
    names = {"config.json", "generation_config.json", "model.safetensors"}
    names |= {"tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in Path("whole").iterdir()} == names
    for place in (newest_checkpoint(Path("run")), Path("whole")):
        check_same_logits(place)
        check_same_text(place)
    peer = AutoModelForCausalLM.from_pretrained("whole")
    end = Tokenizer.load("whole/tokenizer.json").end_token
    assert peer.generation_config.eos_token_id == end
    assert peer.generate(torch.tensor([[end]]), max_new_tokens=5, do_sample=False).shape[1] > 1
    assert "step 2" in export("run", "--step", 2, "--out", "earlier")
    first, last = (load_pretrained(folder)[0] for folder in ("earlier", "whole"))
    assert not torch.equal(first.embed.weight, last.embed.weight)


def test_so_does_a_mixture_that_transformers_has(common):
    train(*common, "--preset", "1M-moe")
    checkpoint = newest_checkpoint(Path("run"))
    assert json.loads((checkpoint / "config.json").read_text())["model_type"] == "mixtral"
    check_same_logits(checkpoint)
    export("run", "--out", "out")
    check_same_logits(Path("out"))


def test_a_mixture_that_it_lacks_goes_on_but_is_not_exported(common):
    train(*common, "--preset", "1M-moe-shared")
    train("--out", "run", "--resume", "--steps", "3")
    assert not (newest_checkpoint(Path("run")) / "config.json").exists()
    with pytest.raises(InputError, match="has shared experts and biases in its router, and no"):
        export("run", "--out", "out")
    assert not Path("out").exists()


def test_what_cannot_be_exported_is_said_in_one_sentence(common):
    train(*common)
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("years of work")
    for words, answer in (
        (["nowhere", "--out", "out"], "SOURCE is 'nowhere'"),
        (["run", "--step", "7", "--out", "out"], "run keeps no checkpoint of step 7: it has 2"),
        (["run", "--out", "full"], "full is there already and is not empty"),
        (["run", "--out", "/proc/nope/out"], "give a folder that can be written"),
    ):
        with pytest.raises(InputError, match=answer) as error:
            export(*words)
        assert str(error.value).strip().count("\n") == 0
    (checkpoints(Path("run"))[0] / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="is damaged"):
        export("run", "--out", "out")


# --- merge ---


@pytest.fixture
def saved(tmp_path):
    save_pretrained(build(TINY), tmp_path / "base")
    save_adapter(adapt(build(TINY), "lora"), tmp_path / "adapter", base=str(tmp_path / "base"))
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
