"""Continuous batching: the tokens of every sample are its own, whatever runs beside it, and end where they should."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from policies.checkpoints.fresh_lm import character_tokenizer
from policies.generation.base import Stopping
from policies.generation.engine import Engine
from policies.generation.texts import Texts
from policies.generation.vllm import VLLM
from tests.pure.tiny_lms import KINDS, prompts, tiny, uniforms


@pytest.fixture(scope="module")
def llama():
    return tiny("llama")


def run(engine, asked):
    """{id: Finished} of (id, prompt, noise, max_tokens)."""
    for each in asked:
        engine.submit(*each)
    found = {}
    while engine.busy:
        found |= {finished.id: finished for finished in engine.step()}
    return found


def sampled(model, slots, asked, **settings):
    found = run(Engine(model, slots, Stopping((1,)), **settings), asked)
    return {id: each.tokens for id, each in found.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_those_of_generate(kind):
    model, asked = tiny(kind), prompts(5)
    found = run(Engine(model, 2, Stopping(())), [(i, prompt, None, 12 + i) for i, prompt in enumerate(asked)])
    for i, prompt in enumerate(asked):
        alone = model.generate(torch.tensor([prompt]), max_new_tokens=12 + i, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert found[i].tokens == alone[0, len(prompt) :].tolist()


@pytest.mark.parametrize("slots", [1, 3])
def test_what_is_sampled_does_not_depend_on_the_number_of_slots(llama, slots):
    noise = uniforms(9, 30)
    asked = [(i, prompt, noise[i], 5 + 3 * (i * 7 % 9)) for i, prompt in enumerate(prompts(9))]
    assert sampled(llama, slots, asked) == sampled(llama, 8, asked)


def test_rows_longer_than_the_first_store_keep_what_they_held(llama):
    noise = uniforms(3, 150)
    asked = [(i, prompt, noise[i], 150) for i, prompt in enumerate(prompts(3))]
    apart = {id: tokens for each in asked for id, tokens in sampled(llama, 1, [each]).items()}
    assert sampled(llama, 3, asked) == apart


def test_the_samples_of_a_group_are_those_of_prompts_computed_apart(llama):
    noise, prompt = uniforms(6, 10), prompts(4)[3]
    asked = [(i, prompt, noise[i], 10) for i in range(6)]
    apart = {id: tokens for each in asked for id, tokens in sampled(llama, 1, [each]).items()}
    assert sampled(llama, 4, asked) == apart


def test_a_prompt_is_computed_once_for_its_group(llama):
    widths = []
    hook = llama.register_forward_pre_hook(lambda _, positional: widths.append(positional[0].shape[1]))
    noise, (first, second) = uniforms(8, 4), prompts(6)[4:]
    sampled(llama, 3, [(i, first if i < 4 else second, noise[i], 4) for i in range(8)], prefill=1)
    hook.remove()
    assert [width for width in widths if width > 1] == [len(first), len(second)]


def test_a_function_of_the_step_gives_the_uniforms_that_an_array_gives(llama):
    noise, prompt = uniforms(1, 8)[0], prompts(3)[2]
    assert sampled(llama, 2, [("a", prompt, lambda step: noise[step], 8)]) == sampled(llama, 2, [("a", prompt, noise, 8)])


def test_greedy_and_drawn_samples_run_side_by_side(llama):
    noise, prompt = uniforms(1, 8)[0], prompts(3)[2]
    asked = [("greedy", prompt, None, 8), ("drawn", prompt, noise, 8)]
    assert sampled(llama, 2, asked) == sampled(llama, 1, asked[:1]) | sampled(llama, 1, asked[1:])


def test_samples_come_out_as_they_end(llama):
    engine = Engine(llama, 4, Stopping(()))
    for id, length in (("long", 5), ("short", 2), ("middle", 3)):
        engine.submit(id, [5, 6], None, length)
    order = []
    while engine.busy:
        order += [finished.id for finished in engine.step()]
    assert order == ["short", "middle", "long"]


def test_logprobs_are_of_the_distribution_at_the_temperature(llama):
    prompt, noise = prompts(3)[2], uniforms(1, 6)[0]
    found = run(Engine(llama, 2, Stopping(()), temperature=1.6), [("a", prompt, noise, 6)])["a"]
    with torch.no_grad():
        logits = llama(torch.tensor([prompt + found.tokens])).logits[0, len(prompt) - 1 : -1]
    wanted = torch.log_softmax(logits / 1.6, -1).gather(-1, torch.tensor(found.tokens)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(found.logprobs), wanted, atol=1e-5, rtol=0)


def test_with_a_small_nucleus_every_sample_is_the_greedy_one(llama):
    prompt, noise = prompts(3)[2], uniforms(4, 10)
    greedy = sampled(llama, 4, [(i, prompt, None, 10) for i in range(4)])
    assert sampled(llama, 4, [(i, prompt, noise[i], 10) for i in range(4)], top_p=1e-6) == greedy


def test_an_end_token_ends_the_answer_and_is_its_last(llama):
    prompt = prompts(3)[2]
    whole = run(Engine(llama, 1, Stopping(())), [("a", prompt, None, 12)])["a"].tokens
    found = run(Engine(llama, 1, Stopping((whole[4],))), [("a", prompt, None, 12)])["a"]
    assert (found.tokens, found.reason) == (whole[: whole.index(whole[4]) + 1], "eos")


def test_a_stop_string_ends_the_answer_with_the_token_that_completes_it(llama):
    texts, prompt = Texts(character_tokenizer()), prompts(3)[2]
    whole = run(Engine(llama, 1, Stopping(())), [("a", prompt, None, 12)])["a"].tokens
    string = texts.raw(whole[3:6])  # of three tokens
    found = run(Engine(llama, 1, Stopping((), [string], texts.raw)), [("a", prompt, None, 12)])["a"]
    assert (found.reason, texts.raw(found.tokens)) == ("stop", texts.raw(whole).split(string)[0] + string)


def test_a_stop_string_is_found_over_token_boundaries():
    words = {0: "the a", 1: "ns", 2: "wer", 3: " is"}
    stopping = Stopping((), ["answer"], lambda tokens: "".join(words[token] for token in tokens))
    assert [stopping.reason([0, 1, 2][:count], 9) for count in (1, 2, 3)] == [None, None, "stop"]


@pytest.mark.parametrize("prompt, noise, max_tokens, message", [
    ([], None, 4, "prompt of 0 tokens"),
    ([5] * 250, None, 7, "wanted at most 256 together"),
    ([5], [0.5] * 3, 4, "found 3 uniforms, wanted 4"),
])  # fmt: skip
def test_what_cannot_be_run_is_refused_by_name(llama, prompt, noise, max_tokens, message):
    with pytest.raises(ValueError, match=f"sample 'a'.*{message}"):
        Engine(llama, 1, Stopping(())).submit("a", prompt, noise, max_tokens)


def test_sliding_windows_are_refused(llama):
    windowed = SimpleNamespace(config=SimpleNamespace(layer_types=["full_attention", "sliding_attention"], model_type="windowed", _attn_implementation="sdpa"))
    with pytest.raises(ValueError, match="found windowed with full_attention, sliding_attention"):
        Engine(windowed, 1, Stopping(()))


class FakeLLM:
    """What vLLM's LLM is asked, noted; every answer is the prompt's tokens said again, then how `script` says it ends."""

    script = {}

    def __init__(self, **settings):
        self.settings, self.waiting, self.llm_engine, self.loaded, self.forgotten = settings, [], self, [], 0

    def add_request(self, name, prompt, parameters):
        self.waiting.append((name, prompt["prompt_token_ids"], parameters))

    def has_unfinished_requests(self):
        return bool(self.waiting)

    def step(self):
        name, tokens, self.last = self.waiting.pop(0)
        reason, stop = self.script[tokens[0]]
        logprobs = [{token: SimpleNamespace(logprob=-0.5 * token)} for token in tokens]
        answer = SimpleNamespace(token_ids=tokens, logprobs=logprobs, finish_reason=reason, stop_reason=stop)
        running = SimpleNamespace(request_id="other", finished=False, outputs=[])
        return [running, SimpleNamespace(request_id=name, finished=True, outputs=[answer])]

    def apply_model(self, function):
        return function(SimpleNamespace(load_weights=self.loaded.extend))

    def reset_prefix_cache(self):
        self.forgotten += 1


@pytest.fixture
def vllm(monkeypatch):
    module = ModuleType("vllm")
    module.LLM, module.SamplingParams = FakeLLM, lambda **settings: SimpleNamespace(**settings)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(FakeLLM, "script", {2: ("stop", None), 3: ("stop", "END"), 4: ("length", None), 5: ("abort", None)})
    return VLLM("folder", 8, Stopping((1,), ["END"], str), temperature=0.7, top_p=0.9)


def test_vllm_gives_tokens_logprobs_and_reasons(vllm):
    found = run(vllm, [(("row", first), [first, 7], [0.5], 9) for first in (2, 3, 4)])
    assert {id: (each.tokens, each.logprobs, each.reason) for id, each in found.items()} == {
        ("row", 2): ([2, 7], [-1.0, -3.5], "eos"), ("row", 3): ([3, 7], [-1.5, -3.5], "stop"), ("row", 4): ([4, 7], [-2.0, -3.5], "length"),
    }  # fmt: skip


def test_vllm_samples_as_asked_with_a_seed_of_the_samples_own(vllm):
    run(vllm, [("a", [2], [0.25, 0.5], 9)])
    asked = vllm._llm.last
    assert (asked.temperature, asked.top_p, asked.max_tokens, asked.seed, asked.stop, asked.stop_token_ids) == (0.7, 0.9, 9, 2**51, ["END"], [1])


def test_vllm_is_greedy_without_noise(vllm):
    run(vllm, [("a", [2], None, 9)])
    assert (vllm._llm.last.temperature, vllm._llm.last.seed) == (0.0, None)


def test_vllm_forgets_what_it_computed_with_other_weights(vllm):
    vllm.load([("a", torch.ones(1))])
    assert ([name for name, _ in vllm._llm.loaded], vllm._llm.forgotten) == (["a"], 1)


def test_a_sample_that_vllm_gives_up_is_an_error(vllm):
    with pytest.raises(RuntimeError, match="sample 'a': vLLM ended it as 'abort'"):
        run(vllm, [("a", [5], None, 9)])


def test_without_vllm_the_error_says_how_to_do_without(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match="policy.engine=slots"):
        VLLM("folder", 8, Stopping((1,)))
