"""Runs of a causal language model: adapters that are exported, a start that is a run, and a value head that is resumed bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from embodied import export, train
from embodied.config import compose
from embodied.runs import checkpoint
from embodied.wiring import build, room
from policies.causal_lm import CausalLM
from policies.checkpoints.fresh_lm import create_checkpoint
from tests.end_to_end.runs import assert_equal_to_the_bit, trained

LENGTHS = {"prompt_length": 16, "max_tokens": 6}
MATH = ["env=math", "env.digits=1", "policy=causal_lm", *(f"policy.{name}={value}" for name, value in LENGTHS.items()), "evaluation.before=false", "evaluation.after=false",
        "checkpoints.every=1", "checkpoints.keep=9", "algorithm.learner.warmup_updates=0", "sim.slots=4", "groups=4", "scheduler.learn_threads=1"]  # fmt: skip
IDS = torch.tensor([[0, 20, 14, 21]])


def newest(output: Path) -> Path:
    return max((path.parent for path in output.glob("*/*/run.json")), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_checkpoint(tmp_path_factory.mktemp("start"), sizes={"hidden": 32, "layers": 2, "mlp": 48})


@pytest.fixture(scope="module")
def adapted(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned two answers by adapters."""
    place = tmp_path_factory.mktemp("adapted")
    (place / "taught.jsonl").write_text('{"prompt": "1+2=?", "answer": "3"}\n{"prompt": "2+2=?", "answer": "4"}\n')
    train.train([*MATH, f"policy.checkpoint={start}", "policy.lora.rank=4", "algorithm=bc", f"data={place / 'taught.jsonl'}", "iterations=2", "algorithm.learner.lr=0.01", f"output={place}"])
    return newest(place)


def test_exported_adapters_load_in_transformers_to_the_logits_that_they_gave(adapted: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert export.main([f"checkpoint={adapted}", f"out={tmp_path / 'plain'}"]) == 0
    assert f"added the adapters of rank 4 to {start}" in capsys.readouterr().out
    plain, with_adapters = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")(IDS).logits, CausalLM.from_pretrained(adapted / "checkpoints" / "step_2" / "policy", **LENGTHS).model(IDS).logits
    torch.testing.assert_close(plain, with_adapters, atol=1e-3, rtol=0)
    assert (plain - AutoModelForCausalLM.from_pretrained(start)(IDS).logits).abs().max() > 0.01


def test_a_folder_of_adapters_is_exported_too_where_its_policy_is_named(adapted: Path, tmp_path: Path) -> None:
    CausalLM.from_pretrained(adapted / "checkpoints" / "step_2" / "policy", **LENGTHS).save_pretrained(tmp_path / "adapters")
    assert export.main([f"checkpoint={tmp_path / 'adapters'}", f"out={tmp_path / 'plain'}", "policy=causal_lm", "dtype=bfloat16"]) == 0
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "plain").dtype == torch.bfloat16


def test_a_run_that_is_a_start_is_asked_for_its_memory_before_it_is_read(adapted: Path, start: Path) -> None:
    config = compose([*MATH, f"policy.checkpoint={adapted}"])
    policy, weights = adapted / "checkpoints" / "step_2" / "policy", (start / "model.safetensors").stat().st_size
    assert build.start_of(config) == policy
    room.check_unread(config, None, {room.HOST: weights})
    with pytest.raises(room.MemoryRefused, match=f"{policy}: this will not fit"):
        room.check_unread(config, None, {room.HOST: weights // 2})


def test_a_step_that_is_not_whole_is_no_start(adapted: Path, tmp_path: Path) -> None:
    (tmp_path / "step_1" / "policy").mkdir(parents=True)
    with pytest.raises(checkpoint.DamagedCheckpoint, match="no complete.json"):
        build.start_of(compose([*MATH, f"policy.checkpoint={tmp_path / 'step_1'}"]))


def test_a_value_head_is_trained_saved_and_resumed_to_the_bit(start: Path, tmp_path: Path) -> None:
    policy = CausalLM.from_pretrained(start, value_head=True, value_level="token", **LENGTHS)
    policy.value_head.fc2.bias.data.fill_(0.5)  # judges what is worth nothing, so there is something to learn
    policy.save_pretrained(tmp_path / "judging")
    arguments = [*MATH, f"policy.checkpoint={tmp_path / 'judging'}", "algorithm=ppo"]
    train.train([*arguments, "iterations=2", f"output={tmp_path / 'whole'}"])
    train.train([*arguments, "iterations=1", f"output={tmp_path / 'cut'}"])
    whole, cut = newest(tmp_path / "whole"), newest(tmp_path / "cut")
    train.train([f"resume={cut}", "iterations=2"])
    assert_equal_to_the_bit(trained(whole, 2), trained(cut, 2))
    heads = [load_file(folder / "value_head.safetensors") for folder in (tmp_path / "judging", cut / "checkpoints" / "step_2" / "policy")]
    assert not torch.equal(heads[0]["fc2.bias"], heads[1]["fc2.bias"])
