"""A causal language model as a policy: one distribution in act and evaluate, answers that end, folders that load to the same numbers."""

import json

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from policies.base import Policy
from policies.causal_lm import NO_TOKEN, CausalLM
from policies.checkpoints.fresh_lm import character_tokenizer, create_checkpoint
from policies.checkpoints.loading import CheckpointError
from policies.generation.base import Finished
from policies.generation.texts import Texts
from policies.parts import sampling
from tests.pure.tiny_lms import KINDS, tiny, uniforms

PROMPTS = ["1+2=?\n", "12+39=?\n", "7", "1+2=?\n"]
SETTINGS = {"max_tokens": 12, "prompt_length": 16, "slots": 3}


def policy_of(kind="llama", end=(), **settings):
    return CausalLM(tiny(kind), Texts(character_tokenizer(), end=end), **(SETTINGS | settings))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return create_checkpoint(tmp_path_factory.mktemp("lm"), seed=3, sizes={"hidden": 32, "layers": 2, "mlp": 48})


@pytest.fixture(scope="module")
def policy():
    return policy_of()


def acted(policy, noise=True):
    return policy.act({"prompt": PROMPTS}, uniforms(len(PROMPTS), policy.tokens) if noise else None)


@pytest.mark.parametrize("top_p", [1.0, 0.8])
@pytest.mark.parametrize("kind", KINDS)
def test_act_and_evaluate_give_the_same_logprobs_at_a_temperature(kind, top_p):
    policy = policy_of(kind, temperature=1.6, top_p=top_p)
    chunk = acted(policy)
    with torch.no_grad():
        stats = policy.evaluate(chunk.inputs, chunk.choices)
    torch.testing.assert_close(stats.logprobs, chunk.logprobs, atol=1e-5, rtol=0)


def test_it_is_a_policy(policy):
    assert isinstance(policy, Policy)


def test_nothing_outside_the_nucleus_is_sampled_and_what_is_in_it_adds_up_to_one():
    policy = policy_of(top_p=0.5)
    chunk = acted(policy)
    distribution = policy.evaluate(chunk.inputs, chunk.choices, distribution=True).distribution
    kept = distribution > float("-inf")
    torch.testing.assert_close(distribution.exp().sum(-1)[chunk.mask], torch.ones(int(chunk.mask.sum())))
    assert kept.sum(-1)[chunk.mask].max() < 98


def test_the_nucleus_is_the_fewest_likeliest_that_reach_the_share():
    # .5 + .3 >= .7: two are left, .5 / .8 and .3 / .8
    distribution = torch.tensor([0.15, 0.5, 0.05, 0.3]).log()
    torch.testing.assert_close(sampling.nucleus(distribution, 0.7).exp(), torch.tensor([0.0, 0.625, 0.0, 0.375]))


def test_a_choice_that_has_left_the_nucleus_has_a_probability_and_a_gradient():
    # .5 and .3 and the kept .05: .05 / .85
    logits = torch.tensor([0.15, 0.5, 0.05, 0.3]).log().requires_grad_()
    chosen = sampling.nucleus(torch.log_softmax(logits, -1), 0.7, torch.tensor(2))[2]
    chosen.backward()
    assert chosen.exp().item() == pytest.approx(0.05 / 0.85) and logits.grad[2].item() == pytest.approx(1 - 0.05 / 0.85)


def test_the_end_token_is_in_the_mask_and_nothing_behind_it_even_where_it_pads_too(policy):
    whole = acted(policy, noise=False)
    row = int(whole.mask.all(1).int().argmax())
    greedy = whole.choices[row].tolist()
    ended = acted(policy_of(end=[greedy[4]]), noise=False)
    count = greedy.index(greedy[4]) + 1
    assert ended.choices[row].tolist() == greedy[:count] + [NO_TOKEN] * (12 - count)
    assert ended.mask[row].tolist() == [True] * count + [False] * (12 - count)


def test_an_answer_that_is_cut_short_has_no_end_token(policy):
    chunk = acted(policy, noise=False)
    cut = chunk.mask.all(1)
    assert cut.any() and not (chunk.choices[cut] == 1).any()


def test_actions_are_the_texts_of_the_choices(policy):
    chunk = acted(policy)
    assert chunk.actions.shape == (4, 1, 1) and chunk.actions[:, 0, 0].tolist() == policy.decode(chunk.choices, chunk.mask)


def test_behind_the_end_logprobs_and_entropy_are_zero(policy):
    chunk = acted(policy)
    choices = chunk.choices.clone()
    choices[:, 5:] = NO_TOKEN
    stats = policy.evaluate(chunk.inputs, choices)
    assert not stats.logprobs[:, 5:].any() and not stats.entropy[:, 5:].any() and stats.logprobs.shape == (4, 12)


def test_a_rows_numbers_do_not_depend_on_the_prompts_and_answers_beside_it(policy):
    chunk = acted(policy)
    alone = policy.evaluate({name: part[2:3] for name, part in chunk.inputs.items()}, chunk.choices[2:3])
    torch.testing.assert_close(alone.logprobs, chunk.logprobs[2:3], atol=1e-5, rtol=0)


@pytest.mark.parametrize("level, shape", [("chunk", (4,)), ("action", (4, 1)), ("token", (4, 12))])
def test_values_are_the_same_in_act_and_evaluate(level, shape):
    policy = policy_of(value_head=True, value_level=level)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.value_head.parameters():
            parameter.normal_(0.0, 0.5, generator=generator)
    chunk = acted(policy)
    assert chunk.values.shape == shape
    torch.testing.assert_close(policy.evaluate(chunk.inputs, chunk.choices).values, chunk.values, atol=1e-5, rtol=0)


def test_the_value_of_a_token_sees_nothing_of_it_or_what_comes_after():
    policy = policy_of(value_head=True, value_level="token")
    with torch.no_grad():
        policy.value_head.fc2.weight.fill_(1.0)
        policy.value_head.fc1.weight.normal_(generator=torch.Generator().manual_seed(0))
    chunk = acted(policy)
    other = chunk.choices.clone()
    other[:, 3:] = 5
    before, after = (policy.evaluate(chunk.inputs, choices).values for choices in (chunk.choices, other))
    torch.testing.assert_close(after[:, :4], before[:, :4])
    assert not torch.allclose(after[:, 4], before[:, 4])


class Said:
    """A generator that says "11" to everything."""

    def __init__(self, *_):
        self.ids, self.given = [], []

    busy = property(lambda self: bool(self.ids))

    def load(self, weights):
        self.given += [name for name, _ in weights]

    def submit(self, id, *_):
        self.ids.append(id)

    def step(self):
        return [Finished(self.ids.pop(), [20, 20, 1], [-0.5, -0.25, -1.0], "eos")]


def test_another_engine_is_given_the_weights_and_its_answers_are_taken(monkeypatch):
    monkeypatch.setattr("policies.causal_lm.VLLM", Said)
    policy = policy_of(engine="vllm")
    chunk = acted(policy)
    assert policy.decode(chunk.choices, chunk.mask) == ["11"] * 4 and chunk.logprobs[:, :4].tolist() == [[-0.5, -0.25, -1.0, 0.0]] * 4
    assert "model.embed_tokens.weight" in policy._vllm.given


def test_an_encoded_answer_ends_and_decodes_to_itself(policy):
    choices = policy.encode(["2+9+0=11", "7"])
    assert choices[1].tolist() == [26, 1] + [NO_TOKEN] * 10  # <bos>, <eos>, newline, then characters from the space on: "7" is 3 + 23
    assert policy.decode(choices, choices != NO_TOKEN) == ["2+9+0=11", "7"]


def test_a_chat_template_words_the_prompt():
    tokenizer = character_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}{{ tail }}"
    texts = Texts(tokenizer, system="sum", template={"tail": "!"})
    assert texts.raw(texts.prompt("1+1")) == "[system]sum[user]1+1[assistant]!"


def test_a_checkpoint_is_a_function_of_its_seed(folder, tmp_path):
    again = create_checkpoint(tmp_path / "again", seed=3, sizes={"hidden": 32, "layers": 2, "mlp": 48})
    assert {file.name: file.read_bytes() for file in again.iterdir()} == {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_policy_loads_to_the_same_numbers(kind, tmp_path):
    policy = policy_of(kind, value_head=True)
    with torch.no_grad():
        policy.value_head.fc2.weight.fill_(0.5)
        policy.value_head.fc1.weight.fill_(0.1)
    policy.save_pretrained(tmp_path)
    chunk, found = acted(policy), acted(CausalLM.from_pretrained(tmp_path, value_head=True, **SETTINGS))
    assert torch.equal(found.choices, chunk.choices) and torch.equal(found.logprobs, chunk.logprobs) and torch.equal(found.values, chunk.values)


def test_a_saved_folder_is_transformers_own(folder, tmp_path):
    CausalLM.from_pretrained(folder, **SETTINGS).save_pretrained(tmp_path)
    ids = torch.tensor([[0, 20, 14, 21]])
    first, second = (AutoModelForCausalLM.from_pretrained(each)(ids).logits for each in (folder, tmp_path))
    assert torch.equal(first, second)


def adapted(folder):
    policy = CausalLM.from_pretrained(folder, lora={"rank": 4}, value_head=True, **SETTINGS)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.normal_(0.0, 0.2, generator=generator)
    return policy


def test_with_lora_adapters_and_the_value_head_are_trained_alone(folder):
    trained = {name for name, parameter in adapted(folder).named_parameters() if parameter.requires_grad}
    assert trained and all(".lora_" in name or name.startswith("value_head.") for name in trained)


def test_adapters_are_saved_without_their_base_and_load_to_the_same_numbers(folder, tmp_path):
    policy = adapted(folder)
    policy.save_pretrained(tmp_path)
    chunk, found = acted(policy), acted(CausalLM.from_pretrained(tmp_path, value_head=True, **SETTINGS))
    assert not list(tmp_path.glob("model*.safetensors"))
    assert torch.equal(found.logprobs, chunk.logprobs) and torch.equal(found.values, chunk.values)


def test_peft_reads_the_saved_adapters(folder, tmp_path):
    policy, ids = adapted(folder), torch.tensor([[0, 20, 14, 21]])
    policy.save_pretrained(tmp_path)
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), tmp_path / "lora_adapter")
    torch.testing.assert_close(theirs(ids).logits, policy.model(ids).logits, atol=1e-5, rtol=1e-5)


def test_adapters_do_not_replace_their_base(folder):
    with pytest.raises(CheckpointError, match="found the base of these adapters there"):
        adapted(folder).save_pretrained(folder)


def test_no_folder_is_an_error_that_says_what_is_wanted():
    with pytest.raises(CheckpointError, match="found no folder gone.*config.json, model.safetensors"):
        CausalLM.from_pretrained("gone")


def test_a_folder_without_weights_names_them(folder, tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(CheckpointError, match="missing model.safetensors; found config.json"):
        CausalLM.from_pretrained(tmp_path)


def copied(folder, path, **changes):
    for file in folder.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    (path / "config.json").write_text(json.dumps(json.loads((path / "config.json").read_text()) | changes))
    return path


def test_weights_of_another_model_are_named_tensor_by_tensor(folder, tmp_path):
    with pytest.raises(CheckpointError, match=r"(?s)missing model.layers.2.*misshapen model.layers.0.mlp.down_proj.weight: found \(32, 48\), wanted \(32, 64\)"):
        CausalLM.from_pretrained(copied(folder, tmp_path, num_hidden_layers=3, intermediate_size=64))


def test_a_model_that_transformers_does_not_have_is_refused(folder, tmp_path):
    with pytest.raises(CheckpointError, match="found no causal language model that transformers reads.*of_its_own"):
        CausalLM.from_pretrained(copied(folder, tmp_path, model_type="of_its_own"))


def test_a_folder_without_a_tokenizer_says_so(folder, tmp_path):
    copied(folder, tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match="found no tokenizer.json"):
        CausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("settings, message", [
    ({"temperature": 0.0}, "policy.temperature: found 0"),
    ({"top_p": 1.5}, "policy.top_p: found 1.5"),
    ({"max_tokens": 0}, "policy.max_tokens: found 0"),
    ({"max_tokens": 250}, "wanted at most 256 together"),
    ({"engine": "sglang"}, "policy.engine: found 'sglang', wanted one of slots, vllm"),
    ({"stop": [""]}, "policy.stop"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        policy_of(**settings)


def test_a_chat_without_a_template_is_refused():
    with pytest.raises(ValueError, match="found a tokenizer without a chat template"):
        Texts(character_tokenizer(), chat=True)


@pytest.mark.parametrize("observation, message", [
    ({"state": np.zeros((1, 3))}, r"observation 'prompt': found None \(among state\)"),
    ({"prompt": ["1" * 16]}, "longest of 17; set policy.prompt_length=17"),
])  # fmt: skip
def test_observations_without_a_fitting_prompt_are_refused(policy, observation, message):
    with pytest.raises(ValueError, match=message):
        policy.prepare(observation)


def test_an_answer_that_does_not_fit_is_refused(policy):
    with pytest.raises(ValueError, match="has 13 tokens with its end, wanted at most 12"):
        policy.encode(["1" * 12])


def test_a_prompt_that_is_too_long_is_dropped_and_gives_no_token():
    policy = policy_of(long_prompts="drop")
    chunk = policy.act({"prompt": ["1+2=?\n", "1" * 40]}, uniforms(2, policy.tokens))
    assert chunk.mask.any(1).tolist() == [True, False] and chunk.actions[1, 0, 0] == ""
    assert chunk.remarks.tolist() == [None, "prompt longer than 16 tokens: dropped"]
    stats = policy.evaluate(chunk.inputs, chunk.choices)
    stats.logprobs.sum().backward()
    assert all(parameter.grad is None or torch.isfinite(parameter.grad).all() for parameter in policy.parameters())


def test_a_prompt_that_is_too_long_is_cut_behind_its_head_and_learned_from_as_it_was_answered():
    policy = policy_of(long_prompts="left_cut")
    chunk = policy.act({"prompt": ["9" * 30 + "12+39=?\n"]}, uniforms(1, policy.tokens))
    assert policy.texts.raw(chunk.inputs["prompt_ids"][0].tolist()) == "<bos>" + "9" * 7 + "12+39=?\n"
    torch.testing.assert_close(policy.evaluate(chunk.inputs, chunk.choices).logprobs, chunk.logprobs, atol=1e-5, rtol=0)


def test_a_chats_header_stays_when_its_prompt_is_cut():
    tokenizer = character_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }};{% endfor %}>"
    policy = CausalLM(tiny("qwen3"), Texts(tokenizer, system="hi"), max_tokens=4, prompt_length=32, long_prompts="left_cut")
    ids = policy.prepare({"prompt": ["0123456789" * 4]})["prompt_ids"][0].tolist()
    assert policy.texts.raw(ids) == "[system]hi;[user]" + ("0123456789" * 4)[-13:] + ";>"


def test_what_answers_hold_while_they_are_generated(policy):
    """2 layers, keys and values, 2 heads of 8: 64 numbers a position; 16 + 12 positions and 98 logits, 3 slots, 4 bytes."""
    assert policy.cache_bytes == 3 * 4 * (64 * 28 + 98)


def test_the_longest_rows_are_computed_whole():
    policy = policy_of()
    inputs, choices = policy.longest(2)
    assert policy.evaluate(inputs, choices).logprobs.shape == (2, 12) and (policy.evaluate(inputs, choices).logprobs != 0).all()
