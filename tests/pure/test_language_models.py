"""Every kind of causal language model that is supported, at toy width: embeddings tied or not, adapters, scaled rotation, windows, end tokens that pad too, and the files of a folder."""

import shutil

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, MambaConfig, MambaForCausalLM, MistralConfig, MistralForCausalLM

from embodied.runs import start
from policies.causal_lm import CausalLM
from policies.checkpoints import loading, lora
from policies.checkpoints.fresh_lm import character_tokenizer
from policies.checkpoints.loading import CheckpointError
from policies.generation.base import Stopping
from policies.generation.engine import Engine
from policies.generation.texts import Texts
from tests.pure.tiny_lms import KINDS, SIZES, tiny, uniforms

PROMPTS = ["1+2=?\n", "12+39=?\n", "7"]
SETTINGS = {"max_tokens": 12, "prompt_length": 16, "slots": 2}
TEXT = sum(SETTINGS[name] for name in ("max_tokens", "prompt_length"))
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
IDS = torch.tensor([[0, 20, 14, 21, 33, 40]])


def written(folder, model):
    model.save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


def opened(folder, **settings):
    return CausalLM.from_pretrained(folder, **(SETTINGS | settings))


def acted(policy):
    return policy.act({"prompt": PROMPTS}, uniforms(len(PROMPTS), policy.tokens))


def adapted(folder, **settings):
    """Adapters of rank 4 that do something, on the folder's weights."""
    policy = opened(folder, lora={"rank": 4}, **settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.normal_(0.0, 0.1, generator=generator)
    return policy


def agrees(policy):
    """Whether training sees the probabilities that sampling had."""
    chunk = acted(policy)
    with torch.no_grad():
        torch.testing.assert_close(policy.evaluate(chunk.inputs, chunk.choices).logprobs, chunk.logprobs, atol=1e-5, rtol=0)


@pytest.fixture(scope="module", params=[(kind, tied) for kind in KINDS for tied in (True, False)], ids=lambda case: f"{case[0]}-{'tied' if case[1] else 'untied'}")
def folder(request, tmp_path_factory):
    kind, tied = request.param
    return written(tmp_path_factory.mktemp(kind), tiny(kind, tie_word_embeddings=tied))


def test_sampling_and_training_have_one_distribution(folder):
    agrees(opened(folder))


def test_a_folder_is_written_to_the_same_numbers(folder, tmp_path):
    policy = opened(folder)
    policy.save_pretrained(tmp_path)
    chunk, again = acted(policy), acted(opened(tmp_path))
    assert torch.equal(chunk.choices, again.choices) and torch.equal(chunk.logprobs, again.logprobs)


def test_tied_embeddings_are_written_once(folder, tmp_path):
    policy = opened(folder)
    policy.save_pretrained(tmp_path)
    assert ("lm_head.weight" in loading.shapes_of(tmp_path / "model.safetensors")) != policy.model.config.tie_word_embeddings


def test_with_adapters_too_sampling_and_training_have_one_distribution(folder):
    agrees(adapted(folder))


def test_adapters_are_written_to_the_same_numbers(folder, tmp_path):
    policy = adapted(folder)
    policy.save_pretrained(tmp_path)
    chunk, again = acted(policy), acted(opened(tmp_path))
    assert torch.equal(chunk.choices, again.choices) and torch.equal(chunk.logprobs, again.logprobs)


def test_adapters_go_onto_attention_and_dense_layers_and_no_expert(folder):
    policy = adapted(folder)
    names = {name.split(".")[-1] for name, part in policy.named_modules() if isinstance(part, lora.LoraLayer)}
    attention = {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert names == (attention if policy.model.config.model_type == "qwen3_moe" else attention | {"gate_proj", "up_proj", "down_proj"})


def test_merged_adapters_give_the_logits_that_peft_gives(folder, tmp_path):
    policy = adapted(folder)
    policy.save_pretrained(tmp_path)
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), tmp_path / "lora_adapter")
    lora.merge(policy)
    torch.testing.assert_close(policy.model(IDS).logits, theirs(IDS).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_rotation_scaled_as_llama_3_has_it(kind, tmp_path):
    scaled = opened(written(tmp_path, tiny(kind, rope_parameters=LLAMA3)))
    agrees(scaled)
    assert not torch.allclose(scaled.model(IDS).logits, tiny(kind)(IDS).logits, atol=1e-3)


def windowed(kind, width):
    if kind == "mistral":  # its config names no kinds of layers
        return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=width)).eval()
    return tiny(kind, use_sliding_window=True, sliding_window=width, max_window_layers=1)


WINDOWED = ["qwen2", "qwen3", "qwen3_moe", "mistral"]


@pytest.mark.parametrize("kind", WINDOWED)
def test_a_window_shorter_than_a_text_is_refused_when_the_model_is_loaded(kind, tmp_path):
    with pytest.raises(CheckpointError, match=f"sliding window of {TEXT - 1} positions .*wanted at least {TEXT}"):
        opened(written(tmp_path, windowed(kind, TEXT - 1)))


@pytest.mark.parametrize("kind", WINDOWED)
def test_a_window_that_no_text_reaches_the_end_of_changes_nothing(kind, tmp_path):
    agrees(opened(written(tmp_path, windowed(kind, TEXT))))


def test_samples_longer_than_a_window_are_refused():
    with pytest.raises(ValueError, match="sliding window of 8 positions .*wanted at least 9"):
        Engine(windowed("qwen2", 8), 1, Stopping(())).submit("a", [3] * 5, None, 4)


def test_a_window_that_the_config_turns_off_is_none(tmp_path):
    agrees(opened(written(tmp_path, tiny("qwen2", use_sliding_window=False, sliding_window=4))))


def test_a_model_that_looks_back_in_another_way_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="found mamba with linear_attention, wanted full_attention in every layer"):
        opened(written(tmp_path, MambaForCausalLM(MambaConfig(vocab_size=98, hidden_size=16, num_hidden_layers=1, state_size=4, time_step_rank=2))))


def test_quantised_weights_are_refused(tmp_path):
    model = tiny("llama")
    model.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    model.config.save_pretrained(tmp_path)
    loading.write_tensors(tmp_path / "model.safetensors", dict(model.named_parameters()))
    with pytest.raises(CheckpointError, match="found quantised weights"):
        opened(tmp_path)


def test_an_end_token_that_pads_too_counts_where_it_stands_in_a_prompt():
    policy = CausalLM(tiny("llama"), Texts(character_tokenizer()), **SETTINGS)
    inputs = policy.prepare({"prompt": ["a<eos>b"]})
    assert policy.texts.tokenizer.pad_token_id == policy.texts.end[0] == 1
    assert inputs["prompt_ids"][0, -4:].tolist()[2] == 1 and inputs["prompt_mask"][0].tolist() == [False] * 12 + [True] * 4


def test_an_answer_that_is_taught_ends_in_an_end_token_that_counts_and_one_that_is_cut_does_not():
    policy = CausalLM(tiny("llama"), Texts(character_tokenizer()), **SETTINGS | {"max_tokens": 3})
    taught = policy.encode(["ab"])[0]
    assert (taught[2], len(taught)) == (1, 3)  # a, b, <eos>: all three are learned
    cut = CausalLM(tiny("llama"), Texts(character_tokenizer()), **SETTINGS | {"max_tokens": 2}).act({"prompt": ["a"]}, uniforms(1, 2))
    assert cut.mask.all() and 1 not in cut.choices.tolist()[0]


@pytest.fixture
def chatting(tmp_path):
    policy = CausalLM(tiny("qwen3"), Texts(character_tokenizer()), **SETTINGS)
    policy.texts.tokenizer.chat_template = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}{% if enable_thinking is defined and not enable_thinking %}!{% endif %}"
    policy.save_pretrained(tmp_path / "chatting")
    return tmp_path / "chatting"


def test_a_chat_template_is_written_with_the_folder_and_takes_what_the_config_gives_it(chatting):
    texts = opened(chatting, template={"enable_thinking": False}).texts
    assert texts.raw(texts.prompt("2+3")) == "[2+3]!"


def test_a_chat_template_does_not_stay_behind_for_the_next_policy(chatting):
    CausalLM(tiny("qwen3"), Texts(character_tokenizer()), **SETTINGS).save_pretrained(chatting)
    assert not opened(chatting).texts.chat


def test_a_value_head_does_not_stay_behind_for_the_next_policy(tmp_path):
    for has in (True, False):
        CausalLM(tiny("llama"), Texts(character_tokenizer()), value_head=has, **SETTINGS).save_pretrained(tmp_path)
        assert (tmp_path / "value_head.safetensors").is_file() == has


@pytest.mark.parametrize("file, change", [
    ("value_head.safetensors", lambda policy: policy.value_head.fc1.bias.data.add_(1.0)),
    ("generation_config.json", lambda policy: setattr(policy.model.generation_config, "eos_token_id", [1, 5])),
    ("chat_template.jinja", lambda policy: setattr(policy.texts.tokenizer, "chat_template", "{{ messages[0]['content'] }}!")),
])  # fmt: skip
def test_a_run_notices_when_a_part_of_its_start_is_another(file, change, tmp_path):
    policy = CausalLM(tiny("llama"), Texts(character_tokenizer()), value_head=True, **SETTINGS)
    policy.texts.tokenizer.chat_template = "{{ messages[0]['content'] }}"
    policy.save_pretrained(tmp_path / "start")
    start.keep(tmp_path, tmp_path / "start")
    change(policy)
    policy.save_pretrained(tmp_path / "start")
    with pytest.raises(start.OtherStart, match=f"began from: {file};"):
        start.keep(tmp_path, tmp_path / "start")


def test_published_adapters_of_a_head_that_is_the_embedding_too_are_refused(tmp_path):
    base = written(tmp_path / "base", tiny("llama", tie_word_embeddings=True))
    policy = adapted(base)
    policy.model.lora_folded = {f"base_model.model.lm_head.lora_{side}.weight": torch.ones(shape) for side, shape in (("A", (4, 32)), ("B", (98, 4)))}
    policy.save_pretrained(tmp_path / "adapters")
    with pytest.raises(CheckpointError, match="lm_head: its weight is the embedding's too"):
        opened(tmp_path / "adapters")


def test_memory_is_asked_of_the_base_that_adapters_lie_on(tmp_path):
    base = written(tmp_path / "base", tiny("llama"))
    adapted(base).save_pretrained(tmp_path / "adapters")
    assert loading.home_of(tmp_path / "adapters") == base.absolute()
    shutil.copytree(base, tmp_path / "moved")
    assert loading.home_of(tmp_path / "adapters", tmp_path / "moved") == tmp_path / "moved"
